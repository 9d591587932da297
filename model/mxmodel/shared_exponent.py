"""Block -> E8M0 byte: the exponent-extract and max unit (contract E)."""

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.blocks import block_chunks, block_grid, rows_of_blocks
from mxmodel.chunks import scratch
from mxmodel.formats import E8M0, FP32, MX_BLOCK, ElementFormat
from mxmodel.rules import BIRSIM, BelowZero, ExponentPolicy, NonFiniteBlock, RuleSet
from mxmodel.widen import fp32_bits

__all__ = ["block_exponent", "scale_from_exponent", "shared_exponent"]


def block_exponent(bits: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """Largest biased exponent of every block (E-1, E-2).

    Parameters
    ----------
    bits : fp32 bit patterns, uint32 [P, F] with P % 8 == 0 and F % 4 == 0

    Returns
    -------
    uint8 [P/8, F/4]: 0 where the block holds only zeros and subnormals, 255 where it holds an Inf or a NaN
    """
    exponent = np.empty(block_grid(bits.shape), dtype=np.uint8)
    for blocks, elements in block_chunks(exponent.shape):
        # Magnitudes as integers order as their exponents do, so the maximum may be taken before the field is cut out.
        part = bits[elements]
        magnitude = scratch("block_exponent", part.shape, np.uint32)
        np.bitwise_and(part, np.uint32(FP32.magnitude_mask), out=magnitude)
        by_rows = rows_of_blocks(magnitude).max(axis=1)
        largest = reduce(np.maximum, (by_rows[:, column :: MX_BLOCK.columns] for column in range(MX_BLOCK.columns)))
        exponent[blocks] = largest >> np.uint32(FP32.trailing_bits)
    return exponent


def scale_from_exponent(exponent: NDArray[np.uint8], policy: ExponentPolicy) -> NDArray[np.uint8]:
    """E8M0 byte for a block whose largest biased exponent is ``exponent`` (E-3, E-4, E-6); any shape, uint8."""
    difference = exponent.astype(np.int16) - np.int16(policy.amount)
    if policy.below_zero is BelowZero.CLAMP_TO_ONE:
        scale = np.maximum(difference, 1)
    elif policy.below_zero is BelowZero.CLAMP_TO_ZERO:
        scale = np.maximum(difference, 0)
    else:
        scale = difference & np.int16(E8M0.max_byte)
    if policy.non_finite is NonFiniteBlock.SCALE_255:
        scale = np.where(exponent == FP32.max_biased_exponent, np.int16(E8M0.max_byte), scale)
    return np.asarray(scale, dtype=np.uint8)


def shared_exponent(x: NDArray[Any], element: ElementFormat, rules: RuleSet = BIRSIM) -> NDArray[np.uint8]:
    """The E8M0 scale byte of every 8 x 4 block of ``x`` (contract E; S0 §6.1, S1 §4).

    Parameters
    ----------
    x : float32, bfloat16 or float16 [P, F], P % 8 == 0, F % 4 == 0; float64 is rounded to fp32 with a
        ``PrecisionWarning`` (N-7)
    element : the format the block will be narrowed to
    rules : decides the bias taken off, what happens below zero, and blocks with Inf or NaN

    Returns
    -------
    uint8 [P/8, F/4]; byte b stands for 2^(b - 127)

    Specials
    --------
    Zeros and subnormals read exponent 0 and Inf and NaN read 255 (E-1). An all-zero block gives the rule set's floor
    (1, 0, or 256 - EMAX where it wraps: E-4). Inf or NaN gives 255 - amount, or 255 (E-6).

    Raises
    ------
    TypeError if ``x`` is not such an array or ``element`` / ``rules`` not descriptors; ValueError if the shape is not
    a whole number of blocks
    """
    if not isinstance(element, ElementFormat):
        raise TypeError(f"element must be an ElementFormat, not {element!r}")
    if not isinstance(rules, RuleSet):
        raise TypeError(f"rules must be a RuleSet, not {rules!r}")
    bits = fp32_bits(x)
    block_grid(bits.shape)
    return scale_from_exponent(block_exponent(bits), rules.exponent_policy(element))
