"""From an instruction to what the device is given: opcodes, structs, bundles, by generation (contract I; S1 §2 to §6).

The table is data. What a generation does not have, and what no source pins, is refused; nothing is guessed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

from mxmodel.access_pattern import AccessPattern
from mxmodel.bad_input import BadInput
from mxmodel.isa import (
    INSTRUCTIONS,
    Engine,
    Instruction,
    Matmult,
    MatmultMx,
    MatmultSparse,
    MxPerfMode,
    QuantizeMx,
    ReadActivationAccumulator,
    StationaryLoad,
    TensorDequantize,
)
from mxmodel.legality_rules.rule import words_of
from mxmodel.memory import Generation

__all__ = [
    "LOWERINGS",
    "SFP8_E8",
    "Bundle",
    "Confidence",
    "DeviceOperation",
    "Form",
    "NotLowered",
    "Reason",
    "Refusal",
    "WireOperand",
    "lower",
]

SFP8_E8 = 0x13
"""The device's dtype code of an E8M0 scale (I-0)."""
_ACTIVE_ROWS = (128, 64, 32)


class NotLowered(BadInput):
    """An instruction that this generation does not have, or whose device form no source pins."""


class Confidence(Enum):
    """How sure the sources are of an opcode."""

    STATED = "stated"
    """They give the number."""
    INFERRED_HIGH = "inferred-high"
    """Engine, direction and generation force it; no byte of it was read (I-0)."""

    @property
    def why(self) -> str:
        """What it rests on."""
        stated, forced = (
            "the sources give the number",
            "engine, direction and generation force it, no byte of it was read",
        )
        return stated if self is Confidence.STATED else forced


class Reason(Enum):
    """Why there is no device form."""

    ABSENT = "absent"
    """The generation does not have the instruction."""
    NOT_PINNED = "not pinned"
    """The sources do not say."""


@dataclass(frozen=True)
class Refusal:
    """A cell of the table without a device form."""

    reason: Reason
    why: str


