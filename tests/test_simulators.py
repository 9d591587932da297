"""The bench's honesty: nothing passes silently, nothing missing goes unnoticed, X is never equal to anything."""

import json
from pathlib import Path

import numpy as np
import pytest

from mxhw.catalog import Block, select
from mxmodel.bad_input import BadInput
from mxmodel.formats import FP4_E2M1
from mxtb import lanes, simulators
from mxtb.blocks import golden, stimulus
from mxtb.lanes import Top, compare, write_plan
from mxtb.scoreboard import PLAN
from mxtb.simulators import SimulationFault, Simulator, build, failed_tests, run


@pytest.fixture
def icarus() -> Simulator:
    """Builds in under a second; required in CI by the ``simulator`` fixture's users."""
    try:
        return simulators.find("icarus")
    except BadInput as missing:
        pytest.skip(f"optional here: {missing}")


@pytest.fixture
def small_top() -> Top:
    """One entry, quick to build."""
    entries = [e for e in select(blocks=(Block.NARROW,), elements=(FP4_E2M1,)) if not e.scaled]
    return Top(entries=(entries[0],))


def _inputs(top: Top) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {name: array[:1000] for name, array in stimulus(top.entries, 0, seed=0).items()}


def test_a_true_plan_passes_and_counts(icarus: Simulator, small_top: Top, tmp_path: Path) -> None:
    inputs = _inputs(small_top)
    outcome = compare(
        icarus, small_top, inputs, [golden(small_top.entries[0], inputs)], work=tmp_path / "run", cache=tmp_path
    )
    assert outcome.compared == {small_top.entries[0].name: 1000}
    assert outcome.mismatches == {small_top.entries[0].name: 0}


def test_every_wrong_expectation_is_found(icarus: Simulator, small_top: Top, tmp_path: Path) -> None:
    """Flip one bit of 7 chosen outputs: exactly those 7 are reported, at their cases."""
    inputs = _inputs(small_top)
    expected = golden(small_top.entries[0], inputs).copy()
    chosen = [0, 31, 32, 500, 501, 998, 999]
    expected[chosen] ^= 1
    outcome = compare(icarus, small_top, inputs, [expected], work=tmp_path / "run", cache=tmp_path)
    assert [mismatch.case for mismatch in outcome.first] == chosen
    assert outcome.mismatches == {small_top.entries[0].name: 7}


@pytest.mark.parametrize("value", ["x", "z"])
def test_unknown_bits_are_mismatches(icarus: Simulator, tmp_path: Path, value: str) -> None:
    """A module whose output is X or Z differs from 0 and from every golden code."""
    entry = next(e for e in select(blocks=(Block.NARROW,), elements=(FP4_E2M1,)) if not e.scaled)
    top = Top(entries=(entry,))
    sources = dict(top.sources())
    sources[f"{entry.name}.v"] = (
        f"module {entry.name}(input [31:0] x, output [3:0] code); assign code = 4'b0{value}00; endmodule\n"
    )
    work = tmp_path / "run"
    planned = write_plan(work, top, {"x": np.zeros(64, dtype=np.uint32)}, [np.zeros(64, dtype=np.uint8)])
    built = build(icarus, sources, lanes.TOPLEVEL, cache=tmp_path)
    run(built, "mxtb.narrow", work, environment={PLAN: str(work)})
    result = json.loads((work / "scoreboard.json").read_text())
    assert result["mismatches"] == {entry.name: planned}
    assert value in result["first"][0]["got"].lower()
    assert failed_tests(work / "results.xml") == ["mxtb.narrow.narrow_lanes"]


