"""Lanes between two streams: a beat of elements in, a beat of results out, one register between.

The register holds its beat until the consumer takes it, and takes the next in the same cycle, so nothing is lost and
nothing waits: latency 1 cycle, one beat a cycle, under any stall on either side.
"""

from typing import Any

from amaranth.hdl import Module, Signal, Value, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from mxhw.buildable import check_dequant, check_lanes, check_narrow, check_source
from mxhw.ldexp import Ldexp
from mxhw.narrow import Narrow
from mxmodel.formats import E8M0, FP32, SourceFormat
from mxmodel.rules import DequantPolicy, NarrowPolicy, PreScale

__all__ = ["StreamedLdexp", "StreamedNarrow", "register_beat"]


class StreamedNarrow(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """A beat of values to a beat of element codes (N-1..N-6): latency 1 cycle, one beat a cycle.

    Ports
    -----
    i : In(stream): ``x``, an array of ``lanes`` source words, and ``scale``, the E8M0 byte they share, if the policy
        has one
    o : Out(stream): an array of ``lanes`` codes, lane 0 in the lowest bits (which is L-1's packing)

    Specials are ``Narrow``'s. Raises TypeError or ValueError unless ``source`` is one of ``SOURCES``, ``policy`` a
    ``NarrowPolicy`` and ``lanes`` a positive int.
    """

    i: stream.Interface
    o: stream.Interface

    def __init__(self, source: SourceFormat, policy: NarrowPolicy, lanes: int) -> None:
        check_lanes(lanes)
        check_source(source)
        check_narrow(policy)
        self.source = source
        self.policy = policy
        self.lanes = lanes
        fields: dict[str, Any] = {"x": data.ArrayLayout(unsigned(source.width), lanes)}
        if policy.pre_scale is not PreScale.NONE:
            fields["scale"] = E8M0.width
        codes = data.ArrayLayout(unsigned(policy.element.width), lanes)
        super().__init__({"i": In(stream.Signature(data.StructLayout(fields))), "o": Out(stream.Signature(codes))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.i.payload
        encoders = [Narrow(self.source, self.policy) for _ in range(self.lanes)]
        for lane, encoder in enumerate(encoders):
            m.submodules[f"lane_{lane}"] = encoder
            m.d.comb += encoder.x.eq(beat.x[lane])
            if self.policy.pre_scale is not PreScale.NONE:
                m.d.comb += encoder.scale.eq(beat.scale)
        register_beat(m, self.i, self.o, [encoder.code for encoder in encoders])
        return m


class StreamedLdexp(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """A beat of element codes to a beat of fp32 values (D-1..D-4): latency 1 cycle, one beat a cycle.

    Ports
    -----
    i : In(stream): ``code``, an array of ``lanes`` codes, lane 0 in the lowest bits, and ``scale``, the E8M0 byte
    o : Out(stream): an array of ``lanes`` fp32 words

    Specials are ``Ldexp``'s. Raises TypeError or ValueError unless ``policy`` is a ``DequantPolicy`` and ``lanes`` a
    positive int.
    """

    i: stream.Interface
    o: stream.Interface

    def __init__(self, policy: DequantPolicy, lanes: int) -> None:
        check_lanes(lanes)
        check_dequant(policy)
        self.policy = policy
        self.lanes = lanes
        codes = data.ArrayLayout(unsigned(policy.element.width), lanes)
        values = data.ArrayLayout(unsigned(FP32.width), lanes)
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"code": codes, "scale": E8M0.width}))),
                "o": Out(stream.Signature(values)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat = self.i.payload
        decoders = [Ldexp(self.policy) for _ in range(self.lanes)]
        for lane, decoder in enumerate(decoders):
            m.submodules[f"lane_{lane}"] = decoder
            m.d.comb += decoder.code.eq(beat.code[lane])
            m.d.comb += decoder.scale.eq(beat.scale)
        register_beat(m, self.i, self.o, [decoder.value for decoder in decoders])
        return m


def register_beat(m: Module, i: Any, o: Any, results: list[Signal], *, when: Value | None = None) -> Signal:
    """Put ``results``, worked out from ``i.payload``, into ``o.payload`` as ``i`` and ``o`` agree to move.

    A beat of ``i`` for which ``when`` is 0 yields no output and so never waits for one. Returns the signal that says
    that a beat of ``i`` is taken in this cycle.
    """
    taken = Signal()
    free = Signal()
    yields = Signal()
    m.d.comb += yields.eq(1 if when is None else when)
    m.d.comb += free.eq(~o.valid | o.ready)
    m.d.comb += i.ready.eq(free | ~yields)
    m.d.comb += taken.eq(i.valid & i.ready)
    with m.If(o.ready):
        m.d.sync += o.valid.eq(0)
    with m.If(taken & yields):
        m.d.sync += o.valid.eq(1)
        for lane, result in enumerate(results):
            m.d.sync += (o.payload[lane] if len(results) > 1 else o.payload).eq(result)
    return taken
