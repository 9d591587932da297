"""Tensors in and out of files: every type and format, every kind of bad file, and nothing half written."""

import json
import os
import signal
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmodel import __version__
from mxmodel.bad_input import BadInput
from mxmodel.files import arrangement, windowed
from mxmodel.files.arrangement import Arrangement, Layout
from mxmodel.files.mx_file import StoredMx, mx_names, mx_output, pair_mx, read_mx, select_mx
from mxmodel.files.mx_record import RECORD, MxRecord, read_records, record_text
from mxmodel.files.safetensors_file import header_bytes
from mxmodel.files.tensor_files import UntypedAs, open_tensor_file, read_tensor, select_tensors
from mxmodel.files.tensor_output import PlannedTensor, tensor_output
from mxmodel.files.whole_file import whole_file
from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, MX_BLOCK
from mxmodel.layout import Swizzle, gpt_oss_codes, swizzle, unswizzle
from mxmodel.quantize import dequantize_mx, quantize_mx
from mxmodel.rules import BIRSIM, DEVICE, NKI_SIM, OCP, RULE_SETS
from mxtb.cli import main

VALUES = np.random.default_rng(4).standard_normal((16, 12)).astype(np.float32)
FORMATS = (".safetensors", ".npz")


def safetensors_bytes(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]], metadata=None) -> Path:
    """Written out by hand, so that reading is not tested by our own writing."""
    header, data = {}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    if metadata:
        header["__metadata__"] = metadata
    path.write_bytes(safetensors_bytes(header, data))
    return path


def octets(*shape: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8).tobytes()


