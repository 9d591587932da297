"""Bins of the ldexp lane: which code met which scale, and what fp32 value came out."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, FP32
from mxmodel.rules import DequantPolicy, Scale255
from mxtb.coverage.bins import Axis, Plan, Reason, Rule, Tally
from mxtb.coverage.classes import CODE, SCALE, SIGN, code_classes, scale_classes, sign_classes
from mxtb.stimulus import element_grid

__all__ = ["plan", "tally"]

RESULT = Axis(
    name="result",
    labels=("zero", "subnormal", "min normal", "normal", "normal of the top binade", "Inf", "NaN"),
)
_ZERO, _SUBNORMAL, _MIN_NORMAL, _NORMAL, _TOP, _INF, _NAN = range(len(RESULT.labels))


def tally(
    codes: NDArray[np.uint8],
    scale: NDArray[np.uint8],
    expected: NDArray[np.uint32],
    policy: DequantPolicy,
    label: str = "",
) -> Tally:
    """Count ``codes`` at their scales, with the fp32 bits ``expected`` of them under ``policy``."""
    element = policy.element
    codes = codes & np.uint8(element.code_count - 1)
    magnitude = expected & np.uint32(FP32.magnitude_mask)
    hidden = 1 << FP32.trailing_bits
    # In ascending order, but for the one value min-normal, the classes are intervals of the magnitude.
    result = np.zeros(codes.shape, dtype=np.uint8)
    for start in (1, hidden, hidden + 1, FP32.infinity_bits - hidden, FP32.infinity_bits, FP32.infinity_bits + 1):
        result += magnitude >= start
    sign = sign_classes((codes & np.uint8(element.sign_bit)) != 0, expected >> np.uint32(FP32.width - 1) != 0)
    wanted = plan(policy, label)
    return Tally(plan=wanted, joint=wanted.count([code_classes(element)[codes], scale_classes(scale), result, sign]))


@cache
def plan(policy: DequantPolicy, label: str = "") -> Plan:
    """The bins of a lane under ``policy``."""
    axes = (CODE, SCALE, RESULT, SIGN)
    code, scale, result, sign = (axis.name for axis in axes)
    return Plan(
        label=label,
        axes=axes,
        groups=((code,), (scale,), (result,), (sign,), (code, scale), (code, result), (code, sign), (scale, result),
                (scale, sign), (result, sign), (code, scale, result)),
        possible=_possible(policy, tuple(len(axis.labels) for axis in axes)),
        rules=tuple(_rules(policy)),
        otherwise=Reason(clause="D-1, D-2", why="no code of this class times such a power of two lies there"),
    )  # fmt: skip


def _possible(policy: DequantPolicy, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """All 2^(width + 8) inputs, by the exponents of the element's exact values (D-1): the product rounds nothing."""
    element = policy.element
    scales = np.arange(E8M0.max_byte + 1, dtype=np.uint8)
    possible = np.zeros(shape, dtype=bool)
    for code, value in enumerate(element_grid(element)):
        power = value.numerator.bit_length() - value.denominator.bit_length()
        if value and value < 2.0**power:
            power -= 1
        exponent = power + scales.astype(np.int32) - E8M0.bias
        result = np.full(scales.shape, _NORMAL)
        result[exponent < 1 - FP32.bias] = _SUBNORMAL
        if value == 2.0**power:
            result[exponent == 1 - FP32.bias] = _MIN_NORMAL
        result[exponent == FP32.bias] = _TOP
        result[exponent > FP32.bias] = _INF
        _mark(possible, policy, code, scales, np.full(scales.shape, _ZERO) if value == 0 else result)
    for code in range(element.max_normal_code + 1, element.sign_bit):
        special = _NAN if element.is_nan_code(code) else _INF
        _mark(possible, policy, code, scales, np.full(scales.shape, special))
    return possible


def _mark(
    possible: NDArray[np.bool_], policy: DequantPolicy, code: int, scales: NDArray[np.uint8], result: NDArray[Any]
) -> None:
    if policy.scale_255 is Scale255.NAN:
        result = np.where(scales == E8M0.max_byte, _NAN, result)
    for negative in (0, 1):
        after = np.where(result == _NAN, 0, negative)  # D-4
        possible[code_classes(policy.element)[code], scale_classes(scales), result, 2 * negative + after] = True


def _rules(policy: DequantPolicy) -> list[Rule]:
    element = policy.element
    nan255 = policy.scale_255 is Scale255.NAN

    def rule(clause: str, why: str, **where: tuple[str, ...]) -> Rule:
        return Rule(
            reason=Reason(clause=clause, why=why), where={axis: frozenset(labels) for axis, labels in where.items()}
        )

    missing = tuple(CODE.labels[place] for place in range(len(CODE.labels)) if place not in set(code_classes(element)))
    rules = [rule("F-1", f"{element.name} has no such code", code=missing)] if missing else []
    finite = tuple(label for label in RESULT.labels if label != "NaN")
    numbers = CODE.labels[:-2]
    if nan255:
        rules += [
            rule("D-3", "scale 255 makes every code NaN", scale=("255",), result=finite),
            rule("D-4", "the NaN that comes out has sign 0", scale=("255",), sign=("- to -",)),
        ]
    rules += [
        rule("D-1", "the sign is the code's, or 0 for NaN", sign=("+ to -",)),
        rule("D-4", "NaN has sign 0", result=("NaN",), sign=("- to -",)),
        rule("D-4", "NaN stays NaN", code=("NaN",), result=finite),
        rule("D-4", "NaN has sign 0", code=("NaN",), sign=("- to -",)),
        rule("D-4", "Inf stays Inf", code=("Inf",), result=tuple(label for label in finite if label != "Inf")),
        rule(
            "D-2",
            "zero is zero at every scale",
            code=("zero",),
            result=tuple(label for label in finite if label != "zero"),
        ),
        rule("D-2", "only a zero gives zero: nothing is flushed", result=("zero",)),
        rule("D-1", "the sign is the code's, but for NaN", sign=("- to +",)),
    ]
    if nan255:
        rules.append(rule("D-3", "of a number, NaN only at scale 255", result=("NaN",)))
    else:
        rules.append(rule("D-3", "scale 255 is a power of two: only NaN gives NaN", result=("NaN",)))
        if not element.has_nan:
            rules.append(rule("F-1", f"{element.name} has no NaN", code=numbers, result=("NaN",)))
    return rules
