"""Model == oracle, bit for bit, on seeded random bit patterns (contract E, N, Q, D).

The stimulus is half random in bit space (so every exponent, NaN payload and subnormal is met) and half aimed: at and
one unit in the last place beside the midpoints where rounding turns, whatever the scale. Only the stimulus uses
floats or NumPy; every expected value is the oracle's.
"""

import functools
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest

from mxmodel.formats import ELEMENTS, ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import RULE_SETS, Overflow, RuleSet
from mxmodel.shared_exponent import shared_exponent
from mxmodel.widen import PrecisionWarning

Words = np.ndarray[Any, np.dtype[np.unsignedinteger[Any]]]

PATTERNS = 100_000
"""Random patterns for every element and rule set, of fp32 without a scale and again of fp32 with one."""

BLOCKS = 600
"""Random blocks for every element, rule set and source."""

SOURCE_DTYPES: dict[str, tuple[Any, Any]] = {
    "fp32": (np.uint32, np.float32),
    "bf16": (np.uint16, ml_dtypes.bfloat16),
    "fp16": (np.uint16, np.float16),
    "fp64": (np.uint64, np.float64),
}

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
each_source = pytest.mark.parametrize("source", ["fp32", "bf16", "fp16"])


def generator(*names: str) -> np.random.Generator:
    """A generator seeded by name, so that a test draws the same cases alone and among others."""
    return np.random.default_rng(zlib.crc32(" ".join(names).encode()))


def as_floats(bits: Words, source: str) -> np.ndarray[Any, Any]:
    word, dtype = SOURCE_DTYPES[source]
    return bits.astype(word).view(dtype)


def turning_points(element: str) -> Words:
    """fp32 bits of every midpoint and every value of the element's grid; each is exact in fp32."""
    row = oracle.ELEMENTS[element]
    values = [oracle.units(value) for value in row.midpoints() + row.grid[1:]]
    bits = [oracle.fp32_bits((0, value)) for value in values]
    assert [oracle.decode(word)[1] for word in bits] == values
    return np.array(bits, dtype=np.uint32)


@functools.cache
def fp32_cases(element: str) -> tuple[Words, Words]:
    """PATTERNS fp32 patterns and as many scales; the second half lies near turning points once scaled."""
    rng = generator("fp32", element)
    half = PATTERNS // 2
    anywhere = rng.integers(0, 1 << 32, PATTERNS - half, dtype=np.uint32)
    anywhere[:64] = SPECIALS[np.arange(64) % len(SPECIALS)]
    scale = rng.integers(0, 256, PATTERNS, dtype=np.uint8)
    scale[half : half + 512] = np.repeat(np.array([254, 255], dtype=np.uint8), 256)
    aimed = rng.choice(turning_points(element), half) + rng.integers(-2, 3, half)
    exponent = np.clip((aimed >> 23) + scale[-half:] - 127, 0, 254)
    sign = rng.integers(0, 2, half)
    aimed = (sign << 31) | (exponent << 23) | (aimed & 0x7FFFFF)
    return np.concatenate([anywhere, aimed.astype(np.uint32)]), scale


@functools.cache
def unscaled_cases(element: str) -> Words:
    """PATTERNS fp32 patterns; the second half lies near turning points, the first is random over all bits."""
    rng = generator("unscaled", element)
    half = PATTERNS // 2
    anywhere = rng.integers(0, 1 << 32, PATTERNS - half, dtype=np.uint32)
    anywhere[:64] = SPECIALS[np.arange(64) % len(SPECIALS)]
    aimed = rng.choice(turning_points(element), half) + rng.integers(-2, 3, half)
    return np.concatenate([anywhere, (aimed | (rng.integers(0, 2, half) << 31)).astype(np.uint32)])


SPECIALS = np.array(
    [word | sign for word in (
        0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FBFFFFF, 0x7FC00000,
        0x7FFFFFFF, 0x3F800000, 0x00400000,
    ) for sign in (0, 1 << 31)],
    dtype=np.uint32,
)  # fmt: skip
"""Zero, subnormals, the ends of the normals, Inf, quiet and signalling NaNs, both signs."""