def write_mx(path: Path, values: np.ndarray, record: MxRecord, name: str = "w") -> None:
    with mx_output(path, {name: record}) as output:
        windows = windowed.quantized_windows(values, record.arrangement, record.element, record.rules)
        for _, _, chunk in windows:
            output.append(chunk)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must fail as bad input: exit code 2, one line, no file left; returns the line."""

    def run(*words: str) -> str:
        before = sorted(tmp_path.iterdir())
        monkeypatch.setattr(sys, "argv", ["mxtwin", *words, "-o", str(tmp_path / "out.npz")])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert sorted(tmp_path.iterdir()) == before
        return captured.err

    return run


# --- float tensors in -------------------------------------------------------------------------------------------------

TYPES = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16, ">f4", ">f2", ">f8")
NUMPY_TYPES = tuple(kind for kind in TYPES if kind is not ml_dtypes.bfloat16)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", NUMPY_TYPES, ids=str)
@pytest.mark.parametrize("writer", [np.save, np.savez, np.savez_compressed], ids=lambda writer: writer.__name__)
def test_numpy_types_orders_and_compression(tmp_path: Path, writer: Callable, kind, order: str) -> None:
    values = np.asarray(VALUES.astype(kind), order=order)
    path = tmp_path / ("x.npy" if writer is np.save else "x.npz")
    if writer is np.save:
        writer(path, values)
    else:
        writer(path, x=values)
    tensor = read_tensor(str(path))
    assert (tensor.name, tensor.file) == ("x", path)
    assert tensor.values.dtype == np.dtype(kind)
    assert np.array_equal(tensor.values, values)
    assert isinstance(tensor.values, np.memmap) is (writer is not np.savez_compressed)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16], ids=str)
def test_safetensors_written_by_the_reference_package(tmp_path: Path, kind) -> None:
    values = VALUES.astype(kind)
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"first": VALUES, "a/b.c": values}, path, metadata={"format": "np"})
    tensor = read_tensor(f"{path}::a/b.c")
    assert tensor.values.dtype == kind
    assert np.array_equal(tensor.values.view(np.uint8), values.view(np.uint8))
    assert open_tensor_file(path).metadata == {"format": "np"}


def test_bfloat16_in_npy_only_when_the_user_names_it(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, VALUES.astype(ml_dtypes.bfloat16))
    with pytest.raises(BadInput, match="found V2, which is how NumPy saves bfloat16"):
        read_tensor(str(path))
    assert np.array_equal(
        read_tensor(str(path), untyped_as=UntypedAs.BFLOAT16).values, VALUES.astype(ml_dtypes.bfloat16)
    )


def test_names_globs_and_brackets(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **{"layer.0.weight": VALUES, "layer.1.weight": VALUES, "layer[0]": VALUES, "bias": VALUES[0]})
    assert [one.name for one in select_tensors(f"{path}::layer.*.weight")] == ["layer.0.weight", "layer.1.weight"]
    assert [one.name for one in select_tensors(f"{path}::layer[0]")] == ["layer[0]"]
    assert [one.name for one in select_tensors(f"{path}::layer.[1]*")] == ["layer.1.weight"]
    assert len(select_tensors(str(path))) == 4


def test_a_file_whose_own_name_holds_the_separator(tmp_path: Path) -> None:
    path = tmp_path / "a::b.npy"
    np.save(path, VALUES)
    assert read_tensor(str(path)).name == "a::b"


# --- bad files --------------------------------------------------------------------------------------------------------


def make_missing(path: Path) -> str:
    return str(path / "none.npy")


def make_directory(path: Path) -> str:
    (path / "x.npz").mkdir()
    return str(path / "x.npz")


def make_bytes(name: str, content: bytes) -> Callable[[Path], str]:
    def make(path: Path) -> str:
        (path / name).write_bytes(content)
        return str(path / name)

    return make


def make_npy(values: object, *, cut: int = 0) -> Callable[[Path], str]:
    def make(path: Path) -> str:
        file = path / "x.npy"
        np.save(file, values, allow_pickle=True)
        file.write_bytes(file.read_bytes()[: file.stat().st_size - cut])
        return str(file)

    return make


def make_npz(tensor: str = "", *, cut: int = 0, **arrays: np.ndarray) -> Callable[[Path], str]:
    def make(path: Path) -> str:
        file = path / "x.npz"
        np.savez(file, **arrays)
        file.write_bytes(file.read_bytes()[: file.stat().st_size - cut])
        return f"{file}::{tensor}" if tensor else str(file)

    return make


def make_damaged_deflate(path: Path) -> str:
    file = path / "x.npz"
    np.savez_compressed(file, x=VALUES)
    content = bytearray(file.read_bytes())
    content[250:280] = b"\xff" * 30
    file.write_bytes(content)
    return str(file)


def make_bad_member(path: Path) -> str:
    with zipfile.ZipFile(path / "x.npz", "w") as archive:
        archive.writestr("x.npy", b"not an array at all")
    return str(path / "x.npz")


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}

BAD_FILES = {
    "missing": (make_missing, "none.npy: wanted a .npy file, found no such file or directory"),
    "directory": (make_directory, "x.npz: wanted a .npz file, found a directory"),
    "other suffix": (
        make_bytes("x.bin", b"1"),
        "x.bin: wanted a file that ends in .npy, .npz, .safetensors, found .bin",
    ),
    "empty npy": (make_bytes("x.npy", b""), "x.npy: wanted a .npy file, found an empty file"),
    "empty safetensors": (make_bytes("x.safetensors", b""), "wanted a .safetensors file, found an empty file"),
    "not npy": (make_bytes("x.npy", b"hello, world"), "x.npy::x: wanted an .npy array, found bytes that do not begin"),
    "npy header cut": (make_bytes("x.npy", b"\x93NUMPY\x01\x00\x76\x00{'descr'"), "found a header that NumPy refuses"),
    "npy header damaged": (
        make_bytes("x.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': 3}    "),
        "found a header that NumPy refuses",
    ),
    "npy version 9": (make_bytes("x.npy", b"\x93NUMPY\x09\x00\x10\x00"), "wanted an .npy array of version 1.0 or 2.0"),
    "npy cut": (make_npy(VALUES, cut=5), "x.npy::x: wanted 768 bytes for float32 (16, 12), found 763 bytes"),
    "npy integers": (
        make_npy(np.arange(4)),
        "x.npy::x: wanted float32, bfloat16, float16 or float64, found int64",
    ),
    "npy complex": (make_npy(VALUES * 1j), "wanted float32, bfloat16, float16 or float64, found complex64"),
    "npy E5M2": (make_npy(VALUES.astype(ml_dtypes.float8_e5m2)), "found a header that NumPy refuses (descr is not"),
    "npy E4M3": (make_npy(VALUES.astype(ml_dtypes.float8_e4m3fn)), "float16 or float64, found V1"),
    "npy objects": (make_npy(np.array([None, {}])), "x.npy::x: wanted an array of numbers, found Python objects"),
    "npy records": (make_npy(np.zeros(3, dtype="f4,i4")), "wanted an array of numbers, found records of type"),
    "npy no elements": (make_npy(VALUES[:0]), "x.npy::x: wanted a tensor with elements, found shape (0, 12)"),
    "not npz": (make_bytes("x.npz", b"hello, world"), "x.npz: wanted an .npz archive, found File is not a zip file"),
    "npz cut": (make_npz(x=VALUES, cut=9), "x.npz: wanted an .npz archive, found File is not a zip file"),
    "npz damaged": (make_damaged_deflate, "x.npz"),
    "npz bad member": (make_bad_member, "x.npz::x: wanted an .npy array, found bytes that do not begin as one"),
    "npz several": (
        make_npz(x=VALUES, y=VALUES),
        "x.npz: wanted one tensor, named as FILE::TENSOR, found 2: x, y",
    ),
    "npz other name": (make_npz("z", x=VALUES), "x.npz::z: wanted a tensor of that name, found only x"),
    "npz no match": (make_npz("z*", x=VALUES), "x.npz::z*: wanted a tensor that matches, found only x"),
    "npz nothing": (make_npz(), "x.npz: wanted a tensor, found none"),
    "safetensors short": (make_bytes("x.safetensors", b"abc"), "wanted a .safetensors file, found no header"),
    "safetensors huge header": (make_bytes("x.safetensors", b"\xff" * 64), "found no header of that format"),
    "safetensors header cut": (
        make_bytes("x.safetensors", safetensors_bytes({"x": ENTRY})[:20]),
        "found a file of 20 bytes (truncated?)",
    ),
    "safetensors not json": (
        make_bytes("x.safetensors", b"\x05" + bytes(7) + b"hello"),
        "x.safetensors: wanted a .safetensors file, found a header that is not JSON",
    ),
    "safetensors list": (make_bytes("x.safetensors", safetensors_bytes([1])), "a header that is not a JSON object"),
    "safetensors metadata": (
        make_bytes("x.safetensors", safetensors_bytes({"__metadata__": {"a": 1}})),
        "a __metadata__ entry that is not text by name",
    ),
    "safetensors data cut": (
        make_bytes("x.safetensors", safetensors_bytes({"x": ENTRY}, bytes(10))),
        "x.safetensors::x: wanted data up to byte",
    ),
    "safetensors entry": (
        make_bytes("x.safetensors", safetensors_bytes({"x": {"dtype": "F32"}})),
        "x.safetensors::x: wanted dtype, shape and data_offsets, found a damaged header entry",
    ),
    "safetensors negative": (
        make_bytes("x.safetensors", safetensors_bytes({"x": {**ENTRY, "shape": [-2, -2]}}, bytes(16))),
        "found a damaged header entry",
    ),
    "safetensors sizes": (
        make_bytes("x.safetensors", safetensors_bytes({"x": {**ENTRY, "shape": [2, 3]}}, bytes(16))),
        "x.safetensors::x: wanted 24 bytes for its shape, found 16 bytes",
    ),
    "safetensors type": (
        make_bytes("x.safetensors", safetensors_bytes({"x": {**ENTRY, "dtype": "F6_E2M3"}}, bytes(16))),
        "x.safetensors::x: wanted one of the types F64, F32,",
    ),
    "safetensors codes": (
        make_bytes("x.safetensors", safetensors_bytes({"x": {**ENTRY, "dtype": "F8_E4M3", "shape": [16]}}, bytes(16))),
        "x.safetensors::x: wanted float32, bfloat16, float16 or float64, found F8_E4M3",
    ),
    "safetensors odd F4": (
        make_bytes("x.safetensors", safetensors_bytes({"x": {**ENTRY, "dtype": "F4", "shape": [31]}}, bytes(16))),
        "wanted an even number of F4 elements along the last axis, found shape (31,)",
    ),
    "name on two lines": (
        make_bytes("x.safetensors", safetensors_bytes({"a\nb": {"dtype": "F32"}})),
        r"x.safetensors::a\nb: wanted",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_are_told_in_one_line(tmp_path: Path, refused: Callable[..., str], case: str) -> None:
    make, message = BAD_FILES[case]
    spec = make(tmp_path)
    with pytest.raises(BadInput) as caught:
        read_tensor(spec)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert str(tmp_path) in str(caught.value)
    assert refused("matmul", spec, spec) == f"mxtwin: error: {caught.value}\n"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", VALUES)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadInput, match=r"x\.npy: wanted a \.npy file, found permission denied"):
        read_tensor(str(tmp_path / "x.npy"))


def test_a_file_cut_after_its_header_was_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", VALUES)
    (stored,) = select_tensors(str(tmp_path / "x.npy"))
    (tmp_path / "x.npy").write_bytes(b"short")
    with pytest.raises(BadInput, match=r"x\.npy::x: wanted readable data, found damaged data"):
        stored.load()


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["x.npy", "x.npz", "x.safetensors"]), st.binary(max_size=40), st.integers(0, 400), st.booleans())
def test_no_damage_ends_in_anything_but_bad_input(
    tmp_path_factory: pytest.TempPathFactory, name: str, noise: bytes, at: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged") / name
    if name == "x.npy":
        np.save(path, VALUES)
    elif name == "x.npz":
        np.savez_compressed(path, x=VALUES)
    else:
        safetensors.numpy.save_file({"x": VALUES}, path)
    content = path.read_bytes()
    path.write_bytes(content[:at] + noise + (b"" if cut else content[at + len(noise) :]))
    message = ""
    try:
        read_tensor(str(path))
    except BadInput as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


# --- tensors out ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_written_tensors_come_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    suffix = data.draw(st.sampled_from([*FORMATS, ".npy"]))
    kinds = [np.dtype(np.float32), np.dtype(np.uint8)]
    if suffix == ".safetensors":
        kinds.append(np.dtype(ml_dtypes.bfloat16))
    shapes = st.lists(st.integers(1, 9), max_size=3).map(tuple)
    count = 1 if suffix == ".npy" else data.draw(st.integers(1, 3))
    plan = {
        f"t{index}": PlannedTensor(dtype=data.draw(st.sampled_from(kinds)), shape=data.draw(shapes))
        for index in range(count)
    }
    seed = data.draw(st.integers(0, 99))
    arrays = {
        name: np.random.default_rng(seed).integers(0, 200, one.shape).astype(one.dtype) for name, one in plan.items()
    }
    path = tmp_path_factory.mktemp("out") / f"t0{suffix}"
    with tensor_output(path, plan) as output:
        for array in arrays.values():
            cuts = sorted(data.draw(st.lists(st.integers(0, array.size), max_size=3)))
            for piece in np.split(array.reshape(-1), cuts):
                if piece.size:
                    output.append(piece)
    file = open_tensor_file(path)
    assert list(file.tensors) == list(arrays)
    for name, array in arrays.items():
        assert np.array_equal(file.tensors[name].load(), array)
        assert file.tensors[name].shape == array.shape
    if suffix == ".safetensors":
        reference = safetensors.numpy.load_file(path)
        assert all(np.array_equal(reference[name], array) for name, array in arrays.items())
    elif suffix == ".npz":
        with np.load(path) as reference:
            assert all(np.array_equal(reference[name], array) for name, array in arrays.items())


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    for suffix in FORMATS:
        record = MxRecord(
            element=FP8_E4M3, rules=BIRSIM, arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12))
        )
        for name in ("a", "b"):
            write_mx(tmp_path / (name + suffix), VALUES, record)
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_a_safetensors_header_is_aligned() -> None:
    for length in range(1, 20):
        header = header_bytes({"x" * length: (np.dtype(np.uint8), (3,))}, {})
        assert len(header) % 8 == 0
        assert int.from_bytes(header[:8], "little") == len(header) - 8


def test_what_is_appended_must_be_what_was_planned(tmp_path: Path) -> None:
    plan = {"x": PlannedTensor(dtype=np.dtype(np.float32), shape=(4,))}
    with pytest.raises(ValueError, match="not 5 of float32"), tensor_output(tmp_path / "x.npz", plan) as output:
        output.append(np.zeros(5, dtype=np.float32))
    with pytest.raises(ValueError, match="not 4 of float64"), tensor_output(tmp_path / "x.npz", plan) as output:
        output.append(np.zeros(4))
    with (
        pytest.raises(ValueError, match="not stop 1 elements short"),
        tensor_output(tmp_path / "x.npz", plan) as output,
    ):
        output.append(np.zeros(3, dtype=np.float32))
    assert list(tmp_path.iterdir()) == []


BAD_OUTPUTS = {
    "suffix": ("x.txt", 1, {}, "wanted an output that ends in .safetensors, .npz or .npy, found .txt"),
    "record": ("x.npy", 1, {"a": "b"}, "to hold the record, found .npy"),
    "several": ("x.npy", 2, {}, "wanted an output that ends in .safetensors or .npz for 2 tensors, found .npy"),
    "bfloat16": ("x.npz", 1, {}, "x.npz::t0: wanted a .safetensors file for bfloat16, found a .npz file"),
    "no directory": ("none/x.safetensors", 1, {}, "wanted a file that can be written, found no such file or directory"),
    "a directory": ("there.npz", 1, {}, "wanted a file that can be written, found a directory"),
}


@pytest.mark.parametrize("case", BAD_OUTPUTS)
def test_outputs_that_cannot_be(tmp_path: Path, case: str) -> None:
    name, count, metadata, message = BAD_OUTPUTS[case]
    (tmp_path / "there.npz").mkdir()
    kind = np.dtype(ml_dtypes.bfloat16 if case == "bfloat16" else np.float32)
    plan = {f"t{index}": PlannedTensor(dtype=kind, shape=(1,)) for index in range(count)}
    with pytest.raises(BadInput) as caught, tensor_output(tmp_path / name, plan, metadata):
        pass
    assert message in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == ["there.npz"]


@pytest.mark.parametrize("suffix", [*FORMATS, ".npy"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError, MemoryError])
def test_an_interrupted_output_leaves_nothing(tmp_path: Path, suffix: str, error: type[BaseException]) -> None:
    plan = {"x": PlannedTensor(dtype=np.dtype(np.float32), shape=(4,))}
    kept = tmp_path / f"kept{suffix}"
    kept.write_bytes(b"as it was")

    def interrupted(path: Path) -> None:
        with tensor_output(path, plan) as output:
            output.append(np.zeros(2, dtype=np.float32))
            raise error

    for path in (kept, tmp_path / f"new{suffix}"):
        with pytest.raises(error):
            interrupted(path)
    assert [one.name for one in tmp_path.iterdir()] == [kept.name]
    assert kept.read_bytes() == b"as it was"


def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    message = r"x\.npz: wanted a file that can be written, found no space left on device"
    with pytest.raises(BadInput, match=message), whole_file(tmp_path / "x.npz"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


TERMINATED = """
import sys, time
from pathlib import Path
from mxmodel.files.whole_file import whole_file
from mxtb.cli import main
with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_process_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", TERMINATED, str(tmp_path / "x.npz")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert [one.suffix for one in tmp_path.iterdir()] == [".partial"]
        process.send_signal(number)
        assert process.wait(timeout=30) != 0
    assert list(tmp_path.iterdir()) == []


