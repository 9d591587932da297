"""Where MX data sits: x4 words, scattered scale rows, swizzles and files' block orders (contract L).

Nothing here looks at a value. Every function has its exact inverse beside it.
"""

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import FP4_E2M1, MX_BLOCK, ElementFormat
from mxmodel.rules import BIRSIM, NKI_SIM, RuleSet

__all__ = [
    "QUADRANT_PARTITIONS",
    "LANES",
    "SCALE_OFFSETS",
    "FirstNibble",
    "RowOrder",
    "Swizzle",
    "TagOrder",
    "axis_blocks_of_mx",
    "compact_scales",
    "deinterleave",
    "gather_scales",
    "gpt_oss_blocks",
    "gpt_oss_codes",
    "interleave",
    "mx_of_axis_blocks",
    "pack_tags",
    "pack_x4",
    "scale_partitions",
    "scale_row_steps",
    "scale_span",
    "scatter_scales",
    "swizzle",
    "unpack_tags",
    "unpack_x4",
    "unswizzle",
]

LANES = 4
"""Elements in an x4 word: always ``MX_BLOCK.columns`` of one partition."""

QUADRANT_PARTITIONS = 32
"""SBUF partitions of one quadrant; a scale stays in the quadrant of its data (L-2)."""

SCALE_ROWS = QUADRANT_PARTITIONS // MX_BLOCK.rows
"""Scale rows that the data of one quadrant needs."""

SCALE_OFFSETS = (0, 4, 8, 12)
"""Where in its quadrants a scale tensor may start, so that four of them share one tile (L-4)."""


class FirstNibble(Enum):
    """Which half of a byte holds the nibble of even position (L-1; S0 §6.4's parity flag)."""

    LOW = "low"
    HIGH = "high"


class RowOrder(Enum):
    """The contraction row that lane q of partition p becomes, of P partitions and a factor of lanes (L-6)."""

    PARTITION_MAJOR = "partition_major"
    """p * factor + q (A: the row order is ours, and fixes the summation order of M-4)."""
    LANE_MAJOR = "lane_major"
    """q * P + p."""


class Swizzle(Enum):
    """Which four contraction rows of a [K, N] matrix become the four lanes of a partition (L-5)."""

    K_1X32 = "1x32"
    """out[p, 4n + q] = in[4p + q, n]: a block is 32 consecutive K, as OCP checkpoints hold them."""
    WRAP = "wrap"
    """out[p, 4n + q] = in[q * K/4 + p, n]."""

    @property
    def rows(self) -> RowOrder:
        """The row of the matrix that each lane holds: a swizzle is the inverse of a de-interleave by four."""
        return RowOrder.PARTITION_MAJOR if self is Swizzle.K_1X32 else RowOrder.LANE_MAJOR


class TagOrder(Enum):
    """Which column of a sparse stationary a tag's nibble belongs to (M-8)."""

    NATURAL = "natural"
    """Nibble j of word w is column 4w + j."""
    FLIPPED = "flipped"
    """The same with the columns of every 128-column window reversed: the first nibble is column 127."""


# --- x4 words (L-1) ---------------------------------------------------------------------------------------------------


def pack_x4(
    codes: NDArray[np.uint8], element: ElementFormat, *, stride: int = 0, first_nibble: FirstNibble = FirstNibble.LOW
) -> NDArray[Any]:
    """Four codes to one word, the first in the least significant bits (L-1; S0 §6.4 for the options).

    Parameters
    ----------
    codes : uint8 [..., F], F % 4 == 0, one code a byte
    element : their format; FP8 makes uint32 words, FP4 uint16 words
    stride : FP4 only. 0 for the plain order; n > 0 reverses the bytes of every n along F (F % 2n == 0)
    first_nibble : FP4 only. Which half of a byte an even position takes

    Returns
    -------
    uint32 or uint16 [..., F/4]

    Raises
    ------
    TypeError if ``codes`` is not uint8 or an argument is not of its kind; ValueError if F does not divide, an FP4 code
    exceeds 15, or an FP4 option is given with FP8
    """
    _check_array("codes", codes, np.uint8)
    _check_x4_options(element, stride, first_nibble)
    free = _last_axis("codes", codes, LANES)
    if element.width == 8:
        return _words(codes, element)
    if codes.size and (largest := int(codes.max())) >= element.code_count:
        raise ValueError(f"codes must be in 0..{element.code_count - 1} for {element.name}, not {largest}")
    nibbles = codes
    if stride:
        nibbles = np.empty_like(codes)
        nibbles[..., _nibble_positions(free, stride)] = codes
    low, high = _halves(first_nibble)
    return _words(nibbles[..., low::2] | nibbles[..., high::2] << np.uint8(4), element)


