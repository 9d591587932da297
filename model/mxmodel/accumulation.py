"""How the products of one matmul instruction are summed, and how the sum enters PSUM (M-4, P-1).

Sources and silicon pin no order of summation, so it is a named option. Operands here are fp32 matrices whose rows are
the contraction index k, [..., K, M] and [..., K, N]; leading axes are independent instructions.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import BF16, FP32, FP64, SourceFormat

__all__ = ["CANONICAL_NAN", "DST_DTYPES", "Accumulation", "accumulate", "canonical", "psum_add", "psum_write"]


class Accumulation(Enum):
    """The order and the rounding of one instruction's sum (M-4)."""

    SEQUENTIAL = "sequential"
    """Each product rounded to fp32, then added with one rounding, k ascending, from +0. Never fused."""
    EXACT = "exact"
    """The exact sum of the exact products, rounded once."""
    BLAS = "blas"
    """The host's fast matrix product: order and rounding not defined. Never for a bit comparison."""


DST_DTYPES: dict[SourceFormat, np.dtype[Any]] = {FP32: np.dtype(np.float32), BF16: np.dtype(ml_dtypes.bfloat16)}
"""What a PSUM cell may hold (P-1)."""


def accumulate(
    stationary: NDArray[np.float32], moving: NDArray[np.float32], accumulation: Accumulation
) -> NDArray[np.float32]:
    """out[..., i, j] = sum over k of stationary[..., k, i] * moving[..., k, j], float32 [..., M, N] (M-4).

    Specials: every NaN of the result is 0x7FC00000. EXACT: an exact zero is +0; any NaN, Inf x 0 or +Inf with -Inf
    gives NaN, otherwise Inf wins; a finite sum past the top is Inf. fp32 subnormals are kept.

    Raises RuntimeError if other code in this process has left the processor rounding otherwise, or flushing subnormals.
    """
    _check_host_arithmetic()
    with np.errstate(all="ignore"):
        if accumulation is Accumulation.SEQUENTIAL:
            total = _sequential(stationary, moving)
        elif accumulation is Accumulation.EXACT:
            total = _exact(stationary, moving)
        else:
            total = np.matmul(np.swapaxes(stationary, -1, -2), moving)
    return canonical(total)


def psum_write(product: NDArray[np.float32], dst: SourceFormat) -> NDArray[Any]:
    """An instruction's product as PSUM cells of the format ``dst``: fp32, or bf16 rounded to nearest even (P-1)."""
    return product.astype(DST_DTYPES[dst], copy=False)


def psum_add(cells: NDArray[Any], product: NDArray[np.float32]) -> NDArray[Any]:
    """PSUM cells with a product added: widened, one fp32 add, rounded to the cells' own format (P-1).

    A NaN of the result is 0x7FC00000 (bf16: 0x7FC0), whatever the host (M-4). Raises as ``accumulate`` does.
    """
    _check_host_arithmetic()
    with np.errstate(all="ignore"):
        total = cells.astype(np.float32) + product
    return canonical(total).astype(cells.dtype, copy=False)


def _check_host_arithmetic() -> None:
    """These sums are the host's fp32 additions: better none than one rounded otherwise."""
    with np.errstate(all="ignore"):
        sums = (_PROBE + _PROBE_ADDENDS).view(np.uint32)
    if not np.array_equal(sums, _PROBE_SUMS):
        raise RuntimeError(
            "the processor must round to nearest even and keep subnormals; some library in this process has changed "
            "its floating-point mode (M-4)"
        )


_PROBE = np.array([1, 1, 2.0**-149], dtype=np.float32)
_PROBE_ADDENDS = np.array([2.0**-24, 1.5 * 2.0**-24, 2.0**-149], dtype=np.float32)
_PROBE_SUMS = np.array([0x3F800000, 0x3F800001, 0x00000002], dtype=np.uint32)
"""1, a tie rounded down; the number after 1; 2^-148."""

CANONICAL_NAN = np.uint32(FP32.quiet_nan_bits).view(np.float32)
"""Every NaN that arithmetic makes (M-4)."""


