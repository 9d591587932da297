"""Value and scale -> element code: the FP4/FP8 narrowing encoder (contract N).

A code depends on few bits of its input: the exponent less the scale, as many trailing bits as the element has and one
more, and whether any bit below is set. They index a table of a few hundred codes, in which each entry is rounded once,
in integers (N-1). Nothing is left to the host's floating-point unit or its modes.
"""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.chunks import chunks, part_of, scratch
from mxmodel.formats import E8M0, FP32, FP64, ElementFormat, SourceFormat
from mxmodel.rules import BIRSIM, InvalidProduct, NanCode, NarrowPolicy, Overflow, PreScale, RuleSet, Scale255
from mxmodel.widen import fp32_bits, source_of

__all__ = ["narrow", "narrow_bits"]

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
    (E4M3), sign | 0x7E (E5M2), signed zero or signed max-normal (N-4). An invalid fp32 product (Inf x 0, 0 x -Inf) is a
    NaN whose sign is the rule set's, 1 in all the built-in ones, on every host (N-5).

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
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """``narrow`` on bit patterns and a policy: what hardware of that configuration computes.

    ``bits`` is uint32 (fp32) or uint64 (fp64, unscaled); ``scale`` broadcasts against it. Returns uint8 codes, in
    ``out`` where that is given.
    """
    bits, scale = np.asarray(bits), np.asarray(scale)
    codes = np.empty(np.broadcast_shapes(bits.shape, scale.shape), dtype=np.uint8) if out is None else out
    for part in chunks(codes.shape):
        _narrow_chunk(part_of(bits, part), part_of(scale, part), policy, source, overflow, part_of(codes, part))
    return codes


def _narrow_chunk(
    bits: NDArray[Any],
    scale: NDArray[np.uint8],
    policy: NarrowPolicy,
    source: SourceFormat,
    overflow: Overflow,
    codes: NDArray[np.uint8],
) -> None:
    if policy.pre_scale is PreScale.FP32_PRODUCT:
        bits, scale = _resolve_product(bits, scale, policy.invalid_product)
    element, unsigned = policy.element, bits.dtype.type
    magnitude = scratch("narrow magnitude", bits.shape, unsigned)
    np.bitwise_and(bits, unsigned(source.magnitude_mask), out=magnitude)
    table = _code_table(element, overflow)
    rounded = _round_finite(magnitude, scale, element, source, table, codes.shape)
    if magnitude.max() >= source.infinity_bits:
        rounded[np.broadcast_to(magnitude == source.infinity_bits, codes.shape)] = table[-1]
        nan = np.broadcast_to(magnitude > source.infinity_bits, codes.shape)
        rounded[nan] = _nan_magnitude(element, NanCode.PROPAGATE if overflow is Overflow.SPECIAL else policy.nan)
    sign = np.right_shift(bits, unsigned(source.width - element.width), out=magnitude).astype(np.uint8)
    sign &= np.uint8(element.sign_bit)
    np.bitwise_or(rounded, sign, out=codes)
    if policy.scale_255 is Scale255.NAN and (undefined := scale == E8M0.max_byte).any():
        codes[np.broadcast_to(undefined, codes.shape)] = 0


def _round_finite(
    magnitude: NDArray[Any],
    scale: NDArray[np.uint8],
    element: ElementFormat,
    source: SourceFormat,
    table: NDArray[np.uint8],
    shape: tuple[int, ...],
) -> NDArray[np.uint8]:
    """Codes, sign 0, of ``magnitude`` / 2^(scale - 127), of the broadcast ``shape``; Inf and NaN give any code.

    Read as integers, magnitudes are exponent and trailing significand in one fixed-point number, from which a scale is
    taken off as a whole number of binades.
    """
    signed: type[np.signedinteger[Any]] = np.int64 if source is FP64 else np.int32
    binades: NDArray[Any] = scale.astype(signed)
    binades += signed(_lowest_binade(element) + source.bias - E8M0.bias)
    relative = scratch("narrow relative", shape, signed)
    np.subtract(magnitude.view(signed), np.maximum(binades, 0) << signed(source.trailing_bits), out=relative)
    codes = scratch("narrow codes", shape, np.uint8)
    _look_up(relative, element, source, table, codes)
    # Elsewhere a source subnormal is below the table's first binade, whatever its trailing bits say; and so is a zero.
    if (reaching_down := binades < 0).any():
        codes[np.broadcast_to(reaching_down, shape)] = 0
        where = reaching_down & (magnitude != 0)
        few = _normalised(np.broadcast_to(magnitude, shape)[where].astype(np.int64), source)
        few -= np.broadcast_to(binades, shape)[where].astype(np.int64) << source.trailing_bits
        codes_of_few = np.empty(few.shape, dtype=np.uint8)
        _look_up(few, element, source, table, codes_of_few)
        codes[where] = codes_of_few
    return codes