# --- MX tensors out and in --------------------------------------------------------------------------------------------


def whole_array(values: np.ndarray, record: MxRecord) -> np.ndarray:
    """The [P, F] array of a tensor, formed at once by the definitions of L-5."""
    one = record.arrangement
    matrix = np.moveaxis(values, one.axis, 0).reshape(values.shape[one.axis], -1)
    if one.layout is Layout.TILE:
        return np.pad(matrix, [(0, -length % step) for length, step in zip(matrix.shape, (8, 4), strict=True)])
    padded = np.pad(matrix, [(0, -matrix.shape[0] % 32), (0, 0)])
    return swizzle(padded, Swizzle.WRAP if one.layout is Layout.K_WRAP else Swizzle.K_1X32)


def back_to_tensor(array: np.ndarray, record: MxRecord) -> np.ndarray:
    one = record.arrangement
    if one.layout is not Layout.TILE:
        array = unswizzle(array, Swizzle.WRAP if one.layout is Layout.K_WRAP else Swizzle.K_1X32)
    matrix = array[: one.contraction, : one.columns]
    others = [length for axis, length in enumerate(one.shape) if axis != one.axis]
    return np.moveaxis(matrix.reshape(one.contraction, *others), 0, one.axis)


@st.composite
def mx_cases(draw: st.DrawFn) -> tuple[np.ndarray, MxRecord]:
    layout = draw(st.sampled_from(Layout))
    element = FP4_E2M1 if layout is Layout.GPT_OSS else draw(st.sampled_from(ELEMENTS))
    rules = draw(st.sampled_from([rules for rules in RULE_SETS if rules.writes(element)]))
    partitions = draw(st.sampled_from([32, 64, 96, 128]))
    free = draw(st.integers(1, 6)) * 4
    shapes = [(partitions, free), (partitions * 4, free // 4), (33, 3), (3, 40), (2, 5, 64), (3, 70, 2), (2, 3, 2, 9)]
    shape = draw(st.sampled_from(shapes))
    axis = len(shape) - 1 if layout.in_tensor_order else draw(st.integers(0, len(shape) - 1))
    arrangement = Arrangement(layout=layout, axis=axis, shape=shape)
    spread = draw(st.sampled_from([0, 4, 30]))
    generator = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    values = generator.standard_normal(shape) * 2.0 ** generator.integers(-spread, spread + 1, shape)
    return values.astype(np.float32), MxRecord(element=element, rules=rules, arrangement=arrangement)


@settings(max_examples=150, deadline=None)
@given(mx_cases(), st.sampled_from(FORMATS), st.sampled_from([1, 300, 1 << 20]), st.booleans())
def test_mx_tensors_come_back_from_files(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[np.ndarray, MxRecord], suffix: str, window: int, fortran: bool
) -> None:
    values, record = case
    path = tmp_path_factory.mktemp("mx") / f"w{suffix}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrangement, "_WINDOW_ELEMENTS", window)
        write_mx(path, np.asfortranarray(values) if fortran else values, record)
        (entry,) = select_mx(str(path))
        assert (entry.name, entry.record) == ("w", record)
        wanted = quantize_mx(whole_array(values, record), record.element, record.rules)
        assert entry.tensor() == wanted
        pieces = [piece.reshape(-1) for piece in windowed.dequantized_pieces(entry)]
        result = np.concatenate(pieces).reshape(values.shape)
        assert np.array_equal(result, back_to_tensor(dequantize_mx(wanted), record), equal_nan=True)
        measured = windowed.measure(entry, values)
    assert measured.elements == values.size
    assert measured.source is not None
    error = np.where(np.isfinite(result), result.astype(np.float64) - values, 0)
    assert measured.source.squared_error == pytest.approx((error * error).sum(), rel=1e-9)
    assert measured.source.compared == np.isfinite(result).sum()


def test_the_record_says_how_it_was_made(tmp_path: Path) -> None:
    arrangement_ = Arrangement(layout=Layout.K_1X32, axis=1, shape=(5, 40))
    values = np.ones((5, 40), dtype=np.float32)
    write_mx(tmp_path / "w.safetensors", values, MxRecord(element=FP8_E5M2, rules=OCP, arrangement=arrangement_))
    record = json.loads(open_tensor_file(tmp_path / "w.safetensors").metadata[RECORD])
    assert (record["version"], record["writer"]) == (1, f"mxtwin {__version__}")
    one = record["tensors"]["w"]
    assert one["rules"].pop("name") == "ocp"
    assert {key: one[key] for key in ("element", "layout", "axis", "shape")} == {
        "element": "fp8_e5m2",
        "layout": "1x32",
        "axis": 1,
        "shape": [5, 40],
    }
    stored = open_tensor_file(tmp_path / "w.safetensors").tensors
    assert {name: (part.type, part.shape) for name, part in stored.items()} == {
        "w.codes": ("uint8", (16, 20)),
        "w.scales": ("uint8", (2, 5)),
    }


def test_a_users_own_rule_set_goes_in_whole(tmp_path: Path) -> None:
    own = replace(DEVICE, name="mine", emax_reduction=0)
    record = MxRecord(element=FP8_E4M3, rules=own, arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12)))
    write_mx(tmp_path / "w.npz", VALUES, record)
    assert read_mx(str(tmp_path / "w.npz")).record.rules == own


