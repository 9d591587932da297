"""Value and scale -> element code: the FP4/FP8 narrowing encoder (contract N).

A value is held as significand x 2^k in integers; one rounding shift brings it to the element's grid. The scale only
moves the exponent, so the pre-scale is exact and there is one rounding in all (N-1).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, FP32, FP64, ElementFormat, SourceFormat
from mxmodel.rules import BIRSIM, NanCode, NarrowPolicy, Overflow, PreScale, RuleSet, Scale255
from mxmodel.widen import fp32_bits, source_of

__all__ = ["narrow", "narrow_bits"]

_CHUNK = 1 << 16
"""Elements worked on at a time, so that the temporaries stay in cache."""

_EXPONENT_OF_ZERO = -(1 << 12)
"""Below the grid of every element under every scale."""

_UNIT_SCALE = np.uint8(E8M0.bias)
"""The scale of value 1: an unscaled encoder is one that is always given it."""


def narrow(
    x: NDArray[Any],
    element: ElementFormat,
    *,
    scale: NDArray[np.uint8] | np.uint8 | None = None,
    rules: RuleSet = BIRSIM,
    overflow: Overflow = Overflow.SATURATE,
) -> NDArray[np.uint8]:
    """Codes of ``x`` divided by 2^(scale - 127), rounded to nearest even, saturated (contract N; S0 §6.2, §6.3).

    Parameters
    ----------
    x : float32, bfloat16 or float16 array of any shape; float64 is rounded once, straight to the element, without a
        scale, and is rounded to fp32 with a ``PrecisionWarning`` with one (N-7)
    element : the target format
    scale : uint8 E8M0 bytes that broadcast against ``x``; None narrows ``x`` as it is
    rules : decides what NaN becomes and how scales 254 and 255 behave (N-4 to N-6)
    overflow : ``SPECIAL`` gives the conversion engine outside QuantizeMx: overflow and Inf become Inf or NaN, and NaN
        is always propagated (N-4b)

    Returns
    -------
    uint8 codes of the broadcast shape; FP4 codes are 0..15, one a byte

    Specials
    --------
    The sign of zero is kept. Subnormals in and out are exact. Inf saturates to max-normal (N-2). NaN: sign | 0x7F
    (E4M3), sign | 0x7E (E5M2) or signed zero (N-4). An invalid fp32 product (Inf x 0, 0 x -Inf) is a NaN of sign 1 on
    every host (N-5).

    Raises
    ------
    TypeError if ``x`` is not such an array, ``scale`` not uint8, ``element``, ``rules`` or ``overflow`` not of their
    kind; ValueError if ``scale`` does not broadcast against ``x``
    """
    if not isinstance(element, ElementFormat):
        raise TypeError(f"element must be an ElementFormat, not {element!r}")
    if not isinstance(rules, RuleSet):
        raise TypeError(f"rules must be a RuleSet, not {rules!r}")
    if not isinstance(overflow, Overflow):
        raise TypeError(f"overflow must be an Overflow, not {overflow!r}")
    policy = rules.narrow_policy(element, scaled=scale is not None)
    if scale is None:
        if source_of(x) is FP64:
            native = np.asarray(x, dtype=x.dtype.newbyteorder("="))
            return narrow_bits(native.view(np.uint64), policy, source=FP64, overflow=overflow)
        return narrow_bits(fp32_bits(x), policy, overflow=overflow)
    if not isinstance(scale, np.ndarray | np.generic) or scale.dtype != np.uint8:
        kind = scale.dtype if isinstance(scale, np.ndarray | np.generic) else type(scale).__name__
        raise TypeError(f"scale must be a uint8 array, not {kind}")
    bits = fp32_bits(x)
    try:
        np.broadcast_shapes(bits.shape, scale.shape)
    except ValueError:
        raise ValueError(f"scale must broadcast against x of shape {bits.shape}, not shape {scale.shape}") from None
    return narrow_bits(bits, policy, scale=scale, overflow=overflow)


def narrow_bits(
    bits: NDArray[Any],
    policy: NarrowPolicy,
    *,
    scale: NDArray[np.uint8] | np.uint8 = _UNIT_SCALE,
    source: SourceFormat = FP32,
    overflow: Overflow = Overflow.SATURATE,
) -> NDArray[np.uint8]:
    """``narrow`` on bit patterns and a policy: what hardware of that configuration computes.

    ``bits`` is uint32 (fp32) or uint64 (fp64, unscaled); ``scale`` broadcasts against it. Returns uint8 codes.
    """
    bits, scales = np.broadcast_arrays(bits, scale)
    codes = np.empty(bits.shape, dtype=np.uint8)
    if bits.size <= _CHUNK:
        codes[...] = _narrow_chunk(bits, scales, policy, source, overflow)
        return codes
    flat_bits, flat_scales, flat_codes = bits.reshape(-1), scales.reshape(-1), codes.reshape(-1)
    for start in range(0, bits.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        flat_codes[part] = _narrow_chunk(flat_bits[part], flat_scales[part], policy, source, overflow)
    return codes


def _narrow_chunk(
    bits: NDArray[Any], scale: NDArray[np.uint8], policy: NarrowPolicy, source: SourceFormat, overflow: Overflow
) -> NDArray[np.uint8]:
    if policy.pre_scale is PreScale.FP32_PRODUCT:
        bits, scale = _resolve_product(bits, scale)
    element = policy.element
    sign = (bits >> bits.dtype.type(source.width - 1)).astype(np.uint8) << np.uint8(element.width - 1)
    magnitude = (bits & bits.dtype.type(source.magnitude_mask)).astype(np.int64 if source is FP64 else np.int32)
    unbounded = _round_to_grid(magnitude, scale, element, source)
    beyond = unbounded > element.max_normal_code
    codes: NDArray[np.uint8] = np.minimum(unbounded, element.max_normal_code).astype(np.uint8)
    infinite, nan = magnitude == source.infinity_bits, magnitude > source.infinity_bits
    codes[infinite | beyond] = element.max_normal_code if overflow is Overflow.SATURATE else _special_code(element)
    propagate = overflow is Overflow.SPECIAL or policy.nan is NanCode.PROPAGATE
    codes[nan] = element.nan_code if propagate and element.nan_code is not None else 0
    codes |= sign
    if policy.scale_255 is Scale255.NAN:
        codes[scale == E8M0.max_byte] = 0
    return codes


def _special_code(element: ElementFormat) -> int:
    """What overflow gives where it does not saturate (N-4b)."""
    if element.infinity_code is not None:
        return element.infinity_code
    return element.max_normal_code if element.nan_code is None else element.nan_code


def _round_to_grid(
    magnitude: NDArray[Any], scale: NDArray[np.uint8], element: ElementFormat, source: SourceFormat
) -> NDArray[Any]:
    """Codes of finite magnitudes, RNE, with the top binade continued upwards instead of saturated (N-1)."""
    integer = magnitude.dtype.type
    hidden = integer(1 << source.trailing_bits)
    exponent = magnitude >> integer(source.trailing_bits)
    significand = magnitude & (hidden - integer(1))
    subnormal = exponent == 0
    significand = np.where(subnormal, significand, significand | hidden)
    exponent = np.maximum(exponent, integer(1))
    if subnormal.any():
        exponent, significand = _normalise(exponent, significand, subnormal, source)
    # The element's biased exponent, were it not bounded. 1 is its lowest binade, whose grid the subnormals share.
    rebias = integer(element.bias + E8M0.bias - source.bias)
    target = exponent + rebias - scale.astype(magnitude.dtype)
    in_subnormals = np.maximum(integer(1) - target, integer(0))
    # Beyond 2 more places than the significand has, every value rounds to zero alike.
    drop = np.minimum(in_subnormals + integer(source.trailing_bits - element.trailing_bits), source.trailing_bits + 3)
    tie_to_even = (significand >> drop) & integer(1)
    half_less_one = (integer(1) << (drop - integer(1))) - integer(1)
    rounded = (significand + half_less_one + tie_to_even) >> drop
    binade = np.clip(target, 1, 1 << element.exponent_bits) - integer(1)
    return np.asarray((binade << integer(element.trailing_bits)) + rounded)


def _normalise(
    exponent: NDArray[Any], significand: NDArray[Any], subnormal: NDArray[np.bool_], source: SourceFormat
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Shift source subnormals up to a leading one, so that a scale may lift them into any binade."""
    small = significand[subnormal]
    # An integer of at most trailing_bits bits is exact as a float, and its exponent field is the place of its
    # leading one.
    leading = (small.astype(np.float64).view(np.int64) >> FP64.trailing_bits) - FP64.bias
    shift = np.where(small == 0, 0, source.trailing_bits - leading).astype(significand.dtype)
    significand[subnormal] = small << shift
    exponent[subnormal] = np.where(small == 0, _EXPONENT_OF_ZERO, 1 - shift)
    return exponent, significand


