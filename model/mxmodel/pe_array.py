"""The PE array: dense, MX and structured-sparse matrix products (contract M; S0 §2, §3, §7).

Every operand is widened to fp32, one instruction's products are summed as ``Accumulation`` says, and each further
instruction along K is one fp32 add into PSUM (P-1). A larger product is cut into whole instructions, each 128
partitions of the contraction by 128 stationary columns by one PSUM bank of moving columns; the last two cuts, like
the machine's row and column groups, change no value (M-7).
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.accumulation import DST_DTYPES, Accumulation, accumulate, psum_add, psum_write
from mxmodel.formats import FP32, MX_BLOCK, ElementFormat, SourceFormat
from mxmodel.layout import LANES, RowOrder, TagOrder, deinterleave, interleave, unpack_tags
from mxmodel.ldexp import ldexp
from mxmodel.memory import PSUM_BANK_BYTES
from mxmodel.quantize import MxTensor
from mxmodel.rules import RuleSet
from mxmodel.widen import fp32_bits, source_of

__all__ = [
    "PE_COLUMNS",
    "PE_ROWS",
    "Accumulation",
    "DequantLane",
    "DoubleRowLayout",
    "LoneFloat32r",
    "PerfMode",
    "Precision",
    "Preparation",
    "StationaryForm",
    "TagBase",
    "matmul",
    "matmul_mx",
    "matmul_sparse",
]

PE_ROWS = 128
"""Partitions that one instruction contracts over."""
PE_COLUMNS = 128
"""Stationary columns of one instruction: the partitions of its result."""


class PerfMode(Enum):
    """The BIR's perf_mode codes (M-6)."""

    NONE = 0
    DOUBLE_ROW = 1
    """Both operands read row-major with twice the rows."""
    DOUBLE_COLUMN = 2
    """No known numeric effect: refused."""
    DOUBLE_PIXEL = 3
    """No known numeric effect: refused."""
    DOUBLE_ROW_SW_INTERLEAVE = 4
    """Stationary de-interleaved by two, moving read row-major."""


class DoubleRowLayout(Enum):
    """How the operands of ``PerfMode.DOUBLE_ROW`` hold their two rows a partition (M-6)."""

    ROW_MAJOR = "row_major"
    """[P, 2 W] read as [2P, W]: contraction row 2p + t is columns tW .. tW + W - 1 of partition p (A)."""
    PUBLIC = "public"
    """[P, 2, W]: contraction row t P + p (D)."""


class Precision(Enum):
    """How much of an fp32 operand enters the array (M-5)."""

    FULL = "full"
    FLOAT32R = "float32r"
    """The trailing significand rounded, to nearest even, to 11 bits."""


class LoneFloat32r(Enum):
    """A float32r stationary beside a moving operand that is not one (M-5, A). The other way round is never legal."""

    REFUSED = "refused"
    ALLOWED = "allowed"


class Preparation(Enum):
    """The order of float32r rounding and zero point, both after the perf-mode reshape (M-2, A)."""

    ROUND_THEN_SUBTRACT = "round_then_subtract"
    SUBTRACT_THEN_ROUND = "subtract_then_round"


class StationaryForm(Enum):
    """How the stationary operand of a dense product lies (M-7)."""

    PLAIN = "plain"
    """[K, M]: partitions are contracted."""
    TRANSPOSED = "transposed"
    """[B, K], with moving [A, K]: the free dimension is contracted, ascending. From generation v4 on."""


class TagBase(Enum):
    """Where the rows that a sparse tag may name begin (M-8, A)."""

    GROUP_OF_FOUR = "group_of_four"
    """Stationary partition k chooses among moving partitions 4 (k >> 2) .. 4 (k >> 2) + 3."""


DequantLane = Callable[[NDArray[np.uint8], NDArray[np.uint8], ElementFormat, RuleSet], NDArray[np.float32]]
"""``ldexp``, or a twin of it."""

_MESSAGE_OF = {
    "stationary": "Invalid weights data type for matmult",
    "moving": "Invalid ifmap data type for matmult",
}
"""The simulator's own words (S0 §2)."""