def _look_up(
    relative: NDArray[Any],
    element: ElementFormat,
    source: SourceFormat,
    table: NDArray[np.uint8],
    codes: NDArray[np.uint8],
) -> None:
    """Write the codes of magnitudes that count binades from the table's first; ``relative`` is overwritten."""
    integer = relative.dtype.type
    top = (_saturated_binade(element) - _lowest_binade(element)) << source.trailing_bits
    np.clip(relative, integer(0), integer(top), out=relative)
    dropped = source.trailing_bits - _index_bits(element)
    below = integer((1 << dropped) - 1)
    sticky = scratch("narrow sticky", relative.shape, relative.dtype.type)
    np.bitwise_and(relative, below, out=sticky)
    sticky += below  # reaches the index's last bit unless all bits below it are 0
    relative |= sticky
    index = scratch("narrow index", relative.shape, np.intp)
    np.copyto(index, np.right_shift(relative, integer(dropped), out=relative))
    np.take(table, index, out=codes, mode="clip")  # "clip" spares a buffer; no index is out of range


def _normalised(magnitude: NDArray[np.int64], source: SourceFormat) -> NDArray[np.int64]:
    """Magnitudes but zero, with subnormals brought to a leading one, their exponent going on below 1."""
    # An integer of at most trailing_bits bits is exact as a float64, whose fields are then its place and its fraction.
    leading_one = magnitude.astype(np.float64).view(np.int64) >> (FP64.trailing_bits - source.trailing_bits)
    shifted = leading_one - ((FP64.bias + source.trailing_bits - 1) << source.trailing_bits)
    return np.where(magnitude >> source.trailing_bits == 0, shifted, magnitude)


# --- the table --------------------------------------------------------------------------------------------------------


def _lowest_binade(element: ElementFormat) -> int:
    """Exponent of a binade that lies whole below half the smallest subnormal: the table's first."""
    return element.min_exponent - element.trailing_bits - 2


def _saturated_binade(element: ElementFormat) -> int:
    """Exponent of the first binade that lies whole above max-normal: the table's last."""
    return element.emax + 1


def _index_bits(element: ElementFormat) -> int:
    """Of an index below its binade: the element's trailing bits, the next one, and "any below"."""
    return element.trailing_bits + 2


@cache
def _code_table(element: ElementFormat, overflow: Overflow) -> NDArray[np.uint8]:
    """Codes, sign 0, by binade and by the bits of ``_index_bits``."""
    codes = [
        _nearest_code(exponent, below, element)
        for exponent in range(_lowest_binade(element), _saturated_binade(element) + 1)
        for below in range(1 << _index_bits(element))
    ]
    beyond = element.max_normal_code if overflow is Overflow.SATURATE else _special_code(element)
    table = np.array([beyond if code > element.max_normal_code else code for code in codes], dtype=np.uint8)
    table.flags.writeable = False
    return table


def _nearest_code(exponent: int, below: int, element: ElementFormat) -> int:
    """RNE to the element's grid (N-1), counted on past max-normal; subnormals share the lowest binade's spacing."""
    significand = (1 << _index_bits(element)) | below
    binade = max(exponent, element.min_exponent)
    drop = binade - element.trailing_bits - (exponent - _index_bits(element))
    steps, rest = divmod(significand, 1 << drop)
    half = 1 << (drop - 1)
    if rest > half or (rest == half and steps & 1):
        steps += 1
    return ((binade - element.min_exponent) << element.trailing_bits) + steps


def _special_code(element: ElementFormat) -> int:
    """What overflow gives where it does not saturate (N-4b)."""
    if element.infinity_code is not None:
        return element.infinity_code
    return element.max_normal_code if element.nan_code is None else element.nan_code


def _nan_magnitude(element: ElementFormat, nan: NanCode) -> int:
    """The code, sign 0, of NaN; an element without NaN always gives zero (N-3, N-4)."""
    if element.nan_code is None or nan is NanCode.ZERO:
        return 0
    return element.nan_code if nan is NanCode.PROPAGATE else element.max_normal_code


# --- the fp32 product -------------------------------------------------------------------------------------------------


def _resolve_product(
    bits: NDArray[np.uint32], scale: NDArray[np.uint8], invalid: InvalidProduct
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
    nan = _INVALID_PRODUCT[invalid]
    by_zero = np.where(magnitude == FP32.infinity_bits, nan, sign)
    by_infinity = np.where(magnitude == 0, nan, (sign ^ sign_bit) | np.uint32(FP32.infinity_bits))
    product = np.where(scale == E8M0.max_byte, by_infinity, by_zero)
    product = np.where(magnitude > FP32.infinity_bits, bits, product)
    return np.where(odd, product, bits).astype(np.uint32), np.where(odd, _UNIT_SCALE, scale)


_INVALID_PRODUCT = {
    InvalidProduct.NEGATIVE: np.uint32((1 << (FP32.width - 1)) | FP32.quiet_nan_bits),
    InvalidProduct.POSITIVE: np.uint32(FP32.quiet_nan_bits),
}
"""The NaN of an invalid product (N-5, A): written down, so that the host is never asked."""
