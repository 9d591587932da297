"""Source tensors as fp32 bit patterns (F-3): the first thing every block does with its input.

Bits are moved, never cast, so a NaN keeps its payload and the host's floating-point unit is not asked.
"""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import BF16, FP16, FP32, FP64, SourceFormat

__all__ = ["PrecisionWarning", "fp32_bits", "source_of", "widen_bits"]

_DTYPE_OF = {
    FP32: np.dtype(np.float32),
    BF16: np.dtype(ml_dtypes.bfloat16),
    FP16: np.dtype(np.float16),
    FP64: np.dtype(np.float64),
}


_PIECE = 1 << 13
"""Elements of float64 rounded at a time, so that the temporaries stay small."""


class PrecisionWarning(UserWarning):
    """A float64 input was rounded to fp32 before a block saw it (N-7)."""


def source_of(x: NDArray[Any], *, name: str = "x") -> SourceFormat:
    """The source format of array ``x``, whatever its byte order.

    Raises TypeError if ``x`` is not an array of float32, bfloat16, float16 or float64.
    """
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError(f"{name} must be a NumPy array, not {type(x).__name__}")
    native = x.dtype.newbyteorder("=")
    for source, dtype in _DTYPE_OF.items():
        if native == dtype:
            return source
    raise TypeError(f"{name} must be float32, bfloat16, float16 or float64, not {x.dtype}")


def _fp16_to_fp32_table() -> NDArray[np.uint32]:
    bits = np.arange(1 << FP16.width, dtype=np.uint32)
    sign = bits >> (FP16.width - 1) << (FP32.width - 1)
    exponent = (bits >> FP16.trailing_bits) & FP16.max_biased_exponent
    trailing = bits & FP16.trailing_mask
    shift = FP32.trailing_bits - FP16.trailing_bits
    rebias = FP32.bias - FP16.bias
    normal = ((exponent + rebias) << FP32.trailing_bits) | (trailing << shift)
    special = FP32.infinity_bits | (trailing << shift)
    # trailing * 2^-24 is exact in fp32: the integer's own fp32 form, its exponent lowered.
    as_integer = trailing.astype(np.float32).view(np.uint32)
    lowered = FP16.bias - 1 + FP16.trailing_bits
    subnormal = np.where(trailing == 0, 0, as_integer - (lowered << FP32.trailing_bits))
    magnitude = np.where(exponent == 0, subnormal, np.where(exponent == FP16.max_biased_exponent, special, normal))
    return (sign | magnitude).astype(np.uint32)


_FP16_TO_FP32 = _fp16_to_fp32_table()


def fp32_bits(x: NDArray[Any], *, name: str = "x") -> NDArray[np.uint32]:
    """Bit patterns of ``x`` widened to fp32 (F-3).

    Parameters
    ----------
    x : float32, bfloat16 or float16 array of any shape and byte order; float64 is rounded to fp32 (RNE) with a
        ``PrecisionWarning`` (N-7)
    name : what to call ``x`` in an error

    Returns
    -------
    uint32 array of the same shape; a float32 input in native order is viewed, not copied

    Raises
    ------
    TypeError if ``x`` is not one of those arrays
    """
    source = source_of(x, name=name)
    array = np.asarray(x, dtype=x.dtype.newbyteorder("="))
    if source is not FP64:
        return widen_bits(array.view(np.dtype(f"uint{source.width}")), source)
    warnings.warn(f"{name} is float64 and was rounded to fp32 first (N-7)", PrecisionWarning, stacklevel=3)
    bits = array.view(np.uint64).reshape(-1)
    rounded = np.empty(bits.size, dtype=np.uint32)
    for start in range(0, bits.size, _PIECE):
        rounded[start : start + _PIECE] = _round_to_fp32(bits[start : start + _PIECE])
    return rounded.reshape(array.shape)


def widen_bits(bits: NDArray[Any], source: SourceFormat) -> NDArray[np.uint32]:
    """fp32 bit patterns of the ``source`` patterns ``bits`` (F-3): uint32 or uint16 in, uint32 of that shape out."""
    if source is BF16:
        return bits.astype(np.uint32) << np.uint32(FP32.trailing_bits - BF16.trailing_bits)
    if source is FP16:
        return np.asarray(_FP16_TO_FP32[bits])
    return np.asarray(bits, dtype=np.uint32)


def _round_to_fp32(bits: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """fp64 patterns rounded to fp32 (RNE, to Inf past the top), in integers: no host setting can change a bit (N-7)."""
    magnitude = (bits & np.uint64(FP64.magnitude_mask)).astype(np.int64)
    sign = (bits >> np.uint64(FP64.width - FP32.width)).astype(np.uint32) & np.uint32(1 << (FP32.width - 1))
    spare = FP64.trailing_bits - FP32.trailing_bits
    # fp32's biased exponent, were it not bounded; from 1 down its grid is that of the subnormals. An fp64 subnormal is
    # far below them all.
    exponent = (magnitude >> FP64.trailing_bits) - (FP64.bias - FP32.bias)
    significand = (magnitude & FP64.trailing_mask) | (1 << FP64.trailing_bits)
    drop = np.minimum(np.maximum(1 - exponent, 0) + spare, FP64.trailing_bits + 2)
    half_less_one = (np.int64(1) << (drop - 1)) - 1
    rounded = (significand + half_less_one + ((significand >> drop) & 1)) >> drop
    finite = ((np.maximum(exponent, 1) - 1) << FP32.trailing_bits) + rounded
    finite = np.minimum(finite, FP32.infinity_bits)
    # A NaN keeps the top of its payload and is made quiet, as a conversion does.
    nan = FP32.quiet_nan_bits | ((magnitude >> spare) & FP32.trailing_mask)
    return sign | np.where(magnitude > FP64.infinity_bits, nan, finite).astype(np.uint32)
