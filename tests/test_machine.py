"""The machine's instructions, with values worked out by hand (contracts P, M, Q, F)."""

import itertools
import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from places import Bench, in_dram, in_psum, in_sbuf, place

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.isa import (
    INSTRUCTIONS,
    AccumulationKind,
    Activate,
    ActivationFunction,
    Copy,
    Elementwise,
    Engine,
    FirstWrite,
    Instruction,
    Load,
    Matmult,
    MatmultSparse,
    Memset,
    Operator,
    PsumFlag,
    QuantizeMx,
    ReadActivationAccumulator,
    StationaryLoad,
    Store,
    TensorDequantize,
)
from mxmodel.layout import pack_tags
from mxmodel.machine_options import AutoPsumAccumulate, Key19, MachineOptions, SecondRead
from mxmodel.memory import SBUF_PARTITION_BYTES, Generation, Uninitialised
from mxmodel.neuron_core import ExecutionFault, NeuronCore
from mxmodel.pe_array import DoubleRowLayout, PerfMode
from mxmodel.program import Program
from mxmodel.rules import NKI_SIM
from mxmodel.trace import Trace, TraceKind

START, BODY, IDLE = int(PsumFlag.START), int(PsumFlag.ACCUMULATE), int(PsumFlag.NONE)

S_AT, M_AT = 0, 1024
"""Bytes of the operands of small products."""


def product_bench(
    value: float = 1.0, options: MachineOptions | None = None, generation: Generation = Generation.V4
) -> tuple[Bench, AccessPattern, AccessPattern]:
    """Operands whose product is ``value`` everywhere: [1, 2] by [1, 3]."""
    bench = Bench(generation, options)
    stationary = bench.hold(in_sbuf("float32", 1, 2, at=S_AT), 1.0)
    moving = bench.hold(in_sbuf("float32", 1, 3, at=M_AT), value)
    return bench, stationary, moving


def matmul(
    stationary: AccessPattern, moving: AccessPattern, dst: AccessPattern, flags: int = START, **other: object
) -> Matmult:
    return Matmult(stationary=stationary, moving=moving, dst=dst, flags=flags, **other)  # type: ignore[arg-type]


def bits(array: NDArray[np.float32]) -> list[str]:
    return [f"{word:#010x}" for word in array.view(np.uint32).reshape(-1)]


# --- PSUM: head, body, idle (P-2) -------------------------------------------------------------------------------------


def test_p2_head_clears_its_bank_then_writes() -> None:
    bench, s, m = product_bench(2.5)
    dst, beside = in_psum("float32", 2, 3), in_psum("float32", 2, 2, at=2040)
    neighbour, other = in_psum("float32", 2, 1, at=2048), in_psum("float32", 1, 1, start=2)
    for pattern in (dst, beside, neighbour, other):
        bench.hold(pattern, 7.0)
    bench.run(matmul(s, m, dst, START))
    assert (bench.read(dst) == 2.5).all()
    assert (bench.read(in_psum("float32", 2, 509, at=12)) == 0).all(), "the rest of the bank is cleared, and written"
    assert (bench.read(neighbour) == 7).all(), "the next bank is not"
    assert (bench.read(other) == 7).all(), "nor another partition"


def test_p2_body_adds_and_idle_overwrites() -> None:
    bench, s, m = product_bench(2.5)
    dst, beside = in_psum("float32", 2, 3), in_psum("float32", 2, 1, at=12)
    bench.hold(beside, 7.0)
    bench.run(matmul(s, m, dst, IDLE), matmul(s, m, dst, BODY), matmul(s, m, dst, BODY | int(PsumFlag.STOP)))
    assert (bench.read(dst) == 7.5).all()
    assert (bench.read(beside) == 7).all(), "neither clears"
    bench.run(matmul(s, m, dst, int(PsumFlag.STOP)))
    assert (bench.read(dst) == 2.5).all()


def test_p2_head_then_body_accumulates_as_two_instructions() -> None:
    """Across instructions P-1 adds: 1 + 2^-24 rounds away, in each of two additions."""
    bench, s, m = product_bench(1.0)
    small = bench.hold(in_sbuf("float32", 1, 3, at=2048), 2.0**-24)
    dst = in_psum("float32", 2, 3)
    bench.run(matmul(s, m, dst, START), matmul(s, small, dst, BODY), matmul(s, small, dst, BODY))
    assert (bench.read(dst) == 1.0).all()


@pytest.mark.parametrize("log2", [0, 1, 2])
def test_p2_a_head_clears_so_many_banks(log2: int) -> None:
    """1, 2 and 4 banks, from the bank of the destination's first byte, the destination's partitions only."""
    bench, s, m = product_bench(3.0)
    everything = in_psum("float32", 4, 4096)
    bench.hold(everything, 7.0)
    bench.run(matmul(s, m, in_psum("float32", 2, 3, start=1, at=2 * 2048 + 100), START, zero_banks_log2=log2))
    wanted = np.full((4, 4096), 7.0, np.float32)
    wanted[1:3, 1024 : 1024 + 512 * 2**log2] = 0
    wanted[1:3, 1049:1052] = 3.0
    np.testing.assert_array_equal(bench.read(everything), wanted)


def test_p2_clears_that_cannot_be() -> None:
    bench, s, m = product_bench()
    with pytest.raises(ExecutionFault, match=r"banks to clear must end at bank 7, not 8: 2\^1 from 7 on"):
        bench.run(matmul(s, m, in_psum("float32", 2, 3, at=7 * 2048), START, zero_banks_log2=1))
    with pytest.raises(ExecutionFault, match=r"must be 2\^0 to 2\^3 on this generation, not 2\^4"):
        bench.run(matmul(s, m, in_psum("float32", 2, 3), START, zero_banks_log2=4))
    old, s, m = product_bench(generation=Generation.V3)
    with pytest.raises(ExecutionFault, match=r"must be 2\^0 to 2\^0 on this generation, not 2\^1"):
        old.run(matmul(s, m, in_psum("float32", 2, 3), START, zero_banks_log2=1))
    able, s, m = product_bench(generation=Generation.V3, options=MachineOptions(multi_bank_from=Generation.V3))
    able.run(matmul(s, m, in_psum("float32", 2, 3), START, zero_banks_log2=1))
    assert (able.read(in_psum("float32", 2, 1, at=4092)) == 0).all()


