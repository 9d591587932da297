"""fp32 arithmetic of the engines beside the PE array, with the same bits on every host.

Sources say that these engines compute in fp32, and no more: each operation is rounded once to nearest even, subnormals
are kept, and every NaN that one makes is 0x7FC00000 (M-4's rule, taken over: A).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.accumulation import canonical
from mxmodel.isa import ActivationFunction, Operator

__all__ = ["activated", "applied", "fp32_number", "reduced"]


def applied(operator: Operator, left: NDArray[np.float32], right: NDArray[np.float32] | np.float32) -> NDArray[Any]:
    """left operator right, float32, broadcast.

    Specials: NaN in gives NaN, of max and min as well; max of +0 and -0 is +0, min is -0 (A).
    """
    with np.errstate(all="ignore"):
        if operator in (Operator.MAX, Operator.MIN):
            result = np.asarray(_ordered(operator, left, right))
        else:
            result = np.asarray(_ARITHMETIC[operator](left, right))
    return canonical(result)


_ARITHMETIC: dict[Operator, np.ufunc] = {
    Operator.ADD: np.add,
    Operator.SUBTRACT: np.subtract,
    Operator.MULTIPLY: np.multiply,
}


def _ordered(operator: Operator, left: NDArray[Any], right: NDArray[Any] | np.float32) -> NDArray[Any]:
    """Maximum or minimum; numpy leaves open which of two zeros it returns."""
    choose = np.maximum if operator is Operator.MAX else np.minimum
    result = np.array(choose(left, right))
    join = np.logical_and if operator is Operator.MAX else np.logical_or
    negative = join(np.signbit(left), np.signbit(right))
    zero = result == 0
    result[zero] = np.where(negative, np.float32(-0.0), np.float32(0.0))[zero]
    return result


def fp32_number(name: str, value: float) -> np.float32:
    """``value`` rounded to fp32; ValueError if it is finite and past the largest, since then it would become Inf."""
    try:
        wide = float(value)
    except OverflowError:  # an integer past the largest double
        wide = None
    with np.errstate(all="ignore"):
        rounded = np.float32(np.inf if wide is None else wide)
    if wide is None or (np.isinf(rounded) and not np.isinf(wide)):
        raise ValueError(f"{name} must be a number that fp32 holds, or .inf, not {value!r}")
    return rounded


def reduced(operator: Operator, start: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """``start`` [P] with the columns of ``values`` [P, F] taken in one after the other, float32 [P]."""
    total = start.copy()
    for column in values.T:
        total = applied(operator, total, column)
    return total


def activated(function: ActivationFunction, values: NDArray[np.float32], scale: float = 1.0) -> NDArray[np.float32]:
    """function(scale * values), float32.

    A sigmoid is worked out in float64 and rounded once; the hardware's own is not known (A).
    """
    if scale != 1.0:
        values = applied(Operator.MULTIPLY, values, fp32_number("scale", scale))
    if function is ActivationFunction.IDENTITY:
        return values
    with np.errstate(all="ignore"):
        wide = values.astype(np.float64)
        result = np.asarray((1.0 / (1.0 + np.exp(-wide))).astype(np.float32))
    return canonical(result)