def unpack_x4(
    words: NDArray[Any], element: ElementFormat, *, stride: int = 0, first_nibble: FirstNibble = FirstNibble.LOW
) -> NDArray[np.uint8]:
    """The exact inverse of ``pack_x4``: words [..., W] to uint8 codes [..., 4W] (L-1)."""
    _check_x4_options(element, stride, first_nibble)
    _check_array("words", words, _word_dtype(element).newbyteorder("="))
    octets = np.array(words, dtype=_word_dtype(element), order="C").view(np.uint8)
    if element.width == 8:
        return octets
    nibbles = np.empty((*octets.shape[:-1], 2 * octets.shape[-1]), dtype=np.uint8)
    low, high = _halves(first_nibble)
    nibbles[..., low::2] = octets & np.uint8(0xF)
    nibbles[..., high::2] = octets >> np.uint8(4)
    return nibbles[..., _nibble_positions(nibbles.shape[-1], stride)] if stride else nibbles


def _word_dtype(element: ElementFormat) -> np.dtype[Any]:
    """Of the x4 word as it lies in memory, little-endian."""
    return np.dtype(f"<u{element.packed_bits // 8}")


def _words(octets: NDArray[np.uint8], element: ElementFormat) -> NDArray[Any]:
    dtype = _word_dtype(element)
    return np.ascontiguousarray(octets).view(dtype).astype(dtype.newbyteorder("="))


def _halves(first_nibble: FirstNibble) -> tuple[int, int]:
    """Positions (modulo 2) of the nibbles in the low and the high half of a byte."""
    return (0, 1) if first_nibble is FirstNibble.LOW else (1, 0)