BAD_RECORDS = {
    "not json": ("{", "wanted an mxtwin record of version 1, found damaged text"),
    "version": ('{"version": 2, "tensors": {}}', "found version 2"),
    "not an object": ("[]", "found damaged text"),
    "element": ({"element": "fp7"}, "f::w: wanted an mxtwin record of version 1, found a damaged one (element must be"),
    "layout": ({"layout": "diagonal"}, "'diagonal' is not a valid Layout"),
    "axis": ({"axis": 2}, "axis must be in 0..1 for shape (16, 12), not 2"),
    "axis kind": ({"axis": "0"}, "shape and axis must be integers"),
    "shape": ({"shape": [16]}, "shape must have two axes or more"),
    "rules": ({"rules": {}}, "found a damaged one"),
    "rule kind": ({"rules": {"emax_reduction": "1"}}, "found a damaged one"),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_damaged_records(case: str) -> None:
    change, message = BAD_RECORDS[case]
    record = MxRecord(
        element=FP8_E4M3, rules=BIRSIM, arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12))
    )
    text = record_text({"w": record})
    assert read_records(Path("f"), text) == {"w": record}
    if isinstance(change, str):
        text = change
    else:
        whole = json.loads(text)
        whole["tensors"]["w"].update(change)
        text = json.dumps(whole)
    with pytest.raises(BadInput) as caught:
        read_records(Path("f"), text)
    assert message in str(caught.value)


