"""The instructions, as records: what the BIR carries and a program lists (contract I; S0 §2-§7, S1 §2, §3).

A record says nothing of what an instruction computes (``neuron_core``), whether it is legal (``legality``) or what the
device is given (``lowering``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from typing import ClassVar

from mxmodel.access_pattern import AccessPattern
from mxmodel.memory import Generation, Uninitialised
from mxmodel.pe_array import PerfMode

__all__ = [
    "INSTRUCTIONS",
    "AccumulationKind",
    "Activate",
    "ActivationFunction",
    "Copy",
    "Elementwise",
    "Engine",
    "FirstWrite",
    "Instruction",
    "Load",
    "Matmult",
    "MatmultBase",
    "MatmultMx",
    "MatmultSparse",
    "Memset",
    "MxPerfMode",
    "Operator",
    "PsumFlag",
    "QuantizeMx",
    "ReadActivationAccumulator",
    "StationaryLoad",
    "Store",
    "TensorDequantize",
]


class Engine(IntEnum):
    """Engine codes (V)."""

    NONE = 0
    POOL = 1
    """GpSimd."""
    ACT = 2
    """Activation."""
    PE = 3
    """Tensor."""
    DMA = 4
    DVE = 5
    """Vector."""
    SP = 6


class PsumFlag(IntFlag):
    """The flag byte of a matmul (P-2, W)."""

    NONE = 0
    START = 1
    STOP = 2
    """Nothing follows in this group; without numeric effect."""
    ACCUMULATE = 4


class FirstWrite(Enum):
    """Whether the flag byte alone decides what a matmul does with its destination (P-2, P-4)."""

    BY_FLAGS = "by_flags"
    OVERWRITES = "overwrites"
    """The public API's ``accumulate=None``: a cell's first write overwrites, later ones add."""


class AccumulationKind(IntEnum):
    """What an activation does with the accumulator (P-5, W). BIR code 5 loads as well."""

    IDLE = 0
    """Leave it alone."""
    ZERO_ACCUMULATE = 1
    """Clear it, then accumulate."""
    ADD_ACCUMULATE = 2
    """Go on accumulating; from zero after a read."""
    LOAD_ACCUMULATE = 3
    """Load the immediate, then accumulate."""


class Operator(Enum):
    """Of an accumulation, or of two operands; all in fp32."""

    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    MAX = "max"
    MIN = "min"

    @property
    def accumulates(self) -> bool:
        """Whether the accumulator knows it."""
        return self is not Operator.SUBTRACT


class ActivationFunction(Enum):
    """Of one value."""

    IDENTITY = "identity"
    SIGMOID = "sigmoid"


class StationaryLoad(Enum):
    """How the stationary operand of a dense matmul enters the array (M-7)."""

    PLAIN = "plain"
    TRANSPOSED = "transposed"
    """From generation v4 on."""


class MxPerfMode(IntEnum):
    """How many rows a cycle an MX product pumps on v5; taken to change no value (I-1, A)."""

    NONE = 0
    QUAD_ROW = 1
    OCT_ROW = 4


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """What all instructions have.

    Attributes
    ----------
    label : the program's own name for it, for messages and traces
    engine : what executes it
    uninitialised : whether it may read what nobody wrote (P-4)
    """

    opcode: ClassVar[int | None] = None
    """The BIR's, where the sources give one."""
    mnemonic: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]] = ()
    """Attributes that are read, in the order of the BIR's operands."""
    outputs: ClassVar[tuple[str, ...]] = ()
    instead: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    """What an operand may be that does not lie in memory."""
    floor: ClassVar[Generation] = Generation.V2
    """The first generation that has it (I)."""

    label: str = ""
    engine: Engine = Engine.NONE
    uninitialised: Uninitialised = Uninitialised.REFUSED

    def operands(self) -> list[tuple[str, AccessPattern]]:
        """(attribute, pattern) of every operand in memory, inputs first."""
        named = [(name, getattr(self, name)) for name in (*self.inputs, *self.outputs)]
        return [(name, pattern) for name, pattern in named if isinstance(pattern, AccessPattern)]

    def __str__(self) -> str:
        return f"{self.mnemonic} {self.label!r}" if self.label else self.mnemonic

    def __post_init__(self) -> None:
        for name in (*self.inputs, *self.outputs):
            value = getattr(self, name)
            if not isinstance(value, (AccessPattern, *self.instead.get(name, ()))):
                raise TypeError(f"{name} of {self} must be an AccessPattern, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class QuantizeMx(Instruction):
    """Codes and scales of ``src`` (Q; opcode 96). ``dst`` is of an x4 dtype, which names the element."""

    opcode: ClassVar = 96
    mnemonic: ClassVar = "quantize_mx"
    floor: ClassVar = Generation.V4
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst", "dst_scale")

    src: AccessPattern
    dst: AccessPattern
    dst_scale: AccessPattern
    engine: Engine = Engine.DVE


@dataclass(frozen=True, kw_only=True)
class MatmultBase(Instruction):
    """What all of the matmul family have: a destination in PSUM, and what becomes of it (P-2 to P-4).

    Attributes
    ----------
    flags : the flag byte
    first_write : whether a cell's first write decides instead: the public API's ``accumulate=None`` (P-4)
    zero_banks_log2 : a head clears 2^n banks
    """

    outputs: ClassVar = ("dst",)

    dst: AccessPattern
    flags: int = int(PsumFlag.START)
    first_write: FirstWrite = FirstWrite.BY_FLAGS
    zero_banks_log2: int = 0
    engine: Engine = Engine.PE


@dataclass(frozen=True, kw_only=True)
class MatmultMx(MatmultBase):
    """The product of two MX operands into PSUM (M-3; opcode 95).

    None of these changes a value; the legality rules and ``lowering`` read them.

    Attributes
    ----------
    row_tile_positions, column_tile_positions, row_tile_sizes, column_tile_sizes : one entry for each tile, in the
        order of the verifier; -1 leaves an entry to the hardware (S4 §3)
    weight_replication_shift : 0 replicates nothing
    mx_perf_mode : of v5
    """

    opcode: ClassVar = 95
    mnemonic: ClassVar = "matmul_mx"
    floor: ClassVar = Generation.V4
    inputs: ClassVar = ("moving", "stationary", "moving_scale", "stationary_scale")

    moving: AccessPattern
    stationary: AccessPattern
    moving_scale: AccessPattern
    stationary_scale: AccessPattern
    row_tile_positions: tuple[int, ...] = ()
    column_tile_positions: tuple[int, ...] = ()
    row_tile_sizes: tuple[int, ...] = ()
    column_tile_sizes: tuple[int, ...] = ()
    weight_replication_shift: int = 0
    mx_perf_mode: MxPerfMode = MxPerfMode.NONE


@dataclass(frozen=True, kw_only=True)
class Matmult(MatmultBase):
    """The dense product into PSUM (M-2; opcode 8). float32r operands are recognised by their dtype (M-5)."""

    opcode: ClassVar = 8
    mnemonic: ClassVar = "matmul"
    inputs: ClassVar = ("moving", "stationary")

    moving: AccessPattern
    stationary: AccessPattern
    moving_zero_point: int | None = None
    stationary_zero_point: int | None = None
    perf_mode: PerfMode = PerfMode.NONE
    stationary_load: StationaryLoad = StationaryLoad.PLAIN


@dataclass(frozen=True, kw_only=True)
class MatmultSparse(MatmultBase):
    """The structured-sparse product into PSUM (M-8; opcode 9). ``moving`` is [128, slots, N]: two dimensions."""

    opcode: ClassVar = 9
    mnemonic: ClassVar = "matmul_sparse"
    floor: ClassVar = Generation.V3
    inputs: ClassVar = ("moving", "stationary", "tags")

    moving: AccessPattern
    stationary: AccessPattern
    tags: AccessPattern


@dataclass(frozen=True, kw_only=True)
class Activate(Instruction):
    """function(scale * src) in fp32, to ``dst`` where one is given, and into the accumulator (P-5).

    The accumulator is one fp32 number for each partition of ``src``; it takes the results in the order of the free
    dimension, one at a time.
    """

    mnemonic: ClassVar = "activate"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)
    instead: ClassVar = {"dst": (type(None),)}

    src: AccessPattern
    dst: AccessPattern | None = None
    function: ActivationFunction = ActivationFunction.IDENTITY
    scale: float = 1.0
    kind: AccumulationKind = AccumulationKind.IDLE
    operator: Operator = Operator.ADD
    immediate: float | None = None
    engine: Engine = Engine.ACT