_FP8_DTYPES = (ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
"""Of the BIR's plain FP8 dtypes, codes 3, 4, 5 and 7 (F-4)."""

_FLOAT32R_TRAILING_BITS = 11


# --- MX ---------------------------------------------------------------------------------------------------------------


def matmul_mx(
    stationary: MxTensor,
    moving: MxTensor,
    *,
    accumulation: Accumulation = Accumulation.SEQUENTIAL,
    dst: SourceFormat = FP32,
    row_order: RowOrder = RowOrder.PARTITION_MAJOR,
    lane: DequantLane = ldexp,
) -> NDArray[Any]:
    """out[i, j] = sum over p, q of S[p, 4i + q] * M[p, 4j + q] of the dequantised operands (M-3; S0 §3).

    Parameters
    ----------
    stationary : MX tensor [P, 4M]; its own rule set says what scale 255 means
    moving : MX tensor [P, 4N]; any mix of elements and of rule sets
    accumulation : M-4
    dst : FP32 or BF16, the format of a PSUM cell (P-1)
    row_order : of the contraction index k; decides only the order of SEQUENTIAL sums (L-6)
    lane : what dequantises; another twin of ``ldexp`` may take its place

    Returns
    -------
    float32 or bfloat16 [M, N]. P may exceed 128: every 128 partitions, 512 products, are one instruction.

    Specials
    --------
    Those of D-1 to D-4 in the operands; those of ``accumulate`` in the sums; every NaN is 0x7FC00000 (bf16 0x7FC0).

    Raises
    ------
    TypeError if an operand is not an ``MxTensor`` or an option not of its kind; ValueError "invalid matrix product" if
    the partitions differ, or if ``dst`` is another format
    """
    for name, operand in (("stationary", stationary), ("moving", moving)):
        if not isinstance(operand, MxTensor):
            raise TypeError(f"{name} must be an MxTensor, not {type(operand).__name__}")
    _check_options(accumulation, dst, who="nc_matmul_mx")
    _check_option("row_order", row_order, RowOrder)
    if stationary.shape[0] != moving.shape[0]:
        raise ValueError(
            f"invalid matrix product: moving must have the {stationary.shape[0]} partitions of stationary, "
            f"not {moving.shape[0]}"
        )
    operands = (
        (_contraction_rows(stationary, rows, row_order, lane), _contraction_rows(moving, rows, row_order, lane))
        for rows in _instructions(stationary.shape[0])
    )
    return _sum_instructions(operands, accumulation, dst)


def _contraction_rows(
    tensor: MxTensor, partitions: slice, row_order: RowOrder, lane: DequantLane
) -> NDArray[np.float32]:
    """The values of those partitions, [4P, W]: D-1, then L-6.

    De-interleaving the codes first moves a quarter of the bytes, and makes a block 32 rows of one column.
    """
    codes = deinterleave(tensor.codes[partitions], LANES)
    scale = tensor.scale[partitions.start // MX_BLOCK.rows : partitions.stop // MX_BLOCK.rows, np.newaxis, :]
    blocks = codes.reshape(scale.shape[0], MX_BLOCK.size, codes.shape[1])
    values = lane(blocks, scale, tensor.element, tensor.rules).reshape(codes.shape)
    if row_order is RowOrder.PARTITION_MAJOR:
        return values
    return deinterleave(interleave(values, LANES), LANES, order=row_order)


# --- dense ------------------------------------------------------------------------------------------------------------


def matmul(
    stationary: NDArray[Any],
    moving: NDArray[Any],
    *,
    accumulation: Accumulation = Accumulation.SEQUENTIAL,
    dst: SourceFormat = FP32,
    stationary_zero_point: int | None = None,
    moving_zero_point: int | None = None,
    stationary_precision: Precision = Precision.FULL,
    moving_precision: Precision = Precision.FULL,
    lone_float32r: LoneFloat32r = LoneFloat32r.REFUSED,
    preparation: Preparation = Preparation.ROUND_THEN_SUBTRACT,
    perf_mode: PerfMode = PerfMode.NONE,
    double_row_layout: DoubleRowLayout = DoubleRowLayout.ROW_MAJOR,
    stationary_form: StationaryForm = StationaryForm.PLAIN,
    stationary_rows: NDArray[np.integer[Any]] | None = None,
) -> NDArray[Any]:
    """out[m, n] = sum over k of (stationary[k, m] - zero point) * (moving[k, n] - zero point) (M-2; S0 §2).

    Parameters
    ----------
    stationary : [K, M] of fp32, bf16, fp16, FP8 or uint8; float64 is rounded to fp32 with a ``PrecisionWarning``
        (N-7). [P, 2M] or [P, 2, M] in the double-row modes (M-6), [B, K] when transposed (M-7).
    moving : [K, N] likewise; [P, 2N] or [P, 2, N]; [A, K] beside a transposed stationary
    accumulation : M-4
    dst : FP32 or BF16, the format of a PSUM cell (P-1)
    stationary_zero_point, moving_zero_point : 0..255, subtracted in fp32; None for none
    stationary_precision, moving_precision : FLOAT32R rounds an fp32 operand first (M-5)
    lone_float32r : whether only the stationary may be float32r (M-5, A)
    preparation : the order of rounding and zero point (M-2, A)
    perf_mode, double_row_layout : M-6
    stationary_form : transposed computes out[b, a] (M-7)
    stationary_rows : rows of ``stationary`` to take in its place, integers [K]: a gathered stationary (M-7)

    Returns
    -------
    float32 or bfloat16 [M, N]. Every 128 partitions (every 128 of K when transposed) are one instruction.

    Specials
    --------
    Those of ``accumulate``; every NaN is 0x7FC00000 (bf16 0x7FC0).

    Raises
    ------
    TypeError if an operand is of another dtype (M-1), an option not of its kind, or FLOAT32R asked of an operand that
    is not fp32; ValueError "invalid matrix product" if the contraction sizes differ, and for shapes, row numbers, zero
    points or modes that cannot be
    """
    _check_options(accumulation, dst, who="matmul")
    for name, option, kind in (
        ("lone_float32r", lone_float32r, LoneFloat32r),
        ("preparation", preparation, Preparation),
        ("double_row_layout", double_row_layout, DoubleRowLayout),
        ("stationary_form", stationary_form, StationaryForm),
    ):
        _check_option(name, option, kind)
    _check_perf_mode(perf_mode, double_row_layout, stationary_form)
    _check_precisions(stationary, stationary_precision, moving, moving_precision, lone_float32r)
    operands = []
    for name, operand, precision, zero_point in (
        ("stationary", stationary, stationary_precision, stationary_zero_point),
        ("moving", moving, moving_precision, moving_zero_point),
    ):
        wide = _widened(name, operand)
        if name == "stationary" and stationary_rows is not None:
            wide = _gathered(wide, stationary_rows)
        _check_shape(name, wide, perf_mode, double_row_layout)
        if stationary_form is StationaryForm.TRANSPOSED:
            wide = wide.T
        operands.append((name, wide, precision, _zero_point(f"{name}_zero_point", zero_point)))
    (_, wide_stationary, *_), (_, wide_moving, *_) = operands
    if wide_stationary.shape[0] != wide_moving.shape[0]:
        raise ValueError(
            f"invalid matrix product: moving must have the contraction size {wide_stationary.shape[0]} of stationary, "
            f"not {wide_moving.shape[0]}"
        )

    def instruction(rows: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        prepared = [
            _prepared(_contraction(name, wide[rows], perf_mode, double_row_layout), precision, zero, preparation)
            for name, wide, precision, zero in operands
        ]
        return prepared[0], prepared[1]

    return _sum_instructions(map(instruction, _instructions(wide_stationary.shape[0])), accumulation, dst)


def _check_perf_mode(perf_mode: PerfMode, layout: DoubleRowLayout, form: StationaryForm) -> None:
    _check_option("perf_mode", perf_mode, PerfMode)
    if perf_mode in (PerfMode.DOUBLE_COLUMN, PerfMode.DOUBLE_PIXEL):
        raise ValueError(
            f"perf_mode must be NONE, DOUBLE_ROW or DOUBLE_ROW_SW_INTERLEAVE, not {perf_mode.name}: "
            "it has no known numeric effect to model (M-6)"
        )
    if layout is DoubleRowLayout.PUBLIC and perf_mode is not PerfMode.DOUBLE_ROW:
        raise ValueError(f"perf_mode must be DOUBLE_ROW with the PUBLIC layout, not {perf_mode.name} (M-6)")
    if form is StationaryForm.TRANSPOSED and perf_mode is not PerfMode.NONE:
        raise ValueError(f"perf_mode must be NONE with a transposed stationary, not {perf_mode.name} (M-7)")


def _check_precisions(
    stationary: NDArray[Any],
    stationary_precision: Precision,
    moving: NDArray[Any],
    moving_precision: Precision,
    lone: LoneFloat32r,
) -> None:
    for name, operand, precision in (
        ("stationary", stationary, stationary_precision),
        ("moving", moving, moving_precision),
    ):
        _check_option(f"{name}_precision", precision, Precision)
        if precision is Precision.FLOAT32R and source_of(operand, name=name) is not FP32:
            raise TypeError(f"{name} must be float32 to be read as float32r, not {operand.dtype} (M-5)")
    reduced = (stationary_precision is Precision.FLOAT32R, moving_precision is Precision.FLOAT32R)
    if reduced == (False, True) or (reduced == (True, False) and lone is LoneFloat32r.REFUSED):
        raise ValueError(
            "stationary_precision and moving_precision must both be FLOAT32R or both FULL, not "
            f"{stationary_precision.name} and {moving_precision.name} (M-5)"
        )


def _gathered(stationary: NDArray[np.float32], rows: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "iu" or rows.ndim != 1:
        raise TypeError("stationary_rows must be a one-dimensional integer array (M-7)")
    if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < stationary.shape[0]:
        raise ValueError(
            f"stationary_rows must be in 0..{stationary.shape[0] - 1}, not {int(rows.min())}..{int(rows.max())} (M-7)"
        )
    return np.asarray(stationary[rows])


def _widened(name: str, operand: NDArray[Any]) -> NDArray[np.float32]:
    """The operand as fp32 (M-1)."""
    if isinstance(operand, np.ndarray) and (operand.dtype == np.uint8 or operand.dtype in _FP8_DTYPES):
        return operand.astype(np.float32)
    try:
        source_of(operand, name=name)
    except TypeError:
        kind = operand.dtype if isinstance(operand, np.ndarray) else type(operand).__name__
        raise TypeError(
            f"{_MESSAGE_OF[name]}: {name} must be an array of a float dtype or uint8, not {kind} (M-1)"
        ) from None
    return fp32_bits(operand, name=name).view(np.float32)


def _zero_point(name: str, zero_point: int | None) -> np.float32 | None:
    if zero_point is None:
        return None
    if isinstance(zero_point, bool) or not isinstance(zero_point, int | np.integer):
        raise TypeError(f"{name} must be an integer or None, not {zero_point!r}")
    if not 0 <= zero_point <= np.iinfo(np.uint8).max:
        raise ValueError(f"{name} must be in 0..255, not {zero_point!r} (M-2)")
    return np.float32(zero_point)


def _check_shape(name: str, operand: NDArray[Any], perf_mode: PerfMode, layout: DoubleRowLayout) -> None:
    if layout is DoubleRowLayout.PUBLIC:
        wanted, fits = "[P, 2, W]", operand.ndim == 3 and operand.shape[1] == 2
    elif perf_mode is PerfMode.NONE:
        wanted, fits = "two-dimensional", operand.ndim == 2
    else:
        wanted, fits = "[P, 2 W]", operand.ndim == 2 and operand.shape[1] % 2 == 0
    if not fits:
        raise ValueError(f"{name} must be {wanted}, not shape {operand.shape} (M-6)")


def _contraction(
    name: str, operand: NDArray[np.float32], perf_mode: PerfMode, layout: DoubleRowLayout
) -> NDArray[np.float32]:
    """One instruction's partitions as contraction rows [K, W] (M-6)."""
    if perf_mode is PerfMode.NONE:
        return operand
    if layout is DoubleRowLayout.PUBLIC:
        return np.concatenate([operand[:, 0], operand[:, 1]])
    if perf_mode is PerfMode.DOUBLE_ROW_SW_INTERLEAVE and name == "stationary":
        return deinterleave(operand, 2)
    return operand.reshape(2 * operand.shape[0], operand.shape[1] // 2)


def _prepared(
    operand: NDArray[np.float32], precision: Precision, zero_point: np.float32 | None, preparation: Preparation
) -> NDArray[np.float32]:
    """float32r rounding and zero point, in the order asked for (M-2, M-5)."""

    def subtracted(values: NDArray[np.float32]) -> NDArray[np.float32]:
        if zero_point is None:
            return values
        with np.errstate(all="ignore"):  # a signalling NaN is an invalid operand to the host
            return np.asarray(values - zero_point)

    def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
        return values if precision is Precision.FULL else _float32r(values)

    if preparation is Preparation.ROUND_THEN_SUBTRACT:
        return subtracted(rounded(operand))
    return rounded(subtracted(operand))


def _float32r(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Trailing significand rounded to 11 bits, RNE; Inf and NaN stay, and what rounds past the top is Inf (M-5, W)."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    dropped = FP32.trailing_bits - _FLOAT32R_TRAILING_BITS
    last_kept = (bits >> np.uint32(dropped)) & np.uint32(1)
    carried = (bits + np.uint32((1 << (dropped - 1)) - 1) + last_kept) >> np.uint32(dropped) << np.uint32(dropped)
    finite = (bits & np.uint32(FP32.infinity_bits)) != FP32.infinity_bits
    return np.where(finite, carried, bits).view(np.float32)


# --- sparse -----------------------------------------------------------------------------------------------------------


def matmul_sparse(
    stationary: NDArray[Any],
    tags: NDArray[np.uint16],
    moving: NDArray[Any],
    *,
    accumulation: Accumulation = Accumulation.SEQUENTIAL,
    dst: SourceFormat = FP32,
    tag_order: TagOrder = TagOrder.NATURAL,
    tag_base: TagBase = TagBase.GROUP_OF_FOUR,
) -> NDArray[Any]:
    """out[m, n] = sum over k < 128 of S[k, m] * X[4 (k >> 2) + pos // R, pos % R, n] (M-8; S0 §7).

    Parameters
    ----------
    stationary : compressed [128, M], M % 4 == 0, of the dtypes that ``matmul`` takes
    tags : uint16 [128, M/4], four positions ``pos`` a word: ``layout.unpack_tags``
    moving : [128, R, N], R <= 4 slots in a partition: the compression ratio
    accumulation : M-4, k ascending
    dst : FP32 or BF16, the format of a PSUM cell (P-1)
    tag_order : which column a nibble belongs to
    tag_base : where a tag's rows begin (A)

    Returns
    -------
    float32 or bfloat16 [M, N], one instruction

    Specials
    --------
    Those of ``accumulate``. A row that no tag names is not read, so an Inf or NaN in it does no harm.

    Raises
    ------
    TypeError for an operand of another dtype or an option not of its kind; ValueError for other shapes, in the
    simulator's words where it has them, and for a position of 4 R or more
    """
    _check_options(accumulation, dst, who="matmul_sparse")
    _check_option("tag_order", tag_order, TagOrder)
    _check_option("tag_base", tag_base, TagBase)
    kept, source = _widened("stationary", stationary), _widened("moving", moving)
    if kept.ndim != 2 or source.ndim != 3:
        raise ValueError(
            f"stationary and moving must be [{PE_ROWS}, M] and [{PE_ROWS}, R, N], not {stationary.shape} and "
            f"{moving.shape} (M-8)"
        )
    for name, active in (("stationary", kept.shape[0]), ("moving", source.shape[0])):
        if active % _TAG_GROUP:
            raise ValueError(f"Error: num_active_rows should be divisible by 4. {name} has {active} (M-8)")
        if active != PE_ROWS:
            raise ValueError(f"Only the 128-active-rows case is supported! {name} has {active} (M-8)")
    slots = source.shape[1]
    if not 1 <= slots <= _TAG_GROUP:
        raise ValueError(f"moving must have 1..{_TAG_GROUP} slots in a partition, not {slots} (M-8)")
    positions = unpack_tags(tags, order=tag_order)
    if positions.shape != kept.shape:
        raise ValueError(
            f"tags must be [{PE_ROWS}, {kept.shape[1] / 4:g}] for stationary of shape {kept.shape}, not {tags.shape}"
        )
    if positions.size and (largest := int(positions.max())) >= _TAG_GROUP * slots:
        raise ValueError(f"tags must name positions below {_TAG_GROUP * slots} for {slots} slots, not {largest} (M-8)")
    # Row and slot of a position are those of its number in the group's rows laid end to end.
    group = np.arange(PE_ROWS)[:, np.newaxis] // _TAG_GROUP * _TAG_GROUP * slots
    chosen = group + positions
    rows = source.reshape(PE_ROWS * slots, source.shape[2])
    product = np.empty((kept.shape[1], source.shape[2]), dtype=np.float32)
    # Every column of the stationary meets a moving matrix of its own: products of [128, 1] and [128, N].
    for start in range(0, kept.shape[1], _SPARSE_COLUMNS):
        columns = slice(start, start + _SPARSE_COLUMNS)
        own = rows[chosen[:, columns].T]
        product[columns] = accumulate(kept[:, columns].T[:, :, np.newaxis], own, accumulation)[:, 0, :]
    return psum_write(product, dst)


_TAG_GROUP = 4
"""Partitions among which a tag chooses, and the most slots that a partition may hold."""

_SPARSE_COLUMNS = 16
"""Stationary columns worked on at a time, to bound the memory of their own moving matrices."""


# --- instructions -----------------------------------------------------------------------------------------------------


def _instructions(partitions: int) -> list[slice]:
    """The partitions of every instruction along the contraction, in order; one, without any, for an empty sum."""
    return [slice(start, min(start + PE_ROWS, partitions)) for start in range(0, max(partitions, 1), PE_ROWS)]


def _sum_instructions(
    operands: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]], accumulation: Accumulation, dst: SourceFormat
) -> NDArray[Any]:
    """Sum the products of instructions that follow one another along K: the first is written, each further one added
    (P-1, P-2)."""
    cells: NDArray[Any] | None = None
    for stationary, moving in operands:
        product = _instruction_product(stationary, moving, accumulation)
        cells = psum_write(product, dst) if cells is None else psum_add(cells, product)
    assert cells is not None
    return cells


def _instruction_product(
    stationary: NDArray[np.float32], moving: NDArray[np.float32], accumulation: Accumulation
) -> NDArray[np.float32]:
    """One slice of K, cut into whole instructions over stationary columns and PSUM banks.

    Each value belongs to one instruction, so only BLAS could tell; its order is not defined, and it is not cut.
    """
    if accumulation is Accumulation.BLAS:
        return accumulate(stationary, moving, accumulation)
    bank = PSUM_BANK_BYTES // DST_DTYPES[FP32].itemsize
    product = np.empty((stationary.shape[1], moving.shape[1]), dtype=np.float32)
    for first in range(0, product.shape[0], PE_COLUMNS):
        for start in range(0, product.shape[1], bank):
            rows, columns = slice(first, first + PE_COLUMNS), slice(start, start + bank)
            product[rows, columns] = accumulate(stationary[:, rows], moving[:, columns], accumulation)
    return product


# --- argument checks --------------------------------------------------------------------------------------------------


def _check_options(accumulation: Accumulation, dst: SourceFormat, *, who: str) -> None:
    _check_option("accumulation", accumulation, Accumulation)
    _check_option("dst", dst, SourceFormat)
    if dst not in DST_DTYPES:
        raise ValueError(f"{who} dst dtype must be float32 or bfloat16, not {dst.name}")


def _check_option(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise TypeError(f"{name} must be {article} {kind.__name__}, not {value!r}")
