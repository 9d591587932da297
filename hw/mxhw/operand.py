"""A source value made ready for rounding to an element: its exponent on the element's scale, its significand's top."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data

from mxmodel.formats import FP32, ElementFormat, SourceFormat

__all__ = ["Operand", "operand", "widened_exponent"]


@dataclass(frozen=True, kw_only=True)
class Operand:
    """What the narrowing encoder rounds.

    Attributes
    ----------
    low, within, upper : the exponent, as ``ExponentClasses.exponent`` reads it
    trailing : as many bits below the leading one as the element keeps
    guard, sticky : the next bit, and whether any bit below that is set
    is_nan : NaN; its exponent is above all others, or below where the encoder makes NaN a zero
    is_nonfinite : Inf, or with any other significand than zero NaN; None where NaN is known by its exponent
    sign : the result's
    """

    low: Value
    within: Value
    upper: Value
    trailing: Value
    guard: Value
    sticky: Value
    is_nan: Value
    is_nonfinite: Value | None
    sign: Value


def widened_exponent(m: Module, exponent: Value) -> Signal:
    """The biased exponent as fp32 has it (F-3); combinational.

    Between two biases 2^k - 1 no adder is needed: the complement of the top bit fills in below it.
    """
    widened = Signal(FP32.exponent_bits)
    fill = (~exponent[-1]).replicate(FP32.exponent_bits - len(exponent))
    m.d.comb += widened.eq(Cat(exponent[:-1], fill, exponent[-1]))
    return widened


def operand(m: Module, source: SourceFormat, element: ElementFormat, x: "data.View[data.StructLayout]") -> Operand:
    """The value as it is, without a scale; combinational.

    All biases are 2^k - 1, so that the middle of the element's exponents lies at the middle of fp32's, and nothing has
    to be subtracted.
    """
    widened = widened_exponent(m, x.exponent)
    high = widened[element.exponent_bits :]
    middle = 1 << (len(high) - 1)
    kept_from = source.trailing_bits - element.trailing_bits
    upper = Signal()
    within = Signal()
    sticky = Signal()
    is_nonfinite = Signal()
    is_nan = Signal()
    m.d.comb += upper.eq(widened[-1])
    m.d.comb += within.eq((high == middle) | (high == middle - 1))
    m.d.comb += sticky.eq(x.trailing[: kept_from - 1].any())
    m.d.comb += is_nonfinite.eq(x.exponent.all())
    m.d.comb += is_nan.eq(is_nonfinite & (x.trailing[kept_from - 1 :].any() | sticky))
    return Operand(
        low=widened[: element.exponent_bits],
        within=within,
        upper=upper,
        trailing=x.trailing[kept_from:],
        guard=x.trailing[kept_from - 1],
        sticky=sticky,
        is_nan=is_nan,
        is_nonfinite=is_nonfinite,
        sign=x.sign,
    )