def test_recorded_tensors_that_do_not_fit_their_record(tmp_path: Path) -> None:
    record = MxRecord(
        element=FP4_E2M1, rules=BIRSIM, arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12))
    )
    metadata = {RECORD: record_text({"w": record})}
    codes, scale = ("U8", (16, 12), bytes(192)), ("U8", (2, 3), bytes(6))
    path = tmp_path / "w.safetensors"

    def message(tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> str:
        with pytest.raises(BadInput) as caught:
            read_mx(str(write_safetensors(path, tensors, metadata))).tensor()
        return str(caught.value)

    assert "w.scales: wanted a tensor of that name, found only w.codes" in message({"w.codes": codes})
    misfit = message({"w.codes": codes, "w.scales": ("U8", (3, 2), bytes(6))})
    assert "wanted scales that fit, (2, 3) for 'w.scales', as recorded" in misfit.replace("w.scales,", "'w.scales',")
    assert "found scales (3, 2) for w.codes (16, 12)" in misfit
    assert "wanted element codes (uint8), found float32" in message(
        {"w.codes": ("F32", (16, 12), bytes(768)), "w.scales": scale}
    )
    assert "wanted fp4_e2m1 codes 0..15, found code 16" in message(
        {"w.codes": ("U8", (16, 12), bytes([16] * 192)), "w.scales": scale}
    )


def test_another_rule_set_than_the_recorded_one_is_refused(tmp_path: Path) -> None:
    record = MxRecord(
        element=FP8_E4M3, rules=NKI_SIM, arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12))
    )
    write_mx(tmp_path / "w.npz", VALUES, record)
    assert read_mx(str(tmp_path / "w.npz"), NKI_SIM).record == record
    with pytest.raises(BadInput, match="wanted rules ocp, as asked, found a tensor made with nki_sim"):
        read_mx(str(tmp_path / "w.npz"), OCP)


