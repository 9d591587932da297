"""An exact oracle for contract F, E, N, Q and D, one number at a time.

Whole numbers and fractions only: no float, no NumPy, nothing of mxmodel. Element grids are enumerated and a value is
rounded by searching its neighbours; rule behaviours are written out again from the contract's table R, under the
names of the rule sets. Slow is fine, alike is not: where the model reads bit fields, the oracle reads values.

Every finite number is held as a whole count of 2^-``UNIT``.
"""

from bisect import bisect_left
from enum import Enum
from fractions import Fraction
from typing import Final, NamedTuple

UNIT = 1210
"""The least number met is 2^-1074 (float64); the least pre-scale is 2^-128. Both fit with room to spare."""


class Special(Enum):
    """What a magnitude is when it is not a number of units."""

    INF = "inf"
    NAN = "nan"


INF: Final = Special.INF
NAN: Final = Special.NAN

Magnitude = int | Special
Number = tuple[int, Magnitude]
"""(sign, magnitude); sign is 0 or 1, also for zero and NaN."""

FP32_INF = 0x7F800000
FP32_NAN = 0x7FC00000


def units(value: Fraction) -> int:
    """``value`` as a count of 2^-UNIT; it must be a whole one."""
    count = value * (1 << UNIT)
    assert count.denominator == 1, value
    return count.numerator


# -- F-3: sources -----------------------------------------------------------------------------------------------------

SOURCE_FIELDS = {"fp32": (8, 23), "bf16": (8, 7), "fp16": (5, 10), "fp64": (11, 52)}
"""Exponent bits, trailing significand bits."""


def decode(bits: int, source: str = "fp32") -> Number:
    """The number that ``bits`` of an IEEE 754 format stand for."""
    exponent_bits, trailing_bits = SOURCE_FIELDS[source]
    sign, magnitude = divmod(bits, 1 << (exponent_bits + trailing_bits))
    exponent, trailing = divmod(magnitude, 1 << trailing_bits)
    if exponent == (1 << exponent_bits) - 1:
        return sign, NAN if trailing else INF
    least = 2 - (1 << (exponent_bits - 1)) - trailing_bits  # exponent of the least subnormal
    if exponent == 0:
        return sign, trailing << (UNIT + least)
    return sign, (trailing + (1 << trailing_bits)) << (UNIT + least + exponent - 1)


def fp32_bits(number: Number, unit: int = UNIT) -> int:
    """``number``, in units of 2^-``unit``, rounded to the nearest fp32, ties to even; subnormals are kept."""
    sign, magnitude = number
    if magnitude is NAN:
        return (sign << 31) | FP32_NAN
    if magnitude is INF:
        return (sign << 31) | FP32_INF
    ulp = max(magnitude.bit_length() - 24, unit - 149)  # log2 of one unit in the last place, in units
    whole, rest = divmod(magnitude, 1 << ulp)
    twice = rest << 1
    if twice > 1 << ulp or (twice == 1 << ulp and whole & 1):
        whole += 1
    # whole is below 2^23 for a subnormal; from there on, one binade is one step of the exponent field and a carry
    # out of the significand is the next binade
    return (sign << 31) | min(whole + ((ulp - (unit - 149)) << 23), FP32_INF)


def to_fp32(bits: int, source: str) -> int:
    """The fp32 nearest to ``bits`` of ``source``: exact but for fp64 (N-7)."""
    return fp32_bits(decode(bits, source))


# -- F-1: elements ----------------------------------------------------------------------------------------------------

FP4 = "fp4_e2m1"
E4M3 = "fp8_e4m3"
E5M2 = "fp8_e5m2"


def _grid(steps: int, least_exponent: int, top_exponent: int, finite: int) -> list[Fraction]:
    """``steps`` subnormals (zero among them), then ``steps`` values per binade; ``finite`` values and one beyond."""
    two = Fraction(2)
    grid = [two**least_exponent * step / steps for step in range(steps)]
    for exponent in range(least_exponent, top_exponent + 1):
        grid += [two**exponent * (steps + step) / steps for step in range(steps)]
    grid.append(two ** (top_exponent + 1))
    return grid[: finite + 1]


class Element(NamedTuple):
    """An element format, enumerated.

    Attributes
    ----------
    grid : the magnitude of code 0, 1, ... up to max-normal, then the value that would come next
    sign : the weight of the sign in a code
    inf, nan, nan_codes : code of Inf, canonical code of NaN, every code (sign 0) of NaN
    emax : E-3
    """

    grid: list[Fraction]
    sign: int
    inf: int | None
    nan: int | None
    nan_codes: tuple[int, ...]
    emax: int

    @property
    def max_normal(self) -> int:
        return len(self.grid) - 2

    def midpoints(self) -> list[Fraction]:
        """Where rounding turns from one code to the next; the last is where overflow begins."""
        return [(low + high) / 2 for low, high in zip(self.grid, self.grid[1:], strict=False)]


ELEMENTS = {
    FP4: Element(
        [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12, 16)], sign=0x8, inf=None, nan=None, nan_codes=(), emax=2
    ),
    E4M3: Element(_grid(8, -6, 8, 0x7F), sign=0x80, inf=None, nan=0x7F, nan_codes=(0x7F,), emax=8),
    E5M2: Element(_grid(4, -14, 15, 0x7C), sign=0x80, inf=0x7C, nan=0x7E, nan_codes=(0x7D, 0x7E, 0x7F), emax=15),
}

_VALUES = {name: [units(value) for value in element.grid] for name, element in ELEMENTS.items()}
_MIDPOINTS = {name: [units(value) for value in element.midpoints()] for name, element in ELEMENTS.items()}


