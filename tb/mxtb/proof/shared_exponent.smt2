; Specification of shared_exponent (E-1..E-6): $lanes $source values to one E8M0 byte. Bit-vectors alone.
;
; What stands after a dollar sign is a number of mxmodel.formats, or the policy's choice.

(define-sort Byte () (_ BitVec 8))
(define-sort Word () (_ BitVec ${source_width}))
(define-sort Block () (_ BitVec ${block_width}))

; --- E-1, F-3: the exponent field of the value as fp32: no log, sign and significand ignored
(define-fun field-of ((x Word)) (_ BitVec ${source_exponent_bits})
  ((_ extract ${source_exponent_top} ${source_trailing_bits}) x))
(define-fun subnormal-exponent ((x Word)) Byte ${subnormal_exponent})
(define-fun exponent-of ((x Word)) Byte
  (ite (= (field-of x) (bvnot (_ bv0 ${source_exponent_bits}))) #xff
  (ite (= (field-of x) (_ bv0 ${source_exponent_bits})) (subnormal-exponent x)
    (bvadd ((_ zero_extend ${source_exponent_fill}) (field-of x)) (_ bv${bias_difference} 8)))))

(define-fun larger ((a Byte) (b Byte)) Byte (ite (bvuge a b) a b))
(define-fun largest-of ((block Block)) Byte
  ${largest})

; --- E-3: what the rule set takes off, with a sign
(define-fun less-amount ((largest Byte)) (_ BitVec 9) (bvsub ((_ zero_extend 1) largest) (_ bv${amount} 9)))

; --- E-4: the clamps, or none
(define-fun at-least ((low (_ BitVec 9)) (d (_ BitVec 9))) (_ BitVec 9) (ite (bvslt d low) low d))
(define-fun clamped ((d (_ BitVec 9))) (_ BitVec 9) ${clamped})

; --- E-6: a block with an Inf or a NaN
(define-fun non-finite-is-255 () Bool ${non_finite_is_255})
(define-fun scale-of ((largest Byte)) Byte
  (ite (and non-finite-is-255 (= largest #xff)) #xff
    ((_ extract 7 0) (clamped (less-amount largest)))))

; --- all of it: whether shared_exponent(block) is scale
(define-fun specified ((block Block) (scale Byte)) Bool (= scale (scale-of (largest-of block))))
