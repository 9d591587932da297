; Specification of an element (F-1): what a code of $name stands for.
;
; SMT-LIB 2.6, theories FixedSizeBitVectors and FloatingPoint. What stands after a dollar sign is a number of
; mxmodel.formats. IEEE arithmetic on as many exponent and significand bits has the element's bias, and its values in
; all binades but the topmost, which IEEE keeps for Inf and NaN. One exponent bit more has that binade too.

(define-sort Byte () (_ BitVec 8))
(define-sort Code () (_ BitVec ${width}))
(define-sort Single () (_ FloatingPoint 8 24))
(define-sort Double () (_ FloatingPoint 11 53))

(define-fun sign-of ((code Code)) (_ BitVec 1) ((_ extract ${sign_place} ${sign_place}) code))
(define-fun magnitude-of ((code Code)) (_ BitVec ${magnitude_width}) ((_ extract ${magnitude_top} 0) code))
(define-fun field-of ((code Code)) (_ BitVec ${exponent_bits}) ((_ extract ${magnitude_top} ${trailing_bits}) code))
(define-fun trailing-of ((code Code)) (_ BitVec ${trailing_bits}) ((_ extract ${trailing_top} 0) code))

(define-fun has-nan () Bool ${has_nan})
(define-fun has-infinity () Bool ${has_infinity})
(define-fun is-nan ((code Code)) Bool
  (and has-nan (bvuge (magnitude-of code) (_ bv${first_nan} ${magnitude_width}))))
(define-fun is-infinity ((code Code)) Bool
  (and has-infinity (= (magnitude-of code) (_ bv${infinity_code} ${magnitude_width}))))

; 2^(exponent - 1023), for an exponent in 1..2046.
(define-fun power-of-two ((exponent (_ BitVec 11))) Double (fp #b0 exponent (_ bv0 52)))

; The value, exact: every element is a Double.
(define-fun value-of ((code Code)) Double
  (ite (is-nan code) (_ NaN 11 53)
  (ite (is-infinity code) (ite (= (sign-of code) #b1) (_ -oo 11 53) (_ +oo 11 53))
  (ite (= (field-of code) (bvnot (_ bv0 ${exponent_bits})))
    (fp (sign-of code) (_ bv${top_field} 11) (concat (trailing-of code) (_ bv0 ${trailing_fill})))
    ((_ to_fp 11 53) RNE ((_ to_fp ${exponent_bits} ${significand_bits}) code))))))
