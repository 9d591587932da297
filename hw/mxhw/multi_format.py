"""Lanes whose element format is chosen at run time: one input more, one lane of each permitted format behind it."""

from collections.abc import Sequence

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from mxhw.buildable import check_dequant, check_narrow, check_source
from mxhw.ldexp import Ldexp
from mxhw.narrow import Narrow
from mxmodel.formats import E8M0, ELEMENTS, FP32, ElementFormat, SourceFormat
from mxmodel.rules import DequantPolicy, NarrowPolicy, PreScale

__all__ = ["FORMAT_BITS", "MultiFormatLdexp", "MultiFormatNarrow", "format_number"]

FORMAT_BITS = (len(ELEMENTS) - 1).bit_length()
"""Width of the format select."""


def format_number(element: ElementFormat) -> int:
    """The format select's value for ``element``: its place in ``ELEMENTS``."""
    return ELEMENTS.index(element)


class MultiFormatNarrow(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """One value and its scale to a code of the format selected (N-1..N-6); combinational, no latency.

    Ports
    -----
    x : In(source.width), the value
    scale : In(8), the E8M0 byte
    format : In(2): 0 FP4 E2M1, 1 FP8 E4M3, 2 FP8 E5M2
    code : Out(8): the code, zeros above an FP4 code; 0 for a format that no policy permits, and for 3

    Specials are ``Narrow``'s under the selected policy. Raises TypeError or ValueError unless ``source``
    is one of ``SOURCES`` and ``policies`` are at least two scaled ones of different elements.
    """

    x: Signal
    scale: Signal
    format: Signal
    code: Signal

    def __init__(self, source: SourceFormat, policies: Sequence[NarrowPolicy]) -> None:
        check_source(source)
        for policy in policies:
            check_narrow(policy)
        _check_elements(policies)
        if any(policy.pre_scale is PreScale.NONE for policy in policies):
            raise ValueError(f"policies must all be scaled, not {[policy.name for policy in policies]!r}")
        self.source = source
        self.policies = tuple(policies)
        widest = max(policy.element.width for policy in policies)
        super().__init__(
            {"x": In(source.width), "scale": In(E8M0.width), "format": In(FORMAT_BITS), "code": Out(widest)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for policy in self.policies:
            m.submodules[policy.element.name] = lane = Narrow(self.source, policy)
            m.d.comb += lane.x.eq(self.x)
            m.d.comb += lane.scale.eq(self.scale)
            with m.If(self.format == format_number(policy.element)):
                m.d.comb += self.code.eq(lane.code)
        return m


class MultiFormatLdexp(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """One code of the format selected times 2^(scale - 127), as fp32 bits (D-1..D-4); combinational, no latency.

    Ports
    -----
    code : In(8), the code; an FP4 code is the low four bits, and those above are ignored
    scale : In(8), the E8M0 byte
    format : In(2): 0 FP4 E2M1, 1 FP8 E4M3, 2 FP8 E5M2
    value : Out(32), fp32 bits; 0 for a format without a policy, and for 3

    Specials are ``Ldexp``'s. Raises TypeError or ValueError unless ``policies`` are at least two, of different
    elements.
    """

    code: Signal
    scale: Signal
    format: Signal
    value: Signal

    def __init__(self, policies: Sequence[DequantPolicy]) -> None:
        for policy in policies:
            check_dequant(policy)
        _check_elements(policies)
        self.policies = tuple(policies)
        widest = max(policy.element.width for policy in policies)
        super().__init__(
            {"code": In(widest), "scale": In(E8M0.width), "format": In(FORMAT_BITS), "value": Out(FP32.width)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for policy in self.policies:
            m.submodules[policy.element.name] = lane = Ldexp(policy)
            m.d.comb += lane.code.eq(self.code)
            m.d.comb += lane.scale.eq(self.scale)
            with m.If(self.format == format_number(policy.element)):
                m.d.comb += self.value.eq(lane.value)
        return m


def _check_elements(policies: Sequence[NarrowPolicy] | Sequence[DequantPolicy]) -> None:
    elements = [policy.element for policy in policies]
    if len(set(elements)) != len(elements) or len(elements) < 2:
        raise ValueError(f"policies must be of at least two different elements, not {[e.name for e in elements]!r}")
