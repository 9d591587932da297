"""Bins of the shared-exponent unit: how large the largest exponent was, who held it, and what the rules made of it."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, FP32, MX_BLOCK, SourceFormat
from mxmodel.rules import BelowZero, ExponentPolicy, NonFiniteBlock
from mxtb.coverage.bins import Axis, Plan, Reason, Rule, Tally
from mxtb.coverage.classes import SCALE, SCALE_RANGES, scale_classes

__all__ = ["Cases", "plan", "tally"]

CONTENT = Axis(name="content", labels=("all zero", "zeros and fp32 subnormals", "finite", "Inf", "NaN", "Inf and NaN"))
_ALL_ZERO, _SUBNORMALS, _FINITE, _INF, _NAN, _BOTH = range(len(CONTENT.labels))

HOLDERS = Axis(name="held by", labels=("one", "two", "several", "all"))
_ONE, _TWO, _SEVERAL, _ALL = range(len(HOLDERS.labels))

PLACE = Axis(
    name="lane",
    labels=(*(f"{lane // MX_BLOCK.columns},{lane % MX_BLOCK.columns}" for lane in range(MX_BLOCK.size)), "-"),
)
"""Partition and column of the one element that has the largest exponent; "-" where several have it."""

SIGN = Axis(name="sign", labels=("+", "-"))
"""Of the first element that has the largest exponent."""

RULE = Axis(name="difference", labels=("below zero", "zero", "above zero", "not finite"))
_BELOW, _AT_ZERO, _ABOVE, _NOT_FINITE = range(len(RULE.labels))

RESULT = Axis(name="result", labels=SCALE.labels)


def _exponent_ranges(policy: ExponentPolicy) -> list[tuple[int, int]]:
    """Exponents at which something changes, each alone, and all between them together."""
    top = FP32.max_biased_exponent
    alone = sorted({0, 1, policy.amount - 1, policy.amount, policy.amount + 1, top - 1, top} - {-1})
    ranges: list[tuple[int, int]] = []
    for value in alone:
        before = ranges[-1][1] + 1 if ranges else 0
        if before < value:
            ranges.append((before, value - 1))
        ranges.append((value, value))
    return ranges


def _exponent_axis(policy: ExponentPolicy) -> Axis:
    return Axis(name="exponent", labels=tuple(str(a) if a == b else f"{a}-{b}" for a, b in _exponent_ranges(policy)))


def _exponent_table(policy: ExponentPolicy) -> NDArray[np.uint8]:
    table = np.empty(FP32.max_biased_exponent + 1, dtype=np.uint8)
    for index, (low, high) in enumerate(_exponent_ranges(policy)):
        table[low : high + 1] = index
    return table


@cache
def _widened_exponents(source: SourceFormat) -> NDArray[np.uint8]:
    """fp32's biased exponent of every field of ``source``, or of every magnitude of a 16-bit source (F-3).

    Where the exponents are fp32's own, the field is the answer.
    """
    field = np.arange(source.max_biased_exponent + 1)
    if source.bias == FP32.bias:
        return field.astype(np.uint8)
    magnitudes = np.arange(source.magnitude_mask + 1)
    power = np.frexp(np.maximum(magnitudes, 1).astype(np.float64))[1] - 1  # of a subnormal's integer
    subnormal = power + 1 - source.bias - source.trailing_bits + FP32.bias
    normal = (magnitudes >> source.trailing_bits) - source.bias + FP32.bias
    exponents = np.where(magnitudes >> source.trailing_bits == 0, subnormal, normal)
    exponents[magnitudes == 0] = 0
    exponents[magnitudes >= source.infinity_bits] = FP32.max_biased_exponent
    return exponents.astype(np.uint8)


class Cases:
    """Blocks [cases, 32] of ``source`` bits, seen by units of several policies."""

    def __init__(self, x: NDArray[Any], source: SourceFormat) -> None:
        self.source = source
        magnitude = x & x.dtype.type(source.magnitude_mask)
        table = _widened_exponents(source)
        shift = source.trailing_bits if source.bias == FP32.bias else 0
        exponents = table[magnitude >> x.dtype.type(shift)]
        self.largest = exponents.max(axis=1)
        holds = exponents == self.largest[:, None]
        holders = holds.sum(axis=1)
        first = holds.argmax(axis=1)
        self.holders = np.select([holders == 1, holders == 2, holders < MX_BLOCK.size], [_ONE, _TWO, _SEVERAL], _ALL)
        self.lane = np.where(holders == 1, first, MX_BLOCK.size)
        self.negative = np.take_along_axis(x, first[:, None], axis=1)[:, 0] >> x.dtype.type(source.width - 1)
        inf = (magnitude == source.infinity_bits).any(axis=1)
        nan = (magnitude > source.infinity_bits).any(axis=1)
        zero = (magnitude == 0).all(axis=1)
        self.content = np.select(
            [inf & nan, nan, inf, zero, self.largest == 0], [_BOTH, _NAN, _INF, _ALL_ZERO, _SUBNORMALS], _FINITE
        )


def tally(cases: Cases, expected: NDArray[np.uint8], policy: ExponentPolicy) -> Tally:
    """Count ``cases`` with the scale bytes ``expected`` of them under ``policy``."""
    difference = cases.largest.astype(np.int32) - policy.amount
    rule = np.where(cases.largest == FP32.max_biased_exponent, _NOT_FINITE, np.sign(difference) + 1)
    wanted = plan(cases.source, policy)
    classes = [
        _exponent_table(policy)[cases.largest], cases.content, cases.holders, cases.lane, cases.negative, rule,
        scale_classes(expected),
    ]  # fmt: skip
    return Tally(plan=wanted, joint=wanted.count(classes))


@cache
def plan(source: SourceFormat, policy: ExponentPolicy) -> Plan:
    """The bins of a unit that reads ``source`` under ``policy``."""
    axes = (_exponent_axis(policy), CONTENT, HOLDERS, PLACE, SIGN, RULE, RESULT)
    exponent, content, holders, place, sign, rule, result = (axis.name for axis in axes)
    return Plan(
        label="",
        axes=axes,
        groups=(*((axis.name,) for axis in axes), (exponent, content), (exponent, holders), (exponent, sign),
                (exponent, result), (content, holders), (content, sign), (place, sign), (rule, result),
                (rule, holders)),
        possible=_possible(source, policy, axes),
        rules=tuple(_rules(source, policy, axes[0])),
        otherwise=Reason(clause="E-3", why=f"an exponent of this class less {policy.amount} is not there"),
    )  # fmt: skip


def _possible(source: SourceFormat, policy: ExponentPolicy, axes: tuple[Axis, ...]) -> NDArray[np.bool_]:
    possible = np.zeros(tuple(len(axis.labels) for axis in axes), dtype=bool)
    class_of = _exponent_table(policy)
    for largest in np.unique(_widened_exponents(source)).tolist():
        result = scale_classes(np.array([_scale(largest, policy)], dtype=np.uint8))[0]
        difference = largest - policy.amount
        rule = _NOT_FINITE if largest == FP32.max_biased_exponent else int(np.sign(difference)) + 1
        for content, holders in _contents(largest, source):
            lanes = slice(0, MX_BLOCK.size) if holders == _ONE else slice(MX_BLOCK.size, None)
            possible[class_of[largest], content, holders, lanes, :, rule, result] = True
    return possible


def _contents(largest: int, source: SourceFormat) -> Iterator[tuple[int, int]]:
    """(content, holders) of blocks whose largest exponent is ``largest``."""
    if largest == 0:
        yield _ALL_ZERO, _ALL
        if source.bias == FP32.bias:  # a narrower exponent's subnormals are normal in fp32 (F-3)
            yield _SUBNORMALS, _ALL
        return
    for holders in range(len(HOLDERS.labels)):
        if largest < FP32.max_biased_exponent:
            yield _FINITE, holders
        else:
            yield from ((content, holders) for content in (_INF, _NAN))
            if holders != _ONE:
                yield _BOTH, holders


def _scale(largest: int, policy: ExponentPolicy) -> int:
    """E-3, E-4 and E-6 in plain words."""
    if largest == FP32.max_biased_exponent and policy.non_finite is NonFiniteBlock.SCALE_255:
        return E8M0.max_byte
    difference = largest - policy.amount
    if policy.below_zero is BelowZero.WRAP:
        return difference % (E8M0.max_byte + 1)
    return max(difference, 1 if policy.below_zero is BelowZero.CLAMP_TO_ONE else 0)


def _rules(source: SourceFormat, policy: ExponentPolicy, exponent: Axis) -> Iterator[Rule]:
    def rule(clause: str, why: str, where: Mapping[str, Any]) -> Rule:
        sets = {axis: frozenset((labels,) if isinstance(labels, str) else labels) for axis, labels in where.items()}
        return Rule(reason=Reason(clause=clause, why=why), where=sets)

    reached = set(_exponent_table(policy)[_widened_exponents(source)])
    beyond = [label for place, label in enumerate(exponent.labels) if place not in reached]
    if beyond:
        yield rule("F-3", f"no {source.name} value has such an exponent in fp32", {"exponent": beyond})
    if source.bias != FP32.bias:
        yield rule(
            "F-3", f"every {source.name} subnormal is a normal fp32 value", {"content": CONTENT.labels[_SUBNORMALS]}
        )
    special, zeros = CONTENT.labels[_INF:], CONTENT.labels[:_FINITE]
    yield rule("E-1", "only Inf and NaN have exponent 255", {"exponent": "255", "content": CONTENT.labels[:_INF]})
    yield rule("E-1", "Inf and NaN have exponent 255", {"content": special})
    yield rule("E-1", "only zeros and subnormals have exponent 0", {"exponent": "0", "content": "finite"})
    yield rule("E-1", "zeros and subnormals have exponent 0", {"content": zeros})
    yield rule(
        "E-1", "where the largest exponent is 0, all have it", {"exponent": "0", "held by": HOLDERS.labels[:_ALL]}
    )
    yield rule("E-1", "an Inf and a NaN are two", {"content": "Inf and NaN", "held by": "one"})
    if policy.non_finite is NonFiniteBlock.SCALE_255:
        yield rule(
            "E-6", "a block with Inf or NaN has scale 255, and no other has", {"difference": RULE.labels[_NOT_FINITE]}
        )
        yield rule("E-6", "a block with Inf or NaN has scale 255", {"exponent": "255"})
    if policy.below_zero is BelowZero.CLAMP_TO_ONE:
        yield rule("E-4", "a result below one is one", {"result": "0"})
    if policy.below_zero is not BelowZero.WRAP:
        yield rule("E-4", "below zero is clamped", {"difference": "below zero"})
    yield rule(
        "E-5",
        "no block reaches such a scale",
        {"result": [label for (low, _), label in zip(SCALE_RANGES, SCALE.labels, strict=True) if low > 2]},
    )
