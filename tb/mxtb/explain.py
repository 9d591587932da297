"""One case, told in words: the fields, where the rounding falls, the clauses, and what each twin makes of it.

The numbers in the story are exact rationals, worked out here from the format descriptors; the verdict is the golden
twin's and the RTL's.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mxhw.catalog import Block, Entry, Policy
from mxhw.multi_format import format_number
from mxmodel.formats import E8M0, FP32, MX_BLOCK, ElementFormat, SourceFormat
from mxmodel.rules import (
    BelowZero,
    DequantPolicy,
    ExponentPolicy,
    NanCode,
    NarrowPolicy,
    NonFiniteBlock,
    PreScale,
    Scale255,
)
from mxtb.blocks import golden
from mxtb.stimulus import element_grid

__all__ = ["Case", "Explanation", "explain"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Inputs of one entry, as bits.

    Attributes
    ----------
    entry : the configuration
    words : the values or codes that enter: one, or a block of 32 for ``shared_exponent``
    scale : the E8M0 byte, where the entry takes one
    selected : the format select, where the entry has one
    """

    entry: Entry
    words: tuple[int, ...]
    scale: int | None = None
    selected: int | None = None

    @property
    def policy(self) -> Policy | None:
        """The policy that applies; None where no policy permits the selected format."""
        if self.selected is None:
            return self.entry.policy
        for policy in self.entry.policies:
            if not isinstance(policy, ExponentPolicy) and format_number(policy.element) == self.selected:
                return policy
        return None

    @property
    def ports(self) -> dict[str, int | Sequence[int]]:
        """Port name -> bits, or one integer for each element of a block."""
        word_port = "code" if self.entry.block is Block.LDEXP else "x"
        words = list(self.words) if self.entry.block is Block.SHARED_EXPONENT else self.words[0]
        ports: dict[str, int | Sequence[int]] = {word_port: words}
        if self.scale is not None:
            ports["scale"] = self.scale
        if self.selected is not None:
            ports["format"] = self.selected
        return ports

    @property
    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The same as arrays of one case, as the golden twin takes them."""
        width = 8 if self.entry.source is None else self.entry.source.width
        arrays = {}
        for name, bits in self.ports.items():
            arrays[name] = np.array([bits], dtype=f"uint{width}" if name == "x" else "uint8")
        return arrays

    def command(self, simulator: str) -> str:
        """A command line that shows this case alone, on ``simulator``."""
        digits = (8 if self.entry.source is None else self.entry.source.width) // 4
        words = [f"0x{word:0{digits}x}" for word in self.words]
        options = [] if self.scale is None else ["--scale", str(self.scale)]
        options += [] if self.selected is None else ["--format", str(self.selected)]
        return shlex.join(["mxtwin", "explain", "--entry", self.entry.name, "--sim", simulator, *options, *words])


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The story of a case.

    Attributes
    ----------
    case : what was asked
    lines : (label, text) pairs in reading order
    clauses : ids of the contract's clauses that decided
    golden : the golden twin's output bits
    rtl : origin (a simulator's name) -> the RTL's output bits as a 0/1/X/Z string
    """

    case: Case
    lines: tuple[tuple[str, str], ...]
    clauses: tuple[str, ...]
    golden: int
    rtl: Mapping[str, str]

    @property
    def agree(self) -> bool:
        """Whether every RTL output is the golden one."""
        return all(bits == self.bit_string(self.golden) for bits in self.rtl.values())

    def bit_string(self, value: int) -> str:
        return f"{value:0{self.width}b}"

    @property
    def width(self) -> int:
        """Bits of the output."""
        return self.case.entry.result_width

    def rows(self) -> list[tuple[str, str]]:
        """Everything as (label, text), the verdicts last."""
        rows = [("entry", self.case.entry.name), *self.lines, ("clauses", ", ".join(self.clauses))]
        rows.append(("golden", self._show(self.bit_string(self.golden))))
        for origin, bits in self.rtl.items():
            differs = "" if bits == self.bit_string(self.golden) else "   <- differs"
            rows.append((f"rtl ({origin})", self._show(bits) + differs))
        return rows

    def as_json(self) -> dict[str, Any]:
        return {
            "entry": self.case.entry.name,
            "words": [f"0x{word:x}" for word in self.case.words],
            "scale": self.case.scale,
            "story": [{"label": label, "text": text} for label, text in self.lines],
            "clauses": list(self.clauses),
            "golden": self._show(self.bit_string(self.golden)),
            "rtl": {origin: self._show(bits) for origin, bits in self.rtl.items()},
            "agree": self.agree,
        }

    def _show(self, bits: str) -> str:
        if set(bits) - {"0", "1"}:
            return f"0b{bits} (unknown bits)"
        value = int(bits, 2)
        text = f"0x{value:0{(self.width + 3) // 4}x}"
        policy = self.case.policy
        if policy is None:
            return text
        if isinstance(policy, ExponentPolicy):
            return f"{text} = {value}, the scale 2^{value - E8M0.bias}"
        if isinstance(policy, DequantPolicy):
            return f"{text} = {_source_value(value, FP32)}"
        return f"{text} = {_code_value(value, policy.element)}"