@pytest.mark.parametrize(
    ("attribute", "key_19", "flags", "wanted"),
    [
        (AutoPsumAccumulate.ABSENT, Key19.TRUE_IS_BODY, START, 2.5),
        (AutoPsumAccumulate.TRUE, Key19.TRUE_IS_BODY, START, 9.5),
        (AutoPsumAccumulate.FALSE, Key19.TRUE_IS_BODY, BODY, 2.5),
        (AutoPsumAccumulate.TRUE, Key19.TRUE_IS_HEAD, BODY, 2.5),
        (AutoPsumAccumulate.FALSE, Key19.TRUE_IS_HEAD, START, 9.5),
    ],
)
def test_p3_key_19_forces_the_choice(attribute: AutoPsumAccumulate, key_19: Key19, flags: int, wanted: float) -> None:
    bench, s, m = product_bench(2.5, MachineOptions(auto_psum_accumulate=attribute, key_19=key_19))
    dst, beside = bench.hold(in_psum("float32", 2, 3), 7.0), bench.hold(in_psum("float32", 2, 1, at=12), 7.0)
    bench.run(matmul(s, m, dst, flags))
    assert (bench.read(dst) == wanted).all()
    assert (bench.read(beside) == (7.0 if wanted == 9.5 else 0.0)).all()


def test_p3_key_19_is_over_the_public_accumulate_too() -> None:
    bench, s, m = product_bench(2.5, MachineOptions(auto_psum_accumulate=AutoPsumAccumulate.FALSE))
    dst = bench.hold(in_psum("float32", 2, 3), 7.0)
    bench.run(matmul(s, m, dst, first_write=FirstWrite.OVERWRITES))
    assert (bench.read(dst) == 2.5).all()


def test_p4_the_public_accumulate_none() -> None:
    """A cell's first write overwrites, later ones add; each cell for itself; a clear counts as a write."""
    bench, s, m = product_bench(2.5)
    dst = in_psum("float32", 2, 3)
    bench.hold(in_psum("float32", 2, 1, at=4), 7.0)  # the middle cell of each row
    first = matmul(s, m, dst, first_write=FirstWrite.OVERWRITES)
    bench.run(first)
    np.testing.assert_array_equal(bench.read(dst), [[2.5, 9.5, 2.5]] * 2)
    bench.run(first)
    np.testing.assert_array_equal(bench.read(dst), [[5, 12, 5]] * 2)
    cleared = in_psum("float32", 2, 3, at=1024)  # of the same bank
    bench.run(matmul(s, m, dst, START), matmul(s, m, cleared, first_write=FirstWrite.OVERWRITES))
    np.testing.assert_array_equal(bench.read(cleared), [[2.5] * 3] * 2)


def test_p4_a_cell_of_which_half_was_written_is_overwritten() -> None:
    """A bf16 write leaves half of an fp32 cell: that is no first write of the cell, and must not be added onto."""
    bench, s, m = product_bench(2.5)
    bench.hold(in_psum("bfloat16", 2, 1, at=2), 1.0)  # the upper half of the first cell, which would read as 1.0
    dst = in_psum("float32", 2, 3)
    bench.run(matmul(s, m, dst, first_write=FirstWrite.OVERWRITES))
    assert (bench.read(dst) == 2.5).all()


# --- PSUM: faults (P-4) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [START, BODY, IDLE])
@pytest.mark.parametrize("space", [Space.SBUF, Space.DRAM])
def test_p4_a_matmul_writes_to_psum(space: Space, flags: int) -> None:
    bench, s, m = product_bench()
    dst = in_sbuf("float32", 2, 3, at=4096) if space is Space.SBUF else in_dram("float32", 2, 3)
    with pytest.raises(
        ExecutionFault, match=rf"instruction 0 \(matmul\): a matmul must write to PSUM, not to {space.value}"
    ):
        bench.run(matmul(s, m, dst, flags))


def test_p4_adding_onto_an_unwritten_cell_names_its_address() -> None:
    bench, s, m = product_bench()
    dst = in_psum("float32", 2, 3, start=5, at=4096)
    bench.hold(in_psum("float32", 1, 3, start=5, at=4096), 1.0)
    wanted = r"dst: psum partition 6, byte 4096 \(bank 2\) is added onto before anything wrote it; begin with a product"
    with pytest.raises(ExecutionFault, match=wanted):
        bench.run(matmul(s, m, dst, BODY))
    bench.run(matmul(s, m, dst, BODY, uninitialised=Uninitialised.ALLOWED))
    np.testing.assert_array_equal(bench.read(dst), [[2, 2, 2], [1, 1, 1]])


def test_p4_reading_an_unwritten_cell_names_its_address() -> None:
    bench = Bench()
    target = in_sbuf("float32", 2, 2, at=4096)
    bench.hold(in_sbuf("float32", 2, 1), 1.0)
    with pytest.raises(ExecutionFault, match=r"0 \(copy 'drain'\): src: sbuf partition 0, byte 4 is read before"):
        bench.run(Copy(src=in_sbuf("float32", 2, 2), dst=target, label="drain"))
    bench.run(Copy(src=in_sbuf("float32", 2, 2), dst=target, uninitialised=Uninitialised.ALLOWED))
    np.testing.assert_array_equal(bench.read(target), [[1, 0], [1, 0]])
    bench.hold(in_dram("float32", 2, 1, at=8), 1.0)
    with pytest.raises(
        ExecutionFault, match=r"src: dram byte 16 is read before anything wrote it; give its tensor contents, or set"
    ):
        bench.run(Load(src=in_dram("float32", 2, 2, at=8), dst=target))


def test_p4_a_legitimate_nan_is_not_refused() -> None:
    bench, s, _ = product_bench()
    m = bench.hold(in_sbuf("float32", 1, 3, at=M_AT), np.float32(np.nan))
    dst = in_psum("float32", 2, 3)
    bench.run(matmul(s, m, dst, START), matmul(s, m, dst, BODY))
    assert set(bits(bench.read(dst))) == {"0x7fc00000"}


def test_p1_a_bf16_cell_rounds_at_every_instruction() -> None:
    """1.0 += 2^-9 eight times stays 1.0; an fp32 cell has 1 + 2^-6 by then."""
    for dtype, wanted in (("bfloat16", 1.0), ("float32", 1.0 + 2.0**-6)):
        bench, s, m = product_bench(1.0)
        small = bench.hold(in_sbuf("float32", 1, 3, at=2048), 2.0**-9)
        dst = in_psum(dtype, 2, 3)
        bench.run(matmul(s, m, dst, START), *[matmul(s, small, dst, BODY)] * 8)
        assert (bench.read(dst).astype(np.float32) == wanted).all()


