"""Coverage that can fail: possible bins are all hit, impossible ones are truly so, and a hole in a stimulus is seen."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mxhw.catalog import CATALOG, Block, Entry, Form, find
from mxmodel.formats import E8M0
from mxtb import regress as regress_module
from mxtb.blocks import golden, stimulus
from mxtb.coverage.bins import Coverage
from mxtb.coverage.entries import cover, plans
from mxtb.coverage.page import coverage_page
from mxtb.coverage.survey import survey
from mxtb.coverage.toggle import RECORDED, constant_bits, read_recorded, read_toggles

EXHAUSTED = [
    entry for entry in CATALOG
    if entry.form is not Form.STREAM and (
        entry.block is Block.LDEXP
        or (entry.block is Block.NARROW and not entry.scaled and entry.source is not None and entry.source.width == 16)
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def shown() -> list[Coverage]:
    """The whole catalogue under the stimulus with the fewest random cases."""
    return survey(CATALOG, "icarus")


def test_every_possible_bin_of_every_entry_is_hit(shown: list[Coverage]) -> None:
    assert {one.entry for one in shown} == {entry.name for entry in CATALOG}
    assert {name for one in shown for name in one.missed} == set()
    assert {name for one in shown for name in one.violated} == set()
    assert sum(one.hit for one in shown) > 20_000
    assert min(one.possible for one in shown) > 150


@pytest.mark.parametrize("entry", EXHAUSTED, ids=lambda entry: entry.name)
def test_impossible_bins_are_those_that_no_input_hits(entry: Entry) -> None:
    """All 2^16 inputs (and formats): what is never hit is exactly what the rules call impossible."""
    inputs = stimulus((entry,), 0, seed=0)
    (one,) = cover((entry,), inputs, [golden(entry, inputs)])
    assert one.violated == []
    assert one.missed == []
    assert len(next(iter(inputs.values()))) >= 1 << (entry.word_width + (E8M0.width if entry.scaled else 0))


@pytest.mark.parametrize(
    "name",
    [
        "mx_narrow_bf16_fp8_e5m2_propagate_scaled_exact",
        "mx_narrow_bf16_fp4_e2m1_scaled_fp32_product",
        "mx_narrow_fp16_fp8_e4m3_zero_scaled_fp32_product",
    ],
)
def test_impossible_bins_of_a_scaled_encoder(name: str) -> None:
    """Every 16-bit pattern at every scale, 2^24 cases: no impossible bin is hit, and every possible one is."""
    entry = find(name)
    joint: dict[str, np.ndarray] = {}  # type: ignore[type-arg]
    x = np.arange(1 << 16, dtype=np.uint16).repeat(16)
    for first in range(0, 256, 16):
        inputs = {"x": x, "scale": np.tile(np.arange(first, first + 16, dtype=np.uint8), 1 << 16)}
        (one,) = cover((entry,), inputs, [golden(entry, inputs)])
        (tally,) = one.tallies
        joint[name] = joint.get(name, 0) + tally.joint
    whole = replace(one, tallies=(replace(tally, joint=joint[name]),))
    assert int(joint[name].sum()) == 1 << 24
    assert whole.violated == []
    assert whole.missed == []


def test_every_impossible_bin_has_a_clause(root: Path) -> None:
    clauses = (root / "docs/clauses.md").read_text()
    seen = 0
    for entry in CATALOG:
        for plan in plans(entry):
            for reason in {bin.impossible for bin in plan.bins if bin.impossible is not None}:
                for clause in reason.clause.split(", "):
                    assert f"| {clause} |" in clauses, reason
                    seen += 1
    assert seen > 500


def test_a_hole_in_the_stimulus_is_seen() -> None:
    """Without the ties, the tie bins are missed, by name."""
    entry = find("mx_narrow_fp32_fp8_e4m3_zero")
    inputs = stimulus((entry,), 1000, seed=0)
    ties = inputs["x"] & np.uint32(0xFFFFF) != 0x80000
    inputs = {"x": inputs["x"][ties & (inputs["x"] & np.uint32(0x7F800000) >= np.uint32(121 << 23))]}
    (one,) = cover((entry,), inputs, [golden(entry, inputs)])
    assert "rounding tie to even up" in one.missed
    assert "rounding tie to even down" in one.missed
    assert one.hit < one.possible


def test_an_impossible_bin_hit_is_told_with_its_clause() -> None:
    """A twin that lets Inf through: N-2 is named."""
    entry = find("mx_narrow_fp32_fp8_e5m2_zero")
    inputs = {"x": np.array([0x7F800000], dtype=np.uint32)}
    (one,) = cover((entry,), inputs, [np.array([0x7C], dtype=np.uint8)])
    assert len(one.violated) == 1
    assert "result Inf" in one.violated[0]
    assert "(N-2: Inf and every overflow saturate)" in one.violated[0]


def test_a_full_run_with_a_missed_bin_fails(mxtwin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The same holes: no failure where fewer cases than by default were asked for, exit 1 in a full run."""
    if shutil.which("iverilog") is None and not os.environ.get("CI"):
        pytest.skip("optional here, required in CI: iverilog is not on PATH")
    real = regress_module.cover

    def first_case(entries, inputs, expected):  # type: ignore[no-untyped-def]
        return real(entries, {name: array[:1] for name, array in inputs.items()}, [array[:1] for array in expected])

    monkeypatch.setattr(regress_module, "cover", first_case)
    arguments = ("regress", "--sim", "icarus", "--entry", "mx_narrow_fp32_fp4_e2m1", "--vectors", "40")
    code, out, _ = mxtwin(*arguments)
    assert code == 0
    assert "no failure, since fewer random cases" in out
    monkeypatch.setitem(regress_module.DEFAULT_VECTORS, "icarus", 40)
    code, out, _ = mxtwin(*arguments)
    assert code == 1
    assert "mx_narrow_fp32_fp4_e2m1 on icarus: never hit: rounding exact" in out
    report = json.loads((tmp_path / "build/regress.json").read_text())
    assert report["coverage"]["full"] is True
    assert report["coverage"]["passed"] is False
    assert report["mismatches"] == 0
    (row,) = report["coverage"]["rows"]
    assert row["hit"] + len(row["missed"]) == row["possible"]