# --- MX tensors of others ---------------------------------------------------------------------------------------------

GPT_OSS_BLOCKS, GPT_OSS_SCALES = octets(2, 6, 3, 16, seed=1), octets(2, 6, 3, seed=2)


def gpt_oss(path: Path) -> Path:
    tensors = {
        "mlp.up_proj_blocks": ("U8", (2, 6, 3, 16), GPT_OSS_BLOCKS),
        "mlp.up_proj_scales": ("U8", (2, 6, 3), GPT_OSS_SCALES),
    }
    return write_safetensors(path / "gpt_oss.safetensors", tensors)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_gpt_oss_file_goes_in_and_out_unchanged(tmp_path: Path, suffix: str) -> None:
    entry = read_mx(f"{gpt_oss(tmp_path)}::mlp.up_proj")
    assert (entry.record.element, entry.record.rules) == (FP4_E2M1, BIRSIM)
    assert entry.record.arrangement == Arrangement(layout=Layout.GPT_OSS, axis=2, shape=(2, 6, 96))
    path = tmp_path / f"out{suffix}"
    with mx_output(path, {entry.name: entry.record}) as output:
        for window in entry.record.arrangement.storage_windows():
            output.append(entry.window(window))
    written = open_tensor_file(path).tensors
    assert written["mlp.up_proj_blocks"].load().tobytes() == GPT_OSS_BLOCKS
    assert written["mlp.up_proj_blocks"].shape == (2, 6, 3, 16)
    assert written["mlp.up_proj_scales"].load().tobytes() == GPT_OSS_SCALES
    assert written["mlp.up_proj_scales"].shape == (2, 6, 3)
    assert read_mx(str(path)).tensor() == entry.tensor()


def test_gpt_oss_values_by_hand(tmp_path: Path) -> None:
    """Low nibble first (L-8), bias 127: byte 0x72 is code 2 (1.0) then code 7 (6.0)."""
    blocks, scales = np.zeros((1, 1, 16), dtype=np.uint8), np.full((1, 1), 128, dtype=np.uint8)
    blocks[0, 0, 0], blocks[0, 0, 15] = 0x72, 0xF9
    tensors = {
        "w_blocks": ("U8", (1, 1, 16), blocks.tobytes()),
        "w_scales": ("U8", (1, 1), scales.tobytes()),
    }
    entry = read_mx(str(write_safetensors(tmp_path / "w.safetensors", tensors)))
    values = np.concatenate([piece.reshape(-1) for piece in windowed.dequantized_pieces(entry)])
    assert values[[0, 1, 2, 30, 31]].tolist() == [2.0, 12.0, 0.0, -1.0, -12.0]


