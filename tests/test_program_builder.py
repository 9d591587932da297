"""Programs from Python: what ``Core`` builds is what its calls say, and runs as the array functions compute."""

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxmodel.access_pattern import Space
from mxmodel.formats import FP4_E2M1, FP8_E4M3, FP8_E5M2
from mxmodel.isa import (
    AccumulationKind,
    ActivationFunction,
    FirstWrite,
    MatmultMx,
    Operator,
    PsumFlag,
    StationaryLoad,
)
from mxmodel.layout import pack_tags, pack_x4, swizzle
from mxmodel.legality import Profile, check
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.neuron_core import ExecutionFault, IllegalProgram, Verification
from mxmodel.pe_array import Accumulation, matmul, matmul_mx, matmul_sparse
from mxmodel.program_builder import Core, Tile
from mxmodel.program_files.program_file import program_text, read_program
from mxmodel.quantize import MxTensor, quantize_mx
from mxmodel.rules import DEVICE

Array = np.ndarray[Any, Any]


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def mx_operands(core: Core, partitions: int = 128) -> tuple[MxTensor, MxTensor, tuple[Tile, ...]]:
    """A stationary [P, 4 x 16] and a moving [P, 4 x 8] in SBUF: the tensors, and (w, w_scale, x, x_scale)."""
    rng = np.random.default_rng(partitions)
    stationary = quantize_mx(rng.normal(size=(partitions, 64)).astype(np.float32), FP4_E2M1)
    heights = np.exp2(rng.integers(-12, 12, size=(partitions, 1)))  # so that sums round
    moving = quantize_mx((rng.normal(size=(partitions, 32)) * heights).astype(np.float32), FP8_E5M2)
    w, w_scale = core.mx("w", stationary, offset=0)
    x, x_scale = core.mx("x", moving, offset=12, beside=w_scale)
    return stationary, moving, (w, w_scale, x, x_scale)


@pytest.mark.parametrize("partitions", [32, 64, 128])
def test_mx_operands_packed_in_one_tile_multiply(partitions: int) -> None:
    core = Core()
    stationary, moving, (w, w_scale, x, x_scale) = mx_operands(core, partitions)
    y = core.psum("y", (16, 8))
    core.matmul_mx(y, w, x, w_scale, x_scale, accumulate=False, tile_position=(0, 0), tile_size=(partitions, 128))
    core.expect(y, matmul_mx(stationary, moving))
    core.run()
    assert core.failures() == []
    assert x_scale.pattern.start_partition == 12
    assert x_scale.pattern.offset == w_scale.pattern.offset
    assert np.array_equal(core.result(x_scale), moving.scale)
    assert np.array_equal(core.result(w), pack_x4(stationary.codes, FP4_E2M1))
    assert check(core.program(), Profile.PUBLIC) == []


def test_accumulate_is_the_public_apis() -> None:
    """None overwrites at the first write of a cell and then adds; True adds; False overwrites."""
    core = Core()
    stationary, moving, (w, w_scale, x, x_scale) = mx_operands(core)
    once = matmul_mx(stationary, moving)
    y = core.psum("y", (16, 8))
    for number, (accumulate, wanted) in enumerate([(None, 1), (None, 2), (True, 3), (False, 1), (True, 2), (None, 3)]):
        core.matmul_mx(y, w, x, w_scale, x_scale, accumulate=accumulate)
        seen = core.sbuf(f"seen{number}", (16, 8), "float32")
        core.copy(seen, y)
        total = once
        for _ in range(wanted - 1):
            total = total + once
        core.expect(seen, total)
    core.run()
    assert core.failures() == []
    records = [one for one in core.program().instructions if isinstance(one, MatmultMx)]
    assert [one.first_write is FirstWrite.OVERWRITES for one in records] == [True, True, False, False, False, True]
    assert [one.flags for one in records] == [0, 0, PsumFlag.ACCUMULATE, 0, PsumFlag.ACCUMULATE, 0]


def test_adding_onto_what_nobody_wrote_is_a_fault() -> None:
    core = Core(name="p")
    _, _, (w, w_scale, x, x_scale) = mx_operands(core)
    core.matmul_mx(core.psum("y", (16, 8)), w, x, w_scale, x_scale, accumulate=True, label="first")
    with pytest.raises(ExecutionFault, match=r"p: instruction 0 \(matmul_mx 'first'\): dst \(tensor y\): psum"):
        core.run()


