"""What must be shown of a clocked entry: the laws of a stream, by induction over its steps.

A law is told of two states, ``now`` and ``next``, one clock edge apart, and nothing is asked of ``now``: it may be any
state at all. So a law that is proved holds in every step from every state, reachable or not, and for ever. Together:

- what is offered stays offered, and the same, until it is taken;
- a beat is taken exactly where there is room, and every result offered comes from a beat taken: the register holds one,
  so none is lost, doubled or overtaken;
- the result is the specified one, of the beat taken (lane by lane); of ``shared_exponent`` it is that of the largest
  exponent so far, which grows by every beat and begins anew after a block's last;
- power-up and reset lead to the state in which nothing is under way.

And for one whole block of ``shared_exponent`` at its ports alone: from every state in which no block is under way, its
beats give its scale.
"""

from dataclasses import dataclass
from itertools import pairwise

from mxhw.catalog import Block, Entry
from mxmodel.formats import E8M0, FP32, MX_BLOCK
from mxtb.proof.netlist import initially, moves, port, sort, state
from mxtb.proof.obligation import Obligation, named, specification

__all__ = ["RESET", "payload_widths", "stream_obligations", "trace_script"]

RESET = "reset: nothing under way"
"""The law of what a reset leaves; no run from power-up shows it."""

_ASKED = ("payload", "valid", "ready")
"""A cycle's inputs, by the names that a counterexample has them by."""


def payload_widths(entry: Entry) -> tuple[int, int]:
    """Bits of an input and of an output payload."""
    scale = E8M0.width if entry.scaled else 0
    results = 1 if entry.block is Block.SHARED_EXPONENT else entry.lanes
    return entry.lanes * entry.word_width + scale, results * entry.result_width


@dataclass(frozen=True)
class _At:
    """Terms over one state of a stream."""

    entry: Entry
    at: str

    def bits(self, name: str, width: int) -> str:
        return port(self.entry, name, self.at, width)

    def is_set(self, name: str) -> str:
        return f"(= {self.bits(name, 1)} #b1)"

    @property
    def taken(self) -> str:
        return f"(and {self.is_set('i__valid')} {self.is_set('i__ready')})"

    @property
    def input(self) -> str:
        return self.bits("i__payload", payload_widths(self.entry)[0])

    @property
    def output(self) -> str:
        return self.bits("o__payload", payload_widths(self.entry)[1])

    @property
    def beat(self) -> str:
        """Beats of this block so far; only where a block has several."""
        return self.bits("beat", self.beat_width)

    @property
    def beat_width(self) -> int:
        return (self.entry.beats - 1).bit_length()

    @property
    def so_far(self) -> str:
        return self.bits("so_far", FP32.exponent_bits)

    @property
    def last(self) -> str:
        """Whether a beat taken now is its block's last."""
        return "true" if self.entry.beats == 1 else f"(= {self.beat} (_ bv{self.entry.beats - 1} {self.beat_width}))"

    @property
    def between_blocks(self) -> str:
        if self.entry.beats == 1:
            return "true"
        return f"(and (= {self.beat} (_ bv0 {self.beat_width})) (= {self.so_far} #x00))"


def stream_obligations(entry: Entry) -> tuple[Obligation, ...]:
    """The obligations of a clocked entry."""
    now, following = _At(entry, "now"), _At(entry, "next")
    nothing = f"(and (not {now.is_set('o__valid')}) {now.between_blocks})"
    nothing_next = f"(and (not {following.is_set('o__valid')}) {following.between_blocks})"
    two = state(entry, "now") + state(entry, "next") + f"(assert {moves(entry, 'now', 'next')})\n"
    starts = (
        Obligation(
            label="power-up: nothing under way",
            script=state(entry, "now") + f"(assert {initially(entry, 'now')})\n(assert (not {nothing}))\n",
            asked=(),
        ),
        Obligation(
            label=RESET,
            script=two + f"(assert {now.is_set('rst')})\n(assert (not {nothing_next}))\n",
            asked=(),
        ),
    )
    offered, readied, stays = now.is_set("o__valid"), now.is_set("o__ready"), following.is_set("o__valid")
    waits = f"(and {offered} (not {readied}))"
    has_room = f"(or (not {offered}) {readied} (not {now.last}))"
    held = f"(=> {waits} (and {stays} (= {following.output} {now.output})))"
    taken = f"(=> {now.is_set('i__valid')} (= {now.is_set('i__ready')} {has_room}))"
    counted = f"(= {stays} (or (and {now.taken} {now.last}) {waits}))"
    results = _block_laws if entry.block is Block.SHARED_EXPONENT else _lane_laws
    laws = [
        ("offered until taken", held),
        ("no beat lost or doubled", f"(and {taken} {counted})"),
        *results(now, following),
    ]
    return (*starts, *(_law(entry, label, term) for label, term in laws), *_whole_block(entry))