@pytest.mark.parametrize("kind", ["F8_E4M3", "F8_E5M2", "F4"])
@pytest.mark.parametrize(("suffix", "scale_type"), [("_scale", "F8_E8M0"), ("_scales", "U8"), (".scale", "F32")])
def test_typed_elements_with_scales_beside_them(tmp_path: Path, kind: str, suffix: str, scale_type: str) -> None:
    data = octets(6, 32 if kind == "F4" else 64, seed=3)
    scales = np.random.default_rng(5).integers(100, 140, (6, 2)).astype(np.uint8)
    stored = scales.astype(np.float32) if scale_type == "F32" else scales
    tensors = {"w": (kind, (6, 64), data), f"w{suffix}": (scale_type, (6, 2), stored.tobytes())}
    file = write_safetensors(tmp_path / "w.safetensors", tensors)
    assert mx_names(open_tensor_file(file)) == ["w"]
    entry = read_mx(str(file), OCP)
    element = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F4": ml_dtypes.float4_e2m1fn}
    codes = np.frombuffer(data, dtype=np.uint8)
    if kind == "F4":
        codes = gpt_oss_codes(codes.reshape(6, 2, 16))
    with np.errstate(invalid="ignore"):
        values = codes.view(element[kind]).astype(np.float32).reshape(6, 2, 32)
        wanted = (values * np.exp2(scales.astype(np.float32) - 127)[:, :, np.newaxis]).reshape(6, 64)
    result = np.concatenate([piece.reshape(-1) for piece in windowed.dequantized_pieces(entry)]).reshape(6, 64)
    assert np.array_equal(result, wanted, equal_nan=True)


def test_codes_and_scales_named_by_the_user(tmp_path: Path) -> None:
    tensor = quantize_mx(VALUES[:, :12], FP8_E4M3)
    np.savez(tmp_path / "w.npz", c=tensor.codes, s=tensor.scale)
    np.save(tmp_path / "v1.npy", tensor.codes.view(ml_dtypes.float8_e4m3fn))
    (scale,) = select_tensors(f"{tmp_path / 'w.npz'}::s")
    for spec in (f"{tmp_path / 'w.npz'}::c", str(tmp_path / "v1.npy")):
        (codes,) = select_tensors(spec)
        assert pair_mx(codes, scale, FP8_E4M3).tensor() == tensor