def decode_element(code: int, element: str) -> Number:
    """The number that an element code stands for (F-1)."""
    row = ELEMENTS[element]
    sign, magnitude = divmod(code, row.sign)
    if magnitude == row.inf:
        return sign, INF
    if magnitude in row.nan_codes:
        return sign, NAN
    return sign, _VALUES[element][magnitude]


# -- R: rule sets -----------------------------------------------------------------------------------------------------


class Rules(NamedTuple):
    """One column of the contract's table R."""

    off_emax: int
    below_zero: str
    non_finite_block: str
    pre_scale: str
    nan: str
    scale_255_in: str
    scale_255_out: str


RULES = {
    "birsim": Rules(0, "one", "plain", "fp32", "zero", "plain", "power"),
    "birsim_alt": Rules(1, "one", "plain", "fp32", "zero", "plain", "power"),
    "nki_sim": Rules(0, "wrap", "plain", "exact", "propagate", "plain", "power"),
    "device": Rules(1, "zero", "plain", "exact", "propagate", "plain", "nan"),
    "ocp": Rules(0, "zero", "255", "exact", "propagate", "zero codes", "nan"),
}


# -- E: shared exponent -----------------------------------------------------------------------------------------------


def biased_exponent(bits: int, source: str = "fp32") -> int:
    """E-1, from the value: floor(log2 |x|) + 127, 0 below 2^-126, 255 for Inf and NaN."""
    magnitude = decode(bits, source)[1]
    if isinstance(magnitude, Special):
        return 255
    return max(magnitude.bit_length() - 1 - UNIT + 127, 0)


def shared_exponent(block: list[int], element: str, rules: str, *, source: str = "fp32") -> int:
    """The E8M0 byte of one block of 32 (E-1, E-3, E-4, E-6)."""
    assert len(block) == 32
    rule = RULES[rules]
    largest = max([biased_exponent(bits, source) for bits in block])
    if largest == 255 and rule.non_finite_block == "255":
        return 255
    difference = largest - (ELEMENTS[element].emax - rule.off_emax)
    if rule.below_zero == "wrap":
        return difference + 256 if difference < 0 else difference
    if rule.below_zero == "one" and difference < 1:
        return 1
    return max(difference, 0)


# -- N: narrowing -----------------------------------------------------------------------------------------------------


def round_to_element(number: Number, element: str, *, nan: str, overflow: str = "saturate") -> int:
    """N-1..N-4b: the code nearest to ``number``; ``nan`` is propagate or zero, ``overflow`` saturate or special."""
    row = ELEMENTS[element]
    sign, magnitude = number
    if magnitude is NAN:
        code = row.nan if nan == "propagate" and row.nan is not None else 0
    else:
        if magnitude is INF:
            code = row.max_normal + 1
        else:
            midpoints = _MIDPOINTS[element]
            code = bisect_left(midpoints, magnitude)
            if code & 1 and code < len(midpoints) and magnitude == midpoints[code]:
                code += 1
        if code > row.max_normal:
            beyond = [special for special in (row.inf, row.nan) if special is not None and overflow == "special"]
            code = beyond[0] if beyond else row.max_normal
    return code + sign * row.sign


def multiply_fp32(x: Number, y: Number) -> Number:
    """The fp32 product of two fp32 numbers, on x86: a NaN operand keeps its sign, an invalid product has sign 1."""
    for sign, magnitude in (x, y):
        if magnitude is NAN:
            return sign, NAN
    sign = x[0] ^ y[0]
    if isinstance(x[1], Special) or isinstance(y[1], Special):
        return (1, NAN) if x[1] == 0 or y[1] == 0 else (sign, INF)
    return decode(fp32_bits((sign, x[1] * y[1]), 2 * UNIT))


_FACTORS = [decode((254 - scale << 23) % (1 << 32)) for scale in range(256)]
"""N-5, the BIRSIM rules: the number whose fp32 bits are (254 - s) << 23."""


def narrow(
    bits: int, element: str, rules: str, *, scale: int | None = None, overflow: str = "saturate", source: str = "fp32"
) -> int:
    """The element code of one number, with or without a scale (N-1..N-6)."""
    rule = RULES[rules]
    number = decode(bits, source)
    if scale is not None:
        if scale == 255 and rule.scale_255_in == "zero codes":
            return 0
        if rule.pre_scale == "fp32":
            number = multiply_fp32(number, _FACTORS[scale])
        elif not isinstance(number[1], Special):
            doubled = number[1] << 127
            number = number[0], doubled >> scale
            assert number[1] << scale == doubled
    nan = "propagate" if overflow == "special" else rule.nan  # N-4b: NaN -> 0x7F / 0x7E there
    return round_to_element(number, element, nan=nan, overflow=overflow)


def quantize(block: list[int], element: str, rules: str, *, source: str = "fp32") -> tuple[int, list[int]]:
    """The byte and the codes of one block of 32 (Q)."""
    scale = shared_exponent(block, element, rules, source=source)
    return scale, [narrow(bits, element, rules, scale=scale, source=source) for bits in block]


# -- D: dequantise ----------------------------------------------------------------------------------------------------


def ldexp(code: int, scale: int, element: str, rules: str) -> int:
    """The fp32 bits of one code under one scale (D-1..D-4)."""
    if scale == 255 and RULES[rules].scale_255_out == "nan":
        return FP32_NAN
    sign, magnitude = decode_element(code, element)
    if magnitude is NAN:
        return FP32_NAN
    if magnitude is INF:
        return (sign << 31) | FP32_INF
    bits = fp32_bits((sign, magnitude << scale), UNIT + 127)
    result = decode(bits)[1]
    assert result is not NAN
    assert result is INF or result << 127 == magnitude << scale  # D-2: exact, or overflow
    return bits