@pytest.mark.skipif(not RECORDED.exists(), reason="toggles are not recorded yet")
def test_the_page_is_current(root: Path, shown: list[Coverage]) -> None:
    assert (root / "docs/coverage.md").read_text() == coverage_page(shown, "icarus", *read_recorded())


@pytest.mark.skipif(not RECORDED.exists(), reason="toggles are not recorded yet")
def test_recorded_toggles_are_of_every_lane(root: Path) -> None:
    _, toggles = read_recorded()
    assert sorted(one.module for one in toggles) == sorted(entry.name for entry in CATALOG if not entry.clocked)
    assert all(not one.untoggled for one in toggles)
    assert all(one.bits - len(one.waived) > 20 for one in toggles)


def test_the_toggle_database_is_read(tmp_path: Path) -> None:
    def line(signal: str, way: str, count: int, instance: str) -> str:
        fields = {"f": "x.v", "t": "toggle", "page": "v_toggle/lane", "o": f"{signal}:{way}", "h": instance}
        return "C '" + "".join(f"\x01{key}\x02{value}" for key, value in fields.items()) + f"' {count}"

    rows = [
        line("a[0]", "0->1", 3, "top.one"), line("a[0]", "1->0", 0, "top.one"), line("a[0]", "1->0", 1, "top.two"),
        line("b", "0->1", 2, "top.one"), line("b", "1->0", 0, "top.one"), line("__0241", "0->1", 0, "top.one"),
    ]  # fmt: skip
    (tmp_path / "coverage.dat").write_text("# SystemC::Coverage-3\n" + "\n".join(rows) + "\n")
    assert read_toggles(tmp_path / "coverage.dat") == {"lane": {"a[0]": {"0->1", "1->0"}, "b": {"0->1"}}}


def test_constants_of_the_text() -> None:
    """Literals through names, parts, choices, repeated assignments, "or" and submodules; a bit that moves is none."""
    text = """module lane(x, y);
  input [7:0] x;
  wire [3:0] high;
  wire flag;
  wire [5:0] mixed;
  wire \\odd$1 ;
  wire [2:0] \\$7 ;
  reg [2:0] chosen;
  wire [2:0] either;
  wire [2:0] bitwise;
  wire [3:0] \\low$2 ;
  output [3:0] y;
  \\lane.inner  inner (
    .x(x[3:0]),
    .y(\\low$2 )
  );
  assign high = 4'h0;
  assign flag = x[0];
  assign mixed = { 2'h1, x[2:0], 1'h0 };
  assign \\odd$1  = 1'h1;
  assign \\$7  = flag ? { 1'h1, x[1:0] } : { \\odd$1 , 1'h0, x[2] };
  always @* begin
    chosen = 3'h0;
    if (flag) begin
      chosen = { 2'h0, flag };
    end
  end
  assign either = chosen | high[2:0];
  assign bitwise[2] = 1'h0;
  assign bitwise[1:0] = x[1:0] & 2'h0;
  assign y = \\low$2 ;
endmodule

module \\lane.inner (x, y);
  input [3:0] x;
  output [3:0] y;
  wire [3:0] y;
  assign y = { x[1:0], 2'd2 };
endmodule
"""
    wanted = {"high[0]", "high[1]", "high[2]", "high[3]", "mixed[0]", "mixed[4]", "mixed[5]", "odd__0241"}
    wanted |= {"__0247[2]", "chosen[1]", "chosen[2]", "either[1]", "either[2]", "bitwise[2]"}
    wanted |= {"low__0242[0]", "low__0242[1]", "y[0]", "y[1]"}
    assert constant_bits(text, "lane") == wanted
