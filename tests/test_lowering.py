"""Lowering: every cell of contract table I, the wire bytes, and what is refused."""

import json
import re
from dataclasses import replace

import pytest
from instruction_variants import MATMUL, QUANTIZE, operand, variant

from mxmodel.access_pattern import Space
from mxmodel.bad_input import BadInput
from mxmodel.formats import BIR_DTYPES
from mxmodel.isa import (
    INSTRUCTIONS,
    Activate,
    Copy,
    Elementwise,
    Engine,
    Instruction,
    Load,
    Matmult,
    MatmultMx,
    MatmultSparse,
    Memset,
    MxPerfMode,
    Operator,
    ReadActivationAccumulator,
    StationaryLoad,
    Store,
    TensorDequantize,
)
from mxmodel.lowering import LOWERINGS, SFP8_E8, Confidence, NotLowered, Reason, Refusal, lower
from mxmodel.memory import Generation

V2, V3, V4, V5 = Generation

SMALL = operand(16, 32, 8)
ROW = replace(SMALL, space=Space.DRAM, partition_step=32)
DENSE = Matmult(
    moving=operand(12, 128, 512), stationary=operand(12, 128, 64), dst=operand(16, 64, 512, Space.PSUM), label="qk"
)
SPARSE = MatmultSparse(
    moving=replace(operand(12, 128, 1), pattern=((8, 4), (1, 8))),
    stationary=operand(12, 128, 128),
    tags=operand(10, 128, 32),
    dst=operand(16, 128, 8, Space.PSUM),
)
READ = ReadActivationAccumulator(dst=operand(16, 32, 1))
DEQUANTIZE = TensorDequantize(src=SMALL, dst=SMALL)
EXAMPLES: tuple[Instruction, ...] = (
    *(QUANTIZE, MATMUL, DENSE, SPARSE, READ, DEQUANTIZE),
    Activate(src=SMALL),
    Elementwise(src=SMALL, operand=1.0, dst=SMALL, operator=Operator.ADD),
    Copy(src=SMALL, dst=SMALL),
    Memset(dst=SMALL, value=0.0),
    Load(src=ROW, dst=SMALL),
    Store(src=SMALL, dst=ROW),
)

QUANTIZE_CELL = [(0xE3, "QUANTIZE_MX", Engine.DVE, "S3DMX1_QUANT", None, ())]
V4_MX_CELL = [
    (0x09, "LDWEIGHTS_MX", Engine.PE, "SMX1_LW", (0x1009, "LdWeightMx"), ("MXMEM_PATTERN1D",)),
    (0x0A, "MATMUL_MX", Engine.PE, "SMX1D3_MM", (0x100A, "MatmultMx"), ("MXMEM_PATTERN1D",)),
]
V5_MX_CELL = [
    (0x01, "LDWEIGHTS", Engine.PE, None, None, ("MXTENSOR_V2", "ADDR4MARKER=0x01")),
    (0x02, "MATMUL", Engine.PE, None, None, ("MXTENSOR_V2", "ADDR4MARKER=0x01")),
]
DENSE_CELL = [(1, "LDWEIGHTS", Engine.PE, None, None, ()), (2, "MATMUL", Engine.PE, None, None, ())]
SPARSE_CELL = [
    (6, "LoadTags", Engine.PE, None, None, ()),
    (1, "LoadStationary", Engine.PE, None, None, ()),
    (7, "MatMulSparse", Engine.PE, None, None, ()),
]
DEQUANTIZE_CELL = [(0x7B, "TENSOR_DEQUANTIZE", Engine.POOL, None, None, ())]
TABLE_I = {
    "quantize_mx": {V2: "absent", V3: "absent", V4: QUANTIZE_CELL, V5: QUANTIZE_CELL},
    "matmul_mx": {V2: "absent", V3: "absent", V4: V4_MX_CELL, V5: V5_MX_CELL},
    "matmul": dict.fromkeys(Generation, DENSE_CELL),
    "matmul_sparse": {V2: "absent", V3: SPARSE_CELL, V4: SPARSE_CELL, V5: "not pinned"},
    "read_accumulator": dict.fromkeys(Generation, "not pinned"),
    "tensor_dequantize": dict.fromkeys(Generation, DEQUANTIZE_CELL),
}