def test_p1_a_cell_is_fp32_or_bf16() -> None:
    bench, s, m = product_bench()
    for dtype in ("float16", "float32r", "int32"):
        with pytest.raises(ExecutionFault, match=rf"matmul dst dtype must be float32 or bfloat16, not {dtype}"):
            bench.run(matmul(s, m, in_psum(dtype, 2, 3)))


def test_p4_the_destination_has_the_shape_of_the_product() -> None:
    bench, s, m = product_bench()
    for dst in (in_psum("float32", 3, 2), in_psum("float32", 2, 4), in_psum("float32", 1, 6)):
        with pytest.raises(ExecutionFault, match=r"value must be .* to be written to psum"):
            bench.run(matmul(s, m, dst))
    with pytest.raises(ExecutionFault, match=r"must lie in the 128 x 16384 bytes of psum, not reach partition 128"):
        bench.run(matmul(s, m, in_psum("float32", 2, 3, start=127)))
    with pytest.raises(ExecutionFault, match=r"not reach partition 1, byte 16387"):
        bench.run(matmul(s, m, in_psum("float32", 2, 3, at=16376)))


# --- the dense product (M) --------------------------------------------------------------------------------------------


def test_m2_uint8_zero_points() -> None:
    """(moving - 2) * (stationary - 3), contraction over two partitions, worked by hand."""
    bench = Bench()
    s = bench.hold(in_sbuf("uint8", 2, 2), [[3, 4], [5, 255]])  # less 3: [[0, 1], [2, 252]]
    m = bench.hold(in_sbuf("uint8", 2, 3, at=64), [[2, 0, 7], [3, 2, 1]])  # less 2: [[0, -2, 5], [1, 0, -1]]
    dst = in_psum("float32", 2, 3)
    bench.run(matmul(s, m, dst, stationary_zero_point=3, moving_zero_point=2))
    np.testing.assert_array_equal(bench.read(dst), [[2, 0, -2], [252, -2, -247]])
    bench.run(matmul(s, m, dst, stationary_zero_point=3))
    np.testing.assert_array_equal(bench.read(dst), [[6, 4, 2], [758, 504, 259]])


def test_m6_perf_modes_1_and_4() -> None:
    """[2, 4] operands of two rows a partition, by explicit products."""
    s_values = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
    m_values = np.array([[1, 10, 100, 1000], [2, 20, 200, 2000]], np.float32)
    moving_rows = [[1, 10], [100, 1000], [2, 20], [200, 2000]]
    rows = {
        PerfMode.DOUBLE_ROW: [[1, 2], [3, 4], [5, 6], [7, 8]],  # row-major
        PerfMode.DOUBLE_ROW_SW_INTERLEAVE: [[1, 3], [2, 4], [5, 7], [6, 8]],  # de-interleaved by two
    }
    for mode, stationary_rows in rows.items():
        bench = Bench()
        s, m = bench.hold(in_sbuf("float32", 2, 4), s_values), bench.hold(in_sbuf("float32", 2, 4, at=64), m_values)
        dst = in_psum("float32", 2, 2)
        bench.run(matmul(s, m, dst, perf_mode=mode))
        wanted = [
            [sum(stationary_rows[k][i] * moving_rows[k][j] for k in range(4)) for j in range(2)] for i in range(2)
        ]
        np.testing.assert_array_equal(bench.read(dst), wanted)
    bench = Bench(options=MachineOptions(double_row_layout=DoubleRowLayout.PUBLIC))
    s = bench.hold(in_sbuf("float32", 2, 2, 2), s_values.reshape(2, 2, 2))
    m = bench.hold(in_sbuf("float32", 2, 2, 2, at=64), m_values.reshape(2, 2, 2))
    dst = in_psum("float32", 2, 2)
    bench.run(matmul(s, m, dst, perf_mode=PerfMode.DOUBLE_ROW))
    np.testing.assert_array_equal(bench.read(dst), [[1711, 17110], [2014, 20140]])
    for mode in (PerfMode.DOUBLE_COLUMN, PerfMode.DOUBLE_PIXEL):
        with pytest.raises(ExecutionFault, match="no known numeric effect"):
            bench.run(matmul(s, m, dst, perf_mode=mode))


def test_m5_float32r_by_its_dtype() -> None:
    """1 + 2^-12 is a tie of 11 bits and goes to even; 1 + 3 * 2^-12 goes up."""
    bench = Bench()
    s = bench.hold(in_sbuf("float32r", 1, 2), [[1 + 2.0**-12, 1 + 3 * 2.0**-12]])
    m = bench.hold(in_sbuf("float32r", 1, 1, at=64), 1.0)
    full = bench.hold(in_sbuf("float32", 1, 1, at=128), 1.0)
    dst = in_psum("float32", 2, 1)
    bench.run(matmul(s, m, dst))
    np.testing.assert_array_equal(bench.read(dst), [[1.0], [1 + 2.0**-10]])
    with pytest.raises(ExecutionFault, match="must both be FLOAT32R or both FULL"):
        bench.run(matmul(s, full, dst))


def test_m7_transposed_stationary_from_v4_on() -> None:
    bench = Bench()
    s = bench.hold(in_sbuf("float32", 2, 3), [[1, 2, 3], [4, 5, 6]])
    m = bench.hold(in_sbuf("float32", 2, 3, at=64), [[1, 1, 1], [1, 10, 100]])
    dst = in_psum("float32", 2, 2)
    bench.run(matmul(s, m, dst, stationary_load=StationaryLoad.TRANSPOSED))
    np.testing.assert_array_equal(bench.read(dst), [[6, 321], [15, 654]])
    old = Bench(Generation.V3)
    s, m = old.hold(s, 1.0), old.hold(m, 1.0)
    with pytest.raises(ExecutionFault, match="stationary_load must be PLAIN on V3"):
        old.run(matmul(s, m, dst, stationary_load=StationaryLoad.TRANSPOSED))


def test_m7_a_gathered_stationary_is_resolved_first() -> None:
    """Rows 3, 0 of four; the others are not even written."""
    bench = Bench()
    numbers = bench.hold(in_sbuf("int32", 1, 2, at=256), [[3, 0]])
    bench.hold(in_sbuf("float32", 1, 2), [[1, 2]])
    bench.hold(in_sbuf("float32", 1, 2, start=3), [[10, 20]])
    whole = in_sbuf("float32", 4, 2)
    gathered = AccessPattern(space=Space.SBUF, dtype=whole.dtype, partitions=4, pattern=whole.pattern, rows=numbers)
    m = bench.hold(in_sbuf("float32", 2, 1, at=64), [[1], [100]])
    dst = in_psum("float32", 2, 1)
    bench.run(matmul(gathered, m, dst))
    np.testing.assert_array_equal(bench.read(dst), [[110], [220]])
    bench.hold(numbers, [[1, 0]])
    with pytest.raises(ExecutionFault, match=r"stationary: sbuf partition 1, byte 0 is read before"):
        bench.run(matmul(gathered, m, dst))
    bench.hold(numbers, [[4, 0]])
    with pytest.raises(ExecutionFault, match=r"rows must be in 0\.\.3, not 0\.\.4"):
        bench.run(matmul(gathered, m, dst))
    with pytest.raises(ExecutionFault, match="must name every byte once"):
        bench.run(Memset(dst=gathered, value=0.0))