def assert_same(got: np.ndarray[Any, Any], wanted: list[int], *columns: Words) -> None:
    """Equality, and on failure the first few inputs that differ, in hexadecimal."""
    assert got.size == len(wanted)
    wrong = np.flatnonzero(got.ravel() != np.array(wanted, dtype=got.dtype))
    shown = [
        f"{[hex(int(column[i])) for column in columns]}: model {int(got.ravel()[i]):#x}, oracle {wanted[i]:#x}"
        for i in wrong[:5]
    ]
    assert not shown, f"{len(wrong)} of {len(wanted)} differ: " + "; ".join(shown)


@each_element
def test_the_stimulus_is_what_it_claims(element: ElementFormat) -> None:
    """Every exponent, every scale, many NaNs, many exact ties and every element code occur."""
    bits = unscaled_cases(element.name)
    assert len(set(((bits >> 23) & 0xFF).tolist())) == 256
    magnitudes = [oracle.decode(int(word))[1] for word in bits[PATTERNS // 2 :]]
    midpoints = {oracle.units(value) for value in oracle.ELEMENTS[element.name].midpoints()}
    assert sum(magnitude in midpoints for magnitude in magnitudes) > 4_000
    codes = {oracle.narrow(int(word), element.name, "ocp", overflow="special") for word in bits}
    one_nan_per_sign = 0 if element.infinity_code is None else 4
    assert len(codes) == element.code_count - one_nan_per_sign
    bits, scale = fp32_cases(element.name)
    assert len(set(scale.tolist())) == 256
    assert np.count_nonzero((bits & 0x7FFFFFFF) > 0x7F800000) > 100
    codes = {oracle.narrow(int(w), element.name, "nki_sim", scale=int(s)) for w, s in zip(bits, scale, strict=True)}
    one_inf_per_sign = 0 if element.infinity_code is None else 2
    assert len(codes) == element.code_count - one_nan_per_sign - one_inf_per_sign


@each_rule_set
@each_element
def test_n1_to_n4_unscaled_fp32(element: ElementFormat, rules: RuleSet) -> None:
    bits = unscaled_cases(element.name)
    wanted = [oracle.narrow(word, element.name, rules.name) for word in bits.tolist()]
    assert_same(narrow(as_floats(bits, "fp32"), element, rules=rules), wanted, bits)
    assert len(wanted) >= 100_000


@each_rule_set
@each_element
def test_n5_n6_scaled_fp32(element: ElementFormat, rules: RuleSet) -> None:
    bits, scale = fp32_cases(element.name)
    pairs = zip(bits.tolist(), scale.tolist(), strict=True)
    wanted = [oracle.narrow(word, element.name, rules.name, scale=s) for word, s in pairs]
    assert_same(narrow(as_floats(bits, "fp32"), element, scale=scale, rules=rules), wanted, bits, scale)
    assert len(wanted) >= 100_000


@each_rule_set
@each_element
def test_n4b_overflow_special_fp32(element: ElementFormat, rules: RuleSet) -> None:
    """N-4b, with and without a scale, on every tenth case."""
    bits, scale = (column[::10] for column in fp32_cases(element.name))
    x = as_floats(bits, "fp32")
    special: dict[str, Any] = {"rules": rules, "overflow": Overflow.SPECIAL}
    wanted = [oracle.narrow(word, element.name, rules.name, overflow="special") for word in bits.tolist()]
    assert_same(narrow(x, element, **special), wanted, bits)
    pairs = zip(bits.tolist(), scale.tolist(), strict=True)
    wanted += [oracle.narrow(word, element.name, rules.name, scale=s, overflow="special") for word, s in pairs]
    assert_same(narrow(x, element, scale=scale, **special), wanted[len(bits) :], bits, scale)
    assert len(wanted) == 2 * PATTERNS // 10


@each_rule_set
@each_element
@pytest.mark.parametrize("source", ["bf16", "fp16"])
def test_n5_n6_scaled_narrow_sources(element: ElementFormat, rules: RuleSet, source: str) -> None:
    """F-3, N-5: a 16-bit source under a live scale, three in four of them within the element's reach."""
    rng = generator("scaled", source, element.name)
    count = 20_000
    bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
    exponents = [oracle.biased_exponent(word, source) for word in bits.tolist()]
    near = np.array(exponents) - element.emax + rng.integers(-2, 8, count)
    scale = np.where(rng.random(count) < 0.75, np.clip(near, 0, 255), rng.integers(0, 256, count)).astype(np.uint8)
    pairs = zip(bits.tolist(), scale.tolist(), strict=True)
    wanted = [oracle.narrow(word, element.name, rules.name, scale=s, source=source) for word, s in pairs]
    assert_same(narrow(as_floats(bits, source), element, scale=scale, rules=rules), wanted, bits, scale)
    assert len(wanted) == count


def fp64_cases(element: str) -> Words:
    """Random float64 patterns, and double-rounding traps: beside a tie by less than fp32 can see, both sides."""
    rng = generator("fp64", element)
    anywhere = rng.integers(0, 1 << 64, 4_000, dtype=np.uint64)
    inside = anywhere.copy()
    inside &= np.uint64(0x800FFFFFFFFFFFFF)
    inside |= rng.integers(1023 - 24, 1023 + 18, len(inside)).astype(np.uint64) << np.uint64(52)
    tie = as_floats(turning_points(element), "fp32").astype(np.float64).view(np.uint64)
    steps = [np.uint64(1), np.uint64(1 << 20), np.uint64(1 << 28)]  # fp32 drops 29 bits; half of that rounds away
    traps = np.concatenate([tie, *(tie + step for step in steps), *(tie - step for step in steps)])
    sign = np.uint64(1 << 63)
    nan = np.array([0x7FF0000000000001, 0xFFF0000000000001, 0x7FF8000000000000], dtype=np.uint64)  # first: only the
    # least payload bit, which a narrower format cannot hold
    infinity = np.array([0x7FF0000000000000, 0xFFF0000000000000], dtype=np.uint64)
    return np.concatenate([anywhere, inside, traps, traps | sign, nan, infinity])


@each_rule_set
@each_element
def test_n7_n1_unscaled_fp64_is_rounded_once(element: ElementFormat, rules: RuleSet) -> None:
    bits = fp64_cases(element.name)
    wanted = [oracle.narrow(word, element.name, rules.name, source="fp64") for word in bits.tolist()]
    assert_same(narrow(as_floats(bits, "fp64"), element, rules=rules), wanted, bits)
    twice = [oracle.narrow(oracle.to_fp32(word, "fp64"), element.name, rules.name) for word in bits.tolist()]
    trapped = sum(once != again for once, again in zip(wanted, twice, strict=True))
    assert trapped > {"fp4_e2m1": 20, "fp8_e4m3": 400, "fp8_e5m2": 400}[element.name]
    assert len(wanted) > 8_000


@each_rule_set
@each_element
def test_n7_scaled_fp64_is_rounded_to_fp32_first_and_says_so(element: ElementFormat, rules: RuleSet) -> None:
    bits = fp64_cases(element.name)[::4]
    scale = generator("fp64 scale").integers(100, 154, len(bits), dtype=np.uint8)
    wanted = [
        oracle.narrow(oracle.to_fp32(word, "fp64"), element.name, rules.name, scale=s)
        for word, s in zip(bits.tolist(), scale.tolist(), strict=True)
    ]
    with pytest.warns(PrecisionWarning):
        codes = narrow(as_floats(bits, "fp64"), element, scale=scale, rules=rules)
    assert_same(codes, wanted, bits, scale)
    assert len(wanted) > 2_000


def random_blocks(source: str, element: str) -> Words:
    """[8, 4 * BLOCKS] patterns: every magnitude, some blocks all zeros, all subnormal, or with an Inf or a NaN in them.

    The exponent of a block is capped at random; random bits alone would give only large ones.
    """
    exponent_bits, trailing_bits = oracle.SOURCE_FIELDS[source]
    word = SOURCE_DTYPES[source][0]
    rng = generator("blocks", source, element)
    top = (1 << exponent_bits) - 1
    cap = rng.integers(0, top, BLOCKS)
    cap[: BLOCKS // 4] = rng.integers(0, min(24, top), BLOCKS // 4)  # near the floor, where rules part
    exponent = rng.integers(0, np.repeat(cap, 4) + 1, (8, 4 * BLOCKS))
    trailing = rng.integers(0, 1 << trailing_bits, exponent.shape)
    bits = (
        (rng.integers(0, 2, exponent.shape) << (exponent_bits + trailing_bits)) | (exponent << trailing_bits) | trailing
    )
    bits[:, :40] &= 1 << (exponent_bits + trailing_bits)  # ten blocks of ±0
    for block in range(20, 60):
        infinity = top << trailing_bits
        row, column = rng.integers(0, 8), 4 * block + rng.integers(0, 4)
        payload = rng.integers(1, 1 << trailing_bits) if block & 1 else 0
        bits[row, column] = infinity | payload | (rng.integers(0, 2) << (exponent_bits + trailing_bits))
    return bits.astype(word)


@each_source
@each_rule_set
@each_element
def test_e_q_random_blocks(element: ElementFormat, rules: RuleSet, source: str) -> None:
    """E-1..E-7 for BLOCKS blocks, then Q: the codes of those blocks under the byte found."""
    bits = random_blocks(source, element.name)
    blocks = [bits[:, 4 * i : 4 * i + 4].ravel().tolist() for i in range(BLOCKS)]
    wanted = [oracle.quantize(block, element.name, rules.name, source=source) for block in blocks]
    x = as_floats(bits, source)
    scale = shared_exponent(x, element, rules)
    assert scale.shape == (1, BLOCKS)
    assert_same(scale, [byte for byte, _ in wanted], np.arange(BLOCKS, dtype=np.uint32))
    codes = narrow(x, element, scale=scale.repeat(8, axis=0).repeat(4, axis=1), rules=rules)
    by_block = codes.reshape(8, BLOCKS, 4).swapaxes(0, 1).ravel()
    assert_same(by_block, [code for _, codes in wanted for code in codes], np.arange(32 * BLOCKS, dtype=np.uint32))
    assert len(set(scale.ravel().tolist())) > {"fp32": 100, "bf16": 100, "fp16": 25}[source]


@each_rule_set
@each_element
def test_e_q_random_fp64_blocks_are_rounded_to_fp32_first(element: ElementFormat, rules: RuleSet) -> None:
    """N-7: 1.9999999999 is 2.0 in fp32, one exponent up; the block sees that."""
    rng = generator("fp64 blocks")
    bits = rng.integers(0, 1 << 64, (8, 400), dtype=np.uint64)
    bits[:, 40:] = (bits[:, 40:] & np.uint64(0x800FFFFFFFFFFFFF)) | np.uint64(1000 << 52)
    bits[:, 200:] |= np.uint64((1 << 52) - (1 << 20))  # just below a power of two
    wanted = []
    for i in range(100):
        block = [oracle.to_fp32(word, "fp64") for word in bits[:, 4 * i : 4 * i + 4].ravel().tolist()]
        wanted.append(oracle.shared_exponent(block, element.name, rules.name))
    with pytest.warns(PrecisionWarning):
        scale = shared_exponent(bits.view(np.float64), element, rules)
    assert_same(scale, wanted, np.arange(100, dtype=np.uint32))
    assert wanted[20] + 1 == wanted[60] == wanted[99]


@each_rule_set
@each_element
def test_d_every_code_under_every_scale(element: ElementFormat, rules: RuleSet) -> None:
    """In a shuffled order, so that no neighbour can stand in for an element."""
    inputs = generator("ldexp", element.name, rules.name).permutation(element.code_count * 256)
    codes, scales = (column.astype(np.uint8) for column in np.divmod(inputs, 256))
    pairs = zip(codes.tolist(), scales.tolist(), strict=True)
    wanted = [oracle.ldexp(code, scale, element.name, rules.name) for code, scale in pairs]
    values = ldexp(codes, scales, element, rules)
    assert values.dtype == np.float32
    assert_same(values.view(np.uint32), wanted, codes, scales)
    assert len(wanted) == element.code_count * 256