@dataclass(frozen=True, kw_only=True)
class ReadActivationAccumulator(Instruction):
    """The accumulator to memory, then marked as consumed (P-5; opcode 5)."""

    opcode: ClassVar = 5
    mnemonic: ClassVar = "read_accumulator"
    outputs: ClassVar = ("dst",)

    dst: AccessPattern
    engine: Engine = Engine.ACT


@dataclass(frozen=True, kw_only=True)
class Elementwise(Instruction):
    """``src`` operator ``operand`` in fp32, narrowed to ``dst``.

    ``operand`` is a number, a tensor of the shape of ``src``, or one number for each partition.
    """

    mnemonic: ClassVar = "elementwise"
    inputs: ClassVar = ("src", "operand")
    outputs: ClassVar = ("dst",)
    instead: ClassVar = {"operand": (float,)}

    src: AccessPattern
    operand: AccessPattern | float
    dst: AccessPattern
    operator: Operator
    engine: Engine = Engine.DVE


@dataclass(frozen=True, kw_only=True)
class Copy(Instruction):
    """``src`` to ``dst``: the same containers, or through fp32 where the dtypes differ."""

    mnemonic: ClassVar = "copy"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)

    src: AccessPattern
    dst: AccessPattern
    engine: Engine = Engine.DVE