def test_quantise_into_packed_scales_leaves_the_rest() -> None:
    rng = np.random.default_rng(5)
    core = Core()
    tile = core.sbuf("tile", contents=np.full((128, 8), 0xA5, dtype=np.uint8), offset=4096)
    sources, scales = [], []
    for number, offset in enumerate((0, 4, 8, 12)):
        source = rng.normal(size=(128, 32)).astype(ml_dtypes.bfloat16)
        x = core.sbuf(f"x{number}", contents=source)
        q = core.sbuf(f"q{number}", (128, 8), "float8_e4m3fn_x4")
        scale = core.scale_tile(q, offset, beside=tile)
        core.quantize_mx(q, x, scale)
        sources.append(source)
        scales.append(scale)
    core.run()
    compared = 0
    for source, scale in zip(sources, scales, strict=True):
        wanted = quantize_mx(source, FP8_E4M3)
        assert np.array_equal(core.result(scale), wanted.scale)
        compared += wanted.scale.size
    left = core.result(tile)
    rest = np.delete(left, [q * 32 + row for q in range(4) for row in range(16)], axis=0)
    assert (rest == 0xA5).all()
    assert compared == 4 * 16 * 8
    assert check(core.program()) == []


def test_dense_and_sparse_products() -> None:
    rng = np.random.default_rng(6)
    core = Core()
    a, b = (rng.normal(size=(128, n)).astype(np.float32) for n in (8, 4))
    w, x = core.sbuf("w", contents=a), core.sbuf("x", contents=b)
    dense = core.psum("dense", (8, 4))
    core.matmul(dense, w, x, accumulate=False)
    core.expect(dense, matmul(a, b))
    at, bt = core.sbuf("at", contents=np.ascontiguousarray(a.T)), core.sbuf("bt", contents=np.ascontiguousarray(b.T))
    turned = core.psum("turned", (8, 4))
    core.matmul(turned, at, bt, accumulate=False, stationary_load=StationaryLoad.TRANSPOSED)
    positions = rng.integers(0, 16, size=(128, 8), dtype=np.uint8)
    tags, slots = pack_tags(positions), rng.normal(size=(128, 4, 3)).astype(np.float32)
    sparse = core.psum("sparse", (8, 3))
    core.matmul_sparse(
        sparse, w, core.sbuf("tags", contents=tags), core.sbuf("slots", contents=slots), accumulate=False
    )
    core.expect(sparse, matmul_sparse(a, tags, slots))
    core.run()
    assert core.failures() == []
    assert np.allclose(core.result(turned), core.result(dense), rtol=1e-4, atol=1e-4)


def test_the_other_engines() -> None:
    rng = np.random.default_rng(8)
    core = Core()
    values = rng.normal(size=(32, 16)).astype(np.float32)
    x = core.sbuf("x", (32, 16), "float32")
    core.load(x, core.dram("source", values))
    zeros = core.sbuf("zeros", (32, 16), "bfloat16")
    core.memset(zeros, -0.0)
    largest = core.sbuf("largest", (32, 1), "float32")
    core.activate(None, x, kind=AccumulationKind.LOAD_ACCUMULATE, immediate=-100.0, operator=Operator.MAX)
    core.read_accumulator(largest)
    below = core.sbuf("below", (32, 16), "float32")
    core.elementwise(below, x, Operator.SUBTRACT, largest)
    core.elementwise(below[0:16], below[0:16], Operator.MULTIPLY, 2.0)
    sigmoid = core.sbuf("sigmoid", (32, 16), "float32")
    core.activate(sigmoid, x, ActivationFunction.SIGMOID)
    out = core.dram("out", shape=(16, 32), dtype="float32")
    core.store(out.seen_as([(32, 16)], partitions=32, partition_step=4), below)
    core.run()
    wanted = values - values.max(axis=1, keepdims=True)
    wanted[:16] *= 2
    assert np.array_equal(bits(core.result(out)), bits(np.ascontiguousarray(wanted.T)))
    assert np.array_equal(bits(core.result(zeros)), np.full((32, 16), 0x8000, dtype=np.uint16))
    assert np.allclose(core.result(sigmoid), 1 / (1 + np.exp(-values)))
    assert np.array_equal(core.result(below[3:5, 1::5]), wanted[3:5, 1::5])
    used = {type(one) for one in core.program().instructions}
    assert len(used) == 6


