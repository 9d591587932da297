"""Element code and scale -> fp32: the ldexp dequant lane (contract D).

There are only code x scale = 2^16 inputs, so each policy's whole function is built once, in integers, as a table.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, FP32, ElementFormat
from mxmodel.rules import BIRSIM, DequantPolicy, RuleSet, Scale255

__all__ = ["ldexp", "ldexp_table"]


def ldexp(
    codes: NDArray[np.uint8], scale: NDArray[np.uint8] | np.uint8, element: ElementFormat, rules: RuleSet = BIRSIM
) -> NDArray[np.float32]:
    """Values of ``codes`` times 2^(scale - 127) (contract D; S0 §4).

    Parameters
    ----------
    codes : uint8 array of any shape; FP4 codes are 0..15, one a byte
    scale : uint8 E8M0 bytes that broadcast against ``codes``
    element : the format of the codes
    rules : decides what scale 255 means (D-3)

    Returns
    -------
    float32 of the broadcast shape, exact but for overflow, which is ±Inf (D-2); fp32 subnormals are produced

    Specials
    --------
    An element NaN is 0x7FC00000, its sign dropped; an E5M2 Inf stays ±Inf (D-4). Scale 255 is 2^128, or makes every
    code 0x7FC00000 (D-3).

    Raises
    ------
    TypeError if ``codes`` or ``scale`` is not uint8, or ``element`` / ``rules`` not descriptors; ValueError if an FP4
    code exceeds 15 or ``scale`` does not broadcast
    """
    if not isinstance(element, ElementFormat):
        raise TypeError(f"element must be an ElementFormat, not {element!r}")
    if not isinstance(rules, RuleSet):
        raise TypeError(f"rules must be a RuleSet, not {rules!r}")
    for name, array in (("codes", codes), ("scale", scale)):
        if not isinstance(array, np.ndarray | np.generic) or array.dtype != np.uint8:
            kind = array.dtype if isinstance(array, np.ndarray | np.generic) else type(array).__name__
            raise TypeError(f"{name} must be a uint8 array, not {kind}")
    if codes.size and element.width < 8 and (largest := int(codes.max())) >= element.code_count:
        raise ValueError(f"codes must be in 0..{element.code_count - 1} for {element.name}, not {largest}")
    try:
        np.broadcast_shapes(codes.shape, scale.shape)
    except ValueError:
        raise ValueError(f"scale must broadcast against codes of shape {codes.shape}, not {scale.shape}") from None
    table = ldexp_table(rules.dequant_policy(element))
    return np.asarray(table[codes, scale]).view(np.float32)


@cache
def ldexp_table(policy: DequantPolicy) -> NDArray[np.uint32]:
    """fp32 bits for every [code, scale], uint32 [2^element width, 256], read-only."""
    element = policy.element
    codes = np.arange(element.code_count, dtype=np.int64)[:, None]
    scales = np.arange(1 << E8M0.width, dtype=np.int64)[None, :]
    magnitude = codes & (element.sign_bit - 1)
    sign = (codes >> (element.width - 1)) << (FP32.width - 1)
    field = magnitude >> element.trailing_bits
    trailing = magnitude & element.trailing_mask
    significand = np.where(field == 0, trailing, trailing | (1 << element.trailing_bits))
    # value = significand * 2^weight before the scale; a subnormal shares the lowest binade's weight.
    weight = np.maximum(field, 1) - element.bias - element.trailing_bits + scales - E8M0.bias
    bits = sign | _fp32_magnitude(significand, weight)
    if element.infinity_code is not None:
        bits = np.where(magnitude == element.infinity_code, sign | FP32.infinity_bits, bits)
    if element.nan_code is not None:
        first_nan = element.nan_code if element.infinity_code is None else element.infinity_code + 1
        bits = np.where(magnitude >= first_nan, FP32.quiet_nan_bits, bits)
    if policy.scale_255 is Scale255.NAN:
        bits = np.where(scales == E8M0.max_byte, FP32.quiet_nan_bits, bits)
    table = bits.astype(np.uint32)
    table.flags.writeable = False
    return table


def _fp32_magnitude(significand: NDArray[np.int64], weight: NDArray[np.int64]) -> NDArray[np.int64]:
    """fp32 bits of significand * 2^weight, for significands of few bits: exact, or Inf past the top (D-2)."""
    significand, weight = np.broadcast_arrays(significand, weight)
    length = np.zeros_like(significand)
    for bit in range(int(significand.max()).bit_length()):
        length[significand >> bit > 0] = bit + 1
    exponent = length - 1 + weight + FP32.bias
    normal = (np.maximum(exponent, 1) << FP32.trailing_bits) + (
        (significand << (FP32.trailing_bits + 1 - length)) & FP32.trailing_mask
    )
    # Below the lowest binade the field counts units of 2^(1 - bias - trailing bits). A byte cannot scale an element
    # under that unit, so nothing is shifted out.
    units = np.maximum(weight + FP32.bias - 1 + FP32.trailing_bits, 0)
    subnormal = significand << np.minimum(units, FP32.trailing_bits)
    bits = np.where(exponent >= 1, normal, subnormal)
    bits = np.where(exponent >= FP32.max_biased_exponent, FP32.infinity_bits, bits)
    return np.where(significand == 0, 0, bits)
