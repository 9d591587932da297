"""A run of a stream, cycle by cycle, in Amaranth's own simulator, against the golden twin's beats."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from amaranth.hdl import ResetInserter, Signal, Value
from amaranth.sim import Simulator
from numpy.typing import NDArray

from mxhw.catalog import Block, Entry
from mxmodel.formats import MX_BLOCK
from mxtb.proof.stream_obligation import payload_widths
from mxtb.stream_scoreboard import WatchedStream
from mxtb.streams import beats_of

__all__ = ["Cycle", "Story", "replay"]

_DRAIN = 3
"""Whole blocks of zeros sent after a run, so that what it left behind shows."""


_TOLD = 3
"""Faults that a story tells; they are all counted."""


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """What a producer and a consumer do in one cycle."""

    payload: int
    valid: bool
    ready: bool
    reset: bool = False

    def as_json(self) -> dict[str, Any]:
        plain = {"payload": f"0x{self.payload:x}", "valid": int(self.valid), "ready": int(self.ready)}
        return {**plain, "reset": 1} if self.reset else plain


@dataclass(frozen=True, kw_only=True)
class Story:
    """What became of a run: a row for each cycle of it, then the faults that the scoreboard saw, first come first."""

    rows: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]


def replay(entry: Entry, run: Sequence[Cycle]) -> Story:
    """Drive ``entry`` with ``run`` and then with zeros, never stalled, and compare every beat with the golden one.

    Of a run with a reset only what comes after it counts.
    """
    in_bits, out_bits = payload_widths(entry)
    seen = _simulate(entry, run)
    begins = max((number + 1 for number, (cycle, _) in enumerate(seen) if cycle.reset), default=0)
    taken = [cycle.payload for cycle, bits in seen[begins:] if cycle.valid and _ready(bits, out_bits)]
    whole = taken[: len(taken) // entry.beats * entry.beats]
    watched = WatchedStream(
        name=entry.name,
        beats=taken,
        expected=_expected(entry, whole),
        in_bits=in_bits,
        out_bits=out_bits,
        lanes=1 if entry.block is Block.SHARED_EXPONENT else entry.lanes,
        valid=iter(()),
        ready=iter(()),
    )
    rows = []
    for number, (cycle, bits) in enumerate(seen):
        before = watched.mismatches
        if number < begins:
            rows.append((f"cycle {number}", "reset" if cycle.reset else _cycle(cycle, bits, out_bits)))
            continue
        watched.offering, watched.readied = cycle.valid, cycle.ready
        watched.observe(bits)
        if number < len(run) or watched.mismatches > before:
            differs = "   <- differs" if watched.mismatches > before else ""
            rows.append((f"cycle {number}", _cycle(cycle, bits, out_bits) + differs))
    watched.give_up()
    faults = tuple(
        f"result {row['case']}: got {_hex(row['got'])}, expected {_hex(row['expected'])}" for row in watched.kept
    )
    verdict = [("scoreboard", fault) for fault in faults[:_TOLD]] or [("scoreboard", "every beat is the golden twin's")]
    return Story(rows=(*rows, *verdict), faults=faults)


def _hex(text: str) -> str:
    """What the scoreboard tells in binary, where it is bits and no words."""
    return re.sub(r"\b[01]{4,}\b", lambda match: f"0x{int(match.group(), 2):x}", text)


def _ready(bits: str, out_bits: int) -> bool:
    return bits[-out_bits - 1] == "1"


def _cycle(cycle: Cycle, bits: str, out_bits: int) -> str:
    """What is on offer on both sides, and whether it is taken."""
    offered = f"0x{cycle.payload:x}{'' if _ready(bits, out_bits) else ' (not taken)'}" if cycle.valid else "nothing"
    result = f"0x{int(bits[-out_bits:], 2):x}{' (taken)' if cycle.ready else ''}"
    return f"in {offered}, out {result if bits[-out_bits - 2] == '1' else 'nothing'}"


def _expected(entry: Entry, beats: Sequence[int]) -> list[int]:
    """The golden twin's output payloads."""
    width, lanes = entry.word_width, entry.lanes
    words = np.array([(beat >> (width * lane)) & ((1 << width) - 1) for beat in beats for lane in range(lanes)])
    if entry.block is Block.SHARED_EXPONENT:
        inputs: dict[str, NDArray[Any]] = {"x": words.astype(f"uint{width}").reshape(-1, MX_BLOCK.size)}
    else:
        scale = np.array([beat >> (width * lanes) for beat in beats], dtype=np.uint8).repeat(lanes)
        word = "code" if entry.source is None else "x"
        inputs = {word: words.astype("uint8" if entry.source is None else f"uint{width}"), "scale": scale}
    return [int.from_bytes(beat.tobytes(), "little") for beat in beats_of(entry, inputs).expected]


def _simulate(entry: Entry, run: Sequence[Cycle]) -> list[tuple[Cycle, str]]:
    """Each cycle's inputs, and the outputs as the scoreboard takes them: valid, ready, then the payload."""
    component: Any = entry.component()
    reset = Signal()
    _, out_bits = payload_widths(entry)
    seen: list[tuple[Cycle, str]] = []

    async def bench(context: Any) -> None:
        offered = None
        for number in range(len(run) + _DRAIN * (entry.beats + 2) + 1):
            # After the run: what is on offer, then zeros, and at the end nothing, so that the last result comes out.
            if number < len(run):
                cycle = run[number]
            elif number < len(run) + _DRAIN * entry.beats:
                cycle = Cycle(payload=0 if offered is None else offered, valid=True, ready=True)
            else:
                cycle = Cycle(payload=0, valid=False, ready=True)
            context.set(Value.cast(component.i.payload), cycle.payload)
            context.set(component.i.valid, cycle.valid)
            context.set(reset, cycle.reset)
            context.set(component.o.ready, cycle.ready)
            ready = int(context.get(component.i.ready))
            payload = int(context.get(Value.cast(component.o.payload)))
            seen.append((cycle, f"{int(context.get(component.o.valid))}{ready}{payload:0{out_bits}b}"))
            offered = cycle.payload if cycle.valid and not ready else None
            await context.tick()

    simulator: Any = Simulator(ResetInserter(reset)(component))
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return seen
