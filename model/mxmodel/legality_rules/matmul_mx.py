"""What the two verifiers of an MX matmul demand: 18 rules with codes, and those without (contract V; S4 §1-§4).

Every count is logical: four elements for each x4 container (F-5). The verifiers read access patterns as numbers;
whether an operand lies inside its memory is the memory's own question.
"""

from mxmodel.access_pattern import AccessPattern
from mxmodel.formats import BIR_DTYPES, X4_DTYPES, BirDtype
from mxmodel.isa import Engine, MatmultMx
from mxmodel.layout import LANES, QUADRANT_PARTITIONS
from mxmodel.legality_rules.rule import GENERATION_FLOOR, Case, Rule, words_of
from mxmodel.memory import PSUM_BANK_BYTES
from mxmodel.pe_array import PE_COLUMNS

__all__ = [
    "E8M0_CODE",
    "FLAG_BYTES",
    "INPUT_RULES",
    "INSTRUCTION_RULES",
    "LAST_RULES",
    "PRECONDITIONS",
    "TILE_RULES",
    "dtype_words",
    "largest_moving_count",
]

PARTITION_COUNTS = (32, 64, 128)
"""Line 3091; 96 is refused (S4 §2)."""
_MOST_STATIONARY = PE_COLUMNS * LANES
FLAG_BYTES = (0, 1, 2, 3, 4, 6)
"""START and ACCUMULATE never meet (P-2, W)."""
E8M0_CODE = 6
"""BIR dtype code of the scales."""
_BANKFULS = 32
_LOWER_HALF = QUADRANT_PARTITIONS // 2

MxRule = Rule[MatmultMx]
MxCase = Case[MatmultMx]


