"""The engines as modules: each takes one instruction at a time and has exactly one visit method for each it knows.

A visit reads its operands through the memory sockets, computes, and writes: the only transaction under way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.block_functions import Blocks
from mxmodel.blocks import rows_of_blocks, scale_of_columns
from mxmodel.float_operations import activated, applied, fp32_number, reduced
from mxmodel.formats import MX_BLOCK, ElementFormat
from mxmodel.isa import (
    AccumulationKind,
    Activate,
    Copy,
    Elementwise,
    Engine,
    Instruction,
    Load,
    Matmult,
    MatmultBase,
    MatmultMx,
    MatmultSparse,
    Memset,
    QuantizeMx,
    ReadActivationAccumulator,
    StationaryLoad,
    Store,
    TensorDequantize,
)
from mxmodel.kernel import In, Module, Out, Process, Socket
from mxmodel.layout import pack_x4
from mxmodel.machine_options import MachineOptions, SecondRead, command_of
from mxmodel.memory import (
    Generation,
    MemoryFault,
    MemoryRequest,
    Read,
    Reserve,
    Write,
    WriteAccumulate,
)
from mxmodel.memory_object import MemoryObject, container_dtype
from mxmodel.pe_array import (
    DoubleRowLayout,
    PerfMode,
    Precision,
    StationaryForm,
    matmul,
    matmul_mx,
    matmul_sparse,
)
from mxmodel.quantize import MxTensor
from mxmodel.rules import RuleSet

__all__ = ["Activation", "Dma", "Done", "EngineModule", "GpSimd", "Tensor", "Vector"]


@dataclass(frozen=True)
class Done:
    """An engine's answer: the instruction is carried out, and memory is as it leaves it."""

    instruction: Instruction


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the engines share: how to compute."""

    generation: Generation
    options: MachineOptions
    blocks: Blocks


class EngineModule(Module):
    """An engine: requests in, answers out, and a socket for each memory.

    ``visits`` maps each record it knows to its one method.
    """

    code: Engine

    def __init__(self, name: str, parent: Module, machine: Machine) -> None:
        super().__init__(name, parent)
        self.machine = machine
        self.requests: In[Instruction] = In(self, "requests", Instruction)
        self.done: Out[Done] = Out(self, "done", Done)
        self.memories: dict[Space, Socket[MemoryRequest, MemoryObject | None]] = {
            space: Socket(self, space.value) for space in Space
        }
        self.visits: dict[type[Instruction], Callable[[Any], None]] = {}
        self.process(self.serve)

    def serve(self) -> Process:
        """Take instructions in order, one at a time."""
        while True:
            instruction = yield self.requests.accept()
            visit = self.visits.get(type(instruction))
            if visit is None:
                raise MemoryFault(f"engine {self.code.name} must know the instruction, which is {instruction.mnemonic}")
            visit(instruction)
            yield self.done.put(Done(instruction))

    def read(self, pattern: AccessPattern, instruction: Instruction) -> MemoryObject:
        answer = self.memories[pattern.space].transport(Read(pattern=pattern, uninitialised=instruction.uninitialised))
        assert answer is not None, "a read is answered"
        return answer

    def reserve(self, pattern: AccessPattern) -> None:
        """Refuse a destination that could not be written, before anything is changed."""
        self.memories[pattern.space].transport(Reserve(pattern=pattern))

    def write(self, pattern: AccessPattern, value: MemoryObject) -> None:
        self.memories[pattern.space].transport(Write(pattern=pattern, value=value))


class Tensor(EngineModule):
    """The PE array: dense, MX and sparse products into PSUM (M, P)."""

    code = Engine.PE

    def __init__(self, name: str, parent: Module, machine: Machine) -> None:
        super().__init__(name, parent, machine)
        self.visits = {
            MatmultMx: self.visit_matmul_mx,
            Matmult: self.visit_matmul,
            MatmultSparse: self.visit_matmul_sparse,
        }

    def visit_matmul_mx(self, instruction: MatmultMx) -> None:
        """Opcode 95: both operands unpacked and dequantised (D-1), de-interleaved by four (L-6), multiplied (M-3)."""
        options = self.machine.options
        stationary = self._mx_operand(instruction, "stationary")
        moving = self._mx_operand(instruction, "moving")
        product = matmul_mx(
            stationary,
            moving,
            accumulation=options.accumulation,
            row_order=options.row_order,
            lane=self.machine.blocks.ldexp,
        )
        self._enter(instruction, product)

    def _mx_operand(self, instruction: MatmultMx, name: str) -> MxTensor:
        data, scale = getattr(instruction, name), getattr(instruction, f"{name}_scale")
        element = _element_of(name, data)
        codes = self.read(data, instruction).codes()
        rules = self.machine.options.rules
        rows = self.read(_scale_rows(f"{name}_scale", scale, codes.shape[0], rules), instruction).rows
        return MxTensor(codes=codes, scale=rows, element=element, rules=rules)

    def visit_matmul(self, instruction: Matmult) -> None:
        """Opcode 8: widened to fp32, zero points off, multiplied (M-1, M-2, M-5 to M-7)."""
        options = self.machine.options
        transposed = instruction.stationary_load is StationaryLoad.TRANSPOSED
        if transposed and self.machine.generation < Generation.V4:
            raise ValueError(f"stationary_load must be PLAIN on {self.machine.generation.name}, not TRANSPOSED (M-7)")
        product = matmul(
            self._dense_operand(instruction, "stationary"),
            self._dense_operand(instruction, "moving"),
            accumulation=options.accumulation,
            stationary_zero_point=instruction.stationary_zero_point,
            moving_zero_point=instruction.moving_zero_point,
            stationary_precision=_precision(instruction.stationary),
            moving_precision=_precision(instruction.moving),
            lone_float32r=options.lone_float32r,
            preparation=options.preparation,
            perf_mode=instruction.perf_mode,
            double_row_layout=self._double_row_layout(instruction),
            stationary_form=StationaryForm.TRANSPOSED if transposed else StationaryForm.PLAIN,
        )
        self._enter(instruction, product)

    def _dense_operand(self, instruction: Matmult | MatmultSparse, name: str) -> NDArray[Any]:
        pattern: AccessPattern = getattr(instruction, name)
        if pattern.dtype.name not in _DENSE_DTYPES:
            words = {"stationary": "weights", "moving": "ifmap"}[name]
            raise ValueError(
                f"Invalid {words} data type for matmult: {name} must be of a float dtype or uint8, not "
                f"{pattern.dtype.name} (M-1)"
            )
        value = self.read(pattern, instruction)
        is_public = isinstance(instruction, Matmult) and self._double_row_layout(instruction) is DoubleRowLayout.PUBLIC
        if is_public or (isinstance(instruction, MatmultSparse) and name == "moving"):
            if len(pattern.pattern) != 2:
                raise ValueError(f"{name} must have two dimensions in a partition, slots and columns, not {pattern}")
            return value.containers
        return value.rows

    def _double_row_layout(self, instruction: Matmult) -> DoubleRowLayout:
        """The option, where it has a meaning: in mode 1 (M-6)."""
        is_double_row = instruction.perf_mode is PerfMode.DOUBLE_ROW
        return self.machine.options.double_row_layout if is_double_row else DoubleRowLayout.ROW_MAJOR

    def visit_matmul_sparse(self, instruction: MatmultSparse) -> None:
        """Opcode 9: every column of the stationary chooses its own moving rows (M-8)."""
        options = self.machine.options
        if instruction.tags.dtype.name != "uint16":
            raise ValueError(f"tags must be uint16, not {instruction.tags.dtype.name} (M-8)")
        product = matmul_sparse(
            self._dense_operand(instruction, "stationary"),
            self.read(instruction.tags, instruction).rows,
            self._dense_operand(instruction, "moving"),
            accumulation=options.accumulation,
            tag_order=options.tag_order,
            tag_base=options.tag_base,
        )
        self._enter(instruction, product)

    def _enter(self, instruction: MatmultBase, product: NDArray[np.float32]) -> None:
        """The product is formed first; then each cell of PSUM is touched once (P-4)."""
        self.memories[instruction.dst.space].transport(
            WriteAccumulate(
                pattern=instruction.dst,
                product=product,
                command=command_of(instruction, self.machine.options),
                zero_banks_log2=instruction.zero_banks_log2,
                uninitialised=instruction.uninitialised,
            )
        )


class Vector(EngineModule):
    """DVE: the block quantise, copies with a cast, and elementwise arithmetic (Q)."""

    code = Engine.DVE

    def __init__(self, name: str, parent: Module, machine: Machine) -> None:
        super().__init__(name, parent, machine)
        self.visits = {
            QuantizeMx: self.visit_quantize_mx,
            Copy: self.visit_copy,
            Elementwise: self.visit_elementwise,
        }

    def visit_quantize_mx(self, instruction: QuantizeMx) -> None:
        """Opcode 96: shared exponents, codes, x4 words; of the scale rows only those it owns are written (Q-1, L-3)."""
        rules, blocks = self.machine.options.rules, self.machine.blocks
        element = _element_of("dst", instruction.dst)
        if not rules.writes(element):
            raise ValueError(f"quantise must not write {element.name} under rules {rules.name} (N-7)")
        if instruction.src.dtype.name not in _QUANTIZE_SOURCES:
            raise ValueError(f"src must be {', '.join(_QUANTIZE_SOURCES)}, not {instruction.src.dtype.name} (Q-1)")
        x = self.read(instruction.src, instruction).rows
        if x.shape[0] % MX_BLOCK.rows or x.shape[1] % MX_BLOCK.columns:
            raise ValueError(f"src must be whole blocks of {MX_BLOCK.rows} x {MX_BLOCK.columns}, not {list(x.shape)}")
        scale_rows = _scale_rows("dst_scale", instruction.dst_scale, x.shape[0], rules)
        for destination in (instruction.dst, scale_rows):
            self.reserve(destination)
        scale = blocks.shared_exponent(x, element, rules)
        codes = blocks.narrow(rows_of_blocks(x), element, scale_of_columns(scale), rules).reshape(x.shape)
        words = pack_x4(codes, element)
        self.write(instruction.dst, MemoryObject(words, instruction.dst.dtype))
        self.write(scale_rows, MemoryObject(scale, instruction.dst_scale.dtype))

    def visit_copy(self, instruction: Copy) -> None:
        """The same containers, or fp32 between two dtypes (F-4)."""
        value = self.read(instruction.src, instruction)
        self.write(instruction.dst, _cast(value, instruction.dst))

    def visit_elementwise(self, instruction: Elementwise) -> None:
        """Two operands in fp32."""
        left = self.read(instruction.src, instruction).cast_to_fp32()
        operand = instruction.operand
        if isinstance(operand, AccessPattern):
            right: Any = self.read(operand, instruction).cast_to_fp32()
            if right.shape not in (left.shape, (left.shape[0], 1)):
                raise ValueError(
                    f"operand must be of the shape {list(left.shape)} of src, or one number for each partition, not "
                    f"{list(right.shape)}"
                )
        else:
            right = fp32_number("operand", operand)
        result = applied(instruction.operator, left, right)
        self.write(instruction.dst, MemoryObject.from_fp32(result, instruction.dst.dtype))


class GpSimd(EngineModule):
    """POOL: fills memory."""

    code = Engine.POOL

    def __init__(self, name: str, parent: Module, machine: Machine) -> None:
        super().__init__(name, parent, machine)
        self.visits = {Memset: self.visit_memset, TensorDequantize: self.visit_tensor_dequantize}

    def visit_memset(self, instruction: Memset) -> None:
        """One value everywhere."""
        dst = instruction.dst
        self.reserve(dst)
        containers = np.broadcast_to(np.asarray(_container(instruction.value, dst)), dst.shape)
        self.write(dst, MemoryObject(containers, dst.dtype))

    def visit_tensor_dequantize(self, instruction: TensorDequantize) -> None:
        """Refused, whatever its operands (I-1)."""
        raise ValueError(
            "tensor_dequantize (0x7B) must not be simulated: the scale format of its in-band blocks of 8 is not "
            "pinned; for OCP blocks of 32 use mxmodel.quantize.dequantize_mx, or a matmul_mx (I-1, D-1)"
        )


class Activation(EngineModule):
    """ACT: a function of every element, and the accumulator (P-5)."""

    code = Engine.ACT

    def __init__(self, name: str, parent: Module, machine: Machine) -> None:
        super().__init__(name, parent, machine)
        self.visits = {
            Activate: self.visit_activate,
            ReadActivationAccumulator: self.visit_read_accumulator,
        }
        self.reset()

    def reset(self) -> None:
        """The accumulator as it is at first: never filled."""
        self._accumulator: NDArray[np.float32] | None = None
        self._consumed = False

    def visit_activate(self, instruction: Activate) -> None:
        """function(scale * src), out and into the accumulator."""
        if instruction.dst is not None:
            self.reserve(instruction.dst)
        values = self.read(instruction.src, instruction).cast_to_fp32()
        results = activated(instruction.function, values, instruction.scale)
        if instruction.kind is not AccumulationKind.IDLE:
            self._accumulate(instruction, results)
        if instruction.dst is not None:
            self.write(instruction.dst, MemoryObject.from_fp32(results, instruction.dst.dtype))

    def _accumulate(self, instruction: Activate, results: NDArray[np.float32]) -> None:
        if not instruction.operator.accumulates:
            raise ValueError(f"operator must be add, max, min or multiply, not {instruction.operator.value} (P-5)")
        start: NDArray[np.float32] | None = None
        if instruction.kind is AccumulationKind.LOAD_ACCUMULATE:
            if instruction.immediate is None:
                raise ValueError(
                    "an instruction that does a LoadAccumulate must provide an immediate value to load (P-5)"
                )
            start = np.full(results.shape[0], fp32_number("immediate", instruction.immediate))
        elif instruction.kind is AccumulationKind.ADD_ACCUMULATE and not self._consumed:
            start = self._accumulator
        if start is None:
            start = np.zeros(results.shape[0], dtype=np.float32)
        if start.shape[0] != results.shape[0]:
            raise ValueError(
                f"src must be on the {start.shape[0]} partitions of the accumulator, not {results.shape[0]} (P-5)"
            )
        self._accumulator = reduced(instruction.operator, start, results)
        self._consumed = False

    def visit_read_accumulator(self, instruction: ReadActivationAccumulator) -> None:
        """Opcode 5: a plain write of what was accumulated, which is then consumed (P-5)."""
        dst = instruction.dst
        if dst.dtype.name != "float32":
            raise ValueError(f"OutRes.getType() == Dtype::float32: dst must be float32, not {dst.dtype.name} (P-5)")
        if self._accumulator is None:
            raise ValueError("the accumulator must be filled by an activate before it is read (P-5)")
        value = self._accumulator
        if self._consumed and self.machine.options.second_read is SecondRead.ZERO:
            value = np.zeros_like(value)
        self.write(dst, MemoryObject(value[:, np.newaxis], dst.dtype))
        self._consumed = True


class Dma(EngineModule):
    """The DMA queue: containers between DRAM and the core, as they are."""

    code = Engine.DMA

    def __init__(self, name: str, parent: Module, machine: Machine) -> None:
        super().__init__(name, parent, machine)
        self.visits = {Load: self.visit_load, Store: self.visit_store}

    def visit_load(self, instruction: Load) -> None:
        """DRAM to SBUF."""
        self._move(instruction, (Space.DRAM,), (Space.SBUF,))

    def visit_store(self, instruction: Store) -> None:
        """SBUF or PSUM to DRAM."""
        self._move(instruction, (Space.SBUF, Space.PSUM), (Space.DRAM,))

    def _move(self, instruction: Load | Store, sources: tuple[Space, ...], targets: tuple[Space, ...]) -> None:
        src, dst = instruction.src, instruction.dst
        for name, pattern, spaces in (("src", src, sources), ("dst", dst, targets)):
            if pattern.space not in spaces:
                wanted = " or ".join(space.value for space in spaces)
                raise ValueError(f"{name} of a {instruction.mnemonic} must be in {wanted}, not {pattern.space.value}")
        if src.dtype.name != dst.dtype.name:
            raise ValueError(f"dst must be {src.dtype.name}, as src is: a DMA casts nothing; not {dst.dtype.name}")
        value = self.read(src, instruction)
        if value.containers.size != dst.partitions * dst.containers_per_partition:
            raise ValueError(f"dst must hold {value.containers.size} containers, not {list(dst.shape)}")
        self.write(dst, MemoryObject(value.containers.reshape(dst.shape), dst.dtype))


_QUANTIZE_SOURCES = ("float32", "bfloat16", "float16")
"""Q-1: fp32 at model level only; the legality rules refuse it."""

_DENSE_DTYPES = (
    *("float8e3", "float8e4", "float8_e4m3fn", "float8e5"),
    *("bfloat16", "float16", "float32", "float32r", "uint8"),
)
"""What may enter a dense product (M-1)."""


def _element_of(name: str, pattern: AccessPattern) -> ElementFormat:
    element = pattern.dtype.element
    if element is None:
        raise ValueError(f"{name} must be of an x4 dtype, not {pattern.dtype.name} (F-5)")
    return element


def _scale_rows(name: str, pattern: AccessPattern, partitions: int, rules: RuleSet) -> AccessPattern:
    """The scale rows that data on ``partitions`` partitions owns, of one of the two dtypes that hold a scale byte."""
    if pattern.dtype.name not in ("uint8", "float8_e8m0fnu"):
        raise ValueError(f"{name} must be float8_e8m0fnu or uint8, not {pattern.dtype.name}")
    return pattern.scale_rows(partitions, rules)


def _precision(pattern: AccessPattern) -> Precision:
    return Precision.FLOAT32R if pattern.dtype.name == "float32r" else Precision.FULL


def _cast(value: MemoryObject, dst: AccessPattern) -> MemoryObject:
    if value.dtype.name == dst.dtype.name:
        return value
    return MemoryObject.from_fp32(value.cast_to_fp32(), dst.dtype)


def _container(value: float, dst: AccessPattern) -> Any:
    """``value`` as one container of ``dst``; ValueError if an integer dtype does not hold it."""
    dtype = container_dtype(dst.dtype)
    if dtype.kind not in "iu":
        return MemoryObject.from_fp32(np.full((1, 1), fp32_number("value", value)), dst.dtype).containers[0, 0]
    limits = np.iinfo(dtype)
    whole = isinstance(value, int) or (isfinite(value) and value == int(value))
    if not whole or not limits.min <= int(value) <= limits.max:
        raise ValueError(f"value must be an integer in {limits.min}..{limits.max} for {dst.dtype.name}, not {value!r}")
    return dtype.type(int(value))