def test_tiles_are_placed_apart_and_stay_where_they_are_put() -> None:
    core = Core(generation=Generation.V5)
    fixed = core.sbuf("fixed", (128, 16), "uint8", offset=1000, start_partition=0)
    tiles = [core.sbuf(f"t{n}", (128, n), "float16") for n in (1, 33, 7)]
    banks = [core.psum(f"p{n}", (128, n)) for n in (1, 512, 600)]
    ends = fixed.pattern.end_offset
    for tile in tiles:
        assert tile.pattern.offset % 64 == 0
        assert tile.pattern.offset >= ends
        ends = tile.pattern.end_offset
    assert [tile.pattern.offset for tile in banks] == [0, 2048, 4096]
    with pytest.raises(ValueError, match="psum must have room up to byte 20192, and has 16384; give an offset"):
        core.psum("more", (128, 3000))
    assert core.psum("last", (1, 512)).pattern.offset == 8192


def test_slices_are_operands() -> None:
    core = Core()
    tile = core.sbuf("t", (64, 4, 8), "bfloat16", start_partition=32, offset=128)
    part = tile[2:10, 1, ::4]
    assert part.shape == (8, 1, 2)
    assert (part.pattern.start_partition, part.pattern.offset, part.pattern.pattern) == (34, 128 + 16, ((8, 1), (4, 2)))
    assert tile[5].shape == (1, 4, 8)
    assert tile[:, :].pattern == tile.pattern
    dram = core.dram("d", shape=(8, 6), dtype="uint8", offset=10)
    assert (dram[1::3, 2].pattern.offset, dram[1::3].pattern.partition_step) == (18, 18)
    data = core.sbuf("q", (128, 8), "float8_e5m2_x4")
    scale = core.scale_tile(data, 8)
    assert scale.shape == (16, 8)
    half = scale[:, 4:8]
    assert half.shape == (16, 4)
    assert half.pattern == replace(scale.pattern, offset=scale.pattern.offset + 4, pattern=((1, 4),))
    seen = tile.seen_as([(1, 64)], dtype="uint8")
    assert (seen.dtype.name, seen.pattern.space) == ("uint8", Space.SBUF)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda core, t: core.sbuf("t", (1, 1), "uint8"), "name must be new, not 't' again"),
        (lambda core, t: core.sbuf("u", (1,), "uint8"), "shape must be .* two dimensions or more, not"),
        (lambda core, t: core.sbuf("u", dtype="uint8"), "u must be given a shape, or contents"),
        (lambda core, t: core.sbuf("u", (1, 1)), "u must be given a dtype, or contents"),
        (lambda core, t: core.sbuf("u", (1, 1), "fp8"), "dtype must be one of uint8, .*, not 'fp8'"),
        (lambda core, t: core.sbuf("u", (4, 4), contents=np.zeros((4, 5), np.float32)), "contents must be of shape"),
        (lambda core, t: core.scale_tile(t), "data must be of an x4 dtype, not float32"),
        (lambda core, t: t[0:65], "slice 0 must name something in 0..64, not 0:65:1"),
        (lambda core, t: t[-1], "slice 0 must name something in 0..64"),
        (lambda core, t: t[::2], "partitions must be consecutive in sbuf"),
        (lambda core, t: t[0, 0, 0], "slices must be at most 2"),
        (lambda core, t: core.result(t), "the program must be run before it has results"),
        (lambda core, t: core.failures(), "the program must be run before it has results"),
        (lambda core, t: core.matmul_mx(t, t, t, t, t, tile_size=(128, 128)), "must be given both or neither"),
    ],
)
def test_wrong_calls_say_what_was_wanted(action: Any, message: str) -> None:
    core = Core()
    tile = core.sbuf("t", (64, 8), "float32")
    with pytest.raises(ValueError, match=message):
        action(core, tile)


def test_scales_narrower_than_their_neighbours_are_refused() -> None:
    core = Core()
    narrow = core.scale_tile(core.sbuf("a", (128, 8), "float8_e5m2_x4"), 0)
    with pytest.raises(ValueError, match="beside must be 16 bytes wide or wider, not 8"):
        core.scale_tile(core.sbuf("b", (128, 16), "float8_e5m2_x4"), 4, beside=narrow)


