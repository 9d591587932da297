"""Bins of the narrowing encoder: how each value stood between two codes, and what became of it.

The classes of a case come from its bits and from the expected code; which combinations are possible comes from exact
values of the element's grid and the reach of the source (``_possible``), so neither asks the golden twin how it rounds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import E8M0, ElementFormat, SourceFormat
from mxmodel.rules import NanCode, NarrowPolicy, PreScale, Scale255
from mxtb.coverage.bins import Axis, Plan, Reason, Rule, Tally
from mxtb.coverage.classes import CODE, SCALE, SCALE_RANGES, SIGN, code_classes, scale_classes, sign_classes
from mxtb.stimulus import element_grid

__all__ = ["Cases", "plan", "tally"]

ROUNDING = Axis(
    name="rounding",
    labels=(
        "exact", "below half", "one ulp below the tie", "tie to even down", "tie to even up", "one ulp above the tie",
        "above half", "sticky only", "past max-normal", "zero", "not rounded",
    ),
)  # fmt: skip
"""Where a finite value stands on the element's grid. "sticky only": below half the smallest subnormal. "past
max-normal": a whole step above it. "not rounded": Inf, NaN, and where a scale of 254 or 255 decides by itself."""

CARRY = Axis(name="carry", labels=("none", "to min normal", "to the next binade", "past max-normal"))
RESULT = Axis(name="result", labels=(*CODE.labels, "saturated"))
SPECIAL = Axis(
    name="source",
    labels=("zero", "subnormal", "normal", "Inf", "signalling NaN", "canonical NaN", "quiet NaN with payload"),
)

(_EXACT, _BELOW, _JUST_BELOW, _TIE_DOWN, _TIE_UP, _JUST_ABOVE, _ABOVE, _STICKY, _PAST, _ZERO, _NOT) = range(
    len(ROUNDING.labels)
)
_NO_CARRY, _TO_MIN_NORMAL, _NEXT_BINADE, _CARRY_PAST = range(len(CARRY.labels))
_SUBNORMAL, _NORMAL, _INF = 1, 2, 3
_SATURATED = len(CODE.labels)

_KIND = np.array([_EXACT, _EXACT, _BELOW, _BELOW, _TIE_DOWN, _TIE_UP, _ABOVE, _ABOVE], dtype=np.uint8)
"""By guard, sticky and the last bit kept."""


class Cases:
    """One stimulus, seen by several encoders of one source: what they share is worked out once.

    ``x`` is [cases] bits of ``source``, ``scale`` uint8 [cases] or None.
    """

    def __init__(self, x: NDArray[Any], scale: NDArray[np.uint8] | None, source: SourceFormat) -> None:
        self.source = source
        self.scale = scale
        self.negative = (x >> x.dtype.type(source.width - 1)).astype(bool)
        self.magnitude = (x & x.dtype.type(source.magnitude_mask)).astype(np.int32)
        quiet = source.quiet_nan_bits
        # In ascending order the classes of SPECIAL are intervals of the magnitude.
        starts = (1, 1 << source.trailing_bits, source.infinity_bits, source.infinity_bits + 1, quiet, quiet + 1)
        self.special = np.zeros(x.shape, dtype=np.uint8)
        for start in starts:
            self.special += self.magnitude >= start
        self.scale_class = None if scale is None else scale_classes(scale)
        self._positions: dict[ElementFormat, tuple[NDArray[np.uint8], NDArray[np.uint8]]] = {}

    def position(self, element: ElementFormat) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Rounding and carry class of every case on ``element``'s grid, whatever a policy makes of scale 254 or 255."""
        if element not in self._positions:
            self._positions[element] = self._position(element)
        return self._positions[element]

    def _position(self, element: ElementFormat) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        bits, kept = self.source.trailing_bits, element.trailing_bits
        hidden = 1 << bits
        field = self.magnitude >> bits
        significand = (self.magnitude & (hidden - 1)) | hidden
        weight = field - (self.source.bias + bits)  # exponent of the significand's lowest bit
        few = np.nonzero(self.special == _SUBNORMAL)[0]
        subnormal = self.magnitude[few]
        shift = bits + 1 - np.frexp(subnormal.astype(np.float64))[1]
        significand[few] = subnormal << shift
        weight[few] = 1 - self.source.bias - bits - shift
        if self.scale is not None:
            weight -= self.scale.astype(np.int32) - E8M0.bias
        smallest = element.min_exponent - kept
        drop = np.clip(smallest - weight, bits - kept, bits + 2)
        binade = np.clip(weight + drop - smallest, 0, 1 << element.exponent_bits)
        rest = significand & ((1 << drop) - 1)
        steps = significand >> drop
        half = (1 << drop) >> 1
        guard, sticky, last = rest >= half, (rest & (half - 1)) != 0, steps & 1
        rounding = _KIND[4 * guard + 2 * sticky + last]
        distance = rest - half
        distance[few] >>= shift
        rounding[(distance == -1) & (rounding == _BELOW)] = _JUST_BELOW
        rounding[(distance == 1) & (rounding == _ABOVE)] = _JUST_ABOVE
        floor = (binade << kept) + steps
        up = (floor < element.max_normal_code + 1) & guard & (sticky | (last != 0))
        carry = (up & ((floor + 1) & element.trailing_mask == 0)).astype(np.uint8) * np.uint8(_NEXT_BINADE)
        carry[up & (floor + 1 == 1 << kept)] = _TO_MIN_NORMAL
        carry[up & (floor == element.max_normal_code)] = _CARRY_PAST
        rounding[drop == bits + 2] = _STICKY
        rounding[floor > element.max_normal_code] = _PAST
        unrounded = (self.special == 0) | (self.special >= _INF)
        rounding[unrounded] = np.where(self.special[unrounded] == 0, np.uint8(_ZERO), np.uint8(_NOT))
        carry[unrounded] = _NO_CARRY
        return rounding, carry


