"""Element code and scale -> fp32: the ldexp dequant lane (contract D).

There are only code x scale = 2^16 inputs, so each policy's whole function is built once, in integers, as a table. Whole
tensors take a shorter way to the same bits: two codes are decoded at a time, then multiplied by the power of two, and
only where that could round is the table asked.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from mxmodel.chunks import chunks, part_of, scratch
from mxmodel.formats import E8M0, FP32, ElementFormat
from mxmodel.rules import BIRSIM, DequantPolicy, ElementNan, RuleSet, Scale255

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
    rules : decides what scale 255 means (D-3) and whether a NaN keeps its sign (D-4)

    Returns
    -------
    float32 of the broadcast shape, exact but for overflow, which is ±Inf (D-2); fp32 subnormals are produced

    Specials
    --------
    An element NaN is 0x7FC00000, its sign dropped, or sign | 0x7FC00000 under ``ElementNan.SIGNED``; an E5M2 Inf stays
    ±Inf (D-4). Scale 255 is 2^128, or makes every code 0x7FC00000 (D-3).

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
        shape = np.broadcast_shapes(codes.shape, scale.shape)
    except ValueError:
        raise ValueError(f"scale must broadcast against codes of shape {codes.shape}, not {scale.shape}") from None
    policy = rules.dequant_policy(element)
    codes, scale = np.asarray(codes), np.asarray(scale)
    values = np.empty(shape, dtype=np.float32)
    pairs, table = _pair_table(policy), ldexp_table(policy).view(np.float32)
    lowest, highest = _exact_scales(element)
    for part in chunks(shape):
        some_codes, some_scale, some_values = part_of(codes, part), part_of(scale, part), part_of(values, part)
        inside = np.clip(some_scale, lowest, highest)
        # E8M0 has fp32's bias, so a byte is the exponent field of its power of two.
        power = (inside.astype(np.uint32) << np.uint32(FP32.trailing_bits)).view(np.float32)
        np.multiply(_decode(some_codes, pairs), power, out=some_values)
        if (outside := inside != some_scale).any():
            # Zeros, of which whole blocks may have such a scale, are right already but for scale 255 (D-3).
            zero = (some_codes & np.uint8(element.sign_bit - 1)) == 0
            where = outside & (~zero | (some_scale == E8M0.max_byte))
            each_code, each_scale = np.broadcast_arrays(some_codes, some_scale)
            some_values[where] = table[each_code[where], each_scale[where]]
        if policy.element_nan is ElementNan.SIGNED and (nan := np.isnan(some_values)).any():
            # Not every host's product keeps the sign of a NaN.
            each_code, each_scale = np.broadcast_arrays(some_codes, some_scale)
            some_values[nan] = table[each_code[nan], each_scale[nan]]
    return values


def _exact_scales(element: ElementFormat) -> tuple[np.uint8, np.uint8]:
    """Between these scales, fp32 holds every code's value as a normal number, zero, Inf or NaN.

    There the product by the power of two is exact whatever mode the host is in, and the canonical NaN comes through.
    """
    smallest = element.min_exponent - element.trailing_bits
    return np.uint8(1 - smallest), np.uint8(E8M0.max_byte - 1 - element.emax)


def _decode(codes: NDArray[np.uint8], pair_table: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Values of ``codes`` at scale 1, same shape, in scratch memory."""
    flat = np.ascontiguousarray(codes).reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    index = scratch("ldexp index", (flat.size // 2,), np.intp)
    index[...] = flat.view(np.uint16)
    pairs = scratch("ldexp pairs", index.shape, np.uint64)
    np.take(pair_table, index, out=pairs, mode="clip")  # "clip" spares a buffer; no index is out of range
    return pairs.view(np.float32)[: codes.size].reshape(codes.shape)


@cache
def _pair_table(policy: DequantPolicy) -> NDArray[np.uint64]:
    """Two fp32 values at scale 1, as they lie in memory, for every two code bytes, as they lie in memory."""
    single = ldexp_table(policy)[:, E8M0.bias]
    highest = single.size - 1
    count = (highest << 8 | highest) + 1
    two_codes = np.arange(count, dtype=np.uint16).view(np.uint8)
    return single[np.minimum(two_codes, highest)].view(np.uint64)


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
        kept = sign if policy.element_nan is ElementNan.SIGNED else 0
        bits = np.where(magnitude >= first_nan, kept | FP32.quiet_nan_bits, bits)
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