def canonical(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """``values`` themselves, every NaN among them replaced: the host chose its sign and payload."""
    nan = np.isnan(values)
    if nan.any():
        values[nan] = CANONICAL_NAN
    return values


def _sequential(stationary: NDArray[np.float32], moving: NDArray[np.float32]) -> NDArray[np.float32]:
    total = np.zeros(_result_shape(stationary, moving), dtype=np.float32)
    product = np.empty_like(total)
    for k in range(stationary.shape[-2]):
        np.multiply(stationary[..., k, :, np.newaxis], moving[..., k, np.newaxis, :], out=product)
        np.add(total, product, out=total)
    return total


def _result_shape(stationary: NDArray[Any], moving: NDArray[Any]) -> tuple[int, ...]:
    leading = np.broadcast_shapes(stationary.shape[:-2], moving.shape[:-2])
    return (*leading, stationary.shape[-1], moving.shape[-1])


# --- EXACT ------------------------------------------------------------------------------------------------------------
#
# Every operand is cut into digits of a common fixed-point number, so few bits each that a float64 matrix product of two
# digit planes is a matrix of exact integers, in any order of summation. Planes of equal weight are added as int64; a
# carry makes them digits of the exact sum.


def _exact(stationary: NDArray[np.float32], moving: NDArray[np.float32]) -> NDArray[np.float32]:
    width = _digit_width(stationary.shape[-2])
    lowest_s, planes_s = _digit_planes(stationary, width)
    lowest_m, planes_m = _digit_planes(moving, width)
    shape = _result_shape(stationary, moving)
    sums = [np.zeros(shape, dtype=np.int64) for _ in range(len(planes_s) + len(planes_m) - 1)]
    for s, plane_s in enumerate(planes_s):
        for m, plane_m in enumerate(planes_m):
            if plane_s is not None and plane_m is not None:
                sums[s + m] += np.matmul(np.swapaxes(plane_s, -1, -2), plane_m).astype(np.int64)
    total = _round_sum(sums, width, lowest_s + lowest_m)
    if not (np.isfinite(stationary).all() and np.isfinite(moving).all()):
        _put_specials(total, stationary, moving)
    return total


def _digit_width(length: int) -> int:
    """Bits of a digit, such that ``length`` products of two digits sum to less than 2^53."""
    exact_bits = FP64.trailing_bits + 1
    return min((exact_bits - length.bit_length()) // 2, FP32.trailing_bits + 1)


def _digit_planes(values: NDArray[np.float32], width: int) -> tuple[int, list[NDArray[np.float64] | None]]:
    """Signed digits of the finite ``values``, lowest plane first, and the exponent of the lowest plane's unit.

    value = sum over t of plane[t] * 2^(lowest + t * width); a plane of zeros is None. Inf and NaN count as zero.
    """
    bits = values.view(np.uint32)
    field = ((bits >> np.uint32(FP32.trailing_bits)) & np.uint32(FP32.max_biased_exponent)).astype(np.int64)
    trailing = (bits & np.uint32(FP32.trailing_mask)).astype(np.int64)
    significand = np.where(field == 0, trailing, trailing | (1 << FP32.trailing_bits))
    significand[field == FP32.max_biased_exponent] = 0
    exponent = np.maximum(field, 1) - FP32.bias - FP32.trailing_bits
    used = significand != 0
    if not used.any():
        return 0, [None]
    lowest = int((exponent + _place(np.bitwise_and(significand, -significand)))[used].min())
    highest = int((exponent + _place(significand))[used].max())
    signed = np.where(bits >> np.uint32(FP32.width - 1) == 0, 1, -1)
    planes: list[NDArray[np.float64] | None] = []
    for unit in range(lowest, highest + 1, width):
        shift = exponent - unit
        aligned = (significand << np.clip(shift, 0, width)) >> np.clip(-shift, 0, FP32.trailing_bits + 1)
        digits = aligned & ((1 << width) - 1)
        planes.append((signed * digits).astype(np.float64) if digits.any() else None)
    return lowest, planes


def _place(number: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the leading one of positive numbers below 2^53."""
    return (number.astype(np.float64).view(np.int64) >> FP64.trailing_bits) - FP64.bias


def _round_sum(sums: list[NDArray[np.int64]], width: int, lowest: int) -> NDArray[np.float32]:
    """The sum over t of sums[t] * 2^(lowest + t * width), rounded once to fp32."""
    negative = _carry(sums, width)[-1] < 0
    magnitudes = [np.where(negative, -part, part) for part in sums]
    *digits, _ = _carry(magnitudes, width)
    # From the top, as many digits as a float64 holds; what is left only matters in being zero or not, which the last
    # bit records. With 28 bits or more above it, rounding to fp32's 24 or fewer sees the sum as if it were whole.
    kept = np.zeros_like(negative, dtype=np.int64)
    exponent = np.full(negative.shape, lowest, dtype=np.int32)
    room_below = 1 << (FP64.trailing_bits + 1 - width)
    for digit in reversed(digits):
        room = kept < room_below
        exponent += np.where(room, 0, width).astype(np.int32)
        kept = np.where(room, kept << width | digit, kept | (digit != 0))
    value = np.ldexp(np.where(negative, -kept, kept).astype(np.float64), exponent)
    return np.asarray(value.astype(np.float32))


def _carry(sums: list[NDArray[np.int64]], width: int) -> list[NDArray[np.int64]]:
    """Digits of 0 .. 2^width - 1, lowest first, and last what remains above them: 0, or -1 of a negative sum."""
    return list(_carry_upwards(sums, width))


def _carry_upwards(sums: list[NDArray[np.int64]], width: int) -> Iterator[NDArray[np.int64]]:
    carry = np.zeros_like(sums[0])
    for part in sums:
        total = part + carry
        yield total & ((1 << width) - 1)
        carry = total >> width
    for _ in range(0, 64, width):
        yield carry & ((1 << width) - 1)
        carry = carry >> width
    yield carry


def _put_specials(total: NDArray[np.float32], stationary: NDArray[np.float32], moving: NDArray[np.float32]) -> None:
    """Overwrite the sums that meet an Inf or a NaN (M-4). All counts here are exact in fp32."""

    def count(s: NDArray[Any], m: NDArray[Any]) -> NDArray[np.float32]:
        return np.asarray(np.matmul(np.swapaxes(s, -1, -2).astype(np.float32), m.astype(np.float32)))

    sign_s, sign_m = (np.where(np.isnan(operand), 0, np.sign(operand)) for operand in (stationary, moving))
    infinite_s, infinite_m = (np.where(np.isinf(operand), np.sign(operand), 0) for operand in (stationary, moving))
    finite_s = sign_s - infinite_s
    surplus = count(infinite_s, sign_m) + count(finite_s, infinite_m)  # positive infinite products less negative ones
    infinite = count(infinite_s != 0, sign_m != 0) + count(finite_s != 0, infinite_m != 0)
    invalid = count(infinite_s != 0, moving == 0) + count(stationary == 0, infinite_m != 0)
    nan_s, nan_m = (np.asarray(np.isnan(operand).any(axis=-2, keepdims=True)) for operand in (stationary, moving))
    nan = np.swapaxes(nan_s, -1, -2) | nan_m
    total[surplus > 0] = np.inf
    total[surplus < 0] = -np.inf
    total[(np.abs(surplus) != infinite) | (invalid > 0) | nan] = np.nan
