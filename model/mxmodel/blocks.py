"""A [P, F] tensor as a grid of MX blocks: 8 partitions by 4 elements of the free dimension under one scale (E-2)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.chunks import CHUNK, Part, chunks
from mxmodel.formats import MX_BLOCK

__all__ = ["block_chunks", "block_grid", "rows_of_blocks", "scale_of_columns"]


def block_grid(shape: tuple[int, ...], *, name: str = "x") -> tuple[int, int]:
    """The shape [P/8, F/4] of the scale grid of a tensor of ``shape``.

    Raises ValueError unless ``shape`` is [P, F], P % 8 == 0, F % 4 == 0; ``name`` is what the message calls the tensor.
    """
    if len(shape) != 2 or shape[0] % MX_BLOCK.rows or shape[1] % MX_BLOCK.columns:
        raise ValueError(
            f"{name} must be [P, F] with P % {MX_BLOCK.rows} == 0 and F % {MX_BLOCK.columns} == 0, not shape {shape}"
        )
    return shape[0] // MX_BLOCK.rows, shape[1] // MX_BLOCK.columns


def block_chunks(grid: tuple[int, ...]) -> Iterator[tuple[Part, Part]]:
    """Cut a tensor whose scale grid has the shape ``grid`` into whole blocks: (part of the grid, part of it)."""
    for rows, columns in chunks(grid, size=CHUNK // MX_BLOCK.size):
        yield (rows, columns), (_stretch(rows, MX_BLOCK.rows), _stretch(columns, MX_BLOCK.columns))


def _stretch(cut: slice, factor: int) -> slice:
    return slice(cut.start * factor, cut.stop * factor)


def rows_of_blocks(tensor: NDArray[Any]) -> NDArray[Any]:
    """[P, F] seen as [P/8, 8, F], against which ``scale_of_columns`` broadcasts."""
    partitions, free = tensor.shape
    return tensor.reshape(partitions // MX_BLOCK.rows, MX_BLOCK.rows, free)


def scale_of_columns(scale: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The scale grid [P/8, F/4] as [P/8, 1, F]: one scale byte for every column of every row of blocks.

    The long last axis is what keeps NumPy's broadcasting fast; broadcasting over 4 columns would not be.
    """
    return np.repeat(scale, MX_BLOCK.columns, axis=1)[:, np.newaxis, :]
