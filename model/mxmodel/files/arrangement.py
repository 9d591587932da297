"""How a tensor of any shape becomes the [P, F] array that a block operation takes, a window at a time.

One axis of the tensor is the contraction axis K; the others, in their order, are the columns N of a matrix [K, N]. The
layout then says where (k, n) goes in [P, F] (L-5), and so which 32 elements share a scale.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import MX_BLOCK
from mxmodel.layout import Swizzle, swizzle, unswizzle

__all__ = ["Arrangement", "Layout", "Window"]

_WINDOW_ELEMENTS = 1 << 20
_INTERLEAVE = MX_BLOCK.columns
"""Contraction indices that a swizzle puts side by side in the free dimension."""


class Layout(Enum):
    """Where element (k, n) of the matrix lies in [P, F], and in what order a file holds the codes."""

    TILE = "tile"
    """The matrix is [P, F] as it is: a block is 8 rows by 4 columns."""
    K_1X32 = "1x32"
    """Swizzled: a block is 32 consecutive k of one column; codes are stored as [P, F]."""
    K_WRAP = "wrap"
    """Swizzled: a block is 4 runs of 8 k, a quarter of K apart; codes are stored as [P, F]."""
    OCP = "ocp"
    """Blocks as in 1x32 along the last axis; codes are stored in the tensor's own order, scales as [..., K/32]."""
    GPT_OSS = "gpt_oss"
    """As OCP, FP4 only, two codes to a byte: blocks [..., K/32, 16], scales [..., K/32] (L-8)."""

    @property
    def in_tensor_order(self) -> bool:
        """Whether codes are stored along the tensor's last axis, not as [P, F]."""
        return self in (Layout.OCP, Layout.GPT_OSS)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A part of the [P, F] array, whole blocks.

    Attributes
    ----------
    partitions : of P; starts and ends on multiples of 8
    columns : of the matrix's N
    quarter : in a wrap layout, which quarter of the K rows is wanted; None: all
    """

    partitions: range
    columns: range
    quarter: int | None = None


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """A tensor's shape, its contraction axis and a layout; every other size follows.

    Attributes
    ----------
    layout : where (k, n) goes
    axis : the contraction axis, counted from the front; the last one where codes are stored in the tensor's order
    shape : the tensor's true shape, before padding; two axes or more
    """

    layout: Layout
    axis: int
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) < 2 or 0 in self.shape:
            raise ValueError(f"shape must have two axes or more and no empty one, not {self.shape}")
        if not 0 <= self.axis < len(self.shape):
            raise ValueError(f"axis must be in 0..{len(self.shape) - 1} for shape {self.shape}, not {self.axis!r}")
        if self.layout.in_tensor_order and self.axis != len(self.shape) - 1:
            raise ValueError(f"axis must be the last one in layout {self.layout.value}, not {self.axis}")

    @property
    def contraction(self) -> int:
        """K, the rows of the matrix."""
        return self.shape[self.axis]

    @property
    def columns(self) -> int:
        """N, the columns of the matrix."""
        return prod(self.shape) // self.contraction

    @property
    def padded_contraction(self) -> int:
        """K rounded up to whole blocks."""
        return _round_up(self.contraction, MX_BLOCK.rows * self._k_per_partition)

    @property
    def codes_shape(self) -> tuple[int, int]:
        """[P, F], padding included."""
        return self.padded_contraction // self._k_per_partition, self.free(self.columns)

    @property
    def scale_shape(self) -> tuple[int, int]:
        """[P/8, F/4]."""
        partitions, free = self.codes_shape
        return partitions // MX_BLOCK.rows, free // MX_BLOCK.columns

    @property
    def padding(self) -> int:
        """Elements of [P, F] that are not the tensor's."""
        return prod(self.codes_shape) - prod(self.shape)

    @property
    def block_multiples(self) -> str:
        """In words, the lengths that need no padding."""
        if self.layout is Layout.TILE:
            return f"P % {MX_BLOCK.rows} == 0 and F % {MX_BLOCK.columns} == 0"
        return f"K % {MX_BLOCK.size} == 0 along axis {self.axis}"

    def free(self, column: int) -> int:
        """The free index at which a column that starts a block lies; of the number of columns, F."""
        if self.layout is Layout.TILE:
            return _round_up(column, MX_BLOCK.columns)
        return column * _INTERLEAVE

    def block_place(self, row: int, column: int) -> str:
        """In words, which elements the block at (row, column) of the scale grid holds."""
        first = row * MX_BLOCK.rows
        if self.layout is Layout.TILE:
            free = column * MX_BLOCK.columns
            return f"partitions {first}..{first + MX_BLOCK.rows - 1}, free {free}..{free + MX_BLOCK.columns - 1}"
        if self.layout is Layout.K_WRAP:
            quarter = self.padded_contraction // _INTERLEAVE
            return f"k {first}..{first + MX_BLOCK.rows - 1} and as many every {quarter} k, column {column}"
        return f"k {first * _INTERLEAVE}..{first * _INTERLEAVE + MX_BLOCK.size - 1}, column {column}"

    @property
    def _k_per_partition(self) -> int:
        return 1 if self.layout is Layout.TILE else _INTERLEAVE

    @property
    def _before(self) -> int:
        return prod(self.shape[: self.axis])

    @property
    def _after(self) -> int:
        return prod(self.shape[self.axis + 1 :])

    def everything(self) -> Window:
        """The whole array as one window."""
        return Window(partitions=range(self.codes_shape[0]), columns=range(self.columns))

    def storage_windows(self) -> Iterator[Window]:
        """Windows in the order in which codes are stored."""
        return self._column_windows() if self.layout.in_tensor_order else self._partition_windows()

    def tensor_windows(self) -> Iterator[Window]:
        """Windows whose ``spread`` pieces, one after another, are the tensor in C order."""
        if self._before > 1:
            yield from self._column_windows()
        elif self.layout is not Layout.K_WRAP:
            yield from self._partition_windows()
        else:
            for quarter in range(_INTERLEAVE):
                for window in self._partition_windows():
                    yield Window(partitions=window.partitions, columns=window.columns, quarter=quarter)

    def _partition_windows(self) -> Iterator[Window]:
        partitions, free = self.codes_shape
        step = max(1, _WINDOW_ELEMENTS // (free * MX_BLOCK.rows)) * MX_BLOCK.rows
        for first in range(0, partitions, step):
            yield Window(partitions=range(first, min(first + step, partitions)), columns=range(self.columns))

    def _column_windows(self) -> Iterator[Window]:
        partitions, _ = self.codes_shape
        # Whole steps of the axes before K, and in a tile whole blocks.
        group = self._after
        if self.layout is Layout.TILE:
            group *= MX_BLOCK.columns // gcd(group, MX_BLOCK.columns)
        step = max(1, _WINDOW_ELEMENTS // (self.padded_contraction * group)) * group
        for first in range(0, self.columns, step):
            yield Window(partitions=range(partitions), columns=range(first, min(first + step, self.columns)))

    def gather(self, values: NDArray[Any], window: Window) -> NDArray[Any]:
        """The part of the [P, F] array of tensor ``values`` that ``window`` names, zeros where it is padding."""
        first, stop = window.partitions.start, window.partitions.stop
        if self.layout is Layout.TILE:
            return self._rows(values, first, stop, window.columns)
        if self.layout is Layout.K_WRAP:
            quarter = self.padded_contraction // _INTERLEAVE
            runs = [self._rows(values, q * quarter + first, q * quarter + stop, window.columns) for q in range(4)]
            return swizzle(np.concatenate(runs), Swizzle.WRAP)
        rows = self._rows(values, first * _INTERLEAVE, stop * _INTERLEAVE, window.columns)
        return swizzle(rows, Swizzle.K_1X32)

    def spread(self, values: NDArray[Any], window: Window) -> NDArray[Any]:
        """The tensor's elements that ``window`` covers, in the tensor's own order, from ``values`` of the window.

        The inverse of ``gather`` for the windows of ``tensor_windows``; padding is dropped.
        """
        first = window.partitions.start * self._k_per_partition
        if self.layout is Layout.TILE:
            matrix = values
        elif self.layout is Layout.K_WRAP:
            matrix = unswizzle(values, Swizzle.WRAP)
            if window.quarter is not None:
                rows = len(window.partitions)
                matrix = matrix[window.quarter * rows : (window.quarter + 1) * rows]
                first = window.quarter * self.padded_contraction // _INTERLEAVE + window.partitions.start
        else:
            matrix = unswizzle(values, Swizzle.K_1X32)
        matrix = matrix[: max(0, self.contraction - first), : len(window.columns)]
        if self._before == 1:
            return matrix
        return matrix.reshape(matrix.shape[0], -1, self._after).transpose(1, 0, 2)

    def _rows(self, values: NDArray[Any], first: int, stop: int, columns: range) -> NDArray[Any]:
        """Rows ``first`` to ``stop`` of the matrix, those columns, with zeros past the tensor's end."""
        cube = values.reshape(self._before, self.contraction, self._after)
        inside = slice(min(first, self.contraction), min(stop, self.contraction))
        if self._before == 1:
            part = cube[0, inside, columns.start : columns.stop]
        else:
            part = cube[columns.start // self._after : columns.stop // self._after, inside, :]
            part = part.transpose(1, 0, 2).reshape(inside.stop - inside.start, len(columns))
        width = _round_up(len(columns), MX_BLOCK.columns) if self.layout is Layout.TILE else len(columns)
        if part.shape == (stop - first, width):
            return part
        padded = np.zeros((stop - first, width), dtype=values.dtype)
        padded[: part.shape[0], : part.shape[1]] = part
        return padded


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
