"""The narrowing encoder: one source value, and where asked its block's scale, to one element code (N-1..N-6)."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from mxhw.buildable import check_narrow, check_source
from mxhw.exponent_class import CLASS_CODES, ROUNDING_CODES, ExponentClasses
from mxhw.mux_table import mux_table, split_mux_table
from mxhw.operand import Operand, operand
from mxhw.quotient import quotient
from mxhw.views import element_layout, source_layout
from mxmodel.formats import E8M0, SourceFormat
from mxmodel.rules import NanCode, NarrowPolicy, PreScale, Scale255

__all__ = ["Narrow"]


class Narrow(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """Narrow one value to one element code; combinational, no latency.

    Round to nearest, ties to even, to the element's grid with subnormals; saturate; keep the sign of zero (N-1..N-3).
    NaN becomes ``policy.nan`` (N-4). With a scale, the value is first divided by it (N-5, N-6) by exponent arithmetic:
    source subnormals are normalised, so the quotient is exact for every scale. Under ``PreScale.FP32_PRODUCT`` scales
    254 and 255 give what the fp32 product with +0.0 and with -Inf gives.

    Ports
    -----
    x : In(source.width), one word of ``source``
    scale : In(8), the block's E8M0 byte; only where ``policy.pre_scale`` is not ``PreScale.NONE``
    code : Out(element.width), the element code

    Raises TypeError unless ``source`` is a ``SourceFormat`` and ``policy`` a ``NarrowPolicy``; ValueError unless
    ``source`` is one of ``SOURCES`` and the element one of ``ELEMENTS``, and for ``NanCode.MAX_NORMAL`` and
    ``InvalidProduct.POSITIVE``, which the golden twin alone has.

    How it works: the exponent decides one of a few classes (``ExponentClasses``), the class and the first bits of the
    significand decide the bits kept and whether one is added, and the addition carries into the exponent.
    """

    x: Signal
    scale: Signal
    code: Signal

    def __init__(self, source: SourceFormat, policy: NarrowPolicy) -> None:
        check_source(source)
        check_narrow(policy)
        self.source = source
        self.policy = policy
        ports = {"x": In(source.width), "code": Out(policy.element.width)}
        if policy.pre_scale is not PreScale.NONE:
            ports["scale"] = In(E8M0.width)
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        policy, element = self.policy, self.policy.element
        x = source_layout(self.source)(self.x)
        code = element_layout(element)(self.code)
        if policy.pre_scale is PreScale.NONE:
            value = operand(m, self.source, element, x)
            classes = ExponentClasses(element, source_subnormals=self.source.bias == element.bias)
        else:
            value = quotient(m, self.source, policy, x, self.scale)
            classes = ExponentClasses(element, source_subnormals=False)
        magnitude = self._rounded(m, value, classes) if element.has_nan else self._looked_up(m, value, classes)
        m.d.comb += Cat(code.trailing, code.exponent).eq(magnitude)
        m.d.comb += code.sign.eq(value.sign)
        if policy.scale_255 is Scale255.NAN:
            with m.If(self.scale == E8M0.max_byte):
                m.d.comb += self.code.eq(0)
        return m

    def _rounded(self, m: Module, value: Operand, classes: ExponentClasses) -> Signal:
        """The magnitude of an FP8 code: class, then the bits kept and the rounding, then the increment."""
        element = classes.element
        exponent = [value.within, value.upper, value.low]
        codes = CLASS_CODES.get(element, range(classes.count))
        number_of = {code: number for number, code in enumerate(codes)}

        def kept_of(trailing: int, class_code: int, upper: int) -> int | None:
            return classes.kept(number_of[class_code], trailing, upper) if class_code in number_of else None

        def rounds_up_of(class_code: int, high: int, low: int, guard: int, sticky: int) -> int | None:
            if class_code not in number_of:
                return None
            return classes.rounds_up(number_of[class_code], high << 1 | low, guard, sticky)

        exponent_class = mux_table(
            m, "exponent_class", exponent, lambda *e: codes[classes.class_of(classes.exponent(*e))], width=3
        )
        keeps = mux_table(
            m,
            "keeps_exponent",
            [value.low, value.within, value.upper],
            lambda low, within, upper: int(classes.keeps(classes.exponent(within, upper, low))),
        )
        kept = mux_table(m, "kept", [value.trailing, exponent_class, value.upper], kept_of, width=element.trailing_bits)
        rounds_up = split_mux_table(
            m,
            "rounds_up",
            [exponent_class, value.trailing[1:]],
            [value.trailing[0], value.guard, value.sticky],
            rounds_up_of,
            codes=ROUNDING_CODES.get(element),
        )

        trailing = Signal(element.trailing_bits)
        m.d.comb += trailing.eq(kept + rounds_up)

        # Where the exponent is not kept it is all zeros or max-normal's, and a carry reaches its last bit at most. Both
        # fields are ready before the rounding is known.
        low = value.low[: element.exponent_bits - 1]
        last_of_top = value.upper if classes.top_exponent & 1 else Const(0)
        may_carry = Signal()
        field_as_is = Signal(element.exponent_bits)
        field_rounded_up = Signal(element.exponent_bits)
        field = Signal(element.exponent_bits)
        m.d.comb += may_carry.eq(kept.all())
        m.d.comb += field_as_is[0].eq(Mux(keeps, low[0], last_of_top))
        m.d.comb += field_rounded_up[0].eq(field_as_is[0] ^ may_carry)
        for place in range(1, len(low)):
            carried = low[place] ^ (may_carry & low[:place].all())
            m.d.comb += field_as_is[place].eq(Mux(keeps, low[place], value.upper))
            m.d.comb += field_rounded_up[place].eq(Mux(keeps, carried, value.upper))
        m.d.comb += field_as_is[-1].eq(value.upper)
        m.d.comb += field_rounded_up[-1].eq(value.upper | (may_carry & low.all()))
        m.d.comb += field.eq(Mux(rounds_up, field_rounded_up, field_as_is))

        # The exponent of a NaN being above all others, it is max-normal so far.
        rounded = Cat(trailing, field)
        magnitude = Signal(element.width - 1)
        if self.policy.nan is NanCode.PROPAGATE:
            set_by_nan = Const(classes.nan_code & ~element.max_normal_code, len(magnitude))
            cleared_by_nan = Const(element.max_normal_code & ~classes.nan_code, len(magnitude))
            nan = value.is_nan.replicate(len(magnitude))
            m.d.comb += magnitude.eq((rounded | (nan & set_by_nan)) & ~(nan & cleared_by_nan))
        elif value.is_nonfinite is not None:
            m.d.comb += magnitude.eq(rounded & ~value.is_nan.replicate(len(magnitude)))
        else:
            m.d.comb += magnitude.eq(rounded)
        return magnitude

    def _looked_up(self, m: Module, value: Operand, classes: ExponentClasses) -> Signal:
        """The magnitude of an FP4 code: each exponent that matters is a class, and the code is one small table."""
        element = classes.element
        lowest = -element.trailing_bits - 1
        highest = classes.top_exponent + 1
        codes = CLASS_CODES.get(element, range(highest - lowest + 2))
        nonfinite = len(codes) - 1
        number_of = {code: number for number, code in enumerate(codes)}

        def class_of(upper: int, is_nonfinite: int, within: int, low: int) -> int:
            exponent = classes.exponent(within, upper, low)
            return codes[nonfinite if is_nonfinite else max(lowest, min(highest, exponent)) - lowest]

        def magnitude_of(sticky: int, trailing: int, guard: int, class_code: int) -> int | None:
            number = number_of[class_code]
            if number == nonfinite:
                return 0 if trailing | guard | sticky else element.max_normal_code
            return classes.magnitude(number + lowest, trailing, guard, sticky)

        is_nonfinite = Const(0) if value.is_nonfinite is None else value.is_nonfinite
        exponent_class = mux_table(
            m, "exponent_class", [value.upper, is_nonfinite, value.within, value.low], class_of, width=3
        )
        return mux_table(
            m,
            "magnitude",
            [value.sticky, value.trailing, value.guard, exponent_class],
            magnitude_of,
            width=element.width - 1,
        )
