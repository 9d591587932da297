"""Element code and scale -> fp32: the ldexp dequant lane (contract D)."""

from amaranth.hdl import Cat, Const, Module, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from mxhw.buildable import check_dequant
from mxhw.views import element_layout, source_layout
from mxmodel.formats import E8M0, FP32
from mxmodel.rules import DequantPolicy, Scale255

__all__ = ["Ldexp"]


class Ldexp(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """One element code times 2^(scale - 127), as fp32 bits (D-1); combinational, no latency.

    The scale and fp32 have one bias, so the result's biased exponent is the scale byte plus the element's exponent. The
    byte is taken in two parts. Only the low part needs an adder; its carry and the exponent's sign say whether the high
    part goes up by one, down by one or stays. The same few bits tell where the sum leaves fp32's normal range.

    Ports
    -----
    code : In(element.width), the element
    scale : In(8), the E8M0 byte
    value : Out(32), fp32 bits

    Specials
    --------
    Zero keeps its sign. Every other result is exact, fp32 subnormals included, but for overflow, which is ±Inf (D-2).
    Scale 255 is 2^128, or makes every code NaN (D-3). An element NaN is 0x7FC00000, its sign dropped, and an element
    Inf stays ±Inf, at every scale (D-4).

    Raises TypeError unless ``policy`` is a ``DequantPolicy``; ValueError for ``ElementNan.SIGNED``, which the golden
    twin alone has.
    """

    code: Signal
    scale: Signal
    value: Signal

    def __init__(self, policy: DequantPolicy) -> None:
        check_dequant(policy)
        assert (E8M0.bias, E8M0.width) == (FP32.bias, FP32.exponent_bits), "the sum below needs no other correction"
        self.policy = policy
        super().__init__({"code": In(policy.element.width), "scale": In(E8M0.width), "value": Out(FP32.width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        element = self.policy.element
        least_exponent = element.min_exponent - element.trailing_bits
        low_bits = max(element.emax, -least_exponent).bit_length()
        high_bits = E8M0.width - low_bits

        code = element_layout(element)(self.code)
        scale = data.StructLayout({"low": low_bits, "high": high_bits})(self.scale)
        value = source_layout(FP32)(self.value)

        # The code's kind.
        magnitude = Signal(element.width - 1)
        zero = Signal()
        nan = Signal()
        special = Signal()
        m.d.comb += magnitude.eq(Cat(code.trailing, code.exponent))
        m.d.comb += zero.eq(magnitude == 0)
        m.d.comb += nan.eq(self._is_nan(magnitude))
        m.d.comb += special.eq(nan)
        if element.max_normal_code < element.sign_bit - 1:
            m.d.comb += special.eq(nan | (magnitude > element.max_normal_code))

        # The code's unbiased exponent and trailing significand; a subnormal is normalised by its leading one.
        exponent = Signal(signed(low_bits + 1))
        trailing = Signal(element.trailing_bits)
        m.d.comb += exponent.eq(code.exponent - element.bias)
        m.d.comb += trailing.eq(code.trailing)
        with m.If(code.exponent == 0):
            for leading in range(element.trailing_bits):
                shift = element.trailing_bits - leading
                with m.If(code.trailing.bit_select(leading, 1)):
                    m.d.comb += exponent.eq(element.min_exponent - shift)
                    m.d.comb += trailing.eq(code.trailing << shift)

        # The sum of the exponents, in two parts. Adding all ones takes one off. No exponent is as low as -2^low_bits,
        # so the sum is 0 only where the high part of the scale is 0 already.
        addend = data.StructLayout({"low": low_bits, "negative": 1})(exponent.as_unsigned())
        low_total = Signal(low_bits + 1)
        low = data.StructLayout({"sum": low_bits, "carry": 1})(low_total)
        high = Signal(high_bits)
        up = Signal()
        down = Signal()
        m.d.comb += low_total.eq(scale.low + addend.low)
        m.d.comb += high.eq(scale.high + addend.negative.replicate(high_bits) + low.carry)
        m.d.comb += up.eq(low.carry & ~addend.negative)
        m.d.comb += down.eq(addend.negative & ~low.carry)

        # Where it lies: below zero, zero, or at and past the exponent of Inf.
        bottom = Signal()
        top = Signal()
        below_zero = Signal()
        subnormal = Signal()
        overflow = Signal()
        m.d.comb += bottom.eq(scale.high == 0)
        m.d.comb += top.eq(scale.high.all())
        m.d.comb += below_zero.eq(bottom & down)
        m.d.comb += subnormal.eq(bottom & (down | (~up & ~low.sum.any())))
        m.d.comb += overflow.eq(top & (up | (~down & low.sum.all())))

        # fp32's exponent field.
        all_ones = Signal()
        all_zeros = Signal()
        m.d.comb += all_ones.eq(special | (overflow & ~zero))
        m.d.comb += all_zeros.eq(zero | below_zero)
        with m.If(all_ones):
            m.d.comb += value.exponent.eq(FP32.max_biased_exponent)
        with m.Elif(~all_zeros):
            m.d.comb += value.exponent.eq(Cat(low.sum, high))

        # fp32's trailing significand if the result is subnormal. At a sum of 0 the leading one is its top bit, and -sum
        # places to the right below; only the bits that a right shift from there can reach are kept.
        reach = 1 - least_exponent
        right_shift = Signal(low_bits)
        shifted = Signal(reach)
        m.d.comb += right_shift.eq(-low.sum)
        m.d.comb += shifted.eq((Cat(trailing, Const(1, 1)) << (reach - 1 - element.trailing_bits)) >> right_shift)

        # fp32's trailing significand: at most one of three.
        if_normal = Signal(FP32.trailing_bits)
        if_subnormal = Signal(FP32.trailing_bits)
        if_nan = Signal(FP32.trailing_bits)
        with m.If(~(zero | special | overflow | subnormal)):
            m.d.comb += if_normal.eq(trailing << (FP32.trailing_bits - element.trailing_bits))
        with m.If(subnormal & ~special & ~zero):
            m.d.comb += if_subnormal.eq(shifted << (FP32.trailing_bits - reach))
        with m.If(nan):
            m.d.comb += if_nan.eq(FP32.quiet_nan_bits & FP32.trailing_mask)
        m.d.comb += value.trailing.eq(if_normal | if_subnormal | if_nan)

        m.d.comb += value.sign.eq(code.sign & ~nan)
        return m

    def _is_nan(self, magnitude: Value) -> Value:
        """Whether the result is NaN: by the code, whose NaNs are the highest magnitudes, or by scale 255 (D-3, D-4)."""
        element = self.policy.element
        nan: Value = Const(0)
        if element.has_nan:
            first = next(code for code in range(element.sign_bit) if element.is_nan_code(code))
            nan = magnitude >= first
        if self.policy.scale_255 is Scale255.NAN:
            nan = nan | (self.scale == E8M0.max_byte)
        return nan
