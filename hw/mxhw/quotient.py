"""A source value divided by its block's scale, as exponent arithmetic: no multiplier (N-5, N-6)."""

from dataclasses import dataclass

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data

from mxhw.clamped_difference import clamped_difference, difference_of
from mxhw.mux_table import mux_table
from mxhw.normaliser import normalise
from mxhw.operand import Operand, widened_exponent
from mxmodel.formats import E8M0, FP32, SourceFormat
from mxmodel.rules import NanCode, NarrowPolicy, PreScale

__all__ = ["quotient"]


@dataclass(frozen=True, kw_only=True)
class _Specials:
    """What overrides the arithmetic.

    Attributes
    ----------
    saturates : the magnitude is max-normal, or NaN
    vanishes : the magnitude is 0; stronger than ``saturates``
    is_nan, sign : as in ``Operand``
    """

    saturates: Signal
    vanishes: Signal
    is_nan: Signal
    sign: Signal


def quotient(
    m: Module, source: SourceFormat, policy: NarrowPolicy, x: "data.View[data.StructLayout]", scale: Value
) -> Operand:
    """``x`` / ``scale``, exact for every scale byte below the special ones, subnormals included; combinational.

    The quotient's exponent is x's plus the complement of the scale byte: a sum whose middle is 2^8 where fp32's is 2^7.
    Its low bits are added; of its high bits only four results matter (below the element's reach, the two halves of its
    middle, above), so a clamped difference stands for them.
    """
    element = policy.element
    low_bits = element.exponent_bits
    low_mask = (1 << low_bits) - 1
    widened = widened_exponent(m, x.exponent)
    is_subnormal = Signal()
    is_nonfinite = Signal()
    m.d.comb += is_subnormal.eq(x.exponent == 0)
    m.d.comb += is_nonfinite.eq(x.exponent.all())

    # With the source's bias that of fp32, scale 0 lifts a subnormal only so far into the element's range.
    subnormal_exponent = FP32.bias - source.bias
    reach = (1 << (low_bits - 1)) - 1 + element.trailing_bits if subnormal_exponent == 0 else source.trailing_bits
    normalised = normalise(m, x.trailing, is_subnormal, keep=element.trailing_bits + 1, reach=reach)

    # A subnormal's exponent in two fields and a borrow between them. Zero's is too low for every scale.
    def lowered(leading_zeros: int) -> int:
        is_zero = leading_zeros >= source.trailing_bits
        return -(1 << low_bits) if is_zero else subnormal_exponent - leading_zeros

    exponent_low = Signal(low_bits)
    exponent_high = Signal(FP32.exponent_bits - low_bits)
    zeros = normalised.leading_zeros
    lowered_low = mux_table(m, "lowered_low", [zeros], lambda n: lowered(n) & low_mask, width=low_bits)
    lowered_high = mux_table(
        m, "lowered_high", [zeros], lambda n: max(lowered(n) >> low_bits, 0), width=len(exponent_high)
    )
    borrow = mux_table(m, "borrow", [zeros, is_subnormal], lambda n, subnormal: int(subnormal and lowered(n) < 0))
    m.d.comb += exponent_low.eq(Mux(is_subnormal, lowered_low, widened[:low_bits]))
    m.d.comb += exponent_high.eq(Mux(is_subnormal, lowered_high, widened[low_bits:]))

    low_sum = Signal(low_bits + 1)
    m.d.comb += low_sum.eq(exponent_low + ~scale[:low_bits])
    difference = clamped_difference(m, "difference", exponent_high, scale[low_bits:])
    specials = _specials(m, policy, x, scale, is_subnormal, is_nonfinite, normalised.any)

    # The sum's high part: 0 and 1 are the halves of the middle.
    def upper_of(field: int, carry: int, borrowed: int, saturates: int) -> int | None:
        part = difference_of(field)
        return None if part is None else int(saturates or part + carry - borrowed > 0)

    def within_of(field: int, carry: int, borrowed: int, saturates: int) -> int | None:
        part = difference_of(field)
        return None if part is None else int(not saturates and part + carry - borrowed in (0, 1))

    high_part = [difference, low_sum[-1], borrow, specials.saturates]
    upper = Signal()
    within = Signal()
    m.d.comb += upper.eq(mux_table(m, "reaches_upper", high_part, upper_of) & ~specials.vanishes)
    m.d.comb += within.eq(mux_table(m, "reaches_within", high_part, within_of) & ~specials.vanishes)
    return Operand(
        low=low_sum[:low_bits],
        within=within,
        upper=upper,
        trailing=normalised.top[1:],
        guard=normalised.top[0],
        sticky=normalised.sticky,
        is_nan=specials.is_nan,
        is_nonfinite=None,
        sign=specials.sign,
    )


def _specials(
    m: Module,
    policy: NarrowPolicy,
    x: "data.View[data.StructLayout]",
    scale: Value,
    is_subnormal: Value,
    is_nonfinite: Value,
    any_trailing: Value,
) -> _Specials:
    """Inf and NaN, and what the fp32 product makes of scales 254 and 255 (N-4, N-5)."""
    source_nan = Signal()
    saturates = Signal()
    vanishes = Signal()
    is_nan = Signal()
    sign = Signal()
    zero_product: Value
    m.d.comb += source_nan.eq(is_nonfinite & any_trailing)
    if policy.pre_scale is PreScale.FP32_PRODUCT:
        # The constant is +0.0 at 254 and -Inf at 255. Inf * 0 and 0 * -Inf are invalid: a NaN with sign 1.
        by_zero = Signal()
        by_infinity = Signal()
        invalid = Signal()
        m.d.comb += by_zero.eq(scale == E8M0.max_byte - 1)
        m.d.comb += by_infinity.eq(scale == E8M0.max_byte)
        m.d.comb += invalid.eq(((by_zero & is_nonfinite) | (by_infinity & is_subnormal)) & ~any_trailing)
        m.d.comb += is_nan.eq(source_nan | invalid)
        m.d.comb += saturates.eq(is_nonfinite | by_infinity)
        m.d.comb += sign.eq(invalid | (x.sign ^ (by_infinity & ~source_nan)))
        zero_product = by_zero
    else:
        m.d.comb += is_nan.eq(source_nan)
        m.d.comb += saturates.eq(is_nonfinite)
        m.d.comb += sign.eq(x.sign)
        zero_product = Const(0)
    if policy.nan is NanCode.ZERO:
        m.d.comb += vanishes.eq(zero_product | is_nan)
    else:
        m.d.comb += vanishes.eq(zero_product & ~is_nan)
    return _Specials(saturates=saturates, vanishes=vanishes, is_nan=is_nan, sign=sign)
