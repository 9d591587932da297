"""The instruction records: frozen, with the contract's opcodes and engines, and never changed by a perf mode (I)."""

import dataclasses

import numpy as np
import pytest
from instruction_variants import MATMUL, QUANTIZE, operand

from mxmodel.access_pattern import Space
from mxmodel.isa import (
    INSTRUCTIONS,
    AccumulationKind,
    Elementwise,
    Engine,
    Memset,
    MxPerfMode,
    Operator,
    PsumFlag,
)
from mxmodel.memory import Generation
from mxmodel.memory_object import container_dtype
from mxmodel.neuron_core import NeuronCore
from mxmodel.program import Program, ProgramTensor

OPCODES = {
    "quantize_mx": 96,
    "matmul_mx": 95,
    "matmul": 8,
    "matmul_sparse": 9,
    "read_accumulator": 5,
}
"""Contract table I; the others have none."""

ENGINES = {
    "quantize_mx": 5,
    "matmul_mx": 3,
    "matmul": 3,
    "matmul_sparse": 3,
    "read_accumulator": 2,
    "activate": 2,
    "elementwise": 5,
    "copy": 5,
    "memset": 1,
    "load": 4,
    "store": 4,
    "tensor_dequantize": 1,
}


def test_engine_codes() -> None:
    assert [engine.name for engine in Engine] == ["NONE", "POOL", "ACT", "PE", "DMA", "DVE", "SP"]
    assert [int(engine) for engine in Engine] == list(range(7))


def test_opcodes() -> None:
    assert {name: kind.opcode for name, kind in INSTRUCTIONS.items() if kind.opcode is not None} == OPCODES


def test_every_instruction_has_its_engine() -> None:
    defaults = {
        name: next(int(field.default) for field in dataclasses.fields(kind) if field.name == "engine")
        for name, kind in INSTRUCTIONS.items()
    }
    assert defaults == ENGINES


def test_operands_in_the_verifiers_order() -> None:
    """Moving and stationary data, their scales, the output (V)."""
    wanted = ["moving", "stationary", "moving_scale", "stationary_scale", "dst"]
    assert [name for name, _ in MATMUL.operands()] == wanted
    assert [name for name, _ in QUANTIZE.operands()] == ["src", "dst", "dst_scale"]


@pytest.mark.parametrize("kind", INSTRUCTIONS.values(), ids=lambda kind: kind.mnemonic)
def test_records_are_frozen_and_name_their_operands(kind: type) -> None:
    assert kind.__dataclass_params__.frozen
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields >= {*kind.inputs, *kind.outputs, "label", "engine", "uninitialised"}
    assert all(field.kw_only for field in dataclasses.fields(kind))
    assert INSTRUCTIONS[kind.mnemonic] is kind
    assert isinstance(kind.floor, Generation)


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MATMUL.flags = 4
    assert dataclasses.replace(MATMUL, flags=4) != MATMUL
    assert dataclasses.replace(MATMUL) == MATMUL
    assert len({MATMUL, dataclasses.replace(MATMUL), QUANTIZE}) == 2


def test_an_operand_must_be_an_access_pattern() -> None:
    with pytest.raises(TypeError, match=r"^src of quantize_mx must be an AccessPattern, not 'x'$"):
        dataclasses.replace(QUANTIZE, src="x")
    with pytest.raises(TypeError, match=r"^dst of memset 'fill' must be an AccessPattern, not None$"):
        Memset(dst=None, value=0.0, label="fill")
    with pytest.raises(TypeError, match=r"^operand of elementwise must be an AccessPattern, not '1'$"):
        Elementwise(src=QUANTIZE.src, operand="1", dst=QUANTIZE.src, operator=Operator.ADD)


def test_flag_and_kind_codes() -> None:
    assert [int(flag) for flag in PsumFlag] == [1, 2, 4]
    assert [int(kind) for kind in AccumulationKind] == [0, 1, 2, 3]


def test_a_perf_mode_changes_no_value() -> None:
    """I-1: assumed neutral, on the whole product."""
    generator = np.random.default_rng(5)
    codes = {"moving": (8, 32, 8), "stationary": (2, 32, 6)}
    tensors, offset = {}, 0
    for name, (code, partitions, containers) in codes.items():
        for part, dtype in ((name, code), (f"{name}_scale", 6)):
            place = dataclasses.replace(operand(dtype, partitions, containers), offset=offset)
            offset = place.end_offset
            bits = generator.integers(100, 120, (partitions, containers * place.dtype.size), dtype=np.uint8)
            contents = bits.view(container_dtype(place.dtype))
            tensors[part] = ProgramTensor(place=place, contents=contents)
    dst = operand(16, 6, 8, Space.PSUM)
    results = []
    for mode in MxPerfMode:
        places = {name: tensor.place for name, tensor in tensors.items()}
        program = Program(
            instructions=(dataclasses.replace(MATMUL, **places, dst=dst, mx_perf_mode=mode),),
            tensors=tensors,
            generation=Generation.V5,
        )
        core = NeuronCore(generation=Generation.V5)
        core.run(program)
        results.append(core.memories[Space.PSUM].read(dst).containers)
    assert len(results) == 3
    assert np.count_nonzero(results[0]) > 40
    for result in results[1:]:
        np.testing.assert_array_equal(result.view(np.uint32), results[0].view(np.uint32))
