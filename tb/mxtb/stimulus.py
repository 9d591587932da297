"""What the twins are driven with: every place where the contract has an edge, then seeded random.

Directed sets are built from the format descriptors: all codes, all ties and roundings ± 1 ulp, every binade edge,
specials with payload bits. Values and rounding boundaries of the elements come from exact rationals.
"""

from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, FP32, MX_BLOCK, ElementFormat, SourceFormat

__all__ = [
    "EDGE_SCALES",
    "all_codes",
    "blocks",
    "boundaries",
    "codes_and_scales",
    "every_pattern",
    "exponents_and_scales",
    "random_values",
    "scaled_values",
    "specials",
    "values",
]

_REACH = 20
"""Binades on either side of 1 that value-space random covers: past the grid of every element, E5M2's included."""

_SUBNORMALS = 1 / 8
"""Share of the value-space random that is subnormal."""

_LOW_SCALES = 24
"""Scales below this bring a subnormal fp32 into the reach of an element."""

_SHARE_AT_EDGE, _SHARE, _SHARE_OF_SPECIALS = 13, 31, 8
"""Of the directed pairs with a scale, one in so many is taken: of an element's boundaries at an edge scale and
elsewhere, of specials elsewhere. Boundaries are in turn an even code, a tie that goes down, an odd code and a tie that
goes up: the shares of boundaries are odd, so that every scale sees all four."""

_SIGN_EVERY = 8
"""The sign of an exponent that is alone in its lane changes after so many exponents, so that every lane holds both."""

_FEW = 32
"""An element with no more boundaries (FP4) has all of them at an edge scale."""

Bits = NDArray[np.unsignedinteger]

EDGE_SCALES = (0, 1, 2, 3, 118, 119, 126, 127, 128, 246, 247, 252, 253, 254, 255)
"""Scales at which some rule changes, and their neighbours."""


def _bits_dtype(source: SourceFormat) -> np.dtype[np.unsignedinteger]:
    return np.dtype(f"uint{source.width}")


def element_grid(element: ElementFormat) -> list[Fraction]:
    """Values of the finite codes of sign 0, ascending (F-1)."""
    grid = []
    for code in range(element.max_normal_code + 1):
        field, trailing = code >> element.trailing_bits, code & element.trailing_mask
        significand = trailing if field == 0 else trailing + (1 << element.trailing_bits)
        weight = max(field, 1) - element.bias - element.trailing_bits
        grid.append(Fraction(significand) * Fraction(2) ** weight)
    return grid


def boundaries(element: ElementFormat) -> list[Fraction]:
    """Every value of the grid, every tie between two of them, and what lies past the top: ascending, positive."""
    grid = element_grid(element)
    top_step = grid[-1] - grid[-2]
    points = [*grid, grid[-1] + top_step, grid[-1] + 2 * top_step]
    ties = [(low + high) / 2 for low, high in pairwise(points)]
    return sorted(set(points[1:] + ties))


