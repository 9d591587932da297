"""What the public NKI calls check: the second profile (contract V-1; S1 §2.2, §3.2).

Counts are containers, not logical elements: the exception to F-5.
"""

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.formats import BIR_DTYPES, X4_DTYPES, BirDtype
from mxmodel.isa import Instruction, MatmultMx, QuantizeMx
from mxmodel.legality_rules.matmul_mx import dtype_words
from mxmodel.legality_rules.quantize_mx import (
    QUANTIZE_MX_PARTITIONS,
    SCALE_DTYPES,
    SHAPE_RULES,
    SOURCE_DTYPES,
    TARGET_DTYPES,
)
from mxmodel.legality_rules.rule import GENERATION_FLOOR, Case, Rule, words_of
from mxmodel.machine_options import PublicMovingLimit, QuantizeTargets
from mxmodel.memory import PSUM_BANK_BYTES, PSUM_BANKS
from mxmodel.pe_array import PE_COLUMNS, PE_ROWS

__all__ = [
    "PUBLIC_MATMUL_MX_RULES",
    "PUBLIC_QUANTIZE_MX_RULES",
    "PUBLIC_TILE_RULES",
    "ROW_TILE_SIZES",
    "largest_public_moving",
]

MxCase = Case[MatmultMx]

PUBLIC_PARTITIONS = QUANTIZE_MX_PARTITIONS
"""Of both calls: 96 passes here, and fails line 3091."""
ROW_TILE_SIZES = (128, 64, 32)
RESULT_DTYPES = (16, 12)
"""fp32 and bf16 (M-3)."""
RESULT_ROW_BYTES = {
    PublicMovingLimit.CURRENT: PSUM_BANKS * PSUM_BANK_BYTES,
    PublicMovingLimit.ONE_BANK: PSUM_BANK_BYTES,
}


def largest_public_moving(dst: BirDtype, limit: PublicMovingLimit) -> int:
    """The most containers that a partition of the moving operand may have, for such a destination."""
    return RESULT_ROW_BYTES[limit] // dst.size


def _limit_words(limit: PublicMovingLimit) -> str:
    dtypes = [BIR_DTYPES[code] for code in RESULT_DTYPES]
    return " and ".join(f"{largest_public_moving(dtype, limit)} for {dtype.name}" for dtype in dtypes)


def _place(operand: str, space: Space) -> Rule[Instruction]:
    def seen(case: Case[Instruction]) -> str | None:
        pattern: AccessPattern = getattr(case.instruction, operand)
        return None if pattern.space is space else pattern.space.name

    return Rule(
        name=f"{operand}_space",
        must=f"{operand} must be in {space.name}",
        seen=seen,
        remedy=f"move it to {space.name}",
    )


def _dtype(operand: str, codes: tuple[int, ...]) -> Rule[Instruction]:
    def seen(case: Case[Instruction]) -> str | None:
        pattern: AccessPattern = getattr(case.instruction, operand)
        return None if pattern.dtype.code in codes else dtype_words(pattern.dtype)

    names = words_of(dtype_words(BIR_DTYPES[code]) for code in codes)
    return Rule(name=f"{operand}_dtype", must=f"{operand} must be {names}", seen=seen, remedy="use one of these dtypes")


PUBLIC_QUANTIZE_MX_RULES: tuple[Rule[QuantizeMx], ...] = (
    GENERATION_FLOOR,
    *(_place(operand, Space.SBUF) for operand in ("src", "dst", "dst_scale")),
    _dtype("src", SOURCE_DTYPES),
    _dtype("dst", TARGET_DTYPES[QuantizeTargets.CLASS_TABLE]),  # S1 §1: the call cannot make MXFP4
    _dtype("dst_scale", SCALE_DTYPES),
    *SHAPE_RULES,
)


def _free(pattern: AccessPattern) -> int:
    return pattern.containers_per_partition


def _partitions(case: MxCase) -> str | None:
    partitions = case.instruction.stationary.rows_accessed
    return None if partitions in PUBLIC_PARTITIONS else str(partitions)


def _equal_partitions(case: MxCase) -> str | None:
    stationary, moving = case.instruction.stationary.rows_accessed, case.instruction.moving.rows_accessed
    return None if stationary == moving else f"{stationary} and {moving}"


def _stationary_even(case: MxCase) -> str | None:
    free = _free(case.instruction.stationary)
    return None if free % 2 == 0 else str(free)


def _stationary_free(case: MxCase) -> str | None:
    free = _free(case.instruction.stationary)
    return None if free <= PE_COLUMNS else str(free)


