"""A block's E8M0 byte from a narrow stream: the block comes in several beats, its largest exponent is kept between."""

from amaranth.hdl import Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from mxhw.buildable import check_exponent, check_lanes, check_source
from mxhw.shared_exponent import LargestExponent, ScaleFromExponent, larger
from mxhw.streamed import register_beat
from mxmodel.formats import E8M0, FP32, MX_BLOCK, SourceFormat
from mxmodel.rules import ExponentPolicy

__all__ = ["AccumulatingExponent"]


class AccumulatingExponent(wiring.Component):  # type: ignore[type-arg]  # generic in the stubs only
    """Beats of elements to one E8M0 byte for every 32 of them (E-1..E-6).

    Latency 1 cycle from a block's last beat; one beat a cycle, and no cycle is lost between blocks. Only a last beat
    waits for the consumer, and only while the byte before it has not been taken.

    Ports
    -----
    i : In(stream): an array of ``lanes`` source words; 32 / lanes beats are a block
    o : Out(stream): the E8M0 byte

    Specials are ``SharedExponent``'s. Raises TypeError or ValueError unless ``source`` is one of ``SOURCES``,
    ``policy`` an ``ExponentPolicy``, and ``lanes`` divides 32 with at least two beats to a block.
    """

    i: stream.Interface
    o: stream.Interface

    def __init__(self, source: SourceFormat, policy: ExponentPolicy, lanes: int) -> None:
        check_lanes(lanes)
        check_exponent(policy)
        check_source(source)
        if MX_BLOCK.size % lanes or lanes == MX_BLOCK.size:
            raise ValueError(f"lanes must divide {MX_BLOCK.size} and be less, not {lanes!r}")
        self.source = source
        self.policy = policy
        self.lanes = lanes
        self.beats = MX_BLOCK.size // lanes
        beat = data.ArrayLayout(unsigned(source.width), lanes)
        super().__init__({"i": In(stream.Signature(beat)), "o": Out(stream.Signature(unsigned(E8M0.width)))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.beat_largest = beat_largest = LargestExponent(self.source, self.lanes)
        m.submodules.tail = tail = ScaleFromExponent(self.policy)
        beat = Signal(range(self.beats))
        last = Signal()
        so_far = Signal(FP32.exponent_bits)
        m.d.comb += last.eq(beat == self.beats - 1)
        m.d.comb += beat_largest.x.eq(self.i.payload)
        largest = larger(m, so_far, beat_largest.largest, name="largest")
        m.d.comb += tail.largest.eq(largest)

        taken = register_beat(m, self.i, self.o, [tail.scale], when=last)
        with m.If(taken):
            m.d.sync += beat.eq(beat + 1)  # 32 / lanes is a power of two: the counter comes round by itself
            m.d.sync += so_far.eq(Mux(last, 0, largest))
        return m
