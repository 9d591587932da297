"""Inside the simulator: drive the streams of a plan under random stalls on both sides, and compare every beat.

The clock is driven here too: inputs change while it is low, outputs are read before it rises. Three laws are watched in
every cycle: what is offered stays offered until it is taken, and does not change meanwhile; and a beat waits only if it
ends a result while the result before has not been taken. Before the run every stream is filled and reset, so that
nothing may be left of what it held.
"""

import json
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import Timer

from mxtb.scoreboard import KEPT, OUTPUTS, PLAN, RESULT

__all__ = ["WatchedStream", "check_streams", "stalls"]

_PHASE = 64
"""Cycles for which one side keeps its habit."""

_HABITS = (1.0, 1.0, 0.9, 0.5, 0.5, 0.1)
"""How likely a side moves in a cycle; it never stalls, hardly, half of the time, or nearly always."""

_FILL = 64
"""Cycles that fill a stream before it is reset: more than a block has beats."""

_PATIENCE = 200
"""Cycles for every beat owed before a stream is given up for dead."""


@dataclass(kw_only=True)
class WatchedStream:
    """One entry under test: what is still to go in, what must still come out; ``gathers`` beats in make one out."""

    name: str
    beats: list[int]
    expected: list[int]
    in_bits: int
    out_bits: int
    lanes: int
    valid: Iterator[bool]
    ready: Iterator[bool]
    gathers: int = 1
    sent: int = 0
    received: int = 0
    offering: bool = False
    readied: bool = False
    stalled: str | None = None
    compared: int = 0
    mismatches: int = 0
    kept: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def drive(self) -> int:
        """This cycle's inputs: the payload, above it valid and ready. A beat once offered stays until it is taken."""
        self.offering = self.sent < len(self.beats) and (self.offering or next(self.valid))
        self.readied = next(self.ready)
        payload = self.beats[self.sent] if self.offering else 0
        return payload | int(self.offering) << self.in_bits | int(self.readied) << (self.in_bits + 1)

    def observe(self, bits: str) -> None:
        """This cycle's outputs, as a string: ready and valid, then the payload; whatever moves, moves at the edge."""
        valid, ready, payload = bits[-self.out_bits - 2], bits[-self.out_bits - 1], bits[-self.out_bits :]
        if {valid, ready} - {"0", "1"}:
            self._wrong(f"valid {valid}, ready {ready}", "0 or 1")
        if self.stalled is not None and valid != "1":
            self._wrong("valid retracted before the beat was taken", "valid held")
        elif self.stalled is not None and payload != self.stalled:
            self._wrong(f"payload changed while stalled, {self.stalled} to {payload}", "payload held")
        self.stalled = payload if valid == "1" and not self.readied else None
        ends = self.sent % self.gathers == self.gathers - 1
        if self.offering and ready == "0" and not (ends and self.stalled is not None):
            self._wrong("a beat kept waiting without need", "ready")
        if self.offering and ready == "1":
            self.sent += 1
            self.offering = False
        if valid == "1" and self.readied:
            self._take(payload)

    def _take(self, payload: str) -> None:
        if self.received == len(self.expected):
            self._wrong(f"a beat more: {payload}", "nothing")
            return
        wanted = f"{self.expected[self.received]:0{self.out_bits}b}"
        width = self.out_bits // self.lanes
        for lane in range(self.lanes):
            end = self.out_bits - width * lane
            if payload[end - width : end] != wanted[end - width : end]:
                self._wrong(payload[end - width : end], wanted[end - width : end])
        self.compared += self.lanes
        self.received += 1
        self.outputs.append(payload)

    def give_up(self) -> None:
        """Count what never came as compared and wrong."""
        missing = len(self.expected) - self.received
        if missing:
            self._wrong(f"{missing} beats never came", "every beat")
            self.compared += missing * self.lanes

    def _wrong(self, got: str, expected: str) -> None:
        self.mismatches += 1
        if len(self.kept) < KEPT:
            self.kept.append({"entry": self.name, "case": self.received, "got": got, "expected": expected})

    @property
    def done(self) -> bool:
        return self.sent == len(self.beats) and self.received == len(self.expected)


