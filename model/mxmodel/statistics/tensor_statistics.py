"""What quantising did to a tensor: counts, errors and the worst block, gathered a window at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, MX_BLOCK, ElementFormat
from mxmodel.quantize import MxTensor, dequantize_mx
from mxmodel.rules import RuleSet
from mxmodel.statistics.error_sums import ErrorSums

__all__ = ["RELATIVE_ERROR_EDGES", "SourceStatistics", "TensorStatistics", "WorstBlock"]

RELATIVE_ERROR_EDGES = np.arange(-16.0, 1.01, 0.25)
"""Of the histogram of log2 |error / source|; 0 is an element that became zero."""

_MAP_SIDE = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class WorstBlock:
    """The block with the largest squared error.

    Attributes
    ----------
    row, column : its place in the scale grid
    scale : its E8M0 byte
    squared_error : summed over its finite elements
    source, values : float32 [8, 4], before and after
    codes : uint8 [8, 4]
    """

    row: int
    column: int
    scale: int
    squared_error: float
    source: NDArray[np.float32]
    values: NDArray[np.float32]
    codes: NDArray[np.uint8]


class SourceStatistics(ErrorSums):
    """What can be said only beside the source values: errors, and what was lost.

    The errors are those of ``ErrorSums``.

    Attributes
    ----------
    nan, infinite : such values in the source
    flushed : source not zero, code ±0
    saturated : source infinite or beyond the block's largest value, so ±max-normal was written
    relative_errors : counts by ``RELATIVE_ERROR_EDGES``, the first and last bins open
    worst : the block with the largest squared error; None where every error is zero
    """

    def __init__(self) -> None:
        super().__init__()
        self.nan = 0
        self.infinite = 0
        self.flushed = 0
        self.saturated = 0
        self.relative_errors = np.zeros(len(RELATIVE_ERROR_EDGES) - 1, dtype=np.int64)
        self.worst: WorstBlock | None = None

    def add(
        self, source: NDArray[np.float32], chunk: MxTensor, values: NDArray[np.float32], row: int, column: int
    ) -> None:
        """Count one window: ``source`` and ``values`` [P, F]; its first block is at (row, column) of the grid."""
        magnitudes = chunk.codes & np.uint8(chunk.element.sign_bit - 1)
        self.nan += int(np.isnan(source).sum())
        self.infinite += int(np.isinf(source).sum())
        self.flushed += int(((magnitudes == 0) & (source != 0) & ~np.isnan(source)).sum())
        at_limit = magnitudes == chunk.element.max_normal_code
        beyond = np.isinf(source) | (np.abs(source) > np.abs(values))
        self.saturated += int((at_limit & beyond).sum())
        signal, error = self.compare(source, values)
        defined = (error > 0) & (signal != 0)
        relative = np.log2(error[defined] / np.abs(signal[defined]))
        inside = np.clip(relative, RELATIVE_ERROR_EDGES[0], RELATIVE_ERROR_EDGES[-1])
        self.relative_errors += np.histogram(inside, bins=RELATIVE_ERROR_EDGES)[0]
        self._keep_worst(source, chunk, values, error * error, row, column)

    def _keep_worst(
        self,
        source: NDArray[np.float32],
        chunk: MxTensor,
        values: NDArray[np.float32],
        squared: NDArray[np.float64],
        row: int,
        column: int,
    ) -> None:
        rows, columns = chunk.scale.shape
        blocks = squared.reshape(rows, MX_BLOCK.rows, columns, MX_BLOCK.columns).sum(axis=(1, 3))
        r, c = divmod(int(blocks.argmax()), columns)
        if blocks[r, c] <= (self.worst.squared_error if self.worst else 0.0):
            return
        block = (
            slice(r * MX_BLOCK.rows, (r + 1) * MX_BLOCK.rows),
            slice(c * MX_BLOCK.columns, (c + 1) * MX_BLOCK.columns),
        )
        self.worst = WorstBlock(
            row=row + r,
            column=column + c,
            scale=int(chunk.scale[r, c]),
            squared_error=float(blocks[r, c]),
            source=source[block].copy(),
            values=values[block].copy(),
            codes=chunk.codes[block].copy(),
        )


class TensorStatistics:
    """Statistics of one MX tensor.

    Attributes
    ----------
    element, rules : of the tensor
    scale_counts : blocks by scale byte, int64 [256]
    code_counts : elements by code, int64 [2^element width]
    scale_map : the scale grid, each cell the largest byte of ``map_step`` (rows, columns) blocks, uint8
    source : errors against the source; None where there was none to compare with
    """

    def __init__(self, element: ElementFormat, rules: RuleSet, scale_shape: tuple[int, int]) -> None:
        self.element = element
        self.rules = rules
        self.scale_counts = np.zeros(E8M0.max_byte + 1, dtype=np.int64)
        self.code_counts = np.zeros(element.code_count, dtype=np.int64)
        self.map_step = tuple(-(-length // _MAP_SIDE) for length in scale_shape)
        cells = [-(-length // step) for length, step in zip(scale_shape, self.map_step, strict=True)]
        self.scale_map = np.zeros(cells, dtype=np.uint8)
        self.source: SourceStatistics | None = None

    def add(self, chunk: MxTensor, *, row: int, column: int, source: NDArray[Any] | None = None) -> None:
        """Count one window, whose first block is at (row, column) of the scale grid; ``source`` is float32 [P, F]."""
        self.scale_counts += np.bincount(chunk.scale.reshape(-1), minlength=self.scale_counts.size)
        self.code_counts += np.bincount(chunk.codes.reshape(-1), minlength=self.code_counts.size)
        self._add_to_map(chunk.scale, row, column)
        if source is not None:
            if self.source is None:
                self.source = SourceStatistics()
            self.source.add(source, chunk, dequantize_mx(chunk), row, column)

    def drop_padding(self, elements: int) -> None:
        """Take back ``elements`` that padded the tensor: zeros, coded +0 without error."""
        self.code_counts[0] -= elements
        if self.source is not None:
            self.source.compared -= elements
            self.source.exact -= elements

    def _add_to_map(self, scale: NDArray[np.uint8], row: int, column: int) -> None:
        cells, firsts = [], []
        for start, length, step in zip((row, column), scale.shape, self.map_step, strict=True):
            cell = np.arange(start, start + length) // step
            cells.append(slice(int(cell[0]), int(cell[-1]) + 1))
            firsts.append(np.flatnonzero(np.diff(cell, prepend=-1)))
        largest = np.maximum.reduceat(np.maximum.reduceat(scale, firsts[0], axis=0), firsts[1], axis=1)
        part = self.scale_map[cells[0], cells[1]]
        np.maximum(part, largest, out=part)

    @property
    def elements(self) -> int:
        return int(self.code_counts.sum())

    @property
    def blocks(self) -> int:
        return int(self.scale_counts.sum())

    @property
    def nan_codes(self) -> int:
        """Elements whose code is a NaN, whatever their scale."""
        return sum(int(count) for code, count in enumerate(self.code_counts) if self.element.is_nan_code(code))

    @property
    def zero_codes(self) -> int:
        """Elements coded +0 or -0."""
        return int(self.code_counts[0] + self.code_counts[self.element.sign_bit])

    @property
    def at_max_normal(self) -> int:
        """Elements coded +max-normal or -max-normal, saturated or not."""
        limit = self.element.max_normal_code
        return int(self.code_counts[limit] + self.code_counts[limit | self.element.sign_bit])

    @property
    def scale_range(self) -> tuple[int, int]:
        """The smallest and the largest scale byte that occur."""
        present = np.flatnonzero(self.scale_counts)
        return int(present[0]), int(present[-1])