@dataclass(frozen=True, kw_only=True)
class Memset(Instruction):
    """Every container of ``dst`` to ``value``: a number for a number dtype, the bits of an x4 word otherwise."""

    mnemonic: ClassVar = "memset"
    outputs: ClassVar = ("dst",)

    dst: AccessPattern
    value: int | float
    engine: Engine = Engine.POOL


@dataclass(frozen=True, kw_only=True)
class Load(Instruction):
    """DRAM to SBUF, containers as they are."""

    mnemonic: ClassVar = "load"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)

    src: AccessPattern
    dst: AccessPattern
    engine: Engine = Engine.DMA


@dataclass(frozen=True, kw_only=True)
class Store(Instruction):
    """SBUF or PSUM to DRAM, containers as they are."""

    mnemonic: ClassVar = "store"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)

    src: AccessPattern
    dst: AccessPattern
    engine: Engine = Engine.DMA


@dataclass(frozen=True, kw_only=True)
class TensorDequantize(Instruction):
    """The POOL engine's in-band dequantise, device opcode 0x7B: never simulated (I-1)."""

    mnemonic: ClassVar = "tensor_dequantize"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)

    src: AccessPattern
    dst: AccessPattern
    engine: Engine = Engine.POOL


INSTRUCTIONS: dict[str, type[Instruction]] = {
    kind.mnemonic: kind
    for kind in (
        QuantizeMx,
        MatmultMx,
        Matmult,
        MatmultSparse,
        Activate,
        ReadActivationAccumulator,
        Elementwise,
        Copy,
        Memset,
        Load,
        Store,
        TensorDequantize,
    )
}
"""Every instruction by its mnemonic: the words of a program file."""
