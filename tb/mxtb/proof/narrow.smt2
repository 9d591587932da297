; Specification of narrow (N-1..N-6): a $source value x, where there is a scale divided by it, to a code of $name.
;
; What stands after a dollar sign is a number of mxmodel.formats, or the policy's choice. The rounding is IEEE
; arithmetic's own.

(define-sort Word () (_ BitVec ${source_width}))

; --- the policy
(define-fun scaled () Bool ${scaled})
(define-fun by-fp32-product () Bool ${by_fp32_product})
(define-fun scale-255-is-nan () Bool ${scale_255_is_nan})
(define-fun nan-propagates () Bool ${nan_propagates})

; --- the source (F-3): every value is a Double and, but for the kind of a NaN, a Single
(define-fun source-sign ((x Word)) (_ BitVec 1)
  ((_ extract ${source_sign_place} ${source_sign_place}) x))
(define-fun source-value ((x Word)) Double
  ((_ to_fp 11 53) RNE ((_ to_fp ${source_exponent_bits} ${source_significand_bits}) x)))
(define-fun source-is-nan ((x Word)) Bool (fp.isNaN (source-value x)))

; --- N-1: the nearest value of the grid, ties to even, the sign of zero kept; the grid goes on past max-normal
(define-fun nearest ((q Double)) Double
  (ite (fp.lt (fp.abs q) (power-of-two (_ bv${top_of_ieee} 11)))
    ((_ to_fp 11 53) RNE ((_ to_fp ${exponent_bits} ${significand_bits}) RNE q))
    ((_ to_fp 11 53) RNE ((_ to_fp ${wider_exponent_bits} ${significand_bits}) RNE q))))

; --- N-2, N-3: what rounds past max-normal, and Inf, is max-normal
(define-fun max-normal () Double (value-of (_ bv${max_normal_code} ${width})))
(define-fun saturated ((q Double)) Double
  (ite (fp.gt (nearest q) max-normal) max-normal
  (ite (fp.lt (nearest q) (fp.neg max-normal)) (fp.neg max-normal)
    (nearest q))))
(define-fun narrows-number ((q Double) (code Code)) Bool (= (value-of code) (saturated q)))

; --- N-3, N-4: NaN is the element's NaN or zero, of the same sign
(define-fun nan-magnitude () (_ BitVec ${magnitude_width})
  (ite nan-propagates (_ bv${nan_code} ${magnitude_width}) (_ bv0 ${magnitude_width})))
(define-fun narrows-nan ((sign (_ BitVec 1)) (code Code)) Bool (= code (concat sign nan-magnitude)))

; --- N-5: the exact quotient x 2^(127 - scale); 1150 is 1023 + 127
(define-fun quotient ((x Word) (scale Byte)) Double
  (ite scaled
    (fp.mul RNE (source-value x) (power-of-two (bvsub (_ bv1150 11) ((_ zero_extend 3) scale))))
    (source-value x)))

; --- N-5: the fp32 product with the constant whose bits are (254 - scale) << 23; an invalid one is a NaN of sign 1
(define-fun factor ((scale Byte)) Single
  ((_ to_fp 8 24) (bvshl (bvsub (_ bv254 32) ((_ zero_extend 24) scale)) (_ bv23 32))))
(define-fun product ((x Word) (scale Byte)) Single (fp.mul RNE ((_ to_fp 8 24) RNE (source-value x)) (factor scale)))
(define-fun narrows-product ((x Word) (scale Byte) (code Code)) Bool
  (ite (source-is-nan x) (narrows-nan (source-sign x) code)
  (ite (fp.isNaN (product x scale)) (narrows-nan #b1 code)
    (narrows-number ((_ to_fp 11 53) RNE (product x scale)) code))))

; --- all of it: whether narrow(x, scale) is code. Without a scale, any byte stands for it.
(define-fun specified ((x Word) (scale Byte) (code Code)) Bool
  (ite (and scale-255-is-nan (= scale #xff)) (= code (_ bv0 ${width})) ; N-6
  (ite by-fp32-product (narrows-product x scale code)
  (ite (source-is-nan x) (narrows-nan (source-sign x) code)
    (narrows-number (quotient x scale) code)))))
