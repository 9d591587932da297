"""Clocked entries: latency and throughput as documented, the laws of a stream, and bench faults that must be seen."""

import os
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from amaranth.sim import Simulator as AmaranthSimulator

from mxhw.accumulating_exponent import AccumulatingExponent
from mxhw.catalog import CATALOG, Block, Entry, Form
from mxhw.multi_format import MultiFormatLdexp, MultiFormatNarrow
from mxhw.streamed import StreamedLdexp, StreamedNarrow
from mxmodel.bad_input import BadInput
from mxmodel.formats import BF16, FP4_E2M1, FP8_E4M3, FP32
from mxmodel.rules import BIRSIM, OCP
from mxtb import simulators
from mxtb.lanes import Top, compare
from mxtb.simulators import Simulator
from mxtb.stream_scoreboard import WatchedStream
from mxtb.streams import StreamTop, beats_of, compare_streams, draw_beats

CLOCKED = [entry for entry in CATALOG if entry.clocked]


@pytest.mark.parametrize("entry", CLOCKED, ids=lambda entry: entry.name)
def test_latency_and_initiation_interval_are_as_documented(entry: Entry) -> None:
    """Measured: cycles from a (last) beat taken to its result offered; cycles between beats with both sides eager."""
    component: Any = entry.component()
    taken, offered = [], []
    beats = 8 * entry.beats

    async def bench(context: Any) -> None:
        context.set(component.i.valid, 1)
        context.set(component.o.ready, 1)
        for cycle in range(beats + 4):
            if cycle == beats:
                context.set(component.i.valid, 0)
            if context.get(component.i.valid) and context.get(component.i.ready):
                taken.append(cycle)
            if context.get(component.o.valid):
                offered.append(cycle)
            await context.tick()

    simulator: Any = AmaranthSimulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert taken == list(range(beats)), "one beat a cycle"
    last = taken[entry.beats - 1 :: entry.beats]
    assert [cycle - start for cycle, start in zip(offered, last, strict=True)] == [entry.latency] * 8
    assert f"atency {entry.latency} cycle" in str(type(component).__doc__)
    assert "one beat a cycle" in str(type(component).__doc__)


def test_accumulating_units_equal_the_whole_block_unit(simulator: Simulator, bench: Path, tmp_path: Path) -> None:
    """The scale bytes of the same blocks, as both came out of the simulator (E-1..E-6)."""
    top = StreamTop(entries=tuple(CLOCKED))
    units = [entry for entry in CLOCKED if entry.block is Block.SHARED_EXPONENT]
    beats = {entry.name: draw_beats(entry, 100 if entry in units else 1, seed=3) for entry in CLOCKED}
    where = {"work": tmp_path / "run", "cache": bench}
    streams = compare_streams(simulator, top, beats, seed=3, **where, keep_outputs=True)  # type: ignore[arg-type]
    by_beat = iter(np.load(streams.outputs or "").tolist())
    compared = 0
    for entry in CLOCKED:
        own = [next(by_beat) for _ in beats[entry.name].expected]
        if entry not in units:
            continue
        blocks = np.asarray(beats[entry.name].inputs["x"])
        whole = next(e for e in CATALOG if (e.policies, e.source, e.form) == (entry.policies, entry.source, Form.LANE))
        # What comes out is what matters here: the expectation is left wrong.
        wrong = np.zeros(len(blocks), dtype=np.uint8)
        lanes = compare(simulator, Top(entries=(whole,)), {"x": blocks}, [wrong], **where, keep_outputs=True)  # type: ignore[arg-type]
        steps = np.load(lanes.outputs or "").tolist()
        assert own == [text[end - 8 : end] for text in steps for end in range(len(text), 0, -8)]
        assert len(set(own)) > 20
        compared += len(own)
    assert compared == 100 * len(units) == 400


def test_other_stalls_give_the_same_beats(bench: Path, tmp_path: Path) -> None:
    """The order and values of what comes out do not depend on the stalls."""
    simulator = simulators.find("verilator")
    top = StreamTop(entries=tuple(CLOCKED))
    beats = {entry.name: draw_beats(entry, 50, seed=1) for entry in CLOCKED}
    outputs = []
    for seed in range(3):
        outcome = compare_streams(
            simulator, top, beats, seed=seed, work=tmp_path / "run", cache=bench, keep_outputs=True
        )
        assert not any(outcome.mismatches.values()), outcome.first[:5]
        assert outcome.outputs is not None
        outputs.append(np.load(outcome.outputs).tolist())
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(outputs[0]) == sum(len(own.expected) for own in beats.values())