def encode(value: Fraction, source: SourceFormat) -> int | None:
    """Bits of a positive ``value`` in ``source``, or None where it is not exact or out of range."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, 1 - source.bias)
    significand = value / Fraction(2) ** (exponent - source.trailing_bits)
    if significand.denominator != 1 or exponent > source.bias:
        return None
    hidden = 1 << source.trailing_bits
    field = exponent + source.bias if significand >= hidden else 0
    return (field << source.trailing_bits) | (int(significand) & (hidden - 1))


def _with_neighbours(magnitudes: Iterable[int], source: SourceFormat, reach: int = 1) -> Bits:
    """Magnitudes and those up to ``reach`` ulp away, with both signs, each once."""
    centre = np.fromiter(magnitudes, dtype=np.int64)
    near = (centre[:, None] + np.arange(-reach, reach + 1)).reshape(-1)
    near = np.unique(near[(near >= 0) & (near <= source.infinity_bits)])
    return _both_signs(near, source)


def _both_signs(magnitudes: NDArray[np.int64], source: SourceFormat) -> Bits:
    return np.concatenate([magnitudes, magnitudes | (1 << (source.width - 1))]).astype(_bits_dtype(source))


def every_pattern(source: SourceFormat) -> Bits:
    """All 2^width patterns, for a source of few bits."""
    return np.arange(1 << source.width, dtype=_bits_dtype(source))


def specials(source: SourceFormat) -> Bits:
    """Zeros, subnormal edges, max-normal, Inf, and NaNs with every single payload bit, of both signs."""
    payloads = [source.infinity_bits | (1 << bit) for bit in range(source.trailing_bits)]
    single = [1 << bit for bit in range(source.trailing_bits)]
    magnitudes = [
        0, 1, source.trailing_mask, source.trailing_mask + 1, *single,
        source.infinity_bits - 1, source.infinity_bits, source.infinity_bits | source.trailing_mask, *payloads,
    ]  # fmt: skip
    return _both_signs(np.unique(np.array(magnitudes, dtype=np.int64)), source)


def binade_edges(source: SourceFormat) -> Bits:
    """The first value of every binade ± 1 ulp, of both signs."""
    fields = range(source.max_biased_exponent + 1)
    return _with_neighbours((field << source.trailing_bits for field in fields), source)


def values(source: SourceFormat, elements: Iterable[ElementFormat]) -> Bits:
    """Directed inputs of an unscaled encoder: boundaries of ``elements`` ± 2 ulp, binade edges, specials."""
    exact = [encode(value, source) for element in elements for value in boundaries(element)]
    near = _with_neighbours((bits for bits in exact if bits is not None), source, reach=2)
    return np.unique(np.concatenate([near, binade_edges(source), specials(source)]))


def landmarks(element: ElementFormat) -> list[Fraction]:
    """The boundaries at which a class of codes begins or ends: about zero, about min-normal, about max-normal."""
    points = boundaries(element)
    low = points.index(Fraction(2) ** element.min_exponent)
    return sorted({*points[:3], *points[low - 3 : low + 2], *points[-7:]})


def meeting_scale(source: SourceFormat, element: ElementFormat) -> int:
    """The scale byte under which the smallest normal value of ``source`` is that of ``element``."""
    return min(max(E8M0.bias + 1 - source.bias - element.min_exponent, 0), E8M0.max_byte)


def scaled_values(source: SourceFormat, elements: Iterable[ElementFormat]) -> tuple[Bits, NDArray[np.uint8]]:
    """Directed (x, scale) pairs: specials and boundaries ± 1 ulp at every scale, short subnormals at low ones.

    At ``EDGE_SCALES``, and where the subnormals of source and element meet, all specials, the landmarks and one
    boundary in thirteen are taken; at the others a thinner share, different ones at each scale: a scale only moves the
    exponent, so that many scales together show all of them many times.
    """
    elements = tuple(elements)
    exact = [(boundaries(element), landmarks(element)) for element in elements]
    edges = {*EDGE_SCALES, *(meeting_scale(source, element) for element in elements)}
    fixed = specials(source)
    short = np.array(sorted({n << k & source.trailing_mask for n in range(16) for k in range(source.trailing_bits)}))
    short = _both_signs(short, source)
    xs, scales = [], []
    for scale in range(1 << E8M0.width):
        at_edge = scale in edges
        chosen: set[Fraction] = set()
        for points, always in exact:
            if at_edge:
                share = 1 if len(points) <= _FEW else _SHARE_AT_EDGE
                chosen.update(points[scale % share :: share], always)
            else:
                chosen.update(points[scale % _SHARE :: _SHARE])
        factor = Fraction(2) ** (scale - E8M0.bias)
        shifted = (encode(value * factor, source) for value in sorted(chosen))
        near = _with_neighbours((bits for bits in shifted if bits is not None), source)
        chosen_specials = fixed if at_edge else fixed[scale % _SHARE_OF_SPECIALS :: _SHARE_OF_SPECIALS]
        both = np.concatenate([near, chosen_specials, short if scale < _LOW_SCALES else short[:0]])
        xs.append(both)
        scales.append(np.full(both.size, scale, dtype=np.uint8))
    return np.concatenate(xs), np.concatenate(scales)


def exponents_and_scales(source: SourceFormat, rng: np.random.Generator) -> tuple[Bits, NDArray[np.uint8]]:
    """Every biased exponent at every scale, once: (x, scale), with random signs and trailing significands."""
    fields, scales = np.meshgrid(np.arange(source.max_biased_exponent + 1), np.arange(1 << E8M0.width), indexing="ij")
    trailing = rng.integers(0, source.trailing_mask + 1, size=fields.shape, dtype=np.int64)
    signs = rng.integers(0, 2, size=fields.shape, dtype=np.int64) << (source.width - 1)
    x = (signs | fields << source.trailing_bits | trailing).astype(_bits_dtype(source))
    return x.reshape(-1), scales.reshape(-1).astype(np.uint8)


def random_values(source: SourceFormat, count: int, rng: np.random.Generator) -> Bits:
    """Half uniform over bit patterns, half in value space: what the elements can hold, and a little beyond.

    Of the latter some are subnormals of every size, which uniform patterns of a wide source all but miss.
    """
    dtype = _bits_dtype(source)
    patterns = rng.integers(0, 1 << source.width, size=count - count // 2, dtype=np.uint64).astype(dtype)
    fields = rng.integers(source.bias - _REACH, source.bias + _REACH, size=count // 2, dtype=np.int64)
    fields = np.clip(fields, 0, source.max_biased_exponent)
    trailing = rng.integers(0, source.trailing_mask + 1, size=count // 2, dtype=np.int64)
    # Few significant bits make exact ties and exact grid values frequent.
    kept = rng.integers(0, source.trailing_bits + 1, size=count // 2, dtype=np.int64)
    trailing = trailing >> kept << kept
    subnormal = rng.random(count // 2) < _SUBNORMALS
    size = rng.integers(0, source.trailing_bits, size=count // 2, dtype=np.int64)
    fields, trailing = np.where(subnormal, 0, fields), np.where(subnormal, trailing >> size, trailing)
    signs = rng.integers(0, 2, size=count // 2, dtype=np.int64) << (source.width - 1)
    mixed = np.concatenate([patterns, (signs | fields << source.trailing_bits | trailing).astype(dtype)])
    return rng.permutation(mixed)


def random_scales(x: Bits, source: SourceFormat, rng: np.random.Generator) -> NDArray[np.uint8]:
    """For each x a scale: mostly within reach of it, so that the result is no zero and no maximum; else any."""
    fields = (x >> x.dtype.type(source.trailing_bits)).astype(np.int64) & source.max_biased_exponent
    exponent = np.maximum(fields, 1) - source.bias + FP32.bias
    near = np.clip(exponent + rng.integers(-18, 20, size=x.size), 0, E8M0.max_byte)
    anywhere = rng.integers(0, E8M0.max_byte + 1, size=x.size)
    return np.where(rng.random(x.size) < 0.75, near, anywhere).astype(np.uint8)


def all_codes(width: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Every code of ``width`` bits at every scale: (codes, scales), each 2^(width + 8) long."""
    codes, scales = np.meshgrid(
        np.arange(1 << width, dtype=np.uint8), np.arange(1 << E8M0.width, dtype=np.uint8), indexing="ij"
    )
    return codes.reshape(-1), scales.reshape(-1)