@dataclass(frozen=True)
class Bundle:
    """What the compiler encodes an operation into."""

    number: int
    name: str

    def __str__(self) -> str:
        return f"0x{self.number:04X} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Form:
    """One device operation of an instruction, before its operands are known.

    Attributes
    ----------
    opcode, name : the device's
    engine : what executes it
    operands : which attributes of the record go into it
    struct : name of its encoding, or None where no source names one
    bundle : or None likewise
    notes : markers and patterns that its encoding has
    confidence : in the opcode
    active_rows : the partition counts that its encoding has room for; empty where no source limits them
    """

    opcode: int
    name: str
    engine: Engine
    operands: tuple[str, ...]
    struct: str | None = None
    bundle: Bundle | None = None
    notes: tuple[str, ...] = ()
    confidence: Confidence = Confidence.STATED
    active_rows: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WireOperand:
    """An operand as the encoding names its dtype.

    Attributes
    ----------
    name : the record's attribute
    dtype : BIR name (F-4)
    wire : the byte that the encoder of this generation stamps (F-4)
    scale_code : the device's own dtype code, for the E8M0 scale of an MX operand (I-0); else None
    """

    name: str
    dtype: str
    wire: int
    scale_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceOperation:
    """One device operation.

    Attributes
    ----------
    generation : of the device
    opcode, name, engine, struct, bundle, notes, confidence : as in ``Form``
    operands : in the order of the form
    active_rows : PE rows in use, of an MX product; else None
    mx_perf_mode : of an MX product on v5; else None
    """

    generation: Generation
    opcode: int
    name: str
    engine: Engine
    struct: str | None
    bundle: Bundle | None
    notes: tuple[str, ...]
    confidence: Confidence
    operands: tuple[WireOperand, ...]
    active_rows: int | None = None
    mx_perf_mode: MxPerfMode | None = None

    def __str__(self) -> str:
        """One line: opcode, name, struct and bundle, operands with their wire bytes, notes."""
        parts = [f"0x{self.opcode:02X} {self.name} on {self.engine.name}"]
        if self.struct is not None:
            parts.append(self.struct)
        if self.bundle is not None:
            parts.append(f"bundle {self.bundle}")
        for operand in self.operands:
            code = "" if operand.scale_code is None else f", SFP8_E8=0x{operand.scale_code:02X}"
            parts.append(f"{operand.name} {operand.dtype} (wire 0x{operand.wire:02X}{code})")
        parts += self.notes
        if self.mx_perf_mode is not None:
            parts.append(f"{self.mx_perf_mode.name} 0x{self.mx_perf_mode:X}")
        if self.confidence is not Confidence.STATED:
            parts.append(self.confidence.value)
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Every field, for machines; enumerations by name, the confidence by its word."""
        fields = asdict(self)
        for name in ("generation", "engine", "mx_perf_mode"):
            member = getattr(self, name)
            fields[name] = None if member is None else member.name
        return {
            **fields,
            "notes": list(self.notes),
            "operands": list(fields["operands"]),
            "confidence": self.confidence.value,
        }


# --- The table (I) ----------------------------------------------------------------------------------------------------

_MX_FLOOR = Refusal(Reason.ABSENT, "the floor is v4")
_STATIONARY, _MOVING = ("stationary", "stationary_scale"), ("moving", "moving_scale", "dst")

_QUANTIZE_MX = Form(
    opcode=0xE3,
    name="QUANTIZE_MX",
    engine=Engine.DVE,
    operands=("src", "dst", "dst_scale"),
    struct="S3DMX1_QUANT",
    confidence=Confidence.INFERRED_HIGH,
)
_LDWEIGHTS_MX = Form(
    opcode=0x09,
    name="LDWEIGHTS_MX",
    engine=Engine.PE,
    operands=_STATIONARY,
    struct="SMX1_LW",
    bundle=Bundle(0x1009, "LdWeightMx"),
    notes=("MXMEM_PATTERN1D",),
    active_rows=_ACTIVE_ROWS,
)
_MATMUL_MX = Form(
    opcode=0x0A,
    name="MATMUL_MX",
    engine=Engine.PE,
    operands=_MOVING,
    struct="SMX1D3_MM",
    bundle=Bundle(0x100A, "MatmultMx"),
    notes=("MXMEM_PATTERN1D",),
    active_rows=_ACTIVE_ROWS,
)
_LDWEIGHTS = Form(opcode=0x01, name="LDWEIGHTS", engine=Engine.PE, operands=("stationary",))
_MATMUL = Form(opcode=0x02, name="MATMUL", engine=Engine.PE, operands=("moving", "dst"))
_V2_NOTES = ("MXTENSOR_V2", "ADDR4MARKER=0x01")
_SPARSE = (
    Form(opcode=6, name="LoadTags", engine=Engine.PE, operands=("tags",)),
    Form(opcode=1, name="LoadStationary", engine=Engine.PE, operands=("stationary",)),
    Form(opcode=7, name="MatMulSparse", engine=Engine.PE, operands=("moving", "dst")),
)
_TENSOR_DEQUANTIZE = Form(opcode=0x7B, name="TENSOR_DEQUANTIZE", engine=Engine.POOL, operands=("src", "dst"))
"""S1's introduction has it from v3 on, its table on all generations: the table is followed (I-1)."""