@pytest.mark.parametrize(
    ("cycles", "wanted"),
    [
        # valid, i.ready, payload as the simulator prints them; the consumer is never ready.
        (["10" + "0101", "00" + "0101"], "valid retracted"),
        (["10" + "0101", "10" + "0100"], "payload changed while stalled"),
        (["x0" + "0101"], "valid x"),
        (["10" + "0101", "10" + "0101"], None),
    ],
)
def test_the_laws_of_a_stream_are_watched(cycles: list[str], wanted: str | None) -> None:
    watched = WatchedStream(
        name="s", beats=[1], expected=[5], in_bits=4, out_bits=4, lanes=1, valid=repeat(False), ready=repeat(False)
    )
    for bits in cycles:
        watched.drive()
        watched.observe(bits)
    assert [row["got"].startswith(wanted or "") for row in watched.kept] == [True] * (wanted is not None)
    assert watched.mismatches == (wanted is not None)


@pytest.mark.parametrize(
    ("sent", "outputs", "waits"),
    [
        # Two beats make a result; the consumer is never ready. What stands is valid, i.ready, payload.
        (0, "00" + "0000", "without need"),
        (0, "10" + "0101", "without need"),
        (1, "00" + "0000", "without need"),
        (1, "10" + "0101", None),
        (0, "11" + "0101", None),
    ],
)
def test_only_a_last_beat_waits_and_only_for_a_result(sent: int, outputs: str, waits: str | None) -> None:
    sides = {"valid": repeat(True), "ready": repeat(False)}
    watched = WatchedStream(
        name="s", beats=[1] * 2, expected=[5], in_bits=4, out_bits=4, lanes=1, gathers=2, sent=sent, **sides
    )
    watched.drive()
    watched.observe(outputs)
    assert [row["got"].endswith(waits or "") for row in watched.kept] == [True] * (waits is not None)


def test_a_lost_and_an_added_beat_are_reported(bench: Path, tmp_path: Path) -> None:
    """Expectations of one beat more, and of one less, than the RTL gives."""
    entry = next(e for e in CLOCKED if e.block is Block.LDEXP)
    beats = draw_beats(entry, 20, seed=0)
    more = replace(beats, expected=np.concatenate([beats.expected, beats.expected[:1]]))
    less = replace(beats, expected=beats.expected[:-1])
    top = StreamTop(entries=(entry,))
    for changed, wanted in ((more, "never came"), (less, "a beat more")):
        outcome = compare_streams(_icarus(), top, {entry.name: changed}, seed=0, work=tmp_path / "run", cache=bench)
        assert [wanted in mismatch.got for mismatch in outcome.first] == [True], outcome.first[:2]


def _icarus() -> Simulator:
    """Builds in under a second."""
    try:
        return simulators.find("icarus")
    except BadInput as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"optional here, required in CI: {missing}")


def test_beats_hold_what_they_should() -> None:
    """FP4 codes are packed LSB first, the scale lies above them (L-1)."""
    entry = next(e for e in CLOCKED if e.elements == (FP4_E2M1,))
    codes = np.array([1, 2, 0xB, 7, 0, 1, 2, 3], dtype=np.uint8)
    beats = beats_of(entry, {"code": codes, "scale": np.full(8, 0x7F, dtype=np.uint8)})
    assert beats.beats.tolist() == [[0x21, 0x7B, 0x10, 0x32, 0x7F]]
    assert beats.expected.view("<u4")[0, :4].tolist() == [0x3F000000, 0x3F800000, 0xBFC00000, 0x40C00000]
    with pytest.raises(ValueError, match="one scale for each beat"):
        beats_of(entry, {"code": codes, "scale": np.arange(8, dtype=np.uint8)})


@pytest.mark.parametrize(
    ("build", "error", "wanted"),
    [
        (lambda: AccumulatingExponent(BF16, BIRSIM.exponent_policy(FP8_E4M3), 5), ValueError, "lanes must divide 32"),
        (lambda: AccumulatingExponent(BF16, BIRSIM.exponent_policy(FP8_E4M3), 32), ValueError, "and be less, not 32"),
        (lambda: StreamedNarrow(FP32, BIRSIM.narrow_policy(FP8_E4M3, scaled=True), 0), ValueError, "at least 1, not 0"),
        (lambda: StreamedLdexp(BIRSIM.dequant_policy(FP8_E4M3), "8"), TypeError, "lanes must be an int, not '8'"),
        (lambda: MultiFormatLdexp([BIRSIM.dequant_policy(FP8_E4M3)]), ValueError, "at least two different elements"),
        (
            lambda: MultiFormatNarrow(FP32, [OCP.narrow_policy(e, scaled=False) for e in (FP4_E2M1, FP8_E4M3)]),
            ValueError,
            "policies must all be scaled",
        ),
    ],
)
def test_arguments_are_checked(build: Any, error: type[Exception], wanted: str) -> None:
    with pytest.raises(error, match=wanted):
        build()