def codes_and_scales(width: int, count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """``count`` random (code, scale) pairs."""
    codes = rng.integers(0, 1 << width, size=count, dtype=np.uint8)
    return codes, rng.integers(0, 1 << E8M0.width, size=count, dtype=np.uint8)


def blocks(source: SourceFormat, count: int, rng: np.random.Generator, *, lane_stride: int = 1) -> Bits:
    """Blocks [cases, 32]: exponents alone in their lanes and in several, specials everywhere, ``count`` random ones.

    An exponent, or a special among zeros, is put into every ``lane_stride``-th lane, beginning at another one for each,
    so that all lanes see an exponent of every size.
    """
    size = MX_BLOCK.size
    dtype = _bits_dtype(source)
    field = np.repeat(np.arange(source.max_biased_exponent + 1, dtype=np.int64), size // lane_stride)
    place = np.arange(field.size)
    alone = _below(field, source, rng)
    # One lane holds the exponent, the others anything smaller: the maximum must come from that lane.
    trailing = rng.integers(0, source.trailing_mask + 1, size=field.size)
    signs = rng.integers(0, 2, size=alone.shape)
    lane = (place * lane_stride + field) % size
    alone[place, lane] = field << source.trailing_bits | trailing
    signs[place, lane] = field // _SIGN_EVERY % 2
    alone |= signs << (source.width - 1)
    special = specials(source)
    same = np.repeat(special[:, None], size, axis=1)
    lanes = size // lane_stride
    one = np.zeros((special.size * lanes, size), dtype=dtype)
    row = np.arange(len(one))
    one[row, (row * lane_stride + row // lanes) % size] = special.repeat(lanes)
    several = [_tied_blocks(source, rng), _non_finite_blocks(source)]
    return np.concatenate([alone.astype(dtype), same, one, *several, random_blocks(source, count, rng)])


def _below(field: NDArray[np.int64], source: SourceFormat, rng: np.random.Generator) -> NDArray[np.int64]:
    """Magnitudes [cases, 32] whose biased exponents are less than ``field`` [cases] (0 where that is 0)."""
    shape = (field.size, MX_BLOCK.size)
    exponents = rng.integers(0, 1 << 30, size=shape) % np.maximum(field, 1)[:, None]
    return exponents << source.trailing_bits | rng.integers(0, source.trailing_mask + 1, size=shape)


def _tied_blocks(source: SourceFormat, rng: np.random.Generator) -> Bits:
    """Blocks whose largest exponent, each in turn, is held by two lanes, by seven and by all, first by either sign."""
    size = MX_BLOCK.size
    field = np.arange(source.max_biased_exponent + 1, dtype=np.int64)
    parts = []
    for index, holders in enumerate((2, 7, size)):
        magnitudes = _below(field, source, rng)
        # Lane i holds the exponent where its place in an order that is each block's own is among the first.
        holds = rng.permuted(np.tile(np.arange(size), (field.size, 1)), axis=1) < holders
        trailing = rng.integers(0, source.trailing_mask + 1, size=magnitudes.shape)
        magnitudes = np.where(holds, field[:, None] << source.trailing_bits | trailing, magnitudes)
        signs = rng.integers(0, 2, size=magnitudes.shape)
        signs[field, holds.argmax(axis=1)] = index % 2
        parts.append(magnitudes | signs << (source.width - 1))
    return np.concatenate(parts).astype(_bits_dtype(source))


def _non_finite_blocks(source: SourceFormat) -> Bits:
    """Blocks with so many Infs and so many NaNs among finite values, the first of either sign."""
    size = MX_BLOCK.size
    counts = (
        (1, 0),
        (2, 0),
        (7, 0),
        (size, 0),
        (0, 1),
        (0, 2),
        (0, 7),
        (0, size),
        (1, 1),
        (4, 3),
        (size // 2, size // 2),
    )
    one = source.bias << source.trailing_bits
    rows = []
    for index, (infinities, nans) in enumerate(counts):
        row = np.full(size, one, dtype=np.int64)
        row[:infinities] = source.infinity_bits
        row[infinities : infinities + nans] = source.infinity_bits | 1 << index % source.trailing_bits
        rows += [np.roll(row, 3 * index), np.roll(row | 1 << (source.width - 1), 5 * index)]
    return np.array(rows, dtype=_bits_dtype(source))


def random_blocks(source: SourceFormat, count: int, rng: np.random.Generator) -> Bits:
    """``count`` blocks whose largest exponent is spread over the whole range, zeros and subnormals among them."""
    size = MX_BLOCK.size
    ceiling = rng.integers(0, source.max_biased_exponent + 1, size=(count, 1))
    spread = rng.integers(0, 12, size=(count, size))
    fields = np.maximum(ceiling - spread, 0)
    trailing = rng.integers(0, source.trailing_mask + 1, size=(count, size))
    # Subnormals of every size: widened from a short source they differ in exponent.
    smaller = rng.integers(0, source.trailing_bits + 1, size=(count, size))
    bits = fields << source.trailing_bits | np.where(fields == 0, trailing >> smaller, trailing)
    bits |= rng.integers(0, 2, size=(count, size)) << (source.width - 1)
    return np.asarray(bits, dtype=_bits_dtype(source))
