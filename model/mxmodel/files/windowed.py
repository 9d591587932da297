"""A tensor of any size through the block operations, a window at a time, so that memory use stays flat."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.files.arrangement import Arrangement, Window
from mxmodel.files.mapped_pages import release_pages
from mxmodel.files.mx_file import StoredMx
from mxmodel.formats import MX_BLOCK, ElementFormat
from mxmodel.quantize import MxTensor, dequantize_mx, quantize_mx
from mxmodel.rules import RuleSet
from mxmodel.statistics.tensor_statistics import TensorStatistics
from mxmodel.widen import PrecisionWarning, fp32_bits

__all__ = [
    "RulesCompared",
    "Step",
    "as_fp32",
    "compare_rules",
    "dequantized_pieces",
    "measure",
    "measure_quantized",
    "quantized_windows",
]

Step = Callable[[int], None]
"""Told how many elements were done, after every window."""


def no_step(elements: int) -> None:
    """A ``Step`` for a caller that does not watch."""


def quantized_windows(
    values: NDArray[Any], arrangement: Arrangement, element: ElementFormat, rules: RuleSet, step: Step = no_step
) -> Iterator[tuple[Window, NDArray[np.float32], MxTensor]]:
    """Quantise ``values``, of the arrangement's shape, in the order in which a file holds the codes.

    Yields the window, its source widened or rounded to float32 (N-7) and its MX tensor, both [P, F].
    """
    for window in arrangement.storage_windows():
        source = as_fp32(arrangement.gather(values, window))
        yield window, source, quantize_mx(source, element, rules)
        release_pages(values)
        step(source.size)


def dequantized_pieces(entry: StoredMx, step: Step = no_step) -> Iterator[NDArray[np.float32]]:
    """The values of an MX tensor of a file, in pieces that follow each other in the tensor's own C order (D-1)."""
    arrangement = entry.record.arrangement
    for window in arrangement.tensor_windows():
        values = dequantize_mx(entry.window(window))
        piece = arrangement.spread(values, window)
        yield piece
        entry.release_pages()
        step(piece.size)


def measure(entry: StoredMx, against: NDArray[Any] | None = None, step: Step = no_step) -> TensorStatistics:
    """Statistics of an MX tensor of a file; with errors where its source, of the true shape, is given."""
    arrangement = entry.record.arrangement
    statistics = TensorStatistics(entry.record.element, entry.record.rules, arrangement.scale_shape)
    for window in arrangement.storage_windows():
        chunk = entry.window(window)
        source = None if against is None else as_fp32(arrangement.gather(against, window))
        _add(statistics, arrangement, window, chunk, source)
        entry.release_pages()
        if against is not None:
            release_pages(against)
        step(chunk.codes.size)
    statistics.drop_padding(arrangement.padding)
    return statistics


def measure_quantized(
    values: NDArray[Any], arrangement: Arrangement, element: ElementFormat, rules: RuleSet, step: Step = no_step
) -> TensorStatistics:
    """Statistics of quantising ``values``; nothing is kept."""
    statistics = TensorStatistics(element, rules, arrangement.scale_shape)
    for window, source, chunk in quantized_windows(values, arrangement, element, rules, step):
        _add(statistics, arrangement, window, chunk, source)
    statistics.drop_padding(arrangement.padding)
    return statistics


@dataclass(kw_only=True, eq=False)
class RulesCompared:
    """One rule set's result beside the first one's.

    Attributes
    ----------
    statistics : under this rule set
    codes_changed, values_changed : elements whose code, or whose value, is not the first rule set's (Q-4)
    """

    statistics: TensorStatistics
    codes_changed: int = 0
    values_changed: int = 0


def compare_rules(
    values: NDArray[Any],
    arrangement: Arrangement,
    element: ElementFormat,
    rule_sets: tuple[RuleSet, ...],
    step: Step = no_step,
) -> list[RulesCompared]:
    """Statistics of quantising ``values`` under several rule sets, in one pass; each must write ``element``."""
    results = [
        RulesCompared(statistics=TensorStatistics(element, rules, arrangement.scale_shape)) for rules in rule_sets
    ]
    for window, source, first in quantized_windows(values, arrangement, element, rule_sets[0], step):
        first_values = dequantize_mx(first)
        for result, rules in zip(results, rule_sets, strict=True):
            chunk = quantize_mx(source, element, rules)
            _add(result.statistics, arrangement, window, chunk, source)
            result.codes_changed += int((chunk.codes != first.codes).sum())
            chunk_values = dequantize_mx(chunk)
            same = (chunk_values == first_values) | (np.isnan(chunk_values) & np.isnan(first_values))
            result.values_changed += int((~same).sum())
    for result in results:
        result.statistics.drop_padding(arrangement.padding)
    return results


def _add(
    statistics: TensorStatistics,
    arrangement: Arrangement,
    window: Window,
    chunk: MxTensor,
    source: NDArray[np.float32] | None,
) -> None:
    row = window.partitions.start // MX_BLOCK.rows
    statistics.add(chunk, row=row, column=arrangement.free(window.columns.start) // MX_BLOCK.columns, source=source)


def as_fp32(values: NDArray[Any]) -> NDArray[np.float32]:
    """``values`` widened, or rounded from float64, to native float32 in C order (F-3, N-7)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # said once by whoever asked, not once a window
        return np.ascontiguousarray(fp32_bits(values).view(np.float32))