def explain(case: Case, rtl: Mapping[str, str]) -> Explanation:
    """Explain ``case``; ``rtl`` maps a simulator's name to the output bits it gave, as a string."""
    policy = case.policy
    if policy is None:
        lines, clauses = [("format", f"{case.selected}: not one that this lane may write, so the output is 0")], ["N-7"]
    elif isinstance(policy, NarrowPolicy):
        lines, clauses = _narrow_story(case, policy)
    elif isinstance(policy, DequantPolicy):
        lines, clauses = _ldexp_story(case, policy)
    else:
        lines, clauses = _exponent_story(case, policy)
    return Explanation(
        case=case,
        lines=tuple(lines),
        clauses=tuple(clauses),
        golden=int(golden(case.entry, case.arrays)[0]),
        rtl=dict(rtl),
    )


_NAN_BECOMES = {
    NanCode.PROPAGATE: "sign | the NaN code",
    NanCode.ZERO: "signed zero",
    NanCode.MAX_NORMAL: "max-normal, as an overflow does",
}
Story = tuple[list[tuple[str, str]], list[str]]


def _narrow_story(case: Case, policy: NarrowPolicy) -> Story:
    source = case.entry.source
    assert source is not None, "an encoder has a source"
    bits, element = case.words[0], policy.element
    lines = [("x", _fields(bits, source))]
    clauses = ["F-3"] if source is not FP32 else []
    scale = case.scale
    if scale is not None:
        lines.append(("scale", f"{scale}: divide by 2^{scale - E8M0.bias}"))
        clauses.append("N-5")
    negative, magnitude = bits >> (source.width - 1), bits & source.magnitude_mask
    if scale == E8M0.max_byte and policy.scale_255 is Scale255.NAN:
        lines.append(("rule", "scale 255 makes every code 0"))
        return lines, [*clauses, "N-6"]
    if magnitude > source.infinity_bits:
        lines.append(("rule", f"NaN becomes {_NAN_BECOMES[policy.nan]}"))
        return lines, [*clauses, "N-4" if element.has_nan else "N-3"]
    if policy.pre_scale is PreScale.FP32_PRODUCT and scale is not None and scale >= E8M0.max_byte - 1:
        factor = "-Inf" if scale == E8M0.max_byte else "+0.0"
        lines.append(("rule", f"the fp32 constant (254 - {scale}) << 23 is {factor}: the product decides"))
        return lines, clauses
    if magnitude == source.infinity_bits:
        lines.append(("rule", "Inf saturates to max-normal"))
        return lines, [*clauses, "N-2"]
    value = _exact(magnitude, source)
    if scale is not None:
        value /= Fraction(2) ** (scale - E8M0.bias)
        lines.append(("pre-scaled", f"{'-' if negative else ''}{_decimal(value)}"))
    return lines + _rounding(value, magnitude, source, element), [*clauses, "N-1", "N-2"]


def _rounding(value: Fraction, magnitude: int, source: SourceFormat, element: ElementFormat) -> list[tuple[str, str]]:
    """Where a finite value stands between two codes, and which bit of the significand decides."""
    grid = element_grid(element)
    if value == 0:
        return [("rounding", "zero keeps its sign")]
    if value >= grid[-1]:
        tie = grid[-1] + (grid[-1] - grid[-2]) / 2
        top = f"at or above max-normal {_decimal(grid[-1])}, whose upper tie is {_decimal(tie)}"
        return [("rounding", f"{top}: saturates")]
    exponent = max(_floor_log2(value), element.min_exponent)
    ulp = Fraction(2) ** (exponent - element.trailing_bits)
    code = next(index for index in range(len(grid)) if grid[index] <= value < grid[index + 1])
    kind = "subnormal" if value < Fraction(2) ** element.min_exponent else "normal"
    # The weight of the significand's lowest bit, after the scale, is exact: the value over its integer significand.
    field = magnitude >> source.trailing_bits
    significand = (magnitude & source.trailing_mask) | (0 if field == 0 else 1 << source.trailing_bits)
    dropped = _floor_log2(ulp / (value / significand))
    low, high = (f"0x{near:x} = {_decimal(grid[near])}" for near in (code, code + 1))
    middle = _decimal((grid[code] + grid[code + 1]) / 2)
    lines = [("grid", f"{kind}, ulp 2^{_floor_log2(ulp)}; between {low} and {high}, tie at {middle}")]
    if dropped <= 0:
        return [*lines, ("rounding", "exact: nothing of the significand is dropped")]
    guard = (significand >> (dropped - 1)) & 1
    sticky = significand & ((1 << (dropped - 1)) - 1) != 0
    how = "down" if not guard else "up" if sticky else f"tie, to even: {'up' if code & 1 else 'down'}"
    if value == grid[code]:
        how = "exact"
    place = f"below bit {dropped} of the significand 0x{significand:x}: guard {guard}, sticky {int(sticky)}"
    return [*lines, ("rounding", f"{place}: {how}")]


