"""The command line: bad input is one clear line and exit code 2; results are what they say."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mxhw.catalog import find
from mxtb import simulators
from mxtb.lanes import Top
from mxtb.regress import Drive, tensor_blocks
from mxtb.simulators import Simulator


def _refused(result: tuple[int, str, str], *wanted: str) -> None:
    """Exit code 2, nothing on standard output, one line that says all of ``wanted``."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("mxtwin: error: ")
    for words in wanted:
        assert words in lines[0], err


def test_data_file_missing(mxtwin) -> None:  # type: ignore[no-untyped-def]
    _refused(mxtwin("regress", "--data", "nowhere.npy"), "nowhere.npy", "no such file")


def test_data_of_the_wrong_dtype(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "ints.npy", np.arange(64))
    _refused(mxtwin("regress", "--data", "ints.npy"), "ints.npy", "int64")
    np.save(tmp_path / "doubles.npy", np.zeros(64))
    _refused(mxtwin("regress", "--data", "doubles.npy"), "doubles.npy", "float32", "float64")


def test_data_tensor_not_found(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.savez(tmp_path / "some.npz", a=np.zeros(32, np.float32), b=np.zeros(32, np.float32))
    _refused(mxtwin("regress", "--data", "some.npz::c"), "some.npz::c", "a, b")


def test_data_shape_not_a_multiple_of_32(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "odd.npy", np.zeros((5, 10), np.float32))
    _refused(mxtwin("regress", "--data", "odd.npy"), "odd.npy", "a multiple of 32", "50", "[5, 10]")
    np.save(tmp_path / "empty.npy", np.zeros((0, 32), np.float32))
    _refused(mxtwin("regress", "--data", "empty.npy"), "empty.npy")


def test_data_file_torn(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{")
    _refused(mxtwin("regress", "--data", "torn.safetensors"), "torn.safetensors")


def test_simulator_missing(mxtwin, clean_path: Path) -> None:  # type: ignore[no-untyped-def]
    _refused(mxtwin("regress", "--sim", "icarus"), "icarus must be installed")


def test_simulator_too_old(mxtwin, clean_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    (clean_path / "verilator").write_text("#!/bin/sh\necho 'Verilator 5.006 2023-01-22'\n")
    (clean_path / "verilator").chmod(0o755)
    monkeypatch.setenv("PATH", f"{clean_path}:/bin")
    monkeypatch.setattr(simulators.importlib.util, "find_spec", lambda name: None)
    _refused(mxtwin("regress"), "verilator must be at least 5.036", "5.006")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("regress", "--block", "dequantize"), "dequantize"),
        (("regress", "--sim", "vcs"), "vcs"),
        (("regress", "--element", "fp8"), "element must be one of fp4_e2m1, fp8_e4m3, fp8_e5m2, not 'fp8'"),
        (("regress", "--rules", "ocp2"), "rules must be one of birsim"),
        (("regress", "--entry", "mx_nothing"), "entry must be a name in the catalogue, not 'mx_nothing'"),
        (("regress", "--element", "fp4_e2m1", "--rules", "device"), "matches none"),
        (("regress", "--vectors", "-1"), "--vectors"),
        (("verilog", "--element", "fp8"), "element must be one of"),
        (("explain", "banana"), "a value must be 32 bits in hex, not 'banana'"),
        (("explain", "0x100000000"), "32 bits"),
        (("explain", "0x0", "--scale", "256"), "--scale"),
        (("explain", "0x0", "--block", "ldexp"), "--scale must be given"),
        (("explain", "0x0", "--block", "shared_exponent", "--scale", "3"), "--scale must not be given"),
        (("explain", "0x0", "0x0"), "narrow must be given one value, not 2"),
        (("explain", *["0x0"] * 33, "--block", "shared_exponent"), "at most 32 values, not 33"),
        (("nonsense",), "nonsense"),
        (("regress", "--nonsense"), "--nonsense"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_bad_words(mxtwin, arguments: tuple[str, ...], wanted: str) -> None:  # type: ignore[no-untyped-def]
    _refused(mxtwin(*arguments), wanted)


def test_explain_shows_both_twins(mxtwin) -> None:  # type: ignore[no-untyped-def]
    """1.2 under scale 120 is 153.6, between 144 and 160: the tie at 152 is passed, so 160, code 0x72."""
    command = ("explain", "--element", "fp8_e4m3", "--rules", "device", "0x3f99999a", "--scale", "120")
    code, out, _ = mxtwin(*command)
    assert code == 0
    for words in ("biased exponent 127", "153.6", "tie at 152", "guard 1, sticky 1: up", "N-5", "0x72 = 160"):
        assert words in out
    code, out, _ = mxtwin(*command, "--json")
    story = json.loads(out)
    assert code == 0
    assert story["agree"] is True
    assert story["golden"] == story["rtl"]["amaranth"] == "0x72 = 160"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("0x7fc00000",), ("NaN becomes signed zero", "N-4", "0x00 = 0")),
        (("0x7fc00000", "--rules", "ocp"), ("sign | the NaN code", "0x7f = NaN")),
        (("0x7f800000",), ("Inf saturates", "N-2", "0x7e = 448")),
        (("0x43e80000",), ("whose upper tie is 464", "0x7e = 448")),
        (("0x40200000", "--element", "fp4_e2m1"), ("tie, to even: down", "0x4 = 2")),
        (("0x3f800000", "--scale", "255"), ("-Inf", "0xfe = -448")),
        (("0x3f800000", "--scale", "255", "--rules", "ocp"), ("N-6", "0x00 = 0")),
        (("0x01", "--block", "ldexp", "--scale", "0"), ("0x00002000",)),
        (("0x01", "--block", "ldexp", "--scale", "255", "--rules", "ocp"), ("D-3", "0x7fc00000 = NaN")),
        (("0x00000000", "--block", "shared_exponent"), ("E-4", "0x01 = 1")),
        (("0x7f800000", "--block", "shared_exponent", "--rules", "ocp"), ("E-6", "0xff = 255")),
        (("0x00000001", "--scale", "0", "--element", "fp4_e2m1"), ("subnormal",)),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_explain_tells_the_rule(mxtwin, arguments: tuple[str, ...], wanted: tuple[str, ...]) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = mxtwin("explain", *arguments)
    assert code == 0
    for words in wanted:
        assert words in out


def test_doctor_lists_what_is_here(mxtwin) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = mxtwin("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert code == 0
    assert findings["verilator"]["path"]
    assert findings["numpy"]["version"] == np.__version__
    assert findings["make"]["version"][0].isdigit()


def test_doctor_fails_when_something_needed_is_missing(mxtwin, clean_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = mxtwin("doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert code == 1
    assert findings["make"]["problem"] == "make is not on PATH"


def test_version_and_help(mxtwin) -> None:  # type: ignore[no-untyped-def]
    assert mxtwin("--version")[1] == "mxtwin 0.1.0\n"
    for command in ("regress", "explain", "doctor", "verilog"):
        code, out, _ = mxtwin(command, "--help")
        assert code == 0
        assert f"Example: mxtwin {command}" in out


@pytest.fixture
def needs_icarus() -> None:
    if shutil.which("iverilog") is None:
        pytest.skip("optional here, required in CI: iverilog is not on PATH")


@pytest.mark.usefixtures("needs_icarus")
def test_regress_counts_and_reports(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """One entry on Icarus with a user's bf16 tensor: the counts add up, the report says the same, in order."""
    values = np.random.default_rng(7).standard_normal((8, 40)).astype(ml_dtypes.bfloat16)
    np.savez(tmp_path / "own.npz", own=values.view(np.uint16))
    np.save(tmp_path / "own.npy", values.astype(np.float32))
    common = ("regress", "--sim", "icarus", "--block", "narrow", "--element", "fp4_e2m1", "--vectors", "64")
    code, out, _ = mxtwin(*common, "--json")
    assert code == 0
    plain = json.loads(out)
    code, out, _ = mxtwin(*common, "--json", "--data", "own.npy")
    assert code == 0
    report = json.loads(out)
    assert report == json.loads((tmp_path / "build/regress.json").read_text())
    assert report["mismatches"] == 0
    counts = [row["comparisons"] for row in report["rows"]]
    assert counts == sorted(counts)
    assert report["comparisons"] == sum(counts)
    added = {row["entry"]: row["comparisons"] for row in report["rows"]}
    before = {row["entry"]: row["comparisons"] for row in plain["rows"]}
    # 320 values once for the unscaled entry; under the three scales that FP4's rule sets give them for the scaled.
    assert added["mx_narrow_fp32_fp4_e2m1"] - before["mx_narrow_fp32_fp4_e2m1"] == 320
    scaled = "mx_narrow_fp32_fp4_e2m1_scaled_fp32_product"
    assert added[scaled] - before[scaled] == 320 * 2
    assert all(row["rule_sets"] for row in report["rows"])


@pytest.mark.usefixtures("needs_icarus")
def test_waves_are_written(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = mxtwin(
        "regress", "--sim", "icarus", "--entry", "mx_narrow_fp32_fp4_e2m1", "--vectors", "0", "--waves", "--json"
    )
    assert code == 0
    (top,) = json.loads(out)["tops"]
    assert Path(top["waves"]).stat().st_size > 1000


@pytest.mark.parametrize("source", ["fp32", "bf16", "fp16"])
def test_a_16_bit_tensor_drives_the_entries_of_its_own_format_too(source: str, tmp_path: Path) -> None:
    """An fp16 tensor: its own bits through the fp16 encoder, widened through the fp32 one; the bf16 one is not its."""
    values = np.random.default_rng(7).standard_normal((8, 40)).astype(np.float16)
    values[0, :4] = [np.inf, -0.0, 6e-8, np.nan]
    np.save(tmp_path / "own.npy", values)
    top = Top(entries=(find(f"mx_narrow_{source}_fp4_e2m1"),))
    simulator = Simulator(name="icarus", executable=Path("none"), version="", origin="", environment={})
    inputs = [
        Drive(
            seed=0, blocks=blocks, data=None, directory=tmp_path, waves=False, progress=lambda top, stage: None
        ).inputs(top, simulator, 64)["x"]
        for blocks in (None, tensor_blocks(str(tmp_path / "own.npy")))
    ]
    added = inputs[1][inputs[0].size :]
    wanted = {"fp32": values.astype(np.float32).view(np.uint32), "bf16": values[:0], "fp16": values.view(np.uint16)}
    assert np.array_equal(added, wanted[source].reshape(-1))
    assert np.array_equal(inputs[1][: inputs[0].size], inputs[0])
