"""The narrowing encoder: one source value, and where asked its block's scale, to one element code (N-1..N-6)."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from mxhw.clamped_difference import FARTHEST, clamped_difference, difference_of
from mxhw.exponent_class import ExponentClasses
from mxhw.mux_table import mux_table, split_mux_table
from mxhw.normaliser import normalise
from mxhw.views import element_layout, source_layout
from mxmodel.formats import E8M0, FP32, SOURCES, SourceFormat
from mxmodel.rules import NanCode, NarrowPolicy, PreScale, Scale255

__all__ = ["Narrow"]


@dataclass(frozen=True, kw_only=True)
class _Operand:
    """A value ready to be rounded: its exponent on the element's scale (``ExponentClasses.exponent``), its significand.

    Attributes
    ----------
    low, within, upper : the exponent
    trailing : as many bits below the leading one as the element keeps
    guard, sticky : the next bit, and whether any bit below that is set
    is_nan : the value is NaN; its exponent is then above all others
    sign : the result's
    """

    low: Value
    within: Value
    upper: Value
    trailing: Value
    guard: Value
    sticky: Value
    is_nan: Value
    sign: Value


class Narrow(wiring.Component):
    """Narrow one value to one element code; combinational, no latency.

    Round to nearest, ties to even, to the element's grid with subnormals; saturate; keep the sign of zero (N-1..N-3).
    NaN becomes ``policy.nan`` (N-4). With a scale, the value is first divided by it (N-5, N-6) by exponent arithmetic:
    source subnormals are normalised, so the quotient is exact for every scale.

    Ports
    -----
    x : In(source.width), one word of ``source``
    scale : In(8), the block's E8M0 byte; only where ``policy.pre_scale`` is not ``PreScale.NONE``
    code : Out(element.width), the element code

    Raises TypeError unless ``source`` is a ``SourceFormat`` and ``policy`` a ``NarrowPolicy``; ValueError unless
    ``source`` is one of ``SOURCES``.
    """

    x: Signal
    scale: Signal
    code: Signal

    def __init__(self, source: SourceFormat, policy: NarrowPolicy) -> None:
        if not isinstance(source, SourceFormat):
            raise TypeError(f"source must be a SourceFormat, not {source!r}")
        if not isinstance(policy, NarrowPolicy):
            raise TypeError(f"policy must be a NarrowPolicy, not {policy!r}")
        if source not in SOURCES:
            raise ValueError(f"source must be one of {', '.join(s.name for s in SOURCES)}, not {source.name!r}")
        self.source = source
        self.policy = policy
        ports = {"x": In(source.width), "code": Out(policy.element.width)}
        if policy.pre_scale is not PreScale.NONE:
            ports["scale"] = In(E8M0.width)
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        element = self.policy.element
        x = source_layout(self.source)(self.x)
        code = element_layout(element)(self.code)
        scaled = self.policy.pre_scale is not PreScale.NONE
        operand = self._quotient(m, x) if scaled else self._operand(m, x)
        same_grid = not scaled and self.source.bias == element.bias
        classes = ExponentClasses(element, source_subnormals=same_grid)
        magnitude = Signal(element.width - 1)
        if element.has_nan:
            m.d.comb += magnitude.eq(self._rounded(m, operand, classes))
        else:
            m.d.comb += magnitude.eq(self._tabled(m, operand, classes))
        m.d.comb += Cat(code.trailing, code.exponent).eq(magnitude)
        m.d.comb += code.sign.eq(operand.sign)
        if self.policy.scale_255 is Scale255.NAN:
            with m.If(self.scale == E8M0.max_byte):
                m.d.comb += self.code.eq(0)
        return m

    def _widened_exponent(self, m: Module, x: data.View[data.StructLayout]) -> Signal:
        """The biased exponent as fp32 has it (F-3): between two biases 2^k - 1, the top bit's complement fills in."""
        exponent = x.exponent
        widened = Signal(FP32.exponent_bits)
        fill = (~exponent[-1]).replicate(FP32.exponent_bits - len(exponent))
        m.d.comb += widened.eq(Cat(exponent[:-1], fill, exponent[-1]))
        return widened

    def _operand(self, m: Module, x: data.View[data.StructLayout]) -> _Operand:
        """The value as it is. Only the middle of the exponent range reaches the element, so nothing is subtracted."""
        element = self.policy.element
        widened = self._widened_exponent(m, x)
        high = widened[element.exponent_bits :]
        middle = 1 << (len(high) - 1)
        kept_from = self.source.trailing_bits - element.trailing_bits
        upper = Signal()
        within = Signal()
        sticky = Signal()
        is_nan = Signal()
        m.d.comb += upper.eq(widened[-1])
        m.d.comb += within.eq((high == middle) | (high == middle - 1))
        m.d.comb += sticky.eq(x.trailing[: kept_from - 1].any())
        m.d.comb += is_nan.eq(x.exponent.all() & x.trailing.any())
        return _Operand(
            low=widened[: element.exponent_bits],
            within=within,
            upper=upper,
            trailing=x.trailing[kept_from:],
            guard=x.trailing[kept_from - 1],
            sticky=sticky,
            is_nan=is_nan,
            sign=x.sign,
        )

    def _quotient(self, m: Module, x: data.View[data.StructLayout]) -> _Operand:
        """The value divided by the scale: exponent + (255 - scale), whose middle is 2^8 instead of 2^7 (N-5)."""
        source, element = self.source, self.policy.element
        low_bits = element.exponent_bits
        widened = self._widened_exponent(m, x)
        is_subnormal = Signal()
        is_nonfinite = Signal()
        m.d.comb += is_subnormal.eq(x.exponent == 0)
        m.d.comb += is_nonfinite.eq(x.exponent.all())

        # The largest quotient of a subnormal is that with scale 0; what is below the element even then needs no count.
        smallest = FP32.bias - source.bias
        reach = (1 << (low_bits - 1)) - 1 + element.trailing_bits if smallest == 0 else source.trailing_bits
        normalised = normalise(m, x.trailing, is_subnormal, keep=element.trailing_bits + 1, reach=reach)

        # A subnormal's exponent, as high * 2^low_bits + low - borrow * 2^low_bits; for a zero it is below every scale.
        def lowered(leading_zeros: int) -> int:
            return smallest - leading_zeros if leading_zeros < source.trailing_bits else -(1 << low_bits)

        zeros = [normalised.leading_zeros, is_subnormal]
        high_bits = FP32.exponent_bits - low_bits
        low_mask = (1 << low_bits) - 1
        borrow = mux_table(m, "borrow", zeros, lambda n, subnormal: int(subnormal and lowered(n) < 0))
        lowered_low = mux_table(
            m, "lowered_low", zeros, lambda n, subnormal: lowered(n) & low_mask if subnormal else None, width=low_bits
        )
        lowered_high = mux_table(
            m,
            "lowered_high",
            zeros,
            lambda n, subnormal: max(lowered(n) >> low_bits, 0) if subnormal else None,
            width=high_bits,
        )
        exponent_low = Signal(low_bits)
        exponent_high = Signal(high_bits)
        m.d.comb += exponent_low.eq(Mux(is_subnormal, lowered_low, widened[:low_bits]))
        if smallest:
            m.d.comb += exponent_high.eq(Mux(is_subnormal, lowered_high, widened[low_bits:]))
        else:
            m.d.comb += exponent_high.eq(widened[low_bits:])

        low_sum = Signal(low_bits + 1)
        m.d.comb += low_sum.eq(exponent_low + ~self.scale[:low_bits])
        difference = clamped_difference(m, "difference", exponent_high, self.scale[low_bits:])
        special = self._specials(m, x, is_subnormal, is_nonfinite, normalised.any)

        # The sum's high part: 0 or 1 is within the element's reach, more is above, less is below.
        def high_part(field: int, carry: int, borrowed: int) -> int | None:
            if abs(difference_of(field)) > FARTHEST:
                return None
            return difference_of(field) + carry - borrowed

        def upper_of(field: int, carry: int, borrowed: int, saturates: int) -> int | None:
            part = high_part(field, carry, borrowed)
            return None if part is None else int(part > 0 or saturates)

        def within_of(field: int, carry: int, borrowed: int, saturates: int) -> int | None:
            part = high_part(field, carry, borrowed)
            return None if part is None else int(part in (0, 1) and not saturates)

        region = [difference, low_sum[-1], borrow, special["saturates"]]
        upper = mux_table(m, "upper", region, upper_of)
        within = mux_table(m, "within", region, within_of)
        return _Operand(
            low=low_sum[:low_bits],
            within=within & ~special["vanishes"],
            upper=upper & ~special["vanishes"],
            trailing=normalised.top[1:],
            guard=normalised.top[0],
            sticky=normalised.sticky,
            is_nan=special["is_nan"],
            sign=special["sign"],
        )

    def _specials(
        self, m: Module, x: data.View[data.StructLayout], is_subnormal: Value, is_nonfinite: Value, any_trailing: Value
    ) -> dict[str, Value]:
        vanishes = Signal()
        saturates = Signal()
        is_nan = Signal()
        sign = Signal()
        source_nan = Signal()
        m.d.comb += source_nan.eq(is_nonfinite & any_trailing)
        if self.policy.pre_scale is PreScale.FP32_PRODUCT:
            # The fp32 constant is +0.0 at 254 and -Inf at 255; an invalid product is a negative NaN (N-5).
            by_zero = Signal()
            by_infinity = Signal()
            invalid = Signal()
            m.d.comb += by_zero.eq(self.scale == E8M0.max_byte - 1)
            m.d.comb += by_infinity.eq(self.scale == E8M0.max_byte)
            m.d.comb += invalid.eq(((by_zero & is_nonfinite) | (by_infinity & is_subnormal)) & ~any_trailing)
            m.d.comb += is_nan.eq(source_nan | invalid)
            m.d.comb += vanishes.eq(by_zero)
            m.d.comb += saturates.eq(is_nonfinite | by_infinity)
            m.d.comb += sign.eq(invalid | (x.sign ^ (by_infinity & ~source_nan)))
        else:
            m.d.comb += is_nan.eq(source_nan)
            m.d.comb += saturates.eq(is_nonfinite)
            m.d.comb += sign.eq(x.sign)
        nan_vanishes = self.policy.nan is NanCode.ZERO
        return {
            "vanishes": vanishes | is_nan if nan_vanishes else vanishes & ~is_nan,
            "saturates": saturates,
            "is_nan": is_nan,
            "sign": sign,
        }

    def _tabled(self, m: Module, operand: _Operand, classes: ExponentClasses) -> Value:
        """E2M1: every exponent that matters is a class of its own, and the code is one small table."""
        lowest = -classes.element.trailing_bits - 1
        highest = classes.top_exponent + 1
        nan_class = highest - lowest + 1

        def class_of(low: int, within: int, upper: int, nonfinite: int) -> int:
            if nonfinite:
                return nan_class
            return max(lowest, min(highest, classes.exponent(low, within, upper))) - lowest

        def code_of(trailing: int, guard: int, sticky: int, number: int) -> int:
            if number == nan_class:
                return 0 if trailing | guard | sticky else classes.element.max_normal_code
            return classes.code(number + lowest, trailing, guard, sticky)

        is_nonfinite = Const(0)
        if self.policy.pre_scale is PreScale.NONE:
            is_nonfinite = source_layout(self.source)(self.x).exponent.all()
        number = mux_table(
            m, "exponent_class", [operand.low, operand.within, operand.upper, is_nonfinite], class_of, width=3
        )
        inputs = [operand.trailing, operand.guard, operand.sticky, number]
        return mux_table(m, "narrowed", inputs, code_of, width=classes.element.width - 1)

    def _rounded(self, m: Module, operand: _Operand, classes: ExponentClasses) -> Value:
        """FP8: class, then kept bits and rounding, then the increment."""
        element = classes.element
        exponent = [operand.low, operand.within, operand.upper]
        number = mux_table(m, "exponent_class", exponent, lambda *e: classes.class_of(classes.exponent(*e)), width=3)
        keeps = mux_table(m, "keeps_exponent", exponent, lambda *e: int(classes.keeps_exponent(classes.exponent(*e))))
        kept = mux_table(
            m, "kept", [operand.trailing, number, operand.upper], classes.kept, width=element.trailing_bits
        )
        rounds = split_mux_table(
            m,
            "rounds_up",
            [operand.trailing[1:], number],
            [operand.trailing[0], operand.guard, operand.sticky],
            lambda high, number, low, guard, sticky: classes.rounds_up(number, high << 1 | low, guard, sticky),
        )
        propagates = self.policy.nan is NanCode.PROPAGATE
        up = Signal()
        m.d.comb += up.eq(rounds | operand.is_nan if propagates else rounds)
        carry = Signal()
        m.d.comb += carry.eq(kept.all() & up)
        trailing = Signal(element.trailing_bits)
        m.d.comb += trailing.eq(kept + up)
        # With a carry into it: below the smallest normal only the last bit, at the top never but for NaN.
        low = operand.low[: element.exponent_bits - 1]
        outside_last = operand.upper if classes.top_exponent & 1 else Const(0)
        field = [Mux(keeps, low[0], outside_last) ^ carry]
        for place in range(1, len(low)):
            field.append(Mux(keeps, low[place] ^ (carry & low[:place].all()), operand.upper))
        field.append(operand.upper | (carry & low.all()))
        body = Cat(trailing, *field)
        if propagates and element.nan_code is not None:
            plus_one = (element.max_normal_code + 1) & (element.sign_bit - 1)
            return body | Mux(operand.is_nan, element.nan_code & ~plus_one, 0)
        if self.policy.pre_scale is PreScale.NONE:
            return body & ~operand.is_nan.replicate(len(body))
        return body