def largest_moving_count(dst: BirDtype) -> int:
    """The most logical elements that a partition of the moving operand may have, for such a destination (line 3079)."""
    return _BANKFULS * (PSUM_BANK_BYTES // dst.size)


def dtype_words(dtype: BirDtype) -> str:
    return f"{dtype.name} ({dtype.code})"


def _operand(case: MxCase, name: str) -> AccessPattern:
    pattern: AccessPattern = getattr(case.instruction, name)
    return pattern


# --- What both verifiers take for granted: no codes -------------------------------------------------------------------


def _dtype_rule(operand: str, codes: tuple[int, ...], remedy: str) -> MxRule:
    def seen(case: MxCase) -> str | None:
        dtype = _operand(case, operand).dtype
        return None if dtype.code in codes else dtype_words(dtype)

    names = words_of(dtype_words(BIR_DTYPES[code]) for code in codes)
    return Rule(name=f"{operand}_dtype", must=f"{operand} must be {names}", seen=seen, remedy=remedy)


def _dst_dtype(case: MxCase) -> str | None:
    dtype = case.instruction.dst.dtype
    return None if 0 <= dtype.code < len(BIR_DTYPES) else dtype_words(dtype)


_PACK = "quantise it or pack it four to a container"
_VIEW = "view the bytes as float8_e8m0fnu"

PRECONDITIONS: tuple[MxRule, ...] = (
    GENERATION_FLOOR,
    _dtype_rule("moving", X4_DTYPES, _PACK),
    _dtype_rule("stationary", X4_DTYPES, _PACK),
    _dtype_rule("moving_scale", (E8M0_CODE,), _VIEW),
    _dtype_rule("stationary_scale", (E8M0_CODE,), _VIEW),
    Rule(
        name="dst_dtype",
        must=f"dtype code of dst must be at most {BIR_DTYPES[-1].code}",
        seen=_dst_dtype,
        remedy="write float32 or bfloat16",
    ),
)

# --- The first verifier: shapes and numbers (S4 §2) -------------------------------------------------------------------


def _scale_count(line: int, code: int, data: str) -> MxRule:
    def seen(case: MxCase) -> str | None:
        count = _operand(case, data).elements_per_partition
        scales = _operand(case, f"{data}_scale").elements_per_partition
        return None if count == LANES * scales else f"{count} and {LANES} x {scales} = {LANES * scales}"

    return Rule(
        name=f"{data}_scale_count",
        must=f"{data} elements per partition must be {LANES} x {data}_scale elements per partition",
        seen=seen,
        remedy=f"give {data}_scale one scale for every {LANES} elements of {data}",
        line=line,
        code=code,
    )


def _scale_half(line: int, code: int, data: str) -> MxRule:
    def seen(case: MxCase) -> str | None:
        start = _operand(case, f"{data}_scale").start_partition
        place = start % QUADRANT_PARTITIONS
        return None if place < _LOWER_HALF else f"{start} % {QUADRANT_PARTITIONS} = {place}"

    return Rule(
        name=f"{data}_scale_half",
        must=f"start partition of {data}_scale % {QUADRANT_PARTITIONS} must be below {_LOWER_HALF}",
        seen=seen,
        remedy="start it at 0, 4, 8 or 12 of the quadrant",
        line=line,
        code=code,
    )


def _moving_count(case: MxCase) -> str | None:
    count, most = case.instruction.moving.elements_per_partition, largest_moving_count(case.instruction.dst.dtype)
    return None if count <= most else f"{count}, over {most} for {case.instruction.dst.dtype.name}"


def _stationary_count(case: MxCase) -> str | None:
    count = case.instruction.stationary.elements_per_partition
    return None if count <= _MOST_STATIONARY else str(count)


def _stationary_even(case: MxCase) -> str | None:
    count = case.instruction.stationary.elements_per_partition
    return None if count // LANES % 2 == 0 else f"{count} / {LANES} = {count // LANES}"


def _moving_partitions(case: MxCase) -> str | None:
    partitions = case.instruction.moving.rows_accessed
    return None if partitions in PARTITION_COUNTS else str(partitions)


def _equal_partitions(case: MxCase) -> str | None:
    moving, stationary = case.instruction.moving.rows_accessed, case.instruction.stationary.rows_accessed
    return None if moving == stationary else f"{moving} and {stationary}"


def _dst_partitions(case: MxCase) -> str | None:
    partitions, count = case.instruction.dst.partitions, case.instruction.stationary.elements_per_partition
    return None if partitions * LANES == count else f"{partitions} x {LANES} = {partitions * LANES} and {count}"


def _dst_count(case: MxCase) -> str | None:
    free, count = case.instruction.dst.elements_per_partition, case.instruction.moving.elements_per_partition
    return None if free * LANES == count else f"{free} x {LANES} = {free * LANES} and {count}"


INPUT_RULES: tuple[MxRule, ...] = (
    _scale_count(3067, 228, "moving"),
    _scale_count(3069, 229, "stationary"),
    _scale_half(3072, 230, "moving"),
    _scale_half(3073, 231, "stationary"),
    Rule(
        name="moving_count",
        must=f"moving elements per partition must be at most {_BANKFULS} x the dst elements in a PSUM bank",
        seen=_moving_count,
        remedy="split moving over several instructions",
        line=3079,
        code=232,
    ),
    Rule(
        name="stationary_count",
        must=f"stationary elements per partition must be at most {_MOST_STATIONARY}",
        seen=_stationary_count,
        remedy="split stationary over several instructions",
        line=3083,
        code=233,
    ),
    Rule(
        name="stationary_even",
        must=f"stationary elements per partition / {LANES} must be even",
        seen=_stationary_even,
        remedy="pad stationary to an even number of x4 containers",
        line=3084,
        code=289,
    ),
    Rule(
        name="moving_partitions",
        must=f"partitions of moving must be {words_of(PARTITION_COUNTS)}",
        seen=_moving_partitions,
        remedy="pad the contraction, or split it over several instructions: 96 is 64 and 32",
        line=3091,
        code=234,
    ),
    Rule(
        name="equal_partitions",
        must="partitions of moving and stationary must be equal",
        seen=_equal_partitions,
        remedy="contract both over the same partitions",
        line=3096,
        code=235,
    ),
    Rule(
        name="dst_partitions",
        must=f"partitions of dst x {LANES} must be the stationary elements per partition",
        seen=_dst_partitions,
        remedy="give dst one partition for each container of stationary",
        line=3099,
        code=236,
    ),
    Rule(
        name="dst_count",
        must=f"dst elements per partition x {LANES} must be the moving elements per partition",
        seen=_dst_count,
        remedy="give dst one column for each container of moving",
        line=3102,
        code=237,
    ),
)
"""checkMatmultMxInputs, in the order of its throw sites."""

# --- The second verifier: place and tiling (S4 §3) --------------------------------------------------------------------


def _engine(case: MxCase) -> str | None:
    engine = case.instruction.engine
    return None if engine is Engine.PE else f"{engine.name} ({engine.value})"


def _quadrant(line: int, code: int, data: str) -> MxRule:
    def seen(case: MxCase) -> str | None:
        mine, scale = _operand(case, data), _operand(case, f"{data}_scale")
        if mine.quadrant == scale.quadrant:
            return None
        return (
            f"{mine.quadrant} (start partition {mine.start_partition}) and {scale.quadrant} ({scale.start_partition})"
        )

    return Rule(
        name=f"{data}_quadrant",
        must=f"quadrants of {data} and {data}_scale must be the same",
        seen=seen,
        remedy="start both in one quadrant of 32 partitions",
        line=line,
        code=code,
    )


def _scale_alignment(case: MxCase) -> str | None:
    starts = (case.instruction.moving_scale.start_partition, case.instruction.stationary_scale.start_partition)
    return None if all(start % 4 == 0 for start in starts) else f"{starts[0]} and {starts[1]}"


def _tile_vectors(case: MxCase) -> str | None:
    instruction = case.instruction
    lengths = [
        len(vector)
        for vector in (
            instruction.row_tile_positions,
            instruction.column_tile_positions,
            instruction.row_tile_sizes,
            instruction.column_tile_sizes,
        )
    ]
    return None if len(set(lengths)) == 1 else ", ".join(map(str, lengths))


def _column_tile(case: MxCase) -> str | None:
    tile = case.tile
    if tile.column_position in (-1, 0) and tile.column_size in (-1, PE_COLUMNS):
        return None
    return f"position {tile.column_position} and size {tile.column_size} of tile {tile.index}"


def _row_tile(case: MxCase) -> str | None:
    tile, partitions = case.tile, case.instruction.moving.rows_accessed
    if tile.row_size in (-1, partitions):
        return None
    return f"size {tile.row_size} of tile {tile.index}, with {partitions} partitions"


def _replication(case: MxCase) -> str | None:
    shift = case.instruction.weight_replication_shift
    return None if shift == 0 else str(shift)


def _flags(case: MxCase) -> str | None:
    flags = case.instruction.flags
    return None if flags in FLAG_BYTES else str(int(flags))


INSTRUCTION_RULES: tuple[MxRule, ...] = (
    Rule(
        name="engine",
        must=f"engine must be PE ({Engine.PE.value})",
        seen=_engine,
        remedy="issue it on the PE engine",
        line=2994,
        code=205,
    ),
    _quadrant(3012, 212, "moving"),
    _quadrant(3014, 213, "stationary"),
    Rule(
        name="scale_alignment",
        must="start partitions of moving_scale and stationary_scale must be multiples of 4",
        seen=_scale_alignment,
        remedy="start them at 0, 4, 8 or 12 of the quadrant",
        line=3017,
        code=214,
    ),
    Rule(
        name="tile_vectors",
        must="the four tile vectors must be of equal length",
        seen=_tile_vectors,
        remedy="give each tile a row and a column position, a row and a column size",
    ),
)
"""checkMatmultMxInstruction up to its loop over tiles."""

TILE_RULES: tuple[MxRule, ...] = (
    Rule(
        name="column_tile",
        must=f"column tile position must be -1 or 0 and its size -1 or {PE_COLUMNS}",
        seen=_column_tile,
        remedy="use whole columns: an MX matmul is split into instructions only",
        line=3031,
        code=241,
    ),
    Rule(
        name="row_tile",
        must="row tile size must be -1 or the partitions of moving",
        seen=_row_tile,
        remedy="make the row tile as large as the contraction: an MX matmul is split into instructions only",
        line=3028,
        code=240,
    ),
)
"""For every tile, the column before the row."""

LAST_RULES: tuple[MxRule, ...] = (
    Rule(
        name="weight_replication",
        must="weight_replication_shift must be 0",
        seen=_replication,
        remedy="replicate nothing",
        line=3037,
        code=204,
    ),
    Rule(
        name="flags",
        must=f"flag byte must be {words_of(FLAG_BYTES)}",
        seen=_flags,
        remedy="set either START (1) or ACCUMULATE (4), not both; STOP (2) may join either",
    ),
)
"""After the tiles."""
