"""Block -> E8M0 byte: the exponent-extract and max unit (contract E).

``SharedExponent`` is a whole block at once. Its two halves stand alone, so that a unit that takes a block in several
beats can keep a running maximum between them: ``LargestExponent`` (lanes -> largest biased exponent), ``larger`` (one
node of its tree) and ``ScaleFromExponent`` (largest biased exponent -> E8M0 byte, the rule set's part).
"""

from functools import reduce
from operator import or_

from amaranth.hdl import Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from mxhw.buildable import check_exponent, check_lanes, check_source
from mxhw.views import source_layout
from mxmodel.formats import E8M0, FP32, MX_BLOCK, SourceFormat
from mxmodel.rules import BelowZero, ExponentPolicy, NonFiniteBlock

__all__ = ["LargestExponent", "ScaleFromExponent", "SharedExponent", "larger"]


class SharedExponent(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """One whole block to its E8M0 scale byte (E-1..E-6); combinational, no latency.

    Ports
    -----
    x : In(ArrayLayout(unsigned(source.width), lanes)), the block's elements; their order does not matter
    scale : Out(8), the E8M0 byte

    Specials
    --------
    Zeros and fp32 subnormals count as exponent 0, Inf and NaN as 255 (E-1); what becomes of 255 is the policy's
    ``non_finite`` (E-6), and of a result below zero its ``below_zero`` (E-4). bf16 and fp16 are as their fp32 (F-3).

    Raises TypeError unless ``source`` is a ``SourceFormat``, ``policy`` an ``ExponentPolicy`` and ``lanes`` an int;
    ValueError unless ``source`` is one of ``SOURCES`` and ``lanes`` at least 1.
    """

    x: "data.View[data.ArrayLayout]"
    scale: Signal

    def __init__(self, source: SourceFormat, policy: ExponentPolicy, lanes: int = MX_BLOCK.size) -> None:
        check_source(source)
        check_lanes(lanes)
        check_exponent(policy)
        self.source = source
        self.policy = policy
        self.lanes = lanes
        super().__init__({"x": In(data.ArrayLayout(unsigned(source.width), lanes)), "scale": Out(E8M0.width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.max_tree = max_tree = LargestExponent(self.source, self.lanes)
        m.submodules.tail = tail = ScaleFromExponent(self.policy)
        m.d.comb += max_tree.x.eq(self.x)
        m.d.comb += tail.largest.eq(max_tree.largest)
        m.d.comb += self.scale.eq(tail.scale)
        return m


class LargestExponent(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """The largest fp32 biased exponent of some elements (E-1, F-3); combinational, no latency.

    Ports
    -----
    x : In(ArrayLayout(unsigned(source.width), lanes)), the elements
    largest : Out(8), 0 where all are zeros or fp32 subnormals, 255 where one is Inf or NaN

    Raises TypeError unless ``source`` is a ``SourceFormat`` and ``lanes`` an int; ValueError unless ``source`` is one
    of ``SOURCES`` and ``lanes`` at least 1.
    """

    x: "data.View[data.ArrayLayout]"
    largest: Signal

    def __init__(self, source: SourceFormat, lanes: int = MX_BLOCK.size) -> None:
        check_source(source)
        check_lanes(lanes)
        self.source = source
        self.lanes = lanes
        super().__init__({"x": In(data.ArrayLayout(unsigned(source.width), lanes)), "largest": Out(FP32.exponent_bits)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        layout = source_layout(self.source)
        words = [layout(self.x[lane]) for lane in range(self.lanes)]

        exponents: list[Value] = [word.exponent for word in words]
        level = 0
        while len(exponents) > 1:
            pairs = zip(exponents[::2], exponents[1::2], strict=False)
            unpaired = exponents[len(exponents) // 2 * 2 :]
            exponents = [larger(m, a, b, name=f"level{level}_{i}") for i, (a, b) in enumerate(pairs)] + unpaired
            level += 1
        source_largest = Signal(self.source.exponent_bits)
        m.d.comb += source_largest.eq(exponents[0])

        if self.source.exponent_bits == FP32.exponent_bits:
            m.d.comb += self.largest.eq(source_largest)
        else:
            self._widen(m, source_largest, [word.trailing for word in words])
        return m

    def _widen(self, m: Module, source_largest: Value, trailings: list[Value]) -> None:
        """From the source's largest exponent to fp32's.

        A subnormal of the source is a normal fp32 (F-3), whose exponent its leading one gives. That matters only where
        every element is subnormal or zero, and then the largest has the leading one of them all: that of their OR.
        """
        rebias = FP32.bias - self.source.bias
        smallest = rebias + 1 - self.source.trailing_bits
        any_trailing = Signal(self.source.trailing_bits)
        m.d.comb += any_trailing.eq(reduce(or_, trailings))
        with m.If(source_largest == self.source.max_biased_exponent):
            m.d.comb += self.largest.eq(FP32.max_biased_exponent)
        with m.Elif(source_largest != 0):
            m.d.comb += self.largest.eq(source_largest + rebias)
        with m.Else():
            for leading in range(self.source.trailing_bits):
                with m.If(any_trailing[leading]):
                    m.d.comb += self.largest.eq(smallest + leading)


class ScaleFromExponent(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """The largest biased exponent of a block to its E8M0 byte (E-3, E-4, E-6); combinational, no latency.

    Ports
    -----
    largest : In(8), as ``LargestExponent`` gives it
    scale : Out(8), the E8M0 byte

    Raises TypeError unless ``policy`` is an ``ExponentPolicy``.
    """

    largest: Signal
    scale: Signal

    def __init__(self, policy: ExponentPolicy) -> None:
        check_exponent(policy)
        self.policy = policy
        super().__init__({"largest": In(FP32.exponent_bits), "scale": Out(E8M0.width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        least = {BelowZero.CLAMP_TO_ONE: 1, BelowZero.CLAMP_TO_ZERO: 0, BelowZero.WRAP: None}[self.policy.below_zero]

        difference = Signal(signed(E8M0.width + 1))
        m.d.comb += difference.eq(self.largest - self.policy.amount)
        m.d.comb += self.scale.eq(difference)
        if least is not None:
            with m.If(difference < least):
                m.d.comb += self.scale.eq(least)
        if self.policy.non_finite is NonFiniteBlock.SCALE_255:
            with m.If(self.largest == FP32.max_biased_exponent):
                m.d.comb += self.scale.eq(E8M0.max_byte)
        return m


def larger(m: Module, a: Value, b: Value, *, name: str) -> Signal:
    """Add the larger of two unsigned numbers of one width to ``m``; ``name`` names its signals.

    The comparison runs from the top bit down and gives each bit of the result as soon as it knows the bits above. So in
    a tree the next node starts on the top bits while this one is at work on the low ones, and the depth of the tree is
    the nodes' plus the width's, not their product.
    """
    width = len(a)
    result = Signal(width, name=name)
    a_leads: Value = Const(0, 1)
    b_leads: Value = Const(0, 1)
    for bit in reversed(range(width)):
        m.d.comb += result[bit].eq(Mux(a_leads, a[bit], Mux(b_leads, b[bit], a[bit] | b[bit])))
        a_leads_above, b_leads_above = a_leads, b_leads
        a_leads = Signal(name=f"{name}_a_leads_{bit}")
        b_leads = Signal(name=f"{name}_b_leads_{bit}")
        m.d.comb += a_leads.eq(Mux(b_leads_above, 0, a_leads_above | (a[bit] & ~b[bit])))
        m.d.comb += b_leads.eq(Mux(a_leads_above, 0, b_leads_above | (b[bit] & ~a[bit])))
    return result