def _law(entry: Entry, label: str, term: str) -> Obligation:
    broken = _text(entry) + (
        f"(define-fun broken ((now {sort(entry)}) (next {sort(entry)})) Bool\n"
        f"  (and (not {_At(entry, 'now').is_set('rst')}) (not {term})))\n"
    )
    script = broken + state(entry, "now") + state(entry, "next") + _cycle(entry, "now", "")
    script += f"(assert {moves(entry, 'now', 'next')})\n(assert (broken now next))\n"
    return Obligation(label=label, script=script, asked=_ASKED, broken=broken)


def _text(entry: Entry) -> str:
    return specification(entry, entry.policy, entry.lanes)


def _lane_laws(now: _At, following: _At) -> list[tuple[str, str]]:
    entry = now.entry
    words = entry.lanes * entry.word_width
    scale = f"((_ extract {words + 7} {words}) {now.input})" if entry.scaled else "#x00"
    laws = []
    for lane in range(entry.lanes):
        word = _field(now.input, lane, entry.word_width)
        result = _field(following.output, lane, entry.result_width)
        laws.append((f"result of lane {lane}", f"(=> {now.taken} (specified {word} {scale} {result}))"))
    return laws


def _block_laws(now: _At, following: _At) -> list[tuple[str, str]]:
    largest = f"(larger {now.so_far} (largest-of {now.input}))"
    one = f"(_ bv1 {now.beat_width})"
    goes_on = f"(and (= {following.so_far} {largest}) (= {following.beat} (bvadd {now.beat} {one})))"
    waits = f"(and (= {following.so_far} {now.so_far}) (= {following.beat} {now.beat}))"
    ends = following.between_blocks
    return [
        ("largest exponent so far", f"(ite {now.taken} (ite {now.last} {ends} {goes_on}) {waits})"),
        ("scale of the largest", f"(=> (and {now.taken} {now.last}) (= {following.output} (scale-of {largest})))"),
    ]


def _field(payload: str, lane: int, width: int) -> str:
    return f"((_ extract {width * (lane + 1) - 1} {width * lane}) {payload})"


def _whole_block(entry: Entry) -> tuple[Obligation, ...]:
    """All beats of one block, each as soon as it is taken, from any state between blocks."""
    if entry.beats == 1:
        return ()
    names = [f"s{cycle}" for cycle in range(entry.beats + 1)]
    script = specification(entry, entry.policy) + "".join(state(entry, name) for name in names)
    script += f"(assert {_At(entry, names[0]).between_blocks})\n"
    for before, after in pairwise(names):
        cycle = _At(entry, before)
        script += f"(assert (and {cycle.taken} (not {cycle.is_set('rst')}) {moves(entry, before, after)}))\n"
    payloads = [_At(entry, name).input for name in names[:-1]]
    block = payloads[0]
    for payload in payloads[1:]:
        block = f"(concat {payload} {block})"
    end = _At(entry, names[-1])
    script += f"(assert (not (and {end.is_set('o__valid')} (specified {block} {end.output}))))\n"
    assert len(payloads) * entry.lanes == MX_BLOCK.size
    return (Obligation(label="one block, from any state between blocks", script=script, asked=()),)


def trace_script(entry: Entry, obligation: Obligation, cycles: int) -> tuple[str, tuple[str, ...]]:
    """A script that is satisfied by a run from power-up whose last of ``cycles`` steps breaks the law; and its names.

    The producer keeps the laws too: what it offers stays until it is taken.
    """
    names = [f"s{cycle}" for cycle in range(cycles + 1)]
    script = obligation.broken + "".join(state(entry, name) for name in names)
    script += f"(assert {initially(entry, names[0])})\n"
    asked: list[str] = []
    for cycle, (before, after) in enumerate(pairwise(names)):
        now, following = _At(entry, before), _At(entry, after)
        script += _cycle(entry, before, str(cycle))
        script += f"(assert (and (not {now.is_set('rst')}) {moves(entry, before, after)}))\n"
        waits = f"(and {now.is_set('i__valid')} (not {now.is_set('i__ready')}))"
        stays = f"(and {following.is_set('i__valid')} (= {following.input} {now.input}))"
        script += f"(assert (=> {waits} {stays}))\n"
        asked += [f"{name}{cycle}" for name in _ASKED]
    return script + f"(assert (broken {names[-2]} {names[-1]}))\n", tuple(asked)


def _cycle(entry: Entry, at: str, suffix: str) -> str:
    """A cycle's inputs by name."""
    now = _At(entry, at)
    width = payload_widths(entry)[0]
    ports = (("payload", width, "i__payload"), ("valid", 1, "i__valid"), ("ready", 1, "o__ready"))
    return "".join(named(f"{name}{suffix}", bits, now.bits(port_name, bits)) for name, bits, port_name in ports)
