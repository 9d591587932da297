"""Classes that several blocks share: of scale bytes, of signs, and of the codes of an element."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, ElementFormat
from mxtb.coverage.bins import Axis

__all__ = ["CODE", "SCALE", "SCALE_RANGES", "SIGN", "code_classes", "scale_classes", "sign_classes"]

SCALE_RANGES = (
    (0, 0), (1, 1), (2, 125), (126, 126), (127, 127), (128, 128), (129, 252), (253, 253), (254, 254), (255, 255),
)  # fmt: skip
"""Scale bytes whose rules differ, each alone, and all between them together."""

SCALE = Axis(name="scale", labels=tuple(str(a) if a == b else f"{a}-{b}" for a, b in SCALE_RANGES))

SIGN = Axis(name="sign", labels=("+ to +", "+ to -", "- to +", "- to -"))
"""Sign in, sign out."""

CODE = Axis(
    name="code",
    labels=(
        "zero", "min subnormal", "subnormal", "max subnormal", "min normal", "normal", "max normal", "Inf", "NaN",
    ),
)  # fmt: skip
"""Of an element code; "min" and "max" are those codes alone. FP4's one subnormal is its smallest."""


def scale_classes(scale: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The place of each byte's class in ``SCALE``."""
    table = np.empty(E8M0.max_byte + 1, dtype=np.uint8)
    for index, (low, high) in enumerate(SCALE_RANGES):
        table[low : high + 1] = index
    return table[scale]


def sign_classes(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The place in ``SIGN`` of each pair of sign bits."""
    return 2 * before.view(np.uint8) + after.view(np.uint8)


@cache
def code_classes(element: ElementFormat) -> NDArray[np.uint8]:
    """The place in ``CODE`` of every code, indexed by the code with its sign (F-1)."""
    table = np.full(element.sign_bit, CODE.labels.index("normal"), dtype=np.uint8)
    min_normal = 1 << element.trailing_bits
    table[:min_normal] = CODE.labels.index("subnormal")
    table[min_normal - 1] = CODE.labels.index("max subnormal")
    table[1] = CODE.labels.index("min subnormal")
    table[0] = CODE.labels.index("zero")
    table[min_normal] = CODE.labels.index("min normal")
    table[element.max_normal_code] = CODE.labels.index("max normal")
    table[element.max_normal_code + 1 :] = CODE.labels.index("NaN")
    if element.infinity_code is not None:
        table[element.infinity_code] = CODE.labels.index("Inf")
    return np.concatenate([table, table])