def _resolve_product(
    bits: NDArray[np.uint32], scale: NDArray[np.uint8]
) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Carry out the fp32 product where it is no power of two (N-5): scale 254 is x * +0.0, scale 255 is x * -Inf.

    Returns bits and scales that the exact pre-scale may take; below 254 nothing changes.
    """
    odd = scale >= E8M0.max_byte - 1
    if not odd.any():
        return bits, scale
    sign_bit = np.uint32(1 << (FP32.width - 1))
    magnitude = bits & np.uint32(FP32.magnitude_mask)
    sign = bits & sign_bit
    by_zero = np.where(magnitude == FP32.infinity_bits, _INVALID_PRODUCT, sign)
    by_infinity = np.where(magnitude == 0, _INVALID_PRODUCT, (sign ^ sign_bit) | np.uint32(FP32.infinity_bits))
    product = np.where(scale == E8M0.max_byte, by_infinity, by_zero)
    product = np.where(magnitude > FP32.infinity_bits, bits, product)
    return np.where(odd, product, bits).astype(np.uint32), np.where(odd, _UNIT_SCALE, scale)


_INVALID_PRODUCT = np.uint32((1 << (FP32.width - 1)) | FP32.quiet_nan_bits)
"""The x86 default NaN, sign 1 (N-5, A): written down, so that the host is never asked."""