def test_an_illegal_program_does_not_run_unless_told_to() -> None:
    core = Core()
    _, moving, (_, _, x, x_scale) = mx_operands(core, 96)
    y = core.psum("y", (8, 8))
    core.matmul_mx(y, x, x, x_scale, x_scale)
    with pytest.raises(IllegalProgram) as stop:
        core.run()
    assert [violation.line for _, violation in stop.value.violations] == [3091]
    core.run(verification=Verification.SKIPPED)
    assert np.array_equal(bits(core.result(y)), bits(matmul_mx(moving, moving)))


def test_options_reach_the_machine() -> None:
    results = []
    for accumulation in (Accumulation.SEQUENTIAL, Accumulation.EXACT):
        core = Core(options=MachineOptions(accumulation=accumulation))
        stationary, moving, (w, w_scale, x, x_scale) = mx_operands(core)
        y = core.psum("y", (16, 8))
        core.matmul_mx(y, w, x, w_scale, x_scale)
        core.run()
        assert np.array_equal(bits(core.result(y)), bits(matmul_mx(stationary, moving, accumulation=accumulation)))
        results.append(core.result(y))
    assert not np.array_equal(*results)


def test_a_built_program_is_written_and_read(tmp_path: Path) -> None:
    core = Core(name="built")
    stationary, moving, (w, w_scale, x, x_scale) = mx_operands(core)
    y = core.psum("y", (16, 8))
    core.matmul_mx(y, w, x, w_scale, x_scale, label="only")
    core.expect(y, matmul_mx(stationary, moving), name="the product")
    text = program_text(core.program())
    (tmp_path / "p.yaml").write_text(text)
    again = read_program(tmp_path / "p.yaml")
    assert again.instructions == core.program().instructions
    assert "- matmul_mx: {label: only, dst: y, flags: [], first_write: overwrites, moving: x, stationary: w, " in text
    assert "layout: scattered" in text


def test_the_pages_example_prints_what_the_page_says(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (root / "docs" / "programs.md").read_text()
    found = re.search(r"```python\n(.*?)```\n\nprints\n\n((?:    [^\n]*\n)+)", page, re.DOTALL)
    assert found is not None
    printed, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(printed):
        exec(compile(found[1], "docs/programs.md", "exec"), names)
    assert printed.getvalue().splitlines() == [line[4:] for line in found[2].splitlines()]
    monkeypatch.chdir(tmp_path)
    second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[1]
    exec(compile(second, "docs/programs.md", "exec"), names)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["product.npz", "product.yaml"]
    assert names["again"].instructions == names["core"].program().instructions


def test_swizzle_by_pattern_is_the_layouts() -> None:
    """Both orders of L-5's input, [K, N] and its transpose, as DRAM patterns."""
    rng = np.random.default_rng(9)
    matrix = rng.integers(0, 1 << 16, size=(128, 5), dtype=np.uint16)
    core = Core()
    rows, columns = core.dram("rows", matrix), core.dram("columns", np.ascontiguousarray(matrix.T))
    first, second = core.sbuf("first", (32, 20), "uint16"), core.sbuf("second", (32, 20), "uint16")
    core.load(first, rows.seen_as([(1, 5), (5, 4)], partitions=32, partition_step=4 * 5 * 2))
    core.load(second, columns.seen_as([(128, 5), (1, 4)], partitions=32, partition_step=4 * 2))
    core.run()
    for tile in (first, second):
        assert np.array_equal(core.result(tile), swizzle(matrix))


def test_an_mx_tensor_of_rules_that_the_core_does_not_have_is_refused() -> None:
    """Scale 255 is NaN under ``device`` and 2^128 under ``birsim``: a core reads every operand by its own rules."""
    tensor = quantize_mx(np.ones((32, 8), np.float32), FP8_E4M3, DEVICE)
    with pytest.raises(ValueError, match="w must be read as under rules device, and a core under birsim reads"):
        Core().mx("w", tensor)
    Core(options=MachineOptions(rules=DEVICE)).mx("w", tensor)


@pytest.mark.parametrize("start", [3, 16, 20])
def test_scattered_scales_start_at_one_of_four_rows(start: int) -> None:
    core = Core()
    data = core.sbuf("x", (32, 4), "float8_e4m3fn_x4")
    with pytest.raises(ValueError, match=r"scattered scales must start at partition 0, 4, 8, 12 of a quadrant"):
        core.scale_tile(data, start)
