"""A matrix product of two tensors of files, some rows of the result at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.accumulation import Accumulation
from mxmodel.bad_input import BadInput
from mxmodel.files.arrangement import Arrangement, Layout
from mxmodel.files.mx_file import StoredMx
from mxmodel.files.tensor_files import NamedTensor
from mxmodel.files.windowed import as_fp32
from mxmodel.formats import MX_BLOCK, SourceFormat
from mxmodel.layout import LANES
from mxmodel.pe_array import PE_COLUMNS, matmul, matmul_mx
from mxmodel.quantize import MxTensor

__all__ = ["ProductSummary", "WindowedProduct", "float_product", "mx_product"]

_Multiply = Callable[[range, Accumulation, SourceFormat], NDArray[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class WindowedProduct:
    """A product that has not been computed yet.

    Attributes
    ----------
    operands : names of the stationary and the moving tensor
    rules : the rule sets of the operands, as text
    contraction : K, padding not counted
    shape : of the result: stationary columns, moving columns
    multiply : computes some rows of the result; called by ``pieces``
    """

    operands: tuple[str, str]
    rules: str
    contraction: int
    shape: tuple[int, int]
    multiply: _Multiply

    def pieces(self, accumulation: Accumulation, dst: SourceFormat) -> Iterator[tuple[range, NDArray[Any]]]:
        """The rows of the result and their values, an instruction's width of stationary columns at a time.

        Cutting the stationary columns changes no value (M-7).
        """
        for first in range(0, self.shape[0], PE_COLUMNS):
            rows = range(first, min(first + PE_COLUMNS, self.shape[0]))
            yield rows, self.multiply(rows, accumulation, dst)


def mx_product(stationary: StoredMx, moving: StoredMx) -> WindowedProduct:
    """The product of two MX tensors of files by ``matmul_mx`` (M-3).

    Raises
    ------
    BadInput if their contraction lengths differ, or their k lie in another order (L-5: both operands must agree)
    """
    arrangements = stationary.record.arrangement, moving.record.arrangement
    if arrangements[0].contraction != arrangements[1].contraction:
        raise BadInput(
            f"{moving.file}::{moving.name}: wanted K = {arrangements[0].contraction} of {stationary.name}, "
            f"found K = {arrangements[1].contraction} (axis {arrangements[1].axis} of {arrangements[1].shape})"
        )
    if _contraction_order(arrangements[0].layout) is not _contraction_order(arrangements[1].layout):
        raise BadInput(
            f"{moving.file}::{moving.name}: wanted the order of k of layout {arrangements[0].layout.value}, as "
            f"{stationary.name} has it, found layout {arrangements[1].layout.value} (L-5)"
        )
    left, right = stationary.tensor(), moving.tensor()

    def multiply(rows: range, accumulation: Accumulation, dst: SourceFormat) -> NDArray[Any]:
        part = MxTensor(
            codes=left.codes[:, rows.start * MX_BLOCK.columns : rows.stop * MX_BLOCK.columns],
            scale=left.scale[:, rows.start : rows.stop],
            element=left.element,
            rules=left.rules,
        )
        return matmul_mx(part, right, accumulation=accumulation, dst=dst)

    return WindowedProduct(
        operands=(stationary.name, moving.name),
        rules=", ".join(dict.fromkeys((left.rules.name, right.rules.name))),
        contraction=_contraction_length(arrangements[0]),
        shape=(left.scale.shape[1], right.scale.shape[1]),
        multiply=multiply,
    )


def float_product(
    stationary: NamedTensor, moving: NamedTensor, stationary_axis: int, moving_axis: int
) -> WindowedProduct:
    """The dense product of two float tensors by ``matmul`` (M-2), contracted over an axis of each.

    Raises
    ------
    BadInput if there is no such axis, or the contraction lengths differ
    """
    left, right = _matrix(stationary, stationary_axis), _matrix(moving, moving_axis)
    if left.shape[0] != right.shape[0]:
        raise BadInput(
            f"{moving.file}::{moving.name}: wanted K = {left.shape[0]} of {stationary.name}, "
            f"found K = {right.shape[0]} (axis {moving_axis} of {moving.values.shape})"
        )

    def multiply(rows: range, accumulation: Accumulation, dst: SourceFormat) -> NDArray[Any]:
        return matmul(left[:, rows.start : rows.stop], right, accumulation=accumulation, dst=dst)

    return WindowedProduct(
        operands=(stationary.name, moving.name),
        rules="none, dense floats",
        contraction=left.shape[0],
        shape=(left.shape[1], right.shape[1]),
        multiply=multiply,
    )


def _contraction_length(arrangement: Arrangement) -> int:
    """K; of a tile it is partitions times lanes, for a tile is swizzled already."""
    return arrangement.contraction * (LANES if arrangement.layout is Layout.TILE else 1)


def _contraction_order(layout: Layout) -> Layout:
    """Layouts that put the same k in the same partition and lane have the same one."""
    return Layout.K_1X32 if layout.in_tensor_order else layout


def _matrix(tensor: NamedTensor, axis: int) -> NDArray[np.float32]:
    """[K, N] with K along ``axis`` of the tensor."""
    values = tensor.values
    if not -values.ndim <= axis < values.ndim:
        raise BadInput(f"{tensor.file}::{tensor.name}: wanted an axis {axis} to contract, found shape {values.shape}")
    return as_fp32(np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1))


class ProductSummary:
    """What can be said of a result in two lines: its range, its first values and its NaNs."""

    def __init__(self) -> None:
        self.smallest = inf
        self.largest = -inf
        self.nan = 0
        self.first: list[float] = []

    def add(self, piece: NDArray[np.float32]) -> None:
        """The next rows of the result, float32 [rows, N]."""
        if not self.first:
            self.first = [float(value) for value in piece.reshape(-1)[:4]]
        nan = np.isnan(piece)
        self.nan += int(nan.sum())
        if not nan.all():
            self.smallest = min(self.smallest, float(piece[~nan].min()))
            self.largest = max(self.largest, float(piece[~nan].max()))

    def rows(self) -> list[tuple[str, str]]:
        """Labels and texts."""
        return [
            ("first values", ", ".join(f"{value:.7g}" for value in self.first)),
            ("range", f"{self.smallest:.7g} .. {self.largest:.7g}"),
            ("NaN", f"{self.nan:,}"),
        ]

    def plain(self) -> dict[str, object]:
        """For JSON; numbers as text, for JSON has no Inf."""
        return {
            "first": [str(value) for value in self.first],
            "smallest": str(self.smallest),
            "largest": str(self.largest),
            "nan": self.nan,
        }
