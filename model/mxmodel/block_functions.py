"""The three blocks as the machine calls them: golden by default, or any twin that has the same functions."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import RuleSet
from mxmodel.shared_exponent import shared_exponent

__all__ = ["Blocks", "GoldenBlocks"]


class Blocks(Protocol):
    """What a machine needs of a twin. Shapes and specials are those of the golden functions of the same names."""

    def shared_exponent(self, x: NDArray[Any], element: ElementFormat, rules: RuleSet) -> NDArray[np.uint8]:
        """fp32, bf16 or fp16 [P, F] to E8M0 bytes uint8 [P/8, F/4] (E)."""
        ...

    def narrow(
        self, x: NDArray[Any], element: ElementFormat, scale: NDArray[np.uint8], rules: RuleSet
    ) -> NDArray[np.uint8]:
        """Values and the scales that broadcast against them to codes (N)."""
        ...

    def ldexp(
        self, codes: NDArray[np.uint8], scale: NDArray[np.uint8], element: ElementFormat, rules: RuleSet
    ) -> NDArray[np.float32]:
        """Codes and the scales that broadcast against them to fp32 (D)."""
        ...


class GoldenBlocks:
    """The golden functions."""

    def shared_exponent(self, x: NDArray[Any], element: ElementFormat, rules: RuleSet) -> NDArray[np.uint8]:
        return shared_exponent(x, element, rules)

    def narrow(
        self, x: NDArray[Any], element: ElementFormat, scale: NDArray[np.uint8], rules: RuleSet
    ) -> NDArray[np.uint8]:
        return narrow(x, element, scale=scale, rules=rules)

    def ldexp(
        self, codes: NDArray[np.uint8], scale: NDArray[np.uint8], element: ElementFormat, rules: RuleSet
    ) -> NDArray[np.float32]:
        return ldexp(codes, scale, element, rules)