@pytest.mark.parametrize("dtype", ["int8", "float8_e8m0fnu", "float8_e4m3fn_x4", "int32", "uint16"])
def test_m1_what_may_enter(dtype: str) -> None:
    bench = Bench()
    good = bench.hold(in_sbuf("float16", 1, 2), 1.0)
    bad = bench.hold(in_sbuf(dtype, 1, 2, at=64), 1)
    dst = in_psum("float32", 2, 2)
    with pytest.raises(ExecutionFault, match=f"Invalid weights data type for matmult.*{dtype}"):
        bench.run(matmul(bad, good, dst))
    with pytest.raises(ExecutionFault, match=f"Invalid ifmap data type for matmult.*{dtype}"):
        bench.run(matmul(good, bad, dst))


def test_m1_contraction_sizes_agree() -> None:
    bench = Bench()
    s, m = bench.hold(in_sbuf("float32", 2, 2), 1.0), bench.hold(in_sbuf("float32", 3, 2, at=64), 1.0)
    with pytest.raises(ExecutionFault, match="invalid matrix product"):
        bench.run(matmul(s, m, in_psum("float32", 2, 2)))


def test_m8_sparse_is_the_dense_product_of_the_expanded_matrix() -> None:
    """4:2-like: each of 128 compressed rows chooses among its group's 4 partitions x 2 slots."""
    rng = np.random.default_rng(8)
    columns, slots, free = 8, 2, 5
    kept = rng.integers(-4, 5, (128, columns)).astype(np.float32)
    moving = rng.integers(-4, 5, (128, slots, free)).astype(np.float32)
    position = rng.integers(0, 4 * slots, (128, columns)).astype(np.uint8)
    expanded = np.zeros((128 * slots, columns), np.float32)
    for k in range(128):
        for m in range(columns):
            partition, slot = 4 * (k // 4) + int(position[k, m]) // slots, int(position[k, m]) % slots
            expanded[partition * slots + slot, m] += kept[k, m]
    dense = expanded.T @ moving.reshape(128 * slots, free)  # small integers: exact in any order
    bench = Bench()
    s = bench.hold(in_sbuf("bfloat16", 128, columns), kept.astype(ml_dtypes.bfloat16))
    x = bench.hold(in_sbuf("bfloat16", 128, slots, free, at=64), moving.astype(ml_dtypes.bfloat16))
    tags = bench.hold(in_sbuf("uint16", 128, columns // 4, at=128), pack_tags(position))
    dst = in_psum("float32", columns, free)
    bench.run(MatmultSparse(stationary=s, moving=x, tags=tags, dst=dst))
    np.testing.assert_array_equal(bench.read(dst), dense)
    few = in_sbuf("bfloat16", 126, columns)
    with pytest.raises(ExecutionFault, match=r"Error: num_active_rows should be divisible by 4\."):
        bench.run(MatmultSparse(stationary=few, moving=x, tags=tags, dst=dst))
    with pytest.raises(ExecutionFault, match="Only the 128-active-rows case is supported!"):
        bench.run(MatmultSparse(stationary=in_sbuf("bfloat16", 64, columns), moving=x, tags=tags, dst=dst))


# --- the accumulator (P-5) --------------------------------------------------------------------------------------------


def accumulator_bench(options: MachineOptions | None = None) -> tuple[Bench, AccessPattern, AccessPattern]:
    bench = Bench(options=options)
    src = bench.hold(in_sbuf("float32", 2, 3), [[1, 2, 3], [-4, 8, -2]])
    return bench, src, in_sbuf("float32", 2, 1, at=64)


@pytest.mark.parametrize(
    ("operator", "start", "wanted"),
    [
        (Operator.ADD, 10.0, [16, 12]),
        (Operator.MAX, 2.5, [3, 8]),
        (Operator.MIN, 2.5, [1, -4]),
        (Operator.MULTIPLY, 0.5, [3, 32]),
    ],
)
def test_p5_load_accumulate_with_each_operator(operator: Operator, start: float, wanted: list[float]) -> None:
    bench, src, dst = accumulator_bench()
    load = Activate(src=src, kind=AccumulationKind.LOAD_ACCUMULATE, operator=operator, immediate=start)
    bench.run(load, ReadActivationAccumulator(dst=dst))
    np.testing.assert_array_equal(bench.read(dst)[:, 0], wanted)


def test_p5_zero_add_idle() -> None:
    bench, src, dst = accumulator_bench()
    zero, add, idle = (
        Activate(src=src, kind=kind)
        for kind in (AccumulationKind.ZERO_ACCUMULATE, AccumulationKind.ADD_ACCUMULATE, AccumulationKind.IDLE)
    )
    bench.run(add, zero, add, idle, ReadActivationAccumulator(dst=dst))
    np.testing.assert_array_equal(bench.read(dst)[:, 0], [12, 4])


def test_p5_drained_is_consumed() -> None:
    """A second read gives the same value; the next accumulate starts from zero."""
    bench, src, dst = accumulator_bench()
    again = in_sbuf("float32", 2, 1, at=128)
    zero = Activate(src=src, kind=AccumulationKind.ZERO_ACCUMULATE)
    add = Activate(src=src, kind=AccumulationKind.ADD_ACCUMULATE)
    bench.run(zero, add, ReadActivationAccumulator(dst=dst), ReadActivationAccumulator(dst=again))
    np.testing.assert_array_equal(bench.read(dst)[:, 0], [12, 4])
    np.testing.assert_array_equal(bench.read(again)[:, 0], [12, 4])
    bench.run(add, ReadActivationAccumulator(dst=dst))
    np.testing.assert_array_equal(bench.read(dst)[:, 0], [6, 2])


def test_p5_a_second_read_may_give_zero_instead() -> None:
    bench, src, dst = accumulator_bench(MachineOptions(second_read=SecondRead.ZERO))
    zero = Activate(src=src, kind=AccumulationKind.ZERO_ACCUMULATE)
    bench.run(zero, ReadActivationAccumulator(dst=dst), ReadActivationAccumulator(dst=dst))
    np.testing.assert_array_equal(bench.read(dst)[:, 0], [0, 0])


def test_p5_faults_of_the_accumulator() -> None:
    bench, src, dst = accumulator_bench()
    load = Activate(src=src, kind=AccumulationKind.LOAD_ACCUMULATE)
    with pytest.raises(
        ExecutionFault, match="an instruction that does a LoadAccumulate must provide an immediate value to load"
    ):
        bench.run(load)
    with pytest.raises(ExecutionFault, match="must be filled by an activate before it is read"):
        bench.run(ReadActivationAccumulator(dst=dst))
    zero = Activate(src=src, kind=AccumulationKind.ZERO_ACCUMULATE)
    with pytest.raises(ExecutionFault, match="dst must be float32, not bfloat16"):
        bench.run(zero, ReadActivationAccumulator(dst=in_sbuf("bfloat16", 2, 1, at=64)))
    with pytest.raises(ExecutionFault, match="operator must be add, max, min or multiply, not subtract"):
        bench.run(Activate(src=src, kind=AccumulationKind.ZERO_ACCUMULATE, operator=Operator.SUBTRACT))
    one = bench.hold(in_sbuf("float32", 1, 3, at=256), 1.0)
    with pytest.raises(ExecutionFault, match="src must be on the 2 partitions of the accumulator, not 1"):
        bench.run(zero, Activate(src=one, kind=AccumulationKind.ADD_ACCUMULATE))


def test_p5_a_plain_write_overwrites() -> None:
    bench, src, _ = accumulator_bench()
    dst = bench.hold(in_psum("float32", 2, 3), 100.0)
    bench.run(Copy(src=src, dst=dst))
    np.testing.assert_array_equal(bench.read(dst), [[1, 2, 3], [-4, 8, -2]])


# --- activations, elementwise, copies ---------------------------------------------------------------------------------


def test_activation_functions() -> None:
    bench, src, _ = accumulator_bench()
    out = in_sbuf("float32", 2, 3, at=64)
    bench.run(Activate(src=src, dst=out, scale=-0.5))
    np.testing.assert_array_equal(bench.read(out), [[-0.5, -1, -1.5], [2, -4, 1]])
    special = bench.hold(in_sbuf("float32", 1, 4, at=128), [[0.0, np.inf, -np.inf, np.nan]])
    out = in_sbuf("float32", 1, 4, at=192)
    bench.run(Activate(src=special, dst=out, function=ActivationFunction.SIGMOID))
    assert bits(bench.read(out)) == ["0x3f000000", "0x3f800000", "0x00000000", "0x7fc00000"]


@pytest.mark.parametrize(
    ("operator", "wanted"),
    [
        (Operator.ADD, ["0x40400000", "0x00000000", "0x7fc00000", "0x7f800000"]),
        (Operator.SUBTRACT, ["0xbf800000", "0x80000000", "0x7fc00000", "0x7f800000"]),
        (Operator.MULTIPLY, ["0x40000000", "0x80000000", "0x7fc00000", "0x7fc00000"]),
        (Operator.MAX, ["0x40000000", "0x00000000", "0x7fc00000", "0x7f800000"]),
        (Operator.MIN, ["0x3f800000", "0x80000000", "0x7fc00000", "0x00000000"]),
    ],
)
def test_elementwise_specials(operator: Operator, wanted: list[str]) -> None:
    """1 op 2, -0 op +0, NaN op 1, Inf op 0."""
    bench = Bench()
    left = bench.hold(in_sbuf("float32", 1, 4), [[1.0, -0.0, np.nan, np.inf]])
    right = bench.hold(in_sbuf("float32", 1, 4, at=64), [[2.0, 0.0, 1.0, 0.0]])
    dst = in_sbuf("float32", 1, 4, at=128)
    bench.run(Elementwise(src=left, operand=right, dst=dst, operator=operator))
    assert bits(bench.read(dst)) == wanted


def test_elementwise_operands() -> None:
    """A number, a tensor, one number for each partition; anything else is refused."""
    bench, src, _ = accumulator_bench()
    column = bench.hold(in_sbuf("float32", 2, 1, at=64), [[10], [100]])
    dst = in_sbuf("bfloat16", 2, 3, at=128)
    bench.run(Elementwise(src=src, operand=2.0, dst=dst, operator=Operator.MULTIPLY))
    np.testing.assert_array_equal(bench.read(dst).astype(np.float32), [[2, 4, 6], [-8, 16, -4]])
    bench.run(Elementwise(src=src, operand=column, dst=dst, operator=Operator.ADD))
    np.testing.assert_array_equal(bench.read(dst).astype(np.float32), [[11, 12, 13], [96, 108, 98]])
    two = bench.hold(in_sbuf("float32", 2, 2, at=256), 1.0)
    with pytest.raises(ExecutionFault, match=r"operand must be of the shape \[2, 3\] of src"):
        bench.run(Elementwise(src=src, operand=two, dst=dst, operator=Operator.ADD))


def test_f4_copies_cast_through_fp32() -> None:
    """An E8M0 byte is a number to a cast; FP8 saturates and keeps NaN (N-4b); the same dtype moves bits."""
    bench = Bench()
    scales = bench.hold(in_sbuf("float8_e8m0fnu", 1, 3), [[0, 127, 255]])
    dst = in_sbuf("float32", 1, 3, at=64)
    bench.run(Copy(src=scales, dst=dst))
    np.testing.assert_array_equal(bench.read(dst), [[0, 127, 255]])
    wide = bench.hold(in_sbuf("float32", 1, 4, at=128), [[464.0, -np.inf, np.nan, 2.0**-9]])
    codes = in_sbuf("float8_e4m3fn", 1, 4, at=192)
    bench.run(Copy(src=wide, dst=codes))
    np.testing.assert_array_equal(bench.read(codes).view(np.uint8), [[0x7E, 0xFE, 0x7F, 0x01]])
    words = bench.hold(in_sbuf("float8_e4m3fn_x4", 1, 1, at=256), [[0x7EC44038]])
    bench.run(Copy(src=words, dst=in_sbuf("float32", 1, 4, at=320)))
    np.testing.assert_array_equal(bench.read(in_sbuf("float32", 1, 4, at=320)), [[1, 2, -3, 448]])
    payload = bench.hold(in_sbuf("float32", 1, 1, at=384), np.uint32(0xFFA12345).view(np.float32))
    bench.run(Copy(src=payload, dst=in_sbuf("float32", 1, 1, at=400)))
    assert bits(bench.read(in_sbuf("float32", 1, 1, at=400))) == ["0xffa12345"]
    for dtype in ("int32", "float8e4", "float8_e5m2_x4", "float8_e8m0fnu"):
        with pytest.raises(ExecutionFault, match=f"must be a float dtype to be cast to, not {dtype}"):
            bench.run(Copy(src=wide, dst=in_sbuf(dtype, 1, 4, at=512)))


def test_memset() -> None:
    bench = Bench()
    cases = [("float32", -0.0, 0x80000000), ("bfloat16", 1.0, 0x3F80), ("uint8", 255, 255), ("int32", -2, 0xFFFFFFFE)]
    for dtype, value, wanted in cases:
        dst = in_sbuf(dtype, 128, 4)
        bench.run(Memset(dst=dst, value=value))
        held = bench.read(dst)
        assert (held.view(np.dtype(f"u{held.dtype.itemsize}")) == wanted).all()
    for dtype, value in (("uint8", 256), ("uint8", -1), ("int8", 0.5)):
        with pytest.raises(ExecutionFault, match=f"value must be an integer in .* for {dtype}"):
            bench.run(Memset(dst=in_sbuf(dtype, 1, 1), value=value))


def test_dma_patterns_transpose_and_swizzle() -> None:
    """A [4, 3] matrix in DRAM, read by columns; stored back in pairs."""
    bench = Bench()
    matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
    bench.hold(in_dram("float32", 4, 3), matrix)
    columns = AccessPattern(
        space=Space.DRAM, dtype=in_dram("float32", 1, 1).dtype, partitions=3, pattern=((3, 4),), partition_step=4
    )
    tile = in_sbuf("float32", 3, 4)
    bench.run(Load(src=columns, dst=tile), Store(src=tile, dst=in_dram("float32", 3, 4, at=256)))
    np.testing.assert_array_equal(bench.read(tile), matrix.T)
    np.testing.assert_array_equal(bench.read(in_dram("float32", 3, 4, at=256)), matrix.T)
    bench.run(Store(src=tile, dst=columns))
    np.testing.assert_array_equal(bench.read(in_dram("float32", 4, 3)), matrix)
    with pytest.raises(ExecutionFault, match="src of a load must be in dram, not sbuf"):
        bench.run(Load(src=tile, dst=tile))
    with pytest.raises(ExecutionFault, match="dst must be float32, as src is: a DMA casts nothing; not bfloat16"):
        bench.run(Load(src=columns, dst=in_sbuf("bfloat16", 3, 4)))
    with pytest.raises(ExecutionFault, match=r"dst must hold 12 containers, not \[3, 5\]"):
        bench.run(Load(src=columns, dst=in_sbuf("float32", 3, 5)))


# --- quantise (Q) -----------------------------------------------------------------------------------------------------


def quantize(partitions: int, *, offset: int = 0, span: int | None = None, dtype: str = "bfloat16") -> QuantizeMx:
    reach = 32 * (partitions // 32 - 1) + 4 if span is None else span
    return QuantizeMx(
        src=in_sbuf(dtype, partitions, 4),
        dst=in_sbuf("float8_e4m3fn_x4", partitions, 1, at=64),
        dst_scale=in_sbuf("uint8", reach, 1, start=offset, at=128),
    )


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
@pytest.mark.parametrize("partitions", [32, 64, 96, 128])
def test_q1_only_the_scale_rows_it_owns_are_written(partitions: int, offset: int) -> None:
    """Block b holds 2^b alone, so scale row b is 127 + b - 8; everything else of the tile keeps its poison."""
    bench = Bench()
    exponents = np.repeat(np.arange(partitions // 8), 8)
    bench.hold(in_sbuf("bfloat16", partitions, 4), np.exp2(exponents.astype(np.float32))[:, np.newaxis])
    tile = bench.hold(in_sbuf("uint8", 128, 3, at=127), 0xEE)
    bench.run(quantize(partitions, offset=offset))
    wanted = np.full((128, 3), 0xEE, np.uint8)
    for row in range(partitions // 8):
        wanted[offset + row % 4 + 32 * (row // 4), 1] = 119 + row
    np.testing.assert_array_equal(bench.read(tile), wanted)
    words = bench.read(in_sbuf("float8_e4m3fn_x4", partitions, 1, at=64))
    assert (words == 0x78787878).all(), "each value is 2^8 of its scale: code 0x78"


def test_l3_compact_scales_are_for_32_partitions_or_nki_sim() -> None:
    for rules, faults in ((None, True), (NKI_SIM, False)):
        options = MachineOptions() if rules is None else MachineOptions(rules=rules)
        bench = Bench(options=options)
        bench.hold(in_sbuf("bfloat16", 64, 4), 1.0)
        if faults:
            with pytest.raises(ExecutionFault, match="must be scattered over at least 36, not on 8"):
                bench.run(quantize(64, span=8))
        else:
            bench.run(quantize(64, span=8))
            assert (bench.read(in_sbuf("uint8", 8, 1, at=128)) == 119).all()


def test_q1_faults() -> None:
    bench = Bench()
    with pytest.raises(ExecutionFault, match=r"tensor_dequantize \(0x7B\) must not be simulated.*not pinned"):
        bench.run(TensorDequantize(src=in_sbuf("uint8", 1, 8), dst=in_sbuf("float32", 1, 8)))
    with pytest.raises(ExecutionFault, match="engine must be one of PE, DVE, POOL, ACT, DMA, not SP"):
        bench.run(Memset(dst=in_sbuf("uint8", 1, 1), value=0.0, engine=Engine.SP))
    with pytest.raises(ExecutionFault, match="engine PE must know the instruction, which is memset"):
        bench.run(Memset(dst=in_sbuf("uint8", 1, 1), value=0.0, engine=Engine.PE))


# --- the machine as a whole -------------------------------------------------------------------------------------------


def test_every_instruction_has_one_visit_method() -> None:
    """Of exactly one engine, and no engine has another visit."""
    core = NeuronCore()
    owners = [(record, engine) for engine in core.engines.values() for record in engine.visits]
    assert sorted(record.mnemonic for record, _ in owners) == sorted(INSTRUCTIONS)
    for record, engine in owners:
        assert record.__dataclass_fields__["engine"].default == engine.code, record
        assert engine.visits[record].__name__.startswith("visit_")
    methods = [name for engine in core.engines.values() for name in dir(engine) if name.startswith("visit_")]
    assert len(methods) == len(INSTRUCTIONS)
    assert len(core.engines) == 5, "four engines and the DMA queue"


def hazards(bench: Bench, steps: int) -> list[Instruction]:
    """A chain in which every instruction reads what the one before wrote, on four engines and the DMA queue."""
    bench.hold(in_dram("float32", 2, 3), [[1, 2, 3], [-4, 8, -2]])
    tile, other, column = in_sbuf("float32", 2, 3), in_sbuf("float32", 2, 3, at=64), in_sbuf("float32", 2, 1, at=128)
    square, product = in_sbuf("float32", 2, 2, at=192), in_psum("float32", 2, 3)
    bench.hold(square, [[0.5, 1.0], [-1.0, 0.25]])
    chain: list[Instruction] = [Load(src=in_dram("float32", 2, 3), dst=tile)]
    for step in range(steps):
        chain += [
            Matmult(stationary=square, moving=tile, dst=product, flags=START if step % 3 else IDLE),
            Copy(src=product, dst=other),
            Activate(src=other, kind=AccumulationKind.ZERO_ACCUMULATE, operator=Operator.ADD, scale=0.25),
            ReadActivationAccumulator(dst=column),
            Elementwise(src=other, operand=column, dst=tile, operator=Operator.ADD),
            Memset(dst=other, value=float(step)),
            Elementwise(src=tile, operand=other, dst=tile, operator=Operator.MAX),
            Store(src=tile, dst=in_dram("float32", 2, 3)),
            Load(src=in_dram("float32", 2, 3), dst=other),
            Elementwise(src=other, operand=0.5, dst=tile, operator=Operator.MULTIPLY),
        ]
    return chain


def test_no_schedule_changes_what_a_program_leaves() -> None:
    """120 shuffled schedules of a program full of read-after-write hazards, against instructions run one by one."""
    alone = Bench()
    for instruction in hazards(alone, 6):
        alone.run(instruction)
    wanted = {space: memory.contents() for space, memory in alone.core.memories.items()}
    for schedule in range(120):
        bench = Bench()
        bench.run(*hazards(bench, 6), schedule=schedule)
        for space, memory in bench.core.memories.items():
            assert memory.contents() == wanted[space], (schedule, space)


def test_the_trace_tells_every_access_between_issue_and_retire() -> None:
    trace = Trace()
    core = NeuronCore(trace=trace)
    bench = Bench()
    chain = hazards(bench, 1)
    bench.core = core
    bench.run(*chain)
    told = [event for event in trace.events if event.instruction]
    assert [event.order for event in trace.events] == list(range(len(trace.events)))
    under_way = None
    retired = 0
    for event in told:
        if event.kind == TraceKind.ISSUE.value:
            assert under_way is None, "one in flight"
            under_way = event.index
        assert event.index == under_way
        if event.kind == TraceKind.RETIRE.value:
            retired += 1
            under_way = None
    assert retired == len(chain)
    reads = sum(event.action == "read" for event in told)
    assert reads == sum(len([name for name, _ in one.operands() if name in one.inputs]) for one in chain)
    lines = [json.loads(line) for line in trace.json_lines().splitlines()]
    assert len(lines) == len(trace.events)
    spans = [event for event in trace.perfetto("test")["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == len(trace.events) - retired
    assert all(span["dur"] >= 1 and span["ts"] >= 0 for span in spans)


def test_a_core_runs_programs_of_its_own_kind_only() -> None:
    program = Program(instructions=(), generation=Generation.V3)
    with pytest.raises(ValueError, match="program must be for this core's generation and options"):
        NeuronCore().run(program)


def test_memory_sizes() -> None:
    """24, 28 and 32 MiB in 128 partitions; 128 x 8 banks x 2 KiB."""
    for generation, mebibytes in ((Generation.V2, 24), (Generation.V3, 28), (Generation.V4, 32)):
        memory = NeuronCore(generation=generation).memories[Space.SBUF]
        assert memory.partitions * memory.partition_bytes == mebibytes << 20
    psum = NeuronCore().memories[Space.PSUM]
    assert (psum.partitions, psum.partition_bytes) == (128, 8 * 2048)
    last = in_sbuf("uint8", 1, 1, start=127, at=(24 << 20) // 128 - 1)
    Bench(Generation.V2).run(Memset(dst=last, value=1.0))
    with pytest.raises(ExecutionFault, match="must lie in the 128 x 196608 bytes of sbuf"):
        Bench(Generation.V2).run(Memset(dst=in_sbuf("uint8", 1, 1, at=(24 << 20) // 128), value=1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "sbuf"}, "space must be a Space, not 'sbuf'"),
        ({"dtype": 16}, "dtype must be a BirDtype, not 16"),
        ({"partitions": 0}, "partitions must be 1 or more, not 0"),
        ({"start_partition": -1}, "start_partition must be 0 or more, not -1"),
        ({"offset": 1.0}, "offset must be an integer, not 1.0"),
        ({"pattern": ()}, "pattern must be a tuple of .step, num., not .."),
        ({"pattern": ((1,),)}, "pattern must be a tuple"),
        ({"pattern": ((-1, 2),)}, "pattern step must be 0 or more, not -1"),
        ({"pattern": ((1, 0),)}, "pattern num must be 1 or more, not 0"),
        ({"partition_step": 4}, "partition_step must be None for sbuf, not 4"),
        ({"space": Space.DRAM}, "partition_step must be given in bytes for DRAM, not None"),
        ({"space": Space.DRAM, "partition_step": 4, "start_partition": 1}, "start_partition must be 0 for DRAM, not 1"),
    ],
)
def test_an_access_pattern_that_cannot_be(change: dict[str, object], message: str) -> None:
    pattern = in_sbuf("float32", 2, 3)
    with pytest.raises((TypeError, ValueError), match=message):
        replace(pattern, **change)  # type: ignore[arg-type]


def test_which_destinations_name_a_byte_twice() -> None:
    """By enumeration of the bytes, over every small pattern of two dimensions, and of rows in DRAM."""
    compared = 0
    for space, steps in ((Space.SBUF, [None]), (Space.DRAM, [1, 2, 3, 4, 8, 16])):
        for outer, inner, step in itertools.product(
            itertools.product(range(4), range(1, 4)), itertools.product(range(4), range(1, 4)), steps
        ):
            pattern = replace(
                place(space, "float16", 3, 1),
                pattern=(outer, inner),
                partition_step=step if space is Space.DRAM else None,
            )
            row = 1 << 20 if step is None else step
            named = [
                row * p + 2 * (outer[0] * i + inner[0] * j) + byte
                for p in range(3) for i in range(outer[1]) for j in range(inner[1]) for byte in range(2)
            ]  # fmt: skip
            assert pattern.repeats == (len(set(named)) < len(named)), pattern
            compared += 1
    assert compared == 144 * 7


# --- found by trying to break it --------------------------------------------------------------------------------------


def test_what_was_read_stays_as_it_was() -> None:
    """Also where the operand is contiguous in memory, as rows of DRAM are."""
    bench = Bench()
    rows = bench.hold(in_dram("float32", 4, 4), 1.0)
    bench.run()
    held = bench.read(rows)
    held[0, 0] = 7.0
    assert (bench.read(rows) == 1.0).all()
    bench.core.reset()
    assert held[1, 1] == 1.0


@pytest.mark.parametrize(("scale", "wanted"), [(0.0, ["0x7fc00000"] * 2), (2.0, ["0x7f800000", "0x7fc00000"])])
def test_a_nan_that_a_scale_makes_or_meets_is_canonical(scale: float, wanted: list[str]) -> None:
    bench = Bench()
    values = np.array([[0x7F800000, 0xFF812345]], np.uint32).view(np.float32)
    src, dst = bench.hold(in_sbuf("float32", 1, 2), values), in_sbuf("float32", 1, 2, at=64)
    bench.run(Activate(src=src, dst=dst, scale=scale))
    assert bits(bench.read(dst)) == wanted


def test_memset_takes_every_64_bit_integer() -> None:
    for dtype, value in (("uint64", 2**53 + 1), ("uint64", 2**64 - 1), ("int64", -(2**63))):
        bench, dst = Bench(), in_sbuf(dtype, 1, 1)
        bench.run(Memset(dst=dst, value=value))
        assert int(bench.read(dst)[0, 0]) == value


@pytest.mark.parametrize(
    "value", [np.inf, -np.inf, np.nan, 10**400, 2**64], ids=["inf", "-inf", "nan", "400 digits", "2^64"]
)
def test_memset_of_what_an_integer_cannot_hold(value: float) -> None:
    with pytest.raises(ExecutionFault, match=r"value must be an integer in 0\.\."):
        Bench().run(Memset(dst=in_sbuf("uint64", 1, 1), value=value))


def test_numbers_past_fp32_are_refused_not_made_infinite() -> None:
    bench = Bench()
    src, dst = bench.hold(in_sbuf("float32", 1, 2), 1.0), in_sbuf("float32", 1, 2, at=64)
    for name, instruction in (
        ("operand", Elementwise(src=src, operand=1e300, dst=dst, operator=Operator.ADD)),
        ("scale", Activate(src=src, dst=dst, scale=-1e300)),
        ("value", Memset(dst=dst, value=1e39)),
        ("immediate", Activate(src=src, kind=AccumulationKind.LOAD_ACCUMULATE, immediate=1e39)),
    ):
        with pytest.raises(ExecutionFault, match=rf"{name} must be a number that fp32 holds"):
            bench.run(instruction)


def test_a_fault_of_a_destination_leaves_nothing_half_done() -> None:
    """Codes are not written if the scales cannot be; nor is the accumulator changed if the result cannot."""
    bench = Bench()
    bench.hold(in_sbuf("bfloat16", 32, 4), 1.0)
    words = bench.hold(in_sbuf("float8_e4m3fn_x4", 32, 1, at=64), 0xEEEEEEEE)
    beyond = in_sbuf("uint8", 4, 1, at=SBUF_PARTITION_BYTES[Generation.V4])
    with pytest.raises(ExecutionFault, match="must lie in"):
        bench.run(replace(quantize(32), dst_scale=beyond))
    assert (bench.read(words) == 0xEEEEEEEE).all()
    bench, src, dst = accumulator_bench()
    zero = Activate(src=src, kind=AccumulationKind.ZERO_ACCUMULATE)
    bench.run(zero)
    with pytest.raises(ExecutionFault, match="must lie in"):
        bench.run(replace(zero, dst=replace(beyond, dtype=src.dtype, partitions=2, pattern=src.pattern)))
    bench.run(ReadActivationAccumulator(dst=dst))
    np.testing.assert_array_equal(bench.read(dst)[:, 0], [6, 2])


@pytest.mark.parametrize("flags", [START, BODY, IDLE])
def test_p2_a_generation_without_multi_bank_refuses_the_field_itself(flags: int) -> None:
    bench, s, m = product_bench(generation=Generation.V3)
    dst = bench.hold(in_psum("float32", 2, 3), 1.0)
    for log2 in (1, -1):
        with pytest.raises(ExecutionFault, match=r"must be 2\^0 to 2\^0 on this generation"):
            bench.run(matmul(s, m, dst, flags, zero_banks_log2=log2))
    with pytest.raises(ValueError, match=r"most_banks_log2 must be in 0\.\.3, not 4"):
        MachineOptions(most_banks_log2=4)


@pytest.mark.parametrize(
    "pattern", [((0, 10**9),), ((0, 10**12),), ((0, 2**61), (0, 2**61)), ((1, 2), (0, 1 << 40))], ids=str
)
def test_an_operand_larger_than_its_memory_is_refused_before_it_is_read(pattern: tuple[tuple[int, int], ...]) -> None:
    bench = Bench()
    one = bench.hold(in_sbuf("float32", 1, 2), 1.0)
    huge = replace(one, pattern=pattern)
    for instruction in (Copy(src=huge, dst=one), Memset(dst=huge, value=1.0)):
        with pytest.raises(ExecutionFault, match=r"operand must (name at most the 33554432|lie in the)"):
            bench.run(instruction)
    for wrong, message in ((((1, 1),) * 17, "at most 16 dimensions, not 17"), (((1, 2**70),), r"below 2\^62")):
        with pytest.raises(ValueError, match=message):
            replace(one, pattern=wrong)


def test_contents_put_in_place_belong_to_no_instruction() -> None:
    trace = Trace()
    core = NeuronCore(trace=trace)
    for _ in range(2):
        bench = Bench()
        bench.core = core
        dst = bench.hold(in_sbuf("float32", 1, 1), 1.0)
        bench.run(Memset(dst=dst, value=2.0))
    firsts = [event for event in trace.events if event.index == -1]
    assert [(event.action, event.instruction) for event in firsts] == [("write", "")] * 2


def test_rows_woven_into_one_another_may_not_share_a_byte() -> None:
    """uint16 rows 3 bytes apart, containers 20 bytes apart: no byte twice, though the rows interleave."""
    woven = replace(in_dram("uint16", 2, 4), pattern=((10, 4),), partition_step=3)
    assert not woven.repeats
    assert replace(woven, partition_step=1).repeats
