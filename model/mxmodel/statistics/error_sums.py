"""How far computed values are from those they stand for, summed a piece at a time."""

from math import inf, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ErrorSums"]


class ErrorSums:
    """Errors over the elements where both sides are finite; sums in float64.

    Attributes
    ----------
    compared : such elements
    exact : those without error
    signal, squared_error, absolute_error : sums over them
    largest_error : the largest absolute error
    """

    def __init__(self) -> None:
        self.compared = 0
        self.exact = 0
        self.signal = 0.0
        self.squared_error = 0.0
        self.absolute_error = 0.0
        self.largest_error = 0.0

    def compare(self, wanted: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Count one piece; returns what was wanted and the absolute errors, zero where they are not compared."""
        compared = np.isfinite(wanted) & np.isfinite(values)
        signal = np.where(compared, wanted, 0).astype(np.float64)
        error = np.abs(np.where(compared, values, 0) - signal)
        self.compared += int(compared.sum())
        self.exact += int((compared & (error == 0)).sum())
        self.signal += float((signal * signal).sum())
        self.squared_error += float((error * error).sum())
        self.absolute_error += float(error.sum())
        self.largest_error = max(self.largest_error, float(error.max()))
        return signal, error

    @property
    def snr_db(self) -> float:
        """10 log10 of signal power over error power: inf without error, -inf without signal."""
        if self.squared_error == 0:
            return inf
        return 10 * log10(self.signal / self.squared_error) if self.signal else -inf

    @property
    def mean_error(self) -> float:
        """Mean absolute error."""
        return self.absolute_error / self.compared if self.compared else 0.0