@pytest.mark.parametrize("generation", Generation)
@pytest.mark.parametrize("instruction", EXAMPLES, ids=lambda instruction: instruction.mnemonic)
def test_every_cell_of_the_table(instruction: Instruction, generation: Generation) -> None:
    cell = TABLE_I.get(instruction.mnemonic, dict.fromkeys(Generation, "not pinned"))[generation]
    if isinstance(cell, str):
        wanted = {"absent": "there", "not pinned": "pinned"}[cell]
        message = rf"^{re.escape(str(instruction))} must be {wanted} on {generation.name} to be lowered: .*\(I\)$"
        with pytest.raises(NotLowered, match=message):
            lower(instruction, generation)
        refusal = LOWERINGS[type(instruction)][generation]
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason(cell)
        return
    got = lower(instruction, generation)
    assert [
        (
            *(operation.opcode, operation.name, operation.engine, operation.struct),
            None if operation.bundle is None else (operation.bundle.number, operation.bundle.name),
            operation.notes,
        )
        for operation in got
    ] == cell
    assert all(operation.generation is generation for operation in got)
    # every operand goes to the device, and to one operation only
    named = [operand.name for operation in got for operand in operation.operands]
    assert sorted(named) == sorted(name for name, _ in instruction.operands())


def test_the_table_is_whole() -> None:
    assert {instruction.mnemonic for instruction in EXAMPLES} == set(INSTRUCTIONS)
    assert set(LOWERINGS) == set(INSTRUCTIONS.values())
    assert all(set(row) == set(Generation) for row in LOWERINGS.values())


def test_what_the_floor_of_the_record_says_is_what_the_table_says() -> None:
    for kind, row in LOWERINGS.items():
        absent = [cell for cell in row.items() if isinstance(cell[1], Refusal) and cell[1].reason is Reason.ABSENT]
        assert [generation for generation, _ in absent] == [g for g in Generation if g < kind.floor], kind


def test_a_refusal_is_bad_input() -> None:
    assert issubclass(NotLowered, BadInput)
    assert issubclass(NotLowered, ValueError)
    with pytest.raises(NotLowered) as refused:
        lower(MATMUL, V3)
    assert str(refused.value) == "matmul_mx must be there on V3 to be lowered: the floor is v4 (I)"
    with pytest.raises(NotLowered) as refused:
        lower(READ)
    expected = "read_accumulator must be pinned on V4 to be lowered: no source pins its device opcode (I)"
    assert str(refused.value) == expected


def test_quantize_never_becomes_0x7b() -> None:
    """I-1; and 0xE3 is inferred, which it says (I-0)."""
    opcodes = {g: [operation.opcode for operation in lower(QUANTIZE, g)] for g in (V4, V5)}
    assert opcodes == {V4: [0xE3], V5: [0xE3]}
    sure = {
        form.name: form.confidence
        for row in LOWERINGS.values()
        for cell in row.values()
        if not isinstance(cell, Refusal)
        for form in cell
    }
    assert [name for name, confidence in sure.items() if confidence is Confidence.INFERRED_HIGH] == ["QUANTIZE_MX"]
    assert Confidence.INFERRED_HIGH.value == "inferred-high"


def test_a_scale_has_the_devices_own_code() -> None:
    assert SFP8_E8 == 0x13
    for generation in (V4, V5):
        coded = {
            operand.name: (operand.dtype, operand.wire, operand.scale_code)
            for operation in (*lower(QUANTIZE, generation), *lower(MATMUL, generation))
            for operand in operation.operands
            if operand.scale_code is not None
        }
        assert coded == dict.fromkeys(
            ("dst_scale", "moving_scale", "stationary_scale"), ("float8_e8m0fnu", 0x03, SFP8_E8)
        )


def test_wire_bytes_of_every_dtype_on_every_generation() -> None:
    """F-4: before v4 only code 2 differs."""
    compared = 0
    for generation in Generation:
        for dtype in BIR_DTYPES:
            loads, _ = lower(variant(DENSE, {"stationary.dtype": dtype}), generation)
            (stationary,) = loads.operands
            expected = 0x05 if dtype.code == 2 and generation < V4 else dtype.wire
            assert (stationary.dtype, stationary.wire) == (dtype.name, expected)
            compared += 1
    assert compared == 80