def test_missing_comparisons_are_a_fault(
    icarus: Simulator, small_top: Top, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scoreboard that did fewer comparisons than planned cannot pass."""
    inputs = _inputs(small_top)
    real = lanes.write_plan
    monkeypatch.setattr(lanes, "write_plan", lambda *arguments, **options: real(*arguments, **options) + 1)
    with pytest.raises(SimulationFault, match="1001 comparisons were planned, 1000 were made"):
        compare(
            icarus, small_top, inputs, [golden(small_top.entries[0], inputs)], work=tmp_path / "run", cache=tmp_path
        )


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("missing_module", None),
        ("no_tests_module", "import cocotb\n"),
    ],
)
def test_the_runners_silent_passes_are_caught(
    icarus: Simulator, small_top: Top, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, source: str | None
) -> None:
    """cocotb's runner returns normally for a missing module and for one without tests; we do not."""
    if source is not None:
        (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    built = build(icarus, small_top.sources(), lanes.TOPLEVEL, cache=tmp_path)
    with pytest.raises(SimulationFault, match=module):
        run(built, module, tmp_path / "run", environment={})


@pytest.mark.parametrize(
    ("decorator", "environment"),
    [("@cocotb.test()", {"COCOTB_TEST_FILTER": "nothing_of_that_name"}), ("@cocotb.test(skip=True)", {})],
    ids=["all filtered out", "all skipped"],
)
def test_a_results_file_without_a_test_that_ran_is_caught(
    icarus: Simulator,
    small_top: Top,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    decorator: str,
    environment: dict[str, str],
) -> None:
    """Here the runner returns normally too, and there is a results file: it names no test, or a skipped one."""
    (tmp_path / "idle_module.py").write_text(f"import cocotb\n{decorator}\nasync def idle(dut):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    built = build(icarus, small_top.sources(), lanes.TOPLEVEL, cache=tmp_path)
    with pytest.raises(SimulationFault, match="no test ran"):
        run(built, "idle_module", tmp_path / "run", environment=environment)
    assert (tmp_path / "run/results.xml").exists()


def test_a_failing_test_is_seen(
    icarus: Simulator, small_top: Top, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner returns normally for a failing test too: the results file names it."""
    (tmp_path / "failing_module.py").write_text(
        "import cocotb\n@cocotb.test()\nasync def fails(dut):\n    assert False, 'on purpose'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    built = build(icarus, small_top.sources(), lanes.TOPLEVEL, cache=tmp_path)
    run(built, "failing_module", tmp_path / "run", environment={})
    assert failed_tests(tmp_path / "run" / "results.xml") == ["failing_module.fails"]


_TWO_SHIFTS = """module two_shifts(input [7:0] a, input [1:0] b, input [1:0] c, output [7:0] y);
  wire [7:0] once;
  assign once = a >> b;
  assign y = once >> c;
endmodule
"""
_SHIFTS_TEST = """import cocotb
from cocotb.triggers import Timer

@cocotb.test()
async def two_shifts(dut):
    wrong = []
    for b in range(4):
        for c in range(4):
            dut.a.value, dut.b.value, dut.c.value = 0xFF, b, c
            await Timer(1, "ns")
            if int(dut.y.value) != 0xFF >> b >> c:
                wrong.append((b, c))
    assert not wrong, f"(a >> b) >> c is wrong for {wrong}"
"""


def test_two_shifts_are_not_folded_into_one_that_wraps(
    simulator: Simulator, bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verilator's data-flow pass makes a >> (b + c) of (a >> b) >> c, the sum as narrow as b: 3 + 3 is 2.

    Only where nothing inside is public, as in every top of ours. The guard is ``-fno-dfg``, after the ``-O3`` that
    would switch the pass on again; without it this test is red (6 of the 16 pairs are wrong).
    """
    (tmp_path / "shifts_module.py").write_text(_SHIFTS_TEST)
    monkeypatch.syspath_prepend(str(tmp_path))
    ports = {"a": 8, "b": 2, "c": 2}
    inputs = ", ".join(f"input [{width - 1}:0] {name}" for name, width in ports.items())
    sources = {
        "two_shifts.v": _TWO_SHIFTS,
        "shifts.v": f"module shifts({inputs}, output [7:0] y);\n  two_shifts inner(a, b, c, y);\nendmodule\n",
        "shifts.vlt": '`verilator_config\nno_inline -module "two_shifts"\n'
        + "".join(f'public_flat_rw -module "shifts" -var "{name}"\n' for name in (*ports, "y")),
    }
    built = build(simulator, sources, "shifts", cache=bench)
    run(built, "shifts_module", tmp_path / "run", environment={})
    assert failed_tests(tmp_path / "run" / "results.xml") == [], (tmp_path / "run" / "run.log").read_text()[-800:]


def test_a_broken_source_is_a_fault_with_its_log(icarus: Simulator, tmp_path: Path) -> None:
    with pytest.raises(SimulationFault, match="syntax error"):
        build(icarus, {"mx_lanes.v": "module mx_lanes(; endmodule\n"}, "mx_lanes", cache=tmp_path)


def test_builds_are_cached_by_content(icarus: Simulator, small_top: Top, tmp_path: Path) -> None:
    sources = small_top.sources()
    first = build(icarus, sources, lanes.TOPLEVEL, cache=tmp_path)
    again = build(icarus, sources, lanes.TOPLEVEL, cache=tmp_path)
    changed = {**sources, "mx_lanes.v": sources["mx_lanes.v"] + "// changed\n"}
    other = build(icarus, changed, lanes.TOPLEVEL, cache=tmp_path)
    assert first.seconds > 0
    assert again.seconds == 0
    assert again.directory == first.directory != other.directory


def test_simulator_names_and_absence(clean_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="simulator must be one of verilator, icarus, not 'vcs'"):
        simulators.find("vcs")
    with pytest.raises(BadInput, match="icarus must be installed"):
        simulators.find("icarus")
    monkeypatch.setattr(simulators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"verilator must be installed .* at least 5\.036"):
        simulators.find("verilator")


def test_an_old_verilator_is_refused(clean_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = clean_path / "verilator"
    program.write_text("#!/bin/sh\necho 'Verilator 5.006 2023-01-22 rev (Debian 5.006-3)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{clean_path}:/bin")
    monkeypatch.setattr(simulators.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"verilator must be at least 5\.036, but .* is 5\.006"):
        simulators.find("verilator")
    program.write_text("#!/bin/sh\necho 'Verilator 5.040 2025-08-30 rev v5.040'\n")
    assert simulators.find("verilator").version == "5.040"