DEEPSEEK = np.ones((2, 3), dtype=np.float32).tobytes()
MISFITS = {
    "deepseek": (
        {"w.weight": ("F8_E4M3", (256, 384), bytes(256 * 384)), "w.weight_scale_inv": ("F32", (2, 3), DEEPSEEK)},
        "w.weight",
        "found float32 (2, 3) for w.weight (256, 384): DeepSeek's 128x128 scales, which are not MX",
    ),
    "shape": (
        {"w": ("F8_E4M3", (16, 64), bytes(1024)), "w_scale": ("U8", (16, 3), bytes(48))},
        "w",
        "w_scale: wanted scales that fit, [..., K/32] or [P/8, F/4], found scales (16, 3) for w (16, 64)",
    ),
    "one scale": (
        {"w": ("F8_E4M3", (16, 64), bytes(1024)), "w_scale": ("F32", (), bytes(4))},
        "w",
        "found scales () for w (16, 64)",
    ),
    "F4 in tiles": (
        {"w": ("F4", (16, 64), bytes(512)), "w_scale": ("U8", (2, 16), bytes(32))},
        "w",
        "found scales (2, 16) for w (16, 64)",
    ),
    "a vector": (
        {"w": ("F8_E4M3", (64,), bytes(64)), "w_scale": ("U8", (2,), bytes(2))},
        "w",
        "found scales (2,) for w (64,)",
    ),
    "empty": (
        {"w": ("F8_E4M3", (0, 64), b""), "w_scale": ("U8", (0, 2), b"")},
        "w",
        "w: wanted a tensor with elements, found shape (0, 64)",
    ),
    "gpt-oss, empty": (
        {"w_blocks": ("U8", (0, 3, 16), b""), "w_scales": ("U8", (0, 3), b"")},
        "w",
        "w_blocks: wanted a tensor with elements, found shape (0, 3, 16)",
    ),
    "gpt-oss": (
        {"w_blocks": ("U8", (2, 6, 3, 16), bytes(576)), "w_scales": ("U8", (2, 6, 4), bytes(48))},
        "w",
        "[..., K/32] for blocks [..., K/32, 16], found scales (2, 6, 4) for w_blocks (2, 6, 3, 16)",
    ),
    "not integers": (
        {"w": ("F8_E4M3", (1, 32), bytes(32)), "w_scale": ("F32", (1, 1), np.float32(0.5).tobytes())},
        "w",
        "w_scale: wanted E8M0 scale bytes (uint8, or integers 0..255), found float32 with the value 0.5",
    ),
    "over 255": (
        {"w": ("F8_E4M3", (1, 32), bytes(32)), "w_scale": ("I32", (1, 1), np.int32(256).tobytes())},
        "w",
        "found int32 with the value 256",
    ),
    "NaN": (
        {"w": ("F8_E4M3", (1, 32), bytes(32)), "w_scale": ("F32", (1, 1), np.float32(np.nan).tobytes())},
        "w",
        "found float32 with the value nan",
    ),
    "scales of bool": (
        {"w": ("F8_E4M3", (1, 32), bytes(32)), "w_scale": ("BOOL", (1, 1), bytes(1))},
        "w",
        "integers 0..255), found bool",
    ),
    "no scales": (
        {"w": ("F8_E4M3", (1, 32), bytes(32)), "other": ("U8", (1, 1), bytes(1))},
        "w",
        "w: wanted scales beside it (w_scale, w_scales), found F8_E4M3 alone",
    ),
    "no such": (
        {"w": ("F8_E4M3", (1, 32), bytes(32)), "w_scale": ("U8", (1, 1), bytes(1))},
        "v",
        "::v: wanted an MX tensor, found only w",
    ),
    "none at all": ({"w": ("F32", (1, 1), bytes(4))}, "w", "::w: wanted an MX tensor, found none"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_codes_and_scales_that_are_not_mx(tmp_path: Path, refused: Callable[..., str], case: str) -> None:
    tensors, name, message = MISFITS[case]
    spec = f"{write_safetensors(tmp_path / 'x.safetensors', tensors)}::{name}"
    with pytest.raises(BadInput) as caught:
        read_mx(spec)
    assert refused("dequantize", spec) == f"mxtwin: error: {caught.value}\n"
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_several_mx_tensors_and_one_wanted(tmp_path: Path) -> None:
    record = MxRecord(
        element=FP8_E4M3, rules=BIRSIM, arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12))
    )
    with mx_output(tmp_path / "w.npz", {"a.x": record, "b.x": record, "b.y": record}) as output:
        for scale in (1, 2, 3):
            output.append(quantize_mx(VALUES * scale, FP8_E4M3))
    entries = select_mx(f"{tmp_path / 'w.npz'}::b.*")
    assert [one.name for one in entries] == ["b.x", "b.y"]
    assert entries[1].tensor() == quantize_mx(VALUES * 3, FP8_E4M3)
    assert [one.name for one in select_mx(f"{tmp_path / 'w.npz'}::a.x")] == ["a.x"]
    with pytest.raises(BadInput, match=r"wanted one MX tensor, named as FILE::TENSOR, found 3: a\.x, b\.x, b\.y"):
        read_mx(str(tmp_path / "w.npz"))


def test_gpt_oss_holds_fp4_only(tmp_path: Path) -> None:
    one = Arrangement(layout=Layout.GPT_OSS, axis=1, shape=(4, 32))
    record = MxRecord(element=FP8_E4M3, rules=BIRSIM, arrangement=one)
    with pytest.raises(BadInput, match="w: wanted fp4_e2m1 for layout gpt_oss, found fp8_e4m3"):
        write_mx(tmp_path / "w.npz", np.ones((4, 32), dtype=np.float32), record)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMATS), st.binary(max_size=30), st.integers(0, 1500), st.booleans())
def test_no_damage_to_an_mx_file_ends_in_anything_but_bad_input(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, noise: bytes, at: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged") / f"w{suffix}"
    record = MxRecord(
        element=FP4_E2M1, rules=BIRSIM, arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12))
    )
    write_mx(path, VALUES, record)
    content = path.read_bytes()
    path.write_bytes(content[:at] + noise + (b"" if cut else content[at + len(noise) :]))
    message = ""
    try:
        for entry in select_mx(str(path)):
            windowed.measure(entry)
    except BadInput as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "axis"), [(".safetensors", 1), (".npz", 0)])
def test_memory_stays_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, axis: int) -> None:
    """32 MiB through quantise, measure and dequantise in windows of 64 Ki elements, in 8 MiB."""
    source = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(2048, 4096))
    source[:] = np.arange(4096, dtype=np.float32)
    source.flush()
    values = read_tensor(str(tmp_path / "x.npy")).values
    monkeypatch.setattr(arrangement, "_WINDOW_ELEMENTS", 1 << 16)

    def there_and_back(values: Any) -> StoredMx:
        record = MxRecord(
            element=FP8_E4M3,
            rules=BIRSIM,
            arrangement=Arrangement(layout=Layout.K_1X32, axis=axis, shape=values.shape),
        )
        write_mx(tmp_path / f"w{suffix}", values, record)
        entry = read_mx(str(tmp_path / f"w{suffix}"))
        windowed.measure(entry, values)
        plan = {"w": PlannedTensor(dtype=np.dtype(np.float32), shape=values.shape)}
        with tensor_output(tmp_path / f"back{suffix}", plan) as output:
            for piece in windowed.dequantized_pieces(entry):
                output.append(piece)
        return entry

    there_and_back(values[:256])  # tables and scratch memory are made once, and are not what is measured
    tracemalloc.start()
    try:
        entry = there_and_back(values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert MX_BLOCK.size * entry.tensor().scale.size == values.size