Cell: TypeAlias = tuple[Form, ...] | Refusal
_NOT_PINNED = Refusal(Reason.NOT_PINNED, "no source pins its device opcode")
_PINNED: Mapping[type[Instruction], Mapping[Generation, Cell]] = {
    QuantizeMx: {
        Generation.V2: _MX_FLOOR,
        Generation.V3: _MX_FLOOR,
        Generation.V4: (_QUANTIZE_MX,),
        Generation.V5: (_QUANTIZE_MX,),
    },
    MatmultMx: {
        Generation.V2: _MX_FLOOR,
        Generation.V3: _MX_FLOOR,
        Generation.V4: (_LDWEIGHTS_MX, _MATMUL_MX),
        Generation.V5: (
            replace(_LDWEIGHTS, operands=_STATIONARY, notes=_V2_NOTES),
            replace(_MATMUL, operands=_MOVING, notes=_V2_NOTES),
        ),
    },
    Matmult: dict.fromkeys(Generation, (_LDWEIGHTS, _MATMUL)),
    MatmultSparse: {
        Generation.V2: Refusal(Reason.ABSENT, "the floor is v3"),
        Generation.V3: _SPARSE,
        Generation.V4: _SPARSE,
        Generation.V5: Refusal(Reason.NOT_PINNED, "no source pins its form on v5"),
    },
    ReadActivationAccumulator: dict.fromkeys(Generation, _NOT_PINNED),
    TensorDequantize: dict.fromkeys(Generation, (_TENSOR_DEQUANTIZE,)),
}
LOWERINGS: Mapping[type[Instruction], Mapping[Generation, Cell]] = {
    kind: _PINNED.get(kind, dict.fromkeys(Generation, _NOT_PINNED)) for kind in INSTRUCTIONS.values()
}
"""Every instruction on every generation: its device operations in order, or why it has none."""


def lower(instruction: Instruction, generation: Generation = Generation.V4) -> tuple[DeviceOperation, ...]:
    """The device operations of ``instruction``, in order (I).

    It need not be legal; what cannot be encoded is refused all the same.

    Raises NotLowered for what ``generation`` does not have (a transposed stationary before v4 included, M-7), what no
    source pins, a partition count that the encoding has no rows for (v4: 128, 64, 32), and a v5 perf mode elsewhere.
    """
    cell = LOWERINGS[type(instruction)][generation]
    if isinstance(cell, Refusal):
        wanted = "there" if cell.reason is Reason.ABSENT else "pinned"
        raise NotLowered(f"{instruction} must be {wanted} on {generation.name} to be lowered: {cell.why} (I)")
    if isinstance(instruction, Matmult) and instruction.stationary_load is StationaryLoad.TRANSPOSED:
        _check_floor("stationary_load TRANSPOSED", instruction, Generation.V4, generation, "M-7")
    mode: MxPerfMode | None = None
    if isinstance(instruction, MatmultMx):
        if instruction.mx_perf_mode is not MxPerfMode.NONE:
            _check_floor(f"mx_perf_mode {instruction.mx_perf_mode.name}", instruction, Generation.V5, generation, "I-1")
        mode = instruction.mx_perf_mode if generation >= Generation.V5 else None
    return tuple(_operation(form, instruction, generation, mode) for form in cell)


def _check_floor(what: str, instruction: Instruction, floor: Generation, generation: Generation, clause: str) -> None:
    if generation < floor:
        raise NotLowered(f"{what} of {instruction} must be for {floor.name} or later, not {generation.name} ({clause})")


def _operation(
    form: Form, instruction: Instruction, generation: Generation, mode: MxPerfMode | None
) -> DeviceOperation:
    patterns: dict[str, AccessPattern] = {name: getattr(instruction, name) for name in form.operands}
    rows = patterns[form.operands[0]].rows_accessed if isinstance(instruction, MatmultMx) else None
    if form.active_rows and rows not in form.active_rows:
        raise NotLowered(
            f"{form.operands[0]} of {instruction} must be on {words_of(form.active_rows)} partitions to be lowered on "
            f"{generation.name}, not {rows} (I-0)"
        )
    return DeviceOperation(
        generation=generation,
        opcode=form.opcode,
        name=form.name,
        engine=form.engine,
        struct=form.struct,
        bundle=form.bundle,
        notes=form.notes,
        confidence=form.confidence,
        operands=tuple(_wire_operand(name, pattern, generation) for name, pattern in patterns.items()),
        active_rows=rows,
        mx_perf_mode=mode,
    )


def _wire_operand(name: str, pattern: AccessPattern, generation: Generation) -> WireOperand:
    dtype = pattern.dtype
    return WireOperand(
        name=name,
        dtype=dtype.name,
        wire=dtype.wire if generation >= Generation.V4 else dtype.wire_before_v4,
        scale_code=SFP8_E8 if name.endswith("_scale") else None,
    )