def test_active_rows_of_v4() -> None:
    """128, 64 or 32 (I-0); of v5 no source says."""
    for partitions in (32, 64, 96, 128):
        instruction = variant(MATMUL, {"moving.partitions": partitions, "stationary.partitions": partitions})
        assert [operation.active_rows for operation in lower(instruction, V5)] == [partitions] * 2
        if partitions != 96:
            assert [operation.active_rows for operation in lower(instruction, V4)] == [partitions] * 2
            continue
        with pytest.raises(NotLowered, match="must be on 128, 64 or 32 partitions to be lowered on V4, not 96"):
            lower(instruction, V4)
    stationary_alone = variant(MATMUL, {"stationary.partitions": 96})
    with pytest.raises(NotLowered, match=r"^stationary of matmul_mx must be on"):
        lower(stationary_alone)
    assert lower(DENSE)[0].active_rows is None


def test_a_transposed_stationary_begins_with_v4() -> None:
    transposed = replace(DENSE, stationary_load=StationaryLoad.TRANSPOSED)
    for generation in Generation:
        if generation < V4:
            with pytest.raises(
                NotLowered, match=rf"^stationary_load TRANSPOSED of matmul 'qk' must .*{generation.name}"
            ):
                lower(transposed, generation)
        else:
            assert [operation.opcode for operation in lower(transposed, generation)] == [1, 2]


def test_perf_modes_are_for_v5() -> None:
    assert {mode.name: int(mode) for mode in MxPerfMode} == {"NONE": 0, "QUAD_ROW": 1, "OCT_ROW": 4}
    for mode in MxPerfMode:
        instruction = replace(MATMUL, mx_perf_mode=mode)
        assert [operation.mx_perf_mode for operation in lower(instruction, V5)] == [mode] * 2
        if mode is MxPerfMode.NONE:
            assert [operation.mx_perf_mode for operation in lower(instruction, V4)] == [None] * 2
        else:
            with pytest.raises(NotLowered, match=f"mx_perf_mode {mode.name} of matmul_mx must be for V5 or later"):
                lower(instruction, V4)


def test_an_operation_as_a_line() -> None:
    loads, multiplies = lower(MATMUL)
    assert str(loads) == (
        "0x09 LDWEIGHTS_MX on PE; SMX1_LW; bundle 0x1009 LdWeightMx; stationary float4_e2m1fn_x4 (wire 0x10); "
        "stationary_scale float8_e8m0fnu (wire 0x03, SFP8_E8=0x13); MXMEM_PATTERN1D"
    )
    assert "0x0A MATMUL_MX" in str(multiplies)
    (quantise,) = lower(QUANTIZE)
    assert str(quantise).endswith("; inferred-high")
    last = lower(replace(MATMUL, mx_perf_mode=MxPerfMode.OCT_ROW), V5)[1]
    assert str(last).endswith("MXTENSOR_V2; ADDR4MARKER=0x01; OCT_ROW 0x4")


def test_an_operation_as_json() -> None:
    for generation in (V4, V5):
        for operation in lower(MATMUL, generation):
            assert json.loads(json.dumps(operation.as_json())) == operation.as_json()
    (quantise,) = lower(QUANTIZE, V5)
    assert quantise.as_json() == {
        "generation": "V5",
        "opcode": 0xE3,
        "name": "QUANTIZE_MX",
        "engine": "DVE",
        "struct": "S3DMX1_QUANT",
        "bundle": None,
        "notes": [],
        "confidence": "inferred-high",
        "operands": [
            {"name": "src", "dtype": "bfloat16", "wire": 6, "scale_code": None},
            {"name": "dst", "dtype": "float8_e4m3fn_x4", "wire": 14, "scale_code": None},
            {"name": "dst_scale", "dtype": "float8_e8m0fnu", "wire": 3, "scale_code": 0x13},
        ],
        "active_rows": None,
        "mx_perf_mode": None,
    }
    assert lower(MATMUL, V4)[0].as_json()["bundle"] == {"number": 0x1009, "name": "LdWeightMx"}


def test_an_illegal_instruction_is_lowered_all_the_same() -> None:
    """Legality is another question."""
    illegal = replace(MATMUL, engine=Engine.SP, flags=7)
    assert isinstance(illegal, MatmultMx)
    assert [operation.opcode for operation in lower(illegal)] == [9, 10]
