"""Verilator's and Icarus' outputs of every configuration, as they came out, are the same."""

import os
from pathlib import Path

import numpy as np
import pytest

from mxhw.catalog import CATALOG
from mxmodel.bad_input import BadInput
from mxtb import simulators
from mxtb.blocks import golden, stimulus
from mxtb.lanes import Top, compare
from mxtb.regress import tops
from mxtb.simulators import Simulator
from mxtb.streams import StreamTop, compare_streams, draw_beats

CASES = 2000


@pytest.fixture(scope="module")
def both() -> list[Simulator]:
    try:
        return [simulators.find(name) for name in simulators.NAMES]
    except BadInput as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"optional here, required in CI: {missing}")


@pytest.mark.parametrize("top", tops(CATALOG), ids=lambda top: top.name)
def test_outputs_of_both_simulators_are_equal(
    top: Top | StreamTop, both: list[Simulator], bench: Path, tmp_path: Path
) -> None:
    dumps = []
    for simulator in both:
        where = {"work": tmp_path / simulator.name, "cache": bench, "keep_outputs": True}
        if isinstance(top, StreamTop):
            beats = {entry.name: draw_beats(entry, 60, seed=2) for entry in top.entries}
            outcome = compare_streams(simulator, top, beats, seed=2, **where)  # type: ignore[arg-type]
        else:
            # A sample of everything: directed and random, some blocks or values of each kind.
            drawn = stimulus(top.entries, 2 * CASES, seed=2)
            chosen = np.random.default_rng(2).permutation(len(next(iter(drawn.values()))))[:CASES]
            inputs = {name: array[chosen] for name, array in drawn.items()}
            expected = [golden(entry, inputs) for entry in top.entries]
            outcome = compare(simulator, top, inputs, expected, **where)  # type: ignore[arg-type]
        assert outcome.outputs is not None
        dumps.append(np.load(outcome.outputs))
    assert dumps[0].tolist() == dumps[1].tolist()
    if isinstance(top, Top):
        assert len(dumps[0]) * top.lanes >= len(chosen) >= 1000
    else:
        assert len(dumps[0]) >= 60 * len(top.entries)
    assert len(set(dumps[0].tolist())) > 20