def tally(cases: Cases, expected: NDArray[np.uint8], policy: NarrowPolicy, label: str = "") -> Tally:
    """Count ``cases`` with the codes ``expected`` of them under ``policy``."""
    rounding, carry = cases.position(policy.element)
    decided = _deciding_scale(policy)
    if decided <= E8M0.max_byte:
        assert cases.scale is not None, "a policy with such scales has a scale"
        by_scale = cases.scale >= decided
        rounding, carry = rounding.copy(), carry.copy()
        rounding[by_scale] = _NOT
        carry[by_scale] = _NO_CARRY
    result = code_classes(policy.element)[expected]
    beyond = (rounding >= _PAST) | (carry == _CARRY_PAST)
    result[beyond & (result == CODE.labels.index("max normal"))] = _SATURATED
    sign = sign_classes(cases.negative, (expected & np.uint8(policy.element.sign_bit)) != 0)
    classes = [rounding, carry, result, sign, cases.special]
    wanted = plan(cases.source, policy, label)
    if cases.scale_class is not None:
        classes.append(cases.scale_class)
    return Tally(plan=wanted, joint=wanted.count(classes))


def _deciding_scale(policy: NarrowPolicy) -> int:
    """The first scale byte that decides by itself, without rounding (N-5, N-6); 256 where none does."""
    if policy.pre_scale is PreScale.FP32_PRODUCT:
        return E8M0.max_byte - 1
    return E8M0.max_byte if policy.scale_255 is Scale255.NAN else E8M0.max_byte + 1


@cache
def plan(source: SourceFormat, policy: NarrowPolicy, label: str = "") -> Plan:
    """The bins of an encoder from ``source`` under ``policy``."""
    scaled = policy.pre_scale is not PreScale.NONE
    axes = (ROUNDING, CARRY, RESULT, SIGN, SPECIAL, *((SCALE,) if scaled else ()))
    names = [axis.name for axis in axes]
    crosses = [
        ("rounding", "carry"), ("rounding", "result"), ("rounding", "sign"), ("carry", "sign"), ("result", "sign"),
        ("source", "rounding"), ("source", "result"), ("source", "sign"),
    ]  # fmt: skip
    if scaled:
        crosses += [(name, "scale") for name in ("rounding", "result", "sign", "source")]
    return Plan(
        label=label,
        axes=axes,
        groups=(*((name,) for name in names), *crosses),
        possible=_possible(source, policy, tuple(len(axis.labels) for axis in axes)),
        rules=tuple(_rules(policy)),
        otherwise=Reason(
            clause="N-5, F-3" if scaled else "N-1, F-3",
            why=f"no {source.name} value of this class{', divided by such a scale,' if scaled else ''} lies there",
        ),
    )