def _nibble_positions(free: int, stride: int) -> NDArray[np.intp]:
    """Where index i goes: w(i//w + 1) - i%w, less 2 when i is even, with w = 2 stride (S0 §6.4, W)."""
    window = 2 * stride
    if free % window:
        raise ValueError(f"codes must have a last axis that is a multiple of 2 * stride = {window}, not {free}")
    index = np.arange(free)
    return np.asarray(window * (index // window + 1) - index % window - 2 * (index % 2 == 0))


def _check_x4_options(element: ElementFormat, stride: int, first_nibble: FirstNibble) -> None:
    if not isinstance(element, ElementFormat):
        raise TypeError(f"element must be an ElementFormat, not {element!r}")
    if not isinstance(first_nibble, FirstNibble):
        raise TypeError(f"first_nibble must be a FirstNibble, not {first_nibble!r}")
    if stride < 0:
        raise ValueError(f"stride must be 0 or more, not {stride!r}")
    if element.width == 8 and (stride or first_nibble is not FirstNibble.LOW):
        raise ValueError(
            f"stride and first_nibble must be left alone for {element.name}, not {stride!r} and {first_nibble}: "
            "only FP4 words have nibbles (L-1)"
        )


# --- scale rows (L-2, L-3, L-4) ---------------------------------------------------------------------------------------


def scale_partitions(rows: int, *, offset: int = 0) -> NDArray[np.intp]:
    """The partition of every compact scale row i: (i & 3) + 32 (i >> 2) + offset (L-2, L-4; S0 §4, S1 §5).

    Raises ValueError unless ``offset`` is 0, 4, 8 or 12.
    """
    if offset not in SCALE_OFFSETS:
        raise ValueError(f"offset must be one of {', '.join(map(str, SCALE_OFFSETS))}, not {offset!r}")
    index = np.arange(rows)
    return index % SCALE_ROWS + QUADRANT_PARTITIONS * (index // SCALE_ROWS) + offset


def scale_row_steps(quadrants: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The same partitions, of data on whole quadrants, as (step, num) for an access pattern, slowest first (L-2)."""
    return (QUADRANT_PARTITIONS, quadrants), (1, SCALE_ROWS)


def scale_span(quadrants: int) -> int:
    """Partitions from the first scale row of data on so many quadrants to the last (L-2)."""
    return QUADRANT_PARTITIONS * (quadrants - 1) + SCALE_ROWS


def scatter_scales(
    scale: NDArray[np.uint8], *, offset: int = 0, partitions: int | None = None, into: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Compact scale rows to their SBUF partitions (L-2, L-3, L-4).

    Parameters
    ----------
    scale : uint8 [R, C] compact scales, R = P/8
    offset : start in every quadrant: 0, 4, 8 or 12
    partitions : of a fresh tile, zero where no scale sits; None for whole quadrants, as many as the data needs
    into : an existing tile uint8 [partitions, C'], C' >= C; its other rows and columns are kept as they are

    Returns
    -------
    uint8 [partitions, C'] (C' = C for a fresh tile); ``into`` itself is not changed

    Raises
    ------
    TypeError if an array is not uint8; ValueError if it is not two-dimensional, the tile too small, the offset not one
    of the four, or both ``partitions`` and ``into`` given
    """
    _check_array("scale", scale, np.uint8, ndim=2)
    rows, columns = scale.shape
    at = scale_partitions(rows, offset=offset)
    if into is None:
        quadrants = -(-rows // SCALE_ROWS)
        count = QUADRANT_PARTITIONS * quadrants if partitions is None else partitions
        tile = np.zeros((count, columns), dtype=np.uint8)
    else:
        if partitions is not None:
            raise ValueError(f"partitions must be None where into is given, not {partitions!r}")
        _check_array("into", into, np.uint8, ndim=2)
        tile = into.copy()
    _check_tile("partitions" if into is None else "into", tile, at, columns)
    tile[at, :columns] = scale
    return tile


def gather_scales(
    tile: NDArray[np.uint8], rows: int, *, offset: int = 0, columns: int | None = None
) -> NDArray[np.uint8]:
    """The exact inverse of ``scatter_scales``: ``rows`` compact rows out of a tile, uint8 [rows, columns] (L-2).

    ``columns`` is needed where tensors of other free sizes share the tile (L-4); None takes all.
    """
    _check_array("tile", tile, np.uint8, ndim=2)
    at = scale_partitions(rows, offset=offset)
    width = tile.shape[1] if columns is None else columns
    _check_tile("tile", tile, at, width)
    return tile[at, :width]


def compact_scales(
    scales: NDArray[np.uint8], partitions: int, *, offset: int = 0, rules: RuleSet = BIRSIM
) -> NDArray[np.uint8]:
    """The compact scale grid of data that spans ``partitions``, however an instruction was given it (L-3).

    Data on more than 32 partitions must come with scattered scales; on 32 or fewer, [P/8, C] compact rows will do
    too. Under ``NKI_SIM`` the shape alone decides, as in S1 §5.2: a tile of P rows is scattered, anything else compact.

    Returns uint8 [P/8, C]. Raises ValueError if the scales are not where these rules look for them.
    """
    _check_array("scales", scales, np.uint8, ndim=2)
    rows = partitions // MX_BLOCK.rows
    compact = scales.shape[0] == rows
    if rules == NKI_SIM:
        scattered = scales.shape[0] == partitions
        if not compact and not scattered:
            raise ValueError(f"scales must have {partitions} rows or {rows}, not {scales.shape[0]} (L-3, S1 §5.2)")
        return gather_scales(scales, rows, offset=offset) if scattered else scales
    if compact and partitions > QUADRANT_PARTITIONS:
        raise ValueError(
            f"scales must be scattered over {partitions} partitions, not {rows} compact rows: compact scales are for "
            f"data on {QUADRANT_PARTITIONS} partitions or fewer (L-3)"
        )
    return scales if compact and offset == 0 else gather_scales(scales, rows, offset=offset)


def _check_tile(name: str, tile: NDArray[np.uint8], at: NDArray[np.intp], columns: int) -> None:
    needed = int(at.max()) + 1 if at.size else 0
    if tile.shape[0] < needed or tile.shape[1] < columns:
        raise ValueError(f"{name} must be at least [{needed}, {columns}], not {list(tile.shape)}")


# --- matrices (L-5, L-6) ----------------------------------------------------------------------------------------------


def deinterleave(matrix: NDArray[Any], factor: int, *, order: RowOrder = RowOrder.PARTITION_MAJOR) -> NDArray[Any]:
    """[..., P, W * factor], the factor fastest, to [..., P * factor, W] (L-6; S0 §2, §3).

    Lane q of partition p becomes row p * factor + q, or q * P + p under ``RowOrder.LANE_MAJOR``. Raises ValueError if
    the last axis does not divide.
    """
    *leading, rows, free = _matrix("matrix", matrix)
    if factor < 1 or free % factor:
        raise ValueError(f"matrix must have a last axis that is a multiple of {factor}, not {free}")
    lanes = matrix.reshape(*leading, rows, free // factor, factor)
    by_row = np.swapaxes(lanes, -1, -2) if order is RowOrder.PARTITION_MAJOR else np.moveaxis(lanes, -1, -3)
    return by_row.reshape(*leading, rows * factor, free // factor)


def interleave(matrix: NDArray[Any], factor: int, *, order: RowOrder = RowOrder.PARTITION_MAJOR) -> NDArray[Any]:
    """The exact inverse of ``deinterleave``: [..., P * factor, W] to [..., P, W * factor]."""
    *leading, rows, free = _matrix("matrix", matrix)
    if factor < 1 or rows % factor:
        raise ValueError(f"matrix must have a number of rows that is a multiple of {factor}, not {rows}")
    if order is RowOrder.PARTITION_MAJOR:
        lanes = np.swapaxes(matrix.reshape(*leading, rows // factor, factor, free), -1, -2)
    else:
        lanes = np.moveaxis(matrix.reshape(*leading, factor, rows // factor, free), -3, -1)
    return lanes.reshape(*leading, rows // factor, free * factor)


def swizzle(matrix: NDArray[Any], order: Swizzle = Swizzle.K_1X32) -> NDArray[Any]:
    """A K-major matrix [..., K, N] to the [..., K/4, 4N] that is contracted over partitions and lanes (L-5; S1 §1).

    K % 4 == 0 (ValueError). The instruction does not care which order was used; both operands must have used the same.
    """
    return interleave(matrix, LANES, order=order.rows)


def unswizzle(matrix: NDArray[Any], order: Swizzle = Swizzle.K_1X32) -> NDArray[Any]:
    """The exact inverse of ``swizzle``: [..., P, 4N] to [..., 4P, N]."""
    return deinterleave(matrix, LANES, order=order.rows)


# --- files (L-7, L-8) -------------------------------------------------------------------------------------------------


def gpt_oss_codes(blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """gpt-oss ``*_blocks`` uint8 [..., K/32, 16] to FP4 codes uint8 [..., K]; the low nibble comes first (L-8)."""
    _check_array("blocks", blocks, np.uint8)
    octets = MX_BLOCK.size // 2
    if blocks.ndim < 2 or blocks.shape[-1] != octets:
        raise ValueError(f"blocks must be [..., K/{MX_BLOCK.size}, {octets}], not shape {blocks.shape}")
    count = blocks.shape[-2]
    words = blocks.reshape(*blocks.shape[:-2], count * octets)
    word_dtype = _word_dtype(FP4_E2M1)
    return unpack_x4(np.ascontiguousarray(words).view(word_dtype).astype(word_dtype.newbyteorder("=")), FP4_E2M1)


def gpt_oss_blocks(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The exact inverse of ``gpt_oss_codes``: FP4 codes [..., K], K % 32 == 0, to uint8 [..., K/32, 16] (L-8)."""
    length = _last_axis("codes", codes, MX_BLOCK.size)
    octets = pack_x4(codes, FP4_E2M1).astype(_word_dtype(FP4_E2M1)).view(np.uint8)
    return octets.reshape(*codes.shape[:-1], length // MX_BLOCK.size, MX_BLOCK.size // 2)


def mx_of_axis_blocks(
    codes: NDArray[np.uint8], scale: NDArray[np.uint8], *, axis: int = -1
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Blocks of 32 along one axis, as OCP checkpoints hold them, to blocks of 8 x 4; nothing is requantised (L-5, L-8).

    Parameters
    ----------
    codes : uint8 [..., N, K], one code a byte, K along ``axis`` and N the last of the other axes; K % 32 == 0
    scale : uint8, the shape of ``codes`` with K/32 in place of K
    axis : of the blocks, the contraction axis

    Returns
    -------
    codes uint8 [..., K/4, 4N] and scale [..., K/32, N]: for two dimensions, the fields of an ``MxTensor``. Packed by
    ``pack_x4`` they are the [E, H/4, 2I] words and [E, H/32, 2I] scales of L-7.

    Raises
    ------
    TypeError if an array is not uint8; ValueError if K is not whole blocks or the scale's shape does not fit
    """
    _check_array("codes", codes, np.uint8)
    _check_array("scale", scale, np.uint8)
    if codes.ndim < 2:
        raise ValueError(f"codes must have 2 dimensions or more, not shape {codes.shape}")
    wanted = list(codes.shape)
    if wanted[axis] % MX_BLOCK.size:
        raise ValueError(f"codes must have a multiple of {MX_BLOCK.size} along axis {axis}, not {wanted[axis]}")
    wanted[axis] //= MX_BLOCK.size
    if list(scale.shape) != wanted:
        raise ValueError(f"scale must be {wanted} for codes of shape {list(codes.shape)}, not {list(scale.shape)}")
    return swizzle(np.moveaxis(codes, axis, -2)), np.ascontiguousarray(np.moveaxis(scale, axis, -2))


def axis_blocks_of_mx(
    codes: NDArray[np.uint8], scale: NDArray[np.uint8], *, axis: int = -1
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The exact inverse of ``mx_of_axis_blocks``: [..., K/4, 4N] and [..., K/32, N] to blocks along ``axis``."""
    _check_array("codes", codes, np.uint8)
    _check_array("scale", scale, np.uint8)
    matrix = unswizzle(codes)
    *leading, length, width = matrix.shape
    wanted = [*leading, length // MX_BLOCK.size, width]
    if length % MX_BLOCK.size or list(scale.shape) != wanted:
        raise ValueError(f"scale must be {wanted} for codes of shape {list(codes.shape)}, not {list(scale.shape)}")
    return np.ascontiguousarray(np.moveaxis(matrix, -2, axis)), np.ascontiguousarray(np.moveaxis(scale, -2, axis))


# --- sparse tags (M-8) ------------------------------------------------------------------------------------------------

_TAG_BITS = 4
_TAGS_IN_WORD = 16 // _TAG_BITS
_TAG_WINDOW = 128
"""Columns of one window of the flipped order: those of the PE array."""


def pack_tags(positions: NDArray[np.uint8], *, order: TagOrder = TagOrder.NATURAL) -> NDArray[np.uint16]:
    """Positions 0..15 of the kept rows, uint8 [K, M], to tags uint16 [K, M/4], four nibbles a word (M-8).

    Raises TypeError if ``positions`` is not uint8; ValueError if one exceeds 15, or M % 4 (M % 128 when flipped).
    """
    _check_array("positions", positions, np.uint8, ndim=2)
    if positions.size and (largest := int(positions.max())) >> _TAG_BITS:
        raise ValueError(f"positions must be in 0..{(1 << _TAG_BITS) - 1}, not {largest}")
    _last_axis("positions", positions, _TAGS_IN_WORD)
    nibbles = _in_tag_order(positions, order).reshape(positions.shape[0], -1, _TAGS_IN_WORD)
    shifts = _TAG_BITS * np.arange(_TAGS_IN_WORD, dtype=np.uint16)
    return np.asarray(np.bitwise_or.reduce(nibbles.astype(np.uint16) << shifts, axis=2), dtype=np.uint16)


def unpack_tags(tags: NDArray[np.uint16], *, order: TagOrder = TagOrder.NATURAL) -> NDArray[np.uint8]:
    """The exact inverse of ``pack_tags``: pos(k, m) = (tags[k, m >> 2] >> 4 (m & 3)) & 15, uint8 [K, M] (M-8)."""
    _check_array("tags", tags, np.uint16, ndim=2)
    shifts = _TAG_BITS * np.arange(_TAGS_IN_WORD, dtype=np.uint16)
    nibbles = (tags[:, :, np.newaxis] >> shifts) & np.uint16((1 << _TAG_BITS) - 1)
    return _in_tag_order(nibbles.astype(np.uint8).reshape(tags.shape[0], -1), order)


def _in_tag_order(columns: NDArray[np.uint8], order: TagOrder) -> NDArray[np.uint8]:
    if order is TagOrder.NATURAL:
        return columns
    width = _last_axis("tags in the flipped order", columns, _TAG_WINDOW)
    windows = columns.reshape(columns.shape[0], width // _TAG_WINDOW, _TAG_WINDOW)
    return windows[:, :, ::-1].reshape(columns.shape)


# --- argument checks --------------------------------------------------------------------------------------------------


def _check_array(name: str, array: NDArray[Any], dtype: Any, *, ndim: int | None = None) -> None:
    if not isinstance(array, np.ndarray) or array.dtype.newbyteorder("=") != dtype:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{name} must be a {np.dtype(dtype).name} array, not {kind}")
    if ndim is not None and array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, not shape {array.shape}")


def _last_axis(name: str, array: NDArray[Any], multiple: int) -> int:
    """The length of the last axis, which must be a multiple of ``multiple``."""
    if array.ndim == 0 or array.shape[-1] % multiple:
        raise ValueError(f"{name} must have a last axis that is a multiple of {multiple}, not shape {array.shape}")
    return int(array.shape[-1])


def _matrix(name: str, array: NDArray[Any]) -> tuple[int, ...]:
    """The shape of an array of two or more dimensions."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(array).__name__}")
    if array.ndim < 2:
        raise ValueError(f"{name} must have 2 dimensions or more, not shape {array.shape}")
    return array.shape