def _moving_free(case: MxCase) -> str | None:
    dst, free = case.instruction.dst, _free(case.instruction.moving)
    if dst.dtype.code not in RESULT_DTYPES:
        return None  # no limit is known: dst_dtype speaks of it
    most = largest_public_moving(dst.dtype, case.options.public_moving_limit)
    return None if free <= most else f"{free}, over {most} for {dst.dtype.name}"


def _dst_partitions(case: MxCase) -> str | None:
    partitions, free = case.instruction.dst.partitions, _free(case.instruction.stationary)
    return None if partitions == free else f"{partitions} and {free}"


def _dst_free(case: MxCase) -> str | None:
    dst, moving = _free(case.instruction.dst), _free(case.instruction.moving)
    return None if dst == moving else f"{dst} and {moving}"


PUBLIC_MATMUL_MX_RULES: tuple[Rule[MatmultMx], ...] = (
    GENERATION_FLOOR,
    *(_place(operand, Space.SBUF) for operand in MatmultMx.inputs),
    _place("dst", Space.PSUM),
    _dtype("moving", X4_DTYPES),
    _dtype("stationary", X4_DTYPES),
    _dtype("moving_scale", SCALE_DTYPES),
    _dtype("stationary_scale", SCALE_DTYPES),
    _dtype("dst", RESULT_DTYPES),
    Rule(
        name="partitions",
        must=f"partitions of stationary must be {words_of(PUBLIC_PARTITIONS)}",
        seen=_partitions,
        remedy="pad the contraction to whole quadrants of 32 partitions",
    ),
    Rule(
        name="equal_partitions",
        must="partitions of stationary and moving must be equal",
        seen=_equal_partitions,
        remedy="contract both over the same partitions",
    ),
    Rule(
        name="stationary_even",
        must="stationary containers per partition must be even",
        seen=_stationary_even,
        remedy="pad stationary to an even number of x4 containers",
    ),
    Rule(
        name="stationary_free",
        must=f"stationary containers per partition must be at most {PE_COLUMNS}",
        seen=_stationary_free,
        remedy="split stationary over several calls",
    ),
    Rule(
        name="moving_free",
        must="moving containers per partition must be at most "
        + ", by older documentation ".join(_limit_words(limit) for limit in PublicMovingLimit),
        seen=_moving_free,
        remedy="split moving over several calls, or choose public_moving_limit",
    ),
    Rule(
        name="dst_partitions",
        must="partitions of dst must be the stationary containers per partition",
        seen=_dst_partitions,
        remedy="give dst one partition for each container of stationary",
    ),
    Rule(
        name="dst_free",
        must="dst elements per partition must be the moving containers per partition",
        seen=_dst_free,
        remedy="give dst one column for each container of moving",
    ),
)


def _tile_pair(case: MxCase) -> str | None:
    tile = case.tile
    has_position = (tile.row_position, tile.column_position) != (-1, -1)
    has_size = (tile.row_size, tile.column_size) != (-1, -1)
    return None if has_position is has_size else str(tile)


def _tile_size(case: MxCase) -> str | None:
    size = (case.tile.row_size, case.tile.column_size)
    return None if size == (-1, -1) or (size[0] in ROW_TILE_SIZES and size[1] == PE_COLUMNS) else str(case.tile)


def _tile_position(case: MxCase) -> str | None:
    tile = case.tile
    position = (tile.row_position, tile.column_position)
    if position == (-1, -1) or tile.row_size not in ROW_TILE_SIZES:
        return None  # nothing to be a multiple of: the other two rules speak of it
    is_row = 0 <= tile.row_position < PE_ROWS and tile.row_position % tile.row_size == 0
    return None if is_row and tile.column_position == 0 else str(tile)


PUBLIC_TILE_RULES: tuple[Rule[MatmultMx], ...] = (
    Rule(
        name="tile_pair",
        must="tile_position and tile_size must be given both or neither",
        seen=_tile_pair,
        remedy="give both, or neither",
    ),
    Rule(
        name="tile_size",
        must=f"tile_size must be ({' | '.join(map(str, ROW_TILE_SIZES))}, {PE_COLUMNS})",
        seen=_tile_size,
        remedy="use a row tile of 128, 64 or 32 rows and whole columns",
    ),
    Rule(
        name="tile_position",
        must=f"tile_position must be (a multiple of the row tile size below {PE_ROWS}, 0)",
        seen=_tile_position,
        remedy="start at a row tile of that size",
    ),
)
"""Of the one tile that a public call has; -1 stands for what it leaves out."""