# --- what is possible -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Reach:
    """Values from ``low`` to ``high``; ``step`` apart, or as fine as asked (0). All are exact as float64."""

    low: float
    high: float
    step: float

    def between(self, low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether any value lies strictly inside each of the intervals."""
        low, high = np.maximum(low, np.nextafter(self.low, 0)), np.minimum(high, np.nextafter(self.high, np.inf))
        if not self.step:
            return np.asarray(low < high)
        return np.asarray(np.floor(low / self.step) + 1 <= np.ceil(high / self.step) - 1)

    def has(self, points: NDArray[Any]) -> NDArray[np.bool_]:
        inside = (points >= self.low) & (points <= self.high)
        return inside & (points % self.step == 0) if self.step else inside


def _reach(source: SourceFormat, special: int, scales: tuple[int, int]) -> _Reach:
    """The finite magnitudes of a class of ``source``, divided by the scales from the first to the last."""
    smallest = 2.0 ** (E8M0.bias - scales[1])
    largest = 2.0 ** (E8M0.bias - scales[0])
    unit = 2.0 ** (1 - source.bias - source.trailing_bits)
    min_normal = 2.0 ** (1 - source.bias)
    if special == _SUBNORMAL:
        return _Reach(low=unit * smallest, high=(min_normal - unit) * largest, step=unit * smallest)
    max_normal = (2.0 - 2.0**-source.trailing_bits) * 2.0**source.bias
    return _Reach(low=min_normal * smallest, high=max_normal * largest, step=0.0)


def _possible(source: SourceFormat, policy: NarrowPolicy, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    scaled = policy.pre_scale is not PreScale.NONE
    possible = np.zeros((*shape, 1) if not scaled else shape, dtype=bool)
    ranges = SCALE_RANGES if scaled else ((E8M0.bias, E8M0.bias),)
    for place, scales in enumerate(ranges):
        for special in range(len(SPECIAL.labels)):
            for negative in (0, 1):
                outcomes = (
                    _decided_by_scale(policy, scales[0], special, negative)
                    if scales[0] >= _deciding_scale(policy)
                    else _rounded(source, policy, scales, special, negative)
                )
                for rounding, carry, result, after in outcomes:
                    possible[rounding, carry, result, 2 * negative + after, special, place] = True
    return possible if scaled else possible[..., 0]


Outcome = tuple[int, int, int, int]
"""Places on the axes rounding, carry and result, and the sign that comes out."""


def _decided_by_scale(policy: NarrowPolicy, scale: int, special: int, negative: int) -> Iterator[Outcome]:
    if policy.scale_255 is Scale255.NAN:
        yield _NOT, _NO_CARRY, 0, 0  # N-6
    elif special > _INF:
        yield _NOT, _NO_CARRY, 0, negative  # N-4: its own sign
    elif special == (_INF if scale < E8M0.max_byte else 0):
        yield _NOT, _NO_CARRY, 0, 1  # N-5: an invalid product
    elif scale < E8M0.max_byte:
        yield _NOT, _NO_CARRY, 0, negative
    else:
        yield _NOT, _NO_CARRY, _SATURATED, 1 - negative


def _rounded(
    source: SourceFormat, policy: NarrowPolicy, scales: tuple[int, int], special: int, negative: int
) -> Iterator[Outcome]:
    if special == 0:
        yield _ZERO, _NO_CARRY, 0, negative
    elif special == _INF:
        yield _NOT, _NO_CARRY, _SATURATED, negative
    elif special > _INF:
        yield _NOT, _NO_CARRY, CODE.labels.index("NaN") if policy.nan is NanCode.PROPAGATE else 0, negative
    else:
        for rounding, carry, result in _between_codes(_reach(source, special, scales), policy.element):
            yield rounding, carry, result, negative


def _between_codes(reach: _Reach, element: ElementFormat) -> set[tuple[int, int, int]]:
    """(rounding, carry, result) of every value that ``reach`` has."""
    grid = np.array([float(value) for value in element_grid(element)])
    above = np.append(grid[1:], 2 * grid[-1] - grid[-2])
    tie = (grid + above) / 2
    codes = np.arange(grid.size)
    class_of = code_classes(element)
    found: set[tuple[int, int, int]] = set()

    def add(kind: int, where: NDArray[np.bool_], upwards: bool) -> None:
        for code in codes[where]:
            carry = _carry(int(code), element) if upwards else _NO_CARRY
            result = _SATURATED if carry == _CARRY_PAST else int(class_of[code + upwards])
            found.add((kind, carry, result))

    add(_EXACT, reach.has(grid) & (codes > 0), False)
    # Below half the smallest subnormal nothing but the sticky bit is left, which is a class of its own.
    step = reach.step
    on_grid = tie % step == 0 if step else np.ones_like(codes, dtype=bool)
    one = step if step else 0.0
    add(_BELOW, reach.between(grid, np.where(on_grid, tie - one, tie)) & (codes > 0), False)
    add(_JUST_BELOW, reach.between(np.where(on_grid, tie - 2 * one if step else grid, tie), tie) & (codes > 0), False)
    if step:
        just = on_grid & (tie - step > grid) & reach.has(tie - step) & (codes > 0)
        found -= {outcome for outcome in found if outcome[0] == _JUST_BELOW}
        add(_JUST_BELOW, just, False)
        add(_JUST_ABOVE, on_grid & (tie + step < above) & reach.has(tie + step), True)
    else:
        add(_JUST_ABOVE, reach.between(tie, above), True)
    add(_TIE_DOWN, reach.has(tie) & (codes % 2 == 0), False)
    add(_TIE_UP, reach.has(tie) & (codes % 2 == 1), True)
    add(_ABOVE, reach.between(np.where(on_grid, tie + one, tie), above), True)
    if reach.low < tie[0]:
        found.add((_STICKY, _NO_CARRY, 0))
    if reach.high >= above[-1]:
        found.add((_PAST, _NO_CARRY, _SATURATED))
    return found


def _carry(code: int, element: ElementFormat) -> int:
    """What rounding up from ``code`` carries into."""
    if code == element.max_normal_code:
        return _CARRY_PAST
    if code + 1 == 1 << element.trailing_bits:
        return _TO_MIN_NORMAL
    return _NEXT_BINADE if (code + 1) & element.trailing_mask == 0 else _NO_CARRY


# --- why the rest is not ----------------------------------------------------------------------------------------------


def _rules(policy: NarrowPolicy) -> Iterator[Rule]:
    element = policy.element
    nans = frozenset(SPECIAL.labels[_INF + 1 :])

    def rule(clause: str, why: str, where: Mapping[str, Any]) -> Rule:
        sets = {axis: frozenset((labels,) if isinstance(labels, str) else labels) for axis, labels in where.items()}
        return Rule(reason=Reason(clause=clause, why=why), where=sets)

    def others(axis: Axis, *labels: str) -> frozenset[str]:
        return frozenset(axis.labels) - frozenset(labels)

    yield rule("N-2", "Inf and every overflow saturate", {"result": "Inf"})
    if not element.has_nan:
        yield rule("N-3", f"{element.name} has no NaN", {"result": "NaN"})
    elif policy.nan is not NanCode.PROPAGATE:
        yield rule("N-4", "NaN becomes signed zero", {"result": "NaN"})
    unused = frozenset(CODE.labels[:7]) - {CODE.labels[place] for place in set(code_classes(element))}
    if unused:
        yield rule("F-1", f"{element.name} has one subnormal, its smallest", {"result": unused})
    flips = {"sign": ("+ to -", "- to +")}
    if policy.pre_scale is PreScale.FP32_PRODUCT:
        yield rule("N-5", "scale 254 multiplies by +0.0: nothing is rounded, all become zero",
                   {"scale": "254", "rounding": others(ROUNDING, "not rounded")})  # fmt: skip
        yield rule(
            "N-5", "scale 254 multiplies by +0.0: all become zero", {"scale": "254", "result": others(RESULT, "zero")}
        )
        yield rule("N-5", "scale 255 multiplies by -Inf: nothing is rounded",
                   {"scale": "255", "rounding": others(ROUNDING, "not rounded")})  # fmt: skip
        yield rule("N-5", "scale 255 multiplies by -Inf: only zero and max-normal come out",
                   {"scale": "255", "result": others(RESULT, "zero", "saturated")})  # fmt: skip
        yield rule("N-5", "up to scale 253 the factor is positive", {"scale": others(SCALE, "254", "255"), **flips})
        yield rule(
            "N-5", "a product by +0.0 is negative only if x is, or if invalid", {"scale": "254", "sign": "- to +"}
        )
        yield rule(
            "N-5", "the sign of an invalid product is 1, and a NaN keeps its own", {"source": nans | {"zero"}, **flips}
        )
        yield rule(
            "N-5", "a sign changes only where the scale decides", {"rounding": others(ROUNDING, "not rounded"), **flips}
        )
        yield rule("N-5", "a sign changes only where the scale decides", {"carry": others(CARRY, "none"), **flips})
        yield rule("N-5", "a sign changes only where the scale decides: to zero or max-normal",
                   {"result": others(RESULT, "zero", "saturated"), **flips})  # fmt: skip
        yield rule("N-5", "x times -Inf with a positive result is max-normal", {"result": "zero", "sign": "- to +"})
    elif policy.scale_255 is Scale255.NAN:
        yield rule("N-6", "scale 255 makes every code 0",
                   {"scale": "255", "rounding": others(ROUNDING, "not rounded")})  # fmt: skip
        yield rule("N-6", "scale 255 makes every code 0", {"scale": "255", "result": others(RESULT, "zero")})
        yield rule("N-6", "scale 255 makes every code 0", {"scale": "255", "sign": ("+ to -", "- to -")})
        yield rule("N-1", "the sign is kept, but for scale 255", flips)
    else:
        yield rule("N-1", "the sign is kept", flips)
    yield rule(
        "N-1",
        "zero is zero, whatever divides it",
        {"source": "zero", "rounding": others(ROUNDING, "zero", "not rounded")},
    )
    yield rule("N-1", "zero is zero, whatever divides it", {"source": "zero", "result": others(RESULT, "zero")})
    yield rule("N-2", "Inf is not rounded", {"source": "Inf", "rounding": others(ROUNDING, "not rounded")})
    yield rule("N-2", "Inf saturates", {"source": "Inf", "result": others(RESULT, "saturated")})
    nan_clause = "N-4" if element.has_nan else "N-3"
    yield rule(nan_clause, "NaN is not rounded", {"source": nans, "rounding": others(ROUNDING, "not rounded")})
    yield rule(nan_clause, "NaN becomes NaN, or signed zero", {"source": nans, "result": others(RESULT, "NaN", "zero")})
    yield rule(nan_clause, "NaN becomes NaN", {"source": nans, "result": "zero"})
    yield rule("N-1", "only a zero is of this class", {"source": others(SPECIAL, "zero"), "rounding": "zero"})
    yield rule(
        "N-1", "every finite value is rounded", {"source": ("zero", "subnormal", "normal"), "rounding": "not rounded"}
    )
    yield rule("N-4", "only NaN becomes NaN", {"source": others(SPECIAL, *nans), "result": "NaN"})
    yield rule("N-1", "these become zero", {"rounding": ("zero", "sticky only"), "result": others(RESULT, "zero")})
    yield rule("N-2", "these saturate", {"rounding": "past max-normal", "result": others(RESULT, "saturated")})
    yield rule("N-2, N-4", "what is not rounded becomes zero, NaN or max-normal",
               {"rounding": "not rounded", "result": others(RESULT, "zero", "saturated", "NaN")})  # fmt: skip
    yield rule(nan_clause, "NaN becomes NaN", {"rounding": "not rounded", "result": "zero"})
    yield rule(
        "N-1",
        "an exact value is the code's own, and zero has its class",
        {"rounding": "exact", "result": ("zero", "saturated")},
    )
    yield rule(
        "N-1", "what is rounded becomes a number", {"rounding": others(ROUNDING, "not rounded"), "result": "NaN"}
    )
    down = ("below half", "one ulp below the tie")
    yield rule("N-1", "below half the smallest subnormal is sticky only", {"rounding": down, "result": "zero"})
    yield rule(
        "N-1",
        "rounding down does not pass max-normal",
        {"rounding": (*down, "tie to even down"), "result": "saturated"},
    )
    up = ("tie to even up", "one ulp above the tie", "above half")
    yield rule("N-1", "rounding up does not end at zero", {"rounding": up, "result": "zero"})
    yield rule("N-1", "a tie goes to the even code, and this class has none",
               {"rounding": ("tie to even down", "tie to even up"), "result": others(RESULT, "NaN")})  # fmt: skip
    yield rule("N-1", "max-normal's code is even: a tie above it goes down",
               {"rounding": "tie to even up", "carry": "past max-normal"})  # fmt: skip
    yield rule("N-1", "only rounding up carries", {"rounding": others(ROUNDING, *up), "carry": others(CARRY, "none")})
