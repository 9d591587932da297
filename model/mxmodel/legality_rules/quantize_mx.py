"""What the verifier of a block quantise demands (contract V; Q-2, L-4): the class table, the geometry, the place."""

from mxmodel.formats import BIR_DTYPES, MX_BLOCK
from mxmodel.isa import Engine, QuantizeMx
from mxmodel.layout import LANES, QUADRANT_PARTITIONS, SCALE_OFFSETS
from mxmodel.legality_rules.matmul_mx import dtype_words
from mxmodel.legality_rules.rule import GENERATION_FLOOR, Case, Rule, words_of
from mxmodel.machine_options import QuantizeTargets

__all__ = ["QUANTIZE_MX_PARTITIONS", "QUANTIZE_MX_RULES", "SCALE_DTYPES", "SOURCE_DTYPES", "TARGET_DTYPES"]

QUANTIZE_MX_PARTITIONS = (32, 64, 96, 128)
"""Q-2; 96 is no partition count of an MX matmul (S4 §2)."""
SOURCE_DTYPES = (12, 13)
"""bf16 and fp16, by BIR code (F-4)."""
SCALE_DTYPES = (0, 6)
"""Plain bytes, or E8M0."""
TARGET_DTYPES = {QuantizeTargets.CLASS_TABLE: (8, 9), QuantizeTargets.GEOMETRY: (2, 8, 9)}

QuantizeCase = Case[QuantizeMx]


def _names(codes: tuple[int, ...]) -> str:
    return words_of(dtype_words(BIR_DTYPES[code]) for code in codes)


def _src_dtype(case: QuantizeCase) -> str | None:
    dtype = case.instruction.src.dtype
    return None if dtype.code in SOURCE_DTYPES else dtype_words(dtype)


def _dst_dtype(case: QuantizeCase) -> str | None:
    dtype = case.instruction.dst.dtype
    if dtype.code in TARGET_DTYPES[case.options.quantize_targets]:
        return None
    return f"{dtype_words(dtype)} under {case.options.quantize_targets.value}"


def _dst_scale_dtype(case: QuantizeCase) -> str | None:
    dtype = case.instruction.dst_scale.dtype
    return None if dtype.code in SCALE_DTYPES else dtype_words(dtype)


def _partitions(case: QuantizeCase) -> str | None:
    partitions = case.instruction.src.partitions
    return None if partitions in QUANTIZE_MX_PARTITIONS else str(partitions)


def _equal_partitions(case: QuantizeCase) -> str | None:
    src, dst = case.instruction.src.partitions, case.instruction.dst.partitions
    return None if src == dst else f"{src} and {dst}"


def _dst_count(case: QuantizeCase) -> str | None:
    src, dst = case.instruction.src.containers_per_partition, case.instruction.dst.containers_per_partition
    return None if dst * LANES == src else f"{dst} x {LANES} = {dst * LANES} and {src}"


def _scale_start(case: QuantizeCase) -> str | None:
    start = case.instruction.dst_scale.start_partition
    place = start % QUADRANT_PARTITIONS
    return None if place in SCALE_OFFSETS else f"{start} % {QUADRANT_PARTITIONS} = {place}"


def _scale_count(case: QuantizeCase) -> str | None:
    src, scales = case.instruction.src.elements_per_partition, case.instruction.dst_scale.elements_per_partition
    wanted = MX_BLOCK.columns * scales
    return None if src == wanted else f"{src} and {MX_BLOCK.columns} x {scales} = {wanted}"


def _quadrant(case: QuantizeCase) -> str | None:
    dst, scale = case.instruction.dst, case.instruction.dst_scale
    if dst.quadrant == scale.quadrant:
        return None
    return f"{dst.quadrant} (start partition {dst.start_partition}) and {scale.quadrant} ({scale.start_partition})"


def _engine(case: QuantizeCase) -> str | None:
    engine = case.instruction.engine
    return None if engine is Engine.DVE else f"{engine.name} ({engine.value})"


SHAPE_RULES: tuple[Rule[QuantizeMx], ...] = (
    Rule(
        name="partitions",
        must=f"partitions of src must be {words_of(QUANTIZE_MX_PARTITIONS)}",
        seen=_partitions,
        remedy="pad src to whole quadrants of 32 partitions",
    ),
    Rule(
        name="equal_partitions",
        must="partitions of src and dst must be equal",
        seen=_equal_partitions,
        remedy="give dst the partitions of src",
    ),
    Rule(
        name="dst_count",
        must=f"dst containers per partition x {LANES} must be the src elements per partition",
        seen=_dst_count,
        remedy=f"give dst one x4 container for every {LANES} elements of src",
    ),
)
"""Q-2; the public checks have them too. That the free dimension of src divides by four follows from the last."""

QUANTIZE_MX_RULES: tuple[Rule[QuantizeMx], ...] = (
    GENERATION_FLOOR,
    Rule(
        name="src_dtype",
        must=f"src must be {_names(SOURCE_DTYPES)}",
        seen=_src_dtype,
        remedy="cast it to bfloat16 or float16 first",
    ),
    Rule(
        name="dst_dtype",
        must=f"dst must be {_names(TARGET_DTYPES[QuantizeTargets.CLASS_TABLE])} by the class table, "
        f"{_names(TARGET_DTYPES[QuantizeTargets.GEOMETRY])} by the geometry check",
        seen=_dst_dtype,
        remedy="quantise to FP8, or choose quantize_targets",
    ),
    Rule(
        name="dst_scale_dtype",
        must=f"dst_scale must be {_names(SCALE_DTYPES)}",
        seen=_dst_scale_dtype,
        remedy="write the scales as bytes",
    ),
    *SHAPE_RULES,
    Rule(
        name="scale_start",
        must=f"start partition of dst_scale must be {words_of(SCALE_OFFSETS)} of a quadrant",
        seen=_scale_start,
        remedy="start it at 32 q + 0, 4, 8 or 12",
        code=219,
    ),
    Rule(
        name="scale_count",
        must=f"src elements per partition must be {MX_BLOCK.columns} x dst_scale elements per partition",
        seen=_scale_count,
        remedy=f"give dst_scale one scale for every {MX_BLOCK.columns} elements of src",
        code=225,
    ),
    Rule(
        name="quadrant",
        must="quadrants of dst and dst_scale must be the same",
        seen=_quadrant,
        remedy="start both in one quadrant of 32 partitions",
    ),
    Rule(
        name="engine",
        must=f"engine must be DVE ({Engine.DVE.value})",
        seen=_engine,
        remedy="issue it on the Vector engine",
    ),
)