def _ldexp_story(case: Case, policy: DequantPolicy) -> Story:
    element, scale = policy.element, case.scale
    code = case.words[0] & (element.code_count - 1)
    assert scale is not None, "an ldexp lane has a scale"
    field = (code & (element.sign_bit - 1)) >> element.trailing_bits
    sign, trailing = code >> (element.width - 1), code & element.trailing_mask
    fields = f"sign {sign}, biased exponent {field}, trailing significand {trailing}"
    lines = [
        ("code", f"0x{code:x}: {fields} = {_code_value(code, element)}"),
        ("scale", f"{scale}: times 2^{scale - E8M0.bias}"),
    ]
    if scale == E8M0.max_byte:
        nan = policy.scale_255 is Scale255.NAN
        lines.append(("rule", f"scale 255 {'makes every code NaN' if nan else 'is 2^128'}"))
        if nan:
            return lines, ["D-3"]
    magnitude = code & (element.sign_bit - 1)
    if element.is_nan_code(magnitude) or magnitude == element.infinity_code:
        lines.append(("rule", "NaN is canonical, its sign dropped; Inf stays"))
        return lines, ["D-1", "D-4"]
    value = element_grid(element)[magnitude] * Fraction(2) ** (scale - E8M0.bias)
    top = Fraction(2) ** (FP32.bias + 1)
    lines.append(("product", f"{_decimal(value)}{' overflows fp32: Inf' if value >= top else ''}"))
    return lines, ["D-1", "D-2", *(["D-3"] if scale == E8M0.max_byte else [])]


def _exponent_story(case: Case, policy: ExponentPolicy) -> Story:
    source = case.entry.source
    assert source is not None, "the unit has a source"
    exponents = [_fp32_exponent(word, source) for word in case.words]
    largest = max(exponents)
    lane = exponents.index(largest)
    place = f"partition {lane // MX_BLOCK.columns}, column {lane % MX_BLOCK.columns}"
    lines = [
        ("largest", f"biased exponent {largest}, first in lane {lane} ({place}): {_fields(case.words[lane], source)}"),
        ("minus", f"{largest} - {policy.amount} = {largest - policy.amount}"),
    ]
    clauses = ["E-1", "E-3"]
    if largest == FP32.max_biased_exponent:
        special = policy.non_finite is NonFiniteBlock.SCALE_255
        lines.append(("rule", "a block with Inf or NaN " + ("has scale 255" if special else "is no special case")))
        clauses.append("E-6")
    floor = {BelowZero.CLAMP_TO_ONE: 1, BelowZero.CLAMP_TO_ZERO: 0}.get(policy.below_zero)
    if largest - policy.amount < (1 if floor is None else floor):
        lines.append(("rule", f"below zero: {policy.below_zero.value}"))
        clauses.append("E-4")
    return lines, clauses


def _fields(bits: int, source: SourceFormat) -> str:
    sign = bits >> (source.width - 1)
    field = (bits >> source.trailing_bits) & source.max_biased_exponent
    trailing = bits & source.trailing_mask
    return (
        f"0x{bits:0{source.width // 4}x}: sign {sign}, biased exponent {field}, "
        f"trailing significand 0x{trailing:x} = {_source_value(bits, source)}"
    )


def _exact(magnitude: int, source: SourceFormat) -> Fraction:
    field, trailing = magnitude >> source.trailing_bits, magnitude & source.trailing_mask
    significand = trailing if field == 0 else trailing | 1 << source.trailing_bits
    return Fraction(significand) * Fraction(2) ** (max(field, 1) - source.bias - source.trailing_bits)


def _fp32_exponent(bits: int, source: SourceFormat) -> int:
    """The biased exponent after widening to fp32 (F-3, E-1)."""
    magnitude = bits & source.magnitude_mask
    if magnitude >= source.infinity_bits:
        return FP32.max_biased_exponent
    if magnitude == 0:
        return 0
    return max(_floor_log2(_exact(magnitude, source)) + FP32.bias, 0)


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent - 1 if value < Fraction(2) ** exponent else exponent


def _source_value(bits: int, source: SourceFormat) -> str:
    magnitude, sign = bits & source.magnitude_mask, "-" if bits >> (source.width - 1) else ""
    if magnitude > source.infinity_bits:
        return f"{sign}NaN"
    return f"{sign}Inf" if magnitude == source.infinity_bits else f"{sign}{_decimal(_exact(magnitude, source))}"


def _code_value(code: int, element: ElementFormat) -> str:
    magnitude, sign = code & (element.sign_bit - 1), "-" if code & element.sign_bit else ""
    if element.is_nan_code(magnitude):
        return f"{sign}NaN"
    if magnitude == element.infinity_code:
        return f"{sign}Inf"
    return f"{sign}{_decimal(element_grid(element)[magnitude])}"


def _decimal(value: Fraction) -> str:
    """A number for people: short where it is short, else 9 digits."""
    return f"{float(value):.9g}"