def _habit(rng: np.random.Generator) -> Iterator[bool]:
    """Whether a side moves, cycle by cycle: phases of different eagerness."""
    while True:
        eagerness = rng.choice(_HABITS)
        yield from (rng.random(_PHASE) < eagerness).tolist()


def stalls(name: str, seed: int) -> tuple[Iterator[bool], Iterator[bool]]:
    """Whether the two sides of the entry ``name`` move, cycle by cycle, without end: who offers, then who takes.

    By its name, so that an entry meets the same stalls alone as among others.
    """
    own = zlib.crc32(name.encode())
    valid, ready = (_habit(np.random.default_rng([seed, own, side])) for side in range(2))
    return valid, ready


async def check_streams(dut: Any) -> None:
    """Drive every beat of the plan; write counts and first mismatches beside it; fail if there was any."""
    directory = Path(os.environ[PLAN])
    plan = json.loads((directory / "plan.json").read_text())
    streams = []
    for row in plan["streams"]:
        with np.load(directory / f"{row['name']}.npz") as arrays:
            beats = [int.from_bytes(beat.tobytes(), "little") for beat in arrays["beats"]]
            expected = [int.from_bytes(beat.tobytes(), "little") for beat in arrays["expected"]]
        valid, ready = stalls(row["name"], plan["seed"])
        streams.append(WatchedStream(**row, beats=beats, expected=expected, valid=valid, ready=ready))
    start = time.perf_counter()
    await _run(dut, streams)
    for stream in streams:
        stream.give_up()
    result = {
        "compared": {stream.name: stream.compared for stream in streams},
        "mismatches": {stream.name: stream.mismatches for stream in streams},
        "first": [row for stream in streams for row in stream.kept],
        "seconds": time.perf_counter() - start,
    }
    (directory / RESULT).write_text(json.dumps(result))
    if plan["keep_outputs"]:
        np.save(directory / OUTPUTS, np.array([bits for stream in streams for bits in stream.outputs]))
    total = sum(stream.mismatches for stream in streams)
    assert total == 0, f"{total} differences"


async def _run(dut: Any, streams: list[WatchedStream]) -> None:
    owed = max(len(stream.beats) + len(stream.expected) for stream in streams)
    await _clock(dut, reset=1, word=0, cycles=2)
    full, place = 0, 0
    for stream in streams:
        full |= ((1 << stream.in_bits + 1) - 1) << place  # ones, valid; never ready
        place += stream.in_bits + 2
    await _clock(dut, reset=0, word=full, cycles=_FILL)
    await _clock(dut, reset=1, word=0, cycles=2)
    dut.rst.value = 0
    quiet = 0
    for _ in range(_PATIENCE * owed):
        word, place = 0, 0
        for stream in streams:
            word |= stream.drive() << place
            place += stream.in_bits + 2
        dut.clk.value = 0
        dut.inputs.value = word
        await Timer(1, "ns")
        bits = str(dut.outputs.value)
        end = len(bits)
        for stream in streams:
            stream.observe(bits[end - stream.out_bits - 2 : end])
            end -= stream.out_bits + 2
        dut.clk.value = 1
        await Timer(1, "ns")
        # A few cycles more, in which nothing may come.
        quiet = quiet + 1 if all(stream.done for stream in streams) else 0
        if quiet == _PHASE:
            break


async def _clock(dut: Any, *, reset: int, word: int, cycles: int) -> None:
    dut.rst.value = reset
    dut.inputs.value = word
    for level in (0, 1) * cycles:
        dut.clk.value = level
        await Timer(1, "ns")


@cocotb.test()
async def streams_match_golden(dut: Any) -> None:
    """Every beat of every entry is the golden one, in order, none lost or added, and the laws of a stream hold."""
    await check_streams(dut)
