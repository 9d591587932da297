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
    shapes: ClassVar[str]
    """Of the operands, [partitions, containers of each], in one line for docs/programs.md."""
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
        if not self.label.isprintable():
            raise ValueError(f"label must be text on one line, not {self.label!r}")
        for name in (*self.inputs, *self.outputs):
            value = getattr(self, name)
            if not isinstance(value, (AccessPattern, *self.instead.get(name, ()))):
                raise TypeError(f"{name} of {self} must be an AccessPattern, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class QuantizeMx(Instruction):
    """Codes and scales of ``src`` (Q; opcode 96).

    Attributes
    ----------
    src : the values, bfloat16 or float16, swizzled: column 4f + q is lane q of container f (L-5)
    dst : the codes, of an x4 dtype, which names the element
    dst_scale : the scales, float8_e8m0fnu or uint8; of its rows only those that the data owns are written (L-3)
    """

    shapes: ClassVar = (
        "``src`` [P, 4F] -> ``dst`` [P, F], ``dst_scale`` [P/8, F] (scattered if P > 32); P 32, 64, 96 or 128"
    )
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
    dst : the product in PSUM, float32 or bfloat16
    moving : the right operand, the contracted dimension on its partitions
    stationary : the left operand, likewise
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
    moving : the right operand's codes, of an x4 dtype: four rows of K in a container
    stationary : the left operand's codes, likewise
    moving_scale : the scales of ``moving``, as ``quantize_mx`` leaves them (L-3)
    stationary_scale : the scales of ``stationary``, likewise
    row_tile_positions, column_tile_positions, row_tile_sizes, column_tile_sizes : one entry for each tile, in the
        order of the verifier; -1 leaves an entry to the hardware (S4 §3)
    weight_replication_shift : 0 replicates nothing
    mx_perf_mode : of v5
    """

    shapes: ClassVar = (
        "``stationary`` [P, M], ``moving`` [P, N] containers, scales [P/8, M] and [P/8, N] (scattered if P > 32) -> "
        "``dst`` [M, N]; K is 4P; P 32, 64 or 128"
    )
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
    """The dense product into PSUM (M-2; opcode 8). float32r operands are recognised by their dtype (M-5).

    Attributes
    ----------
    moving_zero_point, stationary_zero_point : 0..255, subtracted from every element in fp32; without one nothing is
    perf_mode : two rows of K in a partition, in one of two orders (M-6); the others are refused
    stationary_load : whether the stationary enters transposed, from v4 on (M-7)
    """

    shapes: ClassVar = (
        "``stationary`` [K, M], ``moving`` [K, N] -> ``dst`` [M, N]; in the double-row modes [K/2, 2M] and [K/2, 2N]; "
        "transposed, [B, K] and [A, K] -> [B, A]"
    )
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
    """The structured-sparse product into PSUM (M-8; opcode 9).

    Attributes
    ----------
    moving : the dense operand, two dimensions in a partition: slots and columns
    stationary : the compressed operand
    tags : uint16, four positions a word: which row each element of the stationary stands for
    """

    shapes: ClassVar = (
        "``stationary`` [128, M], ``tags`` [128, M/4], ``moving`` [128, R, N] -> ``dst`` [M, N]; R slots, 4 at most"
    )
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

    Attributes
    ----------
    src : the values, of any dtype
    dst : the results, of a float dtype; without it they only reach the accumulator
    function : of the scaled value
    scale : multiplies ``src`` first
    kind : what becomes of the accumulator: left alone, cleared first, gone on with, or loaded first
    operator : of the accumulation; subtract is refused there
    immediate : what ``load_accumulate`` loads; required by it
    """

    shapes: ClassVar = "``src`` [P, F] -> ``dst`` [P, F]; the accumulator is [P, 1]"
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
    """The accumulator to memory, then marked as consumed (P-5; opcode 5).

    Attributes
    ----------
    dst : float32
    """

    shapes: ClassVar = "``dst`` [P, 1], P as of the ``activate`` that filled the accumulator"
    opcode: ClassVar = 5
    mnemonic: ClassVar = "read_accumulator"
    outputs: ClassVar = ("dst",)

    dst: AccessPattern
    engine: Engine = Engine.ACT


@dataclass(frozen=True, kw_only=True)
class Elementwise(Instruction):
    """``src`` operator ``operand`` in fp32, narrowed to ``dst``.

    Attributes
    ----------
    src : the left operand, of any dtype
    operand : the right one: a number, a tensor of the shape of ``src``, or one number for each partition
    dst : the result, of a float dtype
    operator : in fp32; a NaN in gives a NaN, of max and min as well (A)
    """

    shapes: ClassVar = "``src`` [P, F], ``operand`` [P, F] or [P, 1] -> ``dst`` [P, F]"
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
    """``src`` to ``dst``: the same containers, or through fp32 where the dtypes differ.

    Attributes
    ----------
    src : the values, of any dtype
    dst : where they go; of a float dtype where it is another than that of ``src``
    """

    shapes: ClassVar = "``src`` [P, F] -> ``dst`` [P, F]"
    mnemonic: ClassVar = "copy"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)

    src: AccessPattern
    dst: AccessPattern
    engine: Engine = Engine.DVE


@dataclass(frozen=True, kw_only=True)
class Memset(Instruction):
    """Every container of ``dst`` to ``value``.

    Attributes
    ----------
    dst : of any shape and dtype
    value : a number for a number dtype, the bits of an x4 word otherwise
    """

    shapes: ClassVar = "``dst`` [P, F]"
    mnemonic: ClassVar = "memset"
    outputs: ClassVar = ("dst",)

    dst: AccessPattern
    value: int | float
    engine: Engine = Engine.POOL


@dataclass(frozen=True, kw_only=True)
class Load(Instruction):
    """DRAM to SBUF, containers as they are.

    Attributes
    ----------
    src : in DRAM
    dst : in SBUF, of the dtype of ``src``
    """

    shapes: ClassVar = "as many containers in ``dst`` as in ``src``, in C order; the shapes may differ"
    mnemonic: ClassVar = "load"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)

    src: AccessPattern
    dst: AccessPattern
    engine: Engine = Engine.DMA


@dataclass(frozen=True, kw_only=True)
class Store(Instruction):
    """SBUF or PSUM to DRAM, containers as they are.

    Attributes
    ----------
    src : in SBUF or PSUM
    dst : in DRAM, of the dtype of ``src``
    """

    shapes: ClassVar = "as many containers in ``dst`` as in ``src``, in C order; the shapes may differ"
    mnemonic: ClassVar = "store"
    inputs: ClassVar = ("src",)
    outputs: ClassVar = ("dst",)

    src: AccessPattern
    dst: AccessPattern
    engine: Engine = Engine.DMA


@dataclass(frozen=True, kw_only=True)
class TensorDequantize(Instruction):
    """The POOL engine's in-band dequantise, device opcode 0x7B: never simulated (I-1).

    Attributes
    ----------
    src : blocks with their scales among them
    dst : the values
    """

    shapes: ClassVar = "not pinned"
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
