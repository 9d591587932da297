; Specification of ldexp (D-1..D-4): a code of $name times 2^(scale - 127), as fp32 bits.
;
; What stands after a dollar sign is a number of mxmodel.formats, or the policy's choice.

; --- the policy
(define-fun scale-255-is-nan () Bool ${scale_255_is_nan})

; --- D-1, D-2: exact as a Double, so that only fp32's own overflow rounds; 896 is 1023 - 127
(define-fun product ((code Code) (scale Byte)) Double
  (fp.mul RNE (value-of code) (power-of-two (bvadd (_ bv896 11) ((_ zero_extend 3) scale)))))
(define-fun in-fp32 ((code Code) (scale Byte)) Single ((_ to_fp 8 24) RNE (product code scale)))

; --- D-3, D-4: NaN has one pattern, without a sign
(define-fun is-undefined ((code Code) (scale Byte)) Bool (or (is-nan code) (and scale-255-is-nan (= scale #xff))))

; --- all of it: whether ldexp(code, scale) has these fp32 bits
(define-fun specified ((code Code) (scale Byte) (bits (_ BitVec 32))) Bool
  (ite (is-undefined code scale) (= bits #x${quiet_nan})
    (= ((_ to_fp 8 24) bits) (in-fp32 code scale))))
