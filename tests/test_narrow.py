"""Contract N: value and scale to element code, clause by clause."""

import warnings
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import BIRSIM, BIRSIM_ALT, DEVICE, NKI_SIM, OCP, RULE_SETS, Overflow, RuleSet
from mxmodel.widen import PrecisionWarning

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_fp8 = pytest.mark.parametrize("element", [FP8_E4M3, FP8_E5M2], ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
zero_nan = pytest.mark.parametrize("rules", [BIRSIM, BIRSIM_ALT], ids=["birsim", "birsim_alt"])
exact = pytest.mark.parametrize("rules", [NKI_SIM, DEVICE, OCP], ids=["nki_sim", "device", "ocp"])

ML_DTYPES = {
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
SIGN = {"fp4_e2m1": 0x8, "fp8_e4m3": 0x80, "fp8_e5m2": 0x80}
MAX_NORMAL = {"fp4_e2m1": 0x7, "fp8_e4m3": 0x7E, "fp8_e5m2": 0x7B}
CANONICAL_NAN = {"fp4_e2m1": 0, "fp8_e4m3": 0x7F, "fp8_e5m2": 0x7E}
"""0 for FP4: NaN -> signed zero (N-3)."""
OVERFLOW_FROM = {"fp4_e2m1": 7.0, "fp8_e4m3": 464.0, "fp8_e5m2": 61440.0}
"""The tie above max-normal (N-2); magnitudes from here on give max-normal whatever the tie does."""


def fp32(*words: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(words, dtype=np.uint32).view(np.float32)


def f32(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def codes_of(x: np.ndarray[Any, Any], element: ElementFormat, **options: Any) -> list[int]:
    codes = narrow(x, element, **options)
    assert codes.dtype == np.uint8
    assert codes.shape == x.shape
    listed: list[int] = codes.ravel().tolist()
    return listed


# -- N-1..N-4: without a scale ----------------------------------------------------------------------------------------


@each_rule_set
@each_element
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "fp16"])
def test_n1_to_n4_every_16_bit_input_is_as_ml_dtypes_or_the_closed_form(
    element: ElementFormat, rules: RuleSet, dtype: Any
) -> None:
    """ml_dtypes judges what is finite and in range; NaN, Inf and overflow have one answer each."""
    words = np.arange(1 << 16, dtype=np.uint16)
    x = words.view(dtype)
    wide = x.astype(np.float32)
    sign = np.where(words >> 15, SIGN[element.name], 0)
    nan = CANONICAL_NAN[element.name] if rules.name in {"nki_sim", "device", "ocp"} else 0
    in_range = np.abs(wide) < OVERFLOW_FROM[element.name]
    theirs = np.zeros(1 << 16, dtype=np.uint8)
    theirs[in_range] = wide[in_range].astype(ML_DTYPES[element.name]).view(np.uint8)
    wanted = np.where(in_range, theirs, sign + np.where(np.isnan(wide), nan, MAX_NORMAL[element.name]))
    assert codes_of(x, element, rules=rules) == wanted.tolist()
    fewest = {"fp4_e2m1": 33_000, "fp8_e4m3": 34_000, "fp8_e5m2": 36_000}[element.name]
    assert fewest < np.count_nonzero(in_range) < 1 << 16
    assert np.count_nonzero(np.isnan(wide)) == {"bfloat16": 254, "float16": 2046}[np.dtype(dtype).name]


@each_fp8
@each_rule_set
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "fp16"])
def test_n4b_overflow_special_is_ml_dtypes_on_every_16_bit_input(
    element: ElementFormat, rules: RuleSet, dtype: Any
) -> None:
    """Overflow to NaN or ±Inf and NaN propagated is what ml_dtypes does, so here it judges every input."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(invalid="ignore"):  # NumPy's own warning about NaN that the cast makes
        theirs = x.astype(np.float32).astype(ML_DTYPES[element.name]).view(np.uint8)
    assert codes_of(x, element, rules=rules, overflow=Overflow.SPECIAL) == theirs.tolist()


@each_rule_set
@each_element
def test_n1_every_element_value_narrows_to_its_own_code(element: ElementFormat, rules: RuleSet) -> None:
    finite = [code for code in range(element.code_count) if code % SIGN[element.name] <= MAX_NORMAL[element.name]]
    x = np.array(finite, dtype=np.uint8).view(ML_DTYPES[element.name]).astype(np.float32)
    assert codes_of(x, element, rules=rules) == finite
    assert len(finite) == {"fp4_e2m1": 16, "fp8_e4m3": 254, "fp8_e5m2": 248}[element.name]


@each_rule_set
@each_element
def test_n1_ties_go_to_the_even_code_and_one_ulp_decides(element: ElementFormat, rules: RuleSet) -> None:
    """Every midpoint of the grid, from the grid itself: on it, one fp32 ulp below, one above; both signs."""
    values = np.arange(MAX_NORMAL[element.name] + 1, dtype=np.uint8).view(ML_DTYPES[element.name]).astype(np.float32)
    tie = (values[:-1] + values[1:]) / 2
    low = np.arange(len(tie))
    even = low + low % 2
    assert codes_of(tie, element, rules=rules) == even.tolist()
    assert codes_of(np.nextafter(tie, np.float32(0)), element, rules=rules) == low.tolist()
    assert codes_of(np.nextafter(tie, np.float32(np.inf)), element, rules=rules) == (low + 1).tolist()
    assert codes_of(-tie, element, rules=rules) == (even + SIGN[element.name]).tolist()
    assert len(tie) == {"fp4_e2m1": 7, "fp8_e4m3": 126, "fp8_e5m2": 123}[element.name]


@each_rule_set
@each_element
def test_n1_sign_of_zero_and_of_what_rounds_to_zero_is_kept(element: ElementFormat, rules: RuleSet) -> None:
    x = fp32(0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000)
    assert codes_of(x, element, rules=rules) == [0, SIGN[element.name]] * 4


@each_rule_set
def test_n1_subnormal_codes(rules: RuleSet) -> None:
    """E4M3 subnormals are multiples of 2^-9, E5M2's of 2^-16; half of the least is a tie to zero."""
    assert codes_of(f32(2**-10, 2**-9, 3 * 2**-10, 7 * 2**-9, 2**-6), FP8_E4M3, rules=rules) == [0, 1, 2, 7, 8]
    assert codes_of(f32(2**-17, 2**-16, 3 * 2**-17, 3 * 2**-16, 2**-14), FP8_E5M2, rules=rules) == [0, 1, 2, 3, 4]
    assert codes_of(fp32(0x3A800001, 0x37000001), FP8_E4M3, rules=rules) == [1, 0]
    assert codes_of(fp32(0x3A800001, 0x37000001), FP8_E5M2, rules=rules) == [0x14, 1]


@each_rule_set
@each_element
def test_n2_saturates_from_max_normal_to_infinity(element: ElementFormat, rules: RuleSet) -> None:
    tie = OVERFLOW_FROM[element.name]
    x = f32(tie, tie * (1 + 2**-23), 2 * tie, 1e30, 1.5 * 2**127, np.inf)
    assert codes_of(x, element, rules=rules) == [MAX_NORMAL[element.name]] * 6
    assert codes_of(-x, element, rules=rules) == [MAX_NORMAL[element.name] + SIGN[element.name]] * 6


@each_rule_set
def test_n2_figures(rules: RuleSet) -> None:
    assert codes_of(f32(448, 464, 465, 480, -464), FP8_E4M3, rules=rules) == [0x7E, 0x7E, 0x7E, 0x7E, 0xFE]
    assert codes_of(f32(57344, 61440, 65536, -61440), FP8_E5M2, rules=rules) == [0x7B, 0x7B, 0x7B, 0xFB]


@each_rule_set
def test_n3_fp4_ties_saturation_and_nan(rules: RuleSet) -> None:
    ties = {0.25: 0, 0.75: 1, 1.25: 1, 1.75: 2, 2.5: 2, 3.5: 4, 5: 4, 6: 6, 7: 6, 100: 6, np.inf: 6}
    value_to_code = {0: 0, 0.5: 1, 1: 2, 1.5: 3, 2: 4, 3: 5, 4: 6, 6: 7}
    wanted = [value_to_code[value] for value in ties.values()]
    x = f32(*ties)
    assert codes_of(x, FP4_E2M1, rules=rules) == wanted
    assert codes_of(-x, FP4_E2M1, rules=rules) == [code | 0x8 for code in wanted]
    above = np.nextafter(f32(0.25, 2.5, 5), np.float32(np.inf))
    assert codes_of(above, FP4_E2M1, rules=rules) == [1, 5, 7]
    assert codes_of(fp32(0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF), FP4_E2M1, rules=rules) == [0, 8, 0, 8]
    assert codes_of(fp32(0x7FC00000, 0xFF800001), FP4_E2M1, rules=rules, overflow=Overflow.SPECIAL) == [0, 8]
    assert codes_of(f32(np.inf, -7.0), FP4_E2M1, rules=rules, overflow=Overflow.SPECIAL) == [7, 15]


NANS = (0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF)


@exact
def test_n4_nan_propagates_as_ml_dtypes(rules: RuleSet) -> None:
    assert codes_of(fp32(*NANS), FP8_E4M3, rules=rules) == [0x7F, 0xFF] * 3
    assert codes_of(fp32(*NANS), FP8_E5M2, rules=rules) == [0x7E, 0xFE] * 3


@zero_nan
@each_element
def test_n4_nan_is_signed_zero(element: ElementFormat, rules: RuleSet) -> None:
    assert codes_of(fp32(*NANS), element, rules=rules) == [0, SIGN[element.name]] * 3


@each_rule_set
def test_n4b_overflow_special(rules: RuleSet) -> None:
    special = {"rules": rules, "overflow": Overflow.SPECIAL}
    x = f32(448, 464, 464 + 2**-15, 480, np.inf)
    assert codes_of(x, FP8_E4M3, **special) == [0x7E, 0x7E, 0x7F, 0x7F, 0x7F]
    assert codes_of(fp32(0x7FC00000, 0x7F800001), FP8_E4M3, **special) == [0x7F, 0x7F]
    x = f32(57344, 61439, 61440, 65536, np.inf)
    assert codes_of(x, FP8_E5M2, **special) == [0x7B, 0x7B, 0x7C, 0x7C, 0x7C]
    assert codes_of(-x, FP8_E5M2, **special) == [0xFB, 0xFB, 0xFC, 0xFC, 0xFC]
    assert codes_of(fp32(0x7FC00000, 0x7F800001), FP8_E5M2, **special) == [0x7E, 0x7E]


@each_fp8
def test_n4_never_480_and_never_an_unlisted_nan_code(element: ElementFormat) -> None:
    """0x7F and 0xFF are NaN in E4M3; saturating rules that suppress NaN never give them, nor E5M2's 0x7C..0x7F."""
    rng = np.random.default_rng(6)
    x = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    scale = rng.integers(0, 256, len(x), dtype=np.uint8)
    codes = narrow(x, element, scale=scale) & 0x7F
    assert codes.max() == MAX_NORMAL[element.name]
    assert set(codes.tolist()) == set(range(MAX_NORMAL[element.name] + 1))


# -- N-5, N-6: under a scale ------------------------------------------------------------------------------------------


def random_bits(seed: int, count: int) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, Any]]:
    """fp32 patterns and scales of which three in four meet within the reach of an element."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, count, dtype=np.uint32)
    words[:200] &= np.uint32(1 << 31)
    words[200:600] |= np.uint32(0x7F800000)
    near = ((words >> 23) & 0xFF).astype(np.int64) + rng.integers(-16, 20, count)
    scale = np.where(rng.random(count) < 0.75, np.clip(near, 0, 255), rng.integers(0, 256, count))
    return words.view(np.float32), scale.astype(np.uint8)


@each_rule_set
@each_element
def test_n5_scale_127_is_no_scale(element: ElementFormat, rules: RuleSet) -> None:
    x, _ = random_bits(7, 20_000)
    assert codes_of(x, element, scale=np.uint8(127), rules=rules) == codes_of(x, element, rules=rules)


@zero_nan
@each_element
def test_n5_birsim_is_the_hosts_fp32_product_wherever_that_is_a_number(element: ElementFormat, rules: RuleSet) -> None:
    """The product with the constant (254 - s) << 23 as NumPy computes it, judged by ml_dtypes."""
    x, scale = random_bits(8, 100_000)
    scale[-2000:-1000], scale[-1000:] = 254, 255
    constant = ((254 - scale.astype(np.int64)) << 23 & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        product = x * constant
    number = ~np.isnan(product)
    top = MAX_NORMAL[element.name]
    limit = float(np.uint8(top).view(ML_DTYPES[element.name]))
    wanted = np.clip(product[number], -limit, limit).astype(ML_DTYPES[element.name]).view(np.uint8)
    codes = narrow(x, element, scale=scale, rules=rules)
    assert codes[number].tolist() == wanted.tolist()
    assert number.sum() > 98_000
    assert len(set(wanted.tolist())) == 2 * top + 2


@exact
@each_element
def test_n5_exact_rules_are_the_float64_product(element: ElementFormat, rules: RuleSet) -> None:
    """x · 2^(127 − s) is exact in float64 for every fp32 x and every s; float64 then narrows in one rounding (N-7)."""
    x, scale = random_bits(9, 100_000)
    if rules.name == "ocp":
        scale = np.minimum(scale, 254)
    with np.errstate(invalid="ignore"):
        product = x.astype(np.float64) * 2.0 ** (127 - scale.astype(np.int64))
    wanted = [oracle.narrow(word, element.name, rules.name, source="fp64") for word in product.view(np.uint64).tolist()]
    assert codes_of(x, element, scale=scale, rules=rules) == wanted
    assert len(set(wanted)) >= 2 * MAX_NORMAL[element.name] + 2


@zero_nan
@each_element
def test_n5_birsim_gives_the_exact_codes_up_to_scale_253(element: ElementFormat, rules: RuleSet) -> None:
    """ "The same codes for s ≤ 253": against the oracle's exact rules, NaN apart (N-4)."""
    x, scale = random_bits(10, 40_000)
    scale = np.minimum(scale, 253)
    number = ~np.isnan(x)
    x, scale = x[number], scale[number]
    pairs = zip(x.view(np.uint32).tolist(), scale.tolist(), strict=True)
    wanted = [oracle.narrow(word, element.name, "nki_sim", scale=s) for word, s in pairs]
    assert codes_of(x, element, scale=scale, rules=rules) == wanted
    assert len(wanted) > 39_000


EDGE = (0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF,
        0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000)  # fmt: skip
"""±0, ±least subnormal, ±1, ±largest, ±Inf, ±NaN."""


@zero_nan
@each_element
def test_n5_birsim_scale_254_multiplies_by_zero(element: ElementFormat, rules: RuleSet) -> None:
    """Every finite number becomes a zero of its sign; Inf × 0 is a NaN of sign 1 on every host; NaN keeps its sign."""
    n = SIGN[element.name]
    codes = codes_of(fp32(*EDGE), element, scale=np.uint8(254), rules=rules)
    assert codes == [0, n, 0, n, 0, n, 0, n, n, n, 0, n]


@zero_nan
@each_element
def test_n5_birsim_scale_255_multiplies_by_minus_inf(element: ElementFormat, rules: RuleSet) -> None:
    """±0 × −Inf is a NaN of sign 1 on every host; all else but NaN is max-normal of the opposite sign."""
    n, top = SIGN[element.name], MAX_NORMAL[element.name]
    codes = codes_of(fp32(*EDGE), element, scale=np.uint8(255), rules=rules)
    assert codes == [n, n, n + top, top, n + top, top, n + top, top, n + top, top, 0, n]


@zero_nan
def test_n5_invalid_products_have_sign_1_also_where_nan_is_propagated(rules: RuleSet) -> None:
    special = {"rules": rules, "overflow": Overflow.SPECIAL}
    for element, nan in ((FP8_E4M3, 0xFF), (FP8_E5M2, 0xFE)):
        assert codes_of(fp32(0x7F800000, 0xFF800000), element, scale=np.uint8(254), **special) == [nan, nan]
        assert codes_of(fp32(0x00000000, 0x80000000), element, scale=np.uint8(255), **special) == [nan, nan]
        assert codes_of(fp32(0x7FC00000, 0xFFC00000), element, scale=np.uint8(254), **special) == [nan - 0x80, nan]


@pytest.mark.parametrize(
    ("scale", "codes"),
    [
        (254, ([0x2, 0x3], [0x34, 0x3C], [0x3A, 0x3E])),  # 0.75, 1.5; 0.75 is a tie in FP4
        (255, ([0x1, 0x2], [0x2C, 0x34], [0x36, 0x3A])),  # 0.375, 0.75
    ],
)
@pytest.mark.parametrize("rules", [NKI_SIM, DEVICE], ids=["nki_sim", "device"])
def test_n5_scales_254_and_255_are_exact_powers_in_the_exact_rules(
    rules: RuleSet, scale: int, codes: tuple[list[int], ...]
) -> None:
    x = fp32(0x7EC00000, 0x7F400000)  # 1.5 · 2^126, 1.5 · 2^127
    for element, wanted in zip(ELEMENTS, codes, strict=True):
        assert codes_of(x, element, scale=np.uint8(scale), rules=rules) == wanted


@each_element
def test_n5_exact_rules_scale_0_lifts_fp32_subnormals_into_range(element: ElementFormat) -> None:
    """Scale 0 multiplies by 2^127: 2^-127, an fp32 subnormal, is 1.0; 3 · 2^-128 is 1.5."""
    one, one_and_a_half = {"fp4_e2m1": (0x2, 0x3), "fp8_e4m3": (0x38, 0x3C), "fp8_e5m2": (0x3C, 0x3E)}[element.name]
    x = fp32(0x00400000, 0x80400000, 0x00600000)
    for rules in RULE_SETS:
        codes = codes_of(x, element, scale=np.uint8(0), rules=rules)
        assert codes == [one, one + SIGN[element.name], one_and_a_half], rules.name


@each_element
def test_n6_ocp_scale_255_gives_code_0_for_every_element(element: ElementFormat) -> None:
    x, _ = random_bits(11, 10_000)
    x = np.concatenate([fp32(*EDGE), x])
    for overflow in Overflow:
        assert set(codes_of(x, element, scale=np.uint8(255), rules=OCP, overflow=overflow)) == {0}
    assert len(set(codes_of(x, element, scale=np.uint8(255), rules=NKI_SIM))) > 4


@each_rule_set
@each_element
def test_n5_d1_every_code_returns_through_every_scale(element: ElementFormat, rules: RuleSet) -> None:
    """narrow(ldexp(code, s), s) is the code wherever the value is finite and the scale an ordinary one."""
    top = MAX_NORMAL[element.name]
    magnitudes = np.arange(top + 1, dtype=np.uint8)
    codes = np.concatenate([magnitudes, magnitudes | SIGN[element.name]])
    scales = np.arange(254, dtype=np.uint8)
    values = ldexp(codes[:, None], scales, element, rules)
    finite = np.isfinite(values)
    again = narrow(values, element, scale=scales, rules=rules)
    assert np.array_equal(again[finite], np.broadcast_to(codes[:, None], values.shape)[finite])
    assert finite.sum() > 0.95 * values.size


# -- N-7: float64 -----------------------------------------------------------------------------------------------------


def test_n7_fp64_without_a_scale_is_rounded_once_and_silently() -> None:
    """Each x is beside a tie by less than an fp32 ulp: through fp32 it would fall on the tie and to the even code."""
    above, below = 1 + 2**-40, 1 - 2**-40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert codes_of(np.array([5 * above, 5.0, 3.5 * below, 0.25 * above]), FP4_E2M1) == [7, 6, 5, 1]
        assert codes_of(np.array([1.0625 * above, 1.0625, 1.1875 * below]), FP8_E4M3) == [0x39, 0x38, 0x39]
        assert codes_of(np.array([1.125 * above, 1.125, 1.375 * below]), FP8_E5M2) == [0x3D, 0x3C, 0x3D]
        assert codes_of(np.array([2**-10 * above, 2.0**-10]), FP8_E4M3) == [1, 0]
        assert codes_of(np.array([464 * above]), FP8_E4M3, overflow=Overflow.SPECIAL) == [0x7F]
        assert codes_of(np.array([61440 * below]), FP8_E5M2, overflow=Overflow.SPECIAL) == [0x7B]
        assert codes_of(np.array([1e300, -1e300, 1e-300, -5e-324]), FP8_E4M3) == [0x7E, 0xFE, 0x00, 0x80]


def test_n7_fp64_with_a_scale_is_rounded_to_fp32_first_and_says_so() -> None:
    x = np.array([1.0625 * (1 + 2**-40), -1.1875 * (1 - 2**-40)])
    with pytest.warns(PrecisionWarning):
        codes = narrow(x, FP8_E4M3, scale=np.uint8(127))
    assert codes.tolist() == [0x38, 0xBA]


@each_rule_set
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_n7_other_sources_never_warn(rules: RuleSet, dtype: Any) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)[::16]
    with np.errstate(all="ignore"):
        x = x.astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (None, np.uint8(0), np.uint8(254), np.uint8(255)):
            assert len(codes_of(x, FP8_E4M3, scale=scale, rules=rules)) == 4096


# -- Properties -------------------------------------------------------------------------------------------------------

each_time_the_same = settings(deadline=None, derandomize=True, database=None, max_examples=300)
words = st.integers(0, (1 << 32) - 1)
scales = st.integers(0, 253)


@each_time_the_same
@given(word=words, scale=scales, element=st.sampled_from(ELEMENTS), rules=st.sampled_from(RULE_SETS))
def test_negation_only_flips_the_sign_bit(word: int, scale: int, element: ElementFormat, rules: RuleSet) -> None:
    x = fp32(word, word ^ (1 << 31))
    for options in ({}, {"scale": np.uint8(scale)}):
        one, other = codes_of(x, element, rules=rules, **options)
        assert one ^ other == SIGN[element.name]


@each_time_the_same
@given(words=st.tuples(words, words), scale=scales, element=st.sampled_from(ELEMENTS), rules=st.sampled_from(RULE_SETS))
def test_narrowing_keeps_order(words: tuple[int, int], scale: int, element: ElementFormat, rules: RuleSet) -> None:
    low, high = sorted(word & 0x7FFFFFFF if (word & 0x7FFFFFFF) <= 0x7F800000 else 0 for word in words)
    codes = codes_of(fp32(low, high), element, rules=rules, scale=np.uint8(scale))
    assert codes[0] <= codes[1] <= MAX_NORMAL[element.name]


@each_time_the_same
@given(word=words, scale=scales, element=st.sampled_from(ELEMENTS), rules=st.sampled_from(RULE_SETS))
def test_n1_no_code_is_nearer_than_the_one_chosen(
    word: int, scale: int, element: ElementFormat, rules: RuleSet
) -> None:
    magnitude = oracle.decode(word)[1]
    if isinstance(magnitude, oracle.Special):
        return
    value = Fraction(magnitude, 1 << oracle.UNIT) * Fraction(2) ** (127 - scale)
    code = codes_of(fp32(word), element, rules=rules, scale=np.uint8(scale))[0] % SIGN[element.name]
    grid = oracle.ELEMENTS[element.name].grid[:-1]
    nearest = min(abs(value - other) for other in grid)
    assert abs(value - grid[code]) == nearest
    if sum(abs(value - other) == nearest for other in grid) == 2:
        assert code % 2 == 0


# -- Arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x_shape", "scale_shape", "shape"),
    [
        ((), (), ()),
        ((5,), (), (5,)),
        ((5,), (5,), (5,)),
        ((3, 5), (5,), (3, 5)),
        ((3, 5), (3, 1), (3, 5)),
        ((3, 1), (1, 5), (3, 5)),
        ((2, 3, 5), (3, 1), (2, 3, 5)),
        ((), (4,), (4,)),
        ((0, 4), (4,), (0, 4)),
        ((0,), (), (0,)),
        ((0,), (1,), (0,)),
    ],
)
@pytest.mark.parametrize("rules", [BIRSIM, OCP], ids=["birsim", "ocp"])
def test_scale_broadcasts(
    x_shape: tuple[int, ...], scale_shape: tuple[int, ...], shape: tuple[int, ...], rules: RuleSet
) -> None:
    rng = np.random.default_rng(12)
    x = np.asarray(rng.standard_normal(x_shape), dtype=np.float32)
    scale = np.asarray(rng.integers(118, 132, scale_shape), dtype=np.uint8)
    codes = narrow(x, FP8_E4M3, scale=scale, rules=rules)
    assert codes.shape == shape
    assert codes.dtype == np.uint8
    words, bytes_ = (np.broadcast_to(a, shape).ravel().tolist() for a in (np.asarray(x.view(np.uint32)), scale))
    wanted = [oracle.narrow(w, "fp8_e4m3", rules.name, scale=s) for w, s in zip(words, bytes_, strict=True)]
    assert codes.ravel().tolist() == wanted


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 4, 4), (1, 1, 1, 1), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_any_shape_without_a_scale(shape: tuple[int, ...], dtype: Any) -> None:
    codes = narrow(np.ones(shape, dtype=dtype), FP8_E4M3)
    assert codes.shape == shape
    assert codes.dtype == np.uint8
    assert codes.ravel().tolist() == [0x38] * codes.size


@pytest.mark.parametrize("by", ["none", "all", "element", "row", "column"])
@pytest.mark.parametrize("shape", [(1, 200_003), (200_003, 1), (3, 70_001), (70_001, 3), (451, 449)])
@pytest.mark.parametrize("rules", [BIRSIM, OCP], ids=["birsim", "ocp"])
def test_large_tensors_of_a_small_pattern(rules: RuleSet, shape: tuple[int, int], by: str) -> None:
    """A 7 × 97 pattern laid out over a large tensor, its scale given by element, row or column."""
    rng = np.random.default_rng(16)
    x = random_bits(17, 7 * 97)[0].reshape(7, 97)
    scale = rng.integers(100, 256, {"all": (1, 1), "row": (7, 1), "column": (1, 97)}.get(by, (7, 97))).astype(np.uint8)
    bytes_ = np.broadcast_to(scale, x.shape).ravel().tolist() if by != "none" else [None] * x.size
    pairs = zip(x.view(np.uint32).ravel().tolist(), bytes_, strict=True)
    pattern = np.array([oracle.narrow(w, "fp8_e5m2", rules.name, scale=s) for w, s in pairs]).reshape(7, 97)
    places = np.ix_(np.arange(shape[0]) % 7, np.arange(shape[1]) % 97)
    own = tuple(at * (length > 1) for at, length in zip(places, scale.shape, strict=True))
    large = scale[own]
    if by in {"all", "row"}:
        large = large[:, :1]
    if by in {"all", "column"}:
        large = large[:1]
    codes = narrow(x[places], FP8_E5M2, rules=rules, scale=None if by == "none" else large)
    assert codes.shape == shape
    assert np.array_equal(codes, pattern[places])
    assert codes.size > 200_000


@pytest.mark.parametrize("scale", [None, np.uint8(120)], ids=["unscaled", "scaled"])
def test_layout_of_the_input_in_memory_does_not_matter(scale: np.uint8 | None) -> None:
    x = random_bits(13, 12 * 20)[0].reshape(12, 20)
    byte = None if scale is None else int(scale)
    wanted = [oracle.narrow(word, "fp8_e4m3", "ocp", scale=byte) for word in x.view(np.uint32).ravel().tolist()]
    spread = np.zeros((24, 60), dtype=np.float32)
    spread[::2, ::3] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    layouts = {
        "C": x,
        "Fortran": np.asfortranarray(x),
        "strided": spread[::2, ::3],
        "reversed twice": x[::-1, ::-1].copy()[::-1, ::-1],
        "big-endian": x.view(np.uint32).astype(">u4").view(">f4"),
        "read-only": read_only,
    }
    for name, array in layouts.items():
        before = array.tobytes()
        assert codes_of(array, FP8_E4M3, rules=OCP, scale=scale) == wanted, name
        assert array.tobytes() == before, name


def test_big_endian_sources_of_other_widths() -> None:
    x = np.array([1.0, -448.0, 0.3, np.inf])
    wanted = [
        0x38,
        0xFE,
        oracle.narrow(int(np.float16(0.3).view(np.uint16)), "fp8_e4m3", "birsim", source="fp16"),
        0x7E,
    ]
    assert codes_of(x.astype(">f2"), FP8_E4M3) == wanted
    assert codes_of(x.astype(">f8"), FP8_E4M3) == wanted


def test_scale_and_strided_scale_are_unchanged() -> None:
    x = np.full((4, 6), 1.5, dtype=np.float32)
    scales = np.arange(110, 134, dtype=np.uint8)
    view = scales.reshape(4, 6)[:, ::-1]
    codes = narrow(x, FP8_E5M2, scale=view)
    wanted = [oracle.narrow(0x3FC00000, "fp8_e5m2", "birsim", scale=s) for s in view.ravel().tolist()]
    assert codes.ravel().tolist() == wanted
    assert scales.tolist() == list(range(110, 134))


# -- Errors -----------------------------------------------------------------------------------------------------------

ONE: Any = np.ones(4, dtype=np.float32)


@pytest.mark.parametrize("x", [1.0, [1.0], None, np.ones(4, dtype=np.int32), np.ones(4, dtype=np.uint8), np.ones(4) > 0,
                               np.ones(4, dtype=complex), np.ones(4, dtype=ml_dtypes.float8_e4m3fn)])  # fmt: skip
def test_x_of_another_kind_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match=r"^x must be .*, not "):
        narrow(x, FP8_E4M3)


@pytest.mark.parametrize("scale", [127, [127] * 4, 1.0, np.full(4, 127), np.full(4, 127, dtype=np.int8), np.ones(4)])
def test_scale_of_another_kind_is_refused(scale: Any) -> None:
    with pytest.raises(TypeError, match=r"^scale must be .*, not "):
        narrow(ONE, FP8_E4M3, scale=scale)


def test_scale_that_does_not_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^scale must .*, not "):
        narrow(ONE, FP8_E4M3, scale=np.zeros(3, dtype=np.uint8))


@pytest.mark.parametrize("name", ["element", "rules", "overflow"])
@pytest.mark.parametrize("wrong", ["fp8_e4m3", "saturate", None, True])
def test_descriptors_of_another_kind_are_refused(name: str, wrong: Any) -> None:
    arguments = {"element": FP8_E4M3, "rules": BIRSIM, "overflow": Overflow.SATURATE, name: wrong}
    with pytest.raises(TypeError, match=rf"^{name} must be .*, not {wrong!r}"):
        narrow(ONE, **arguments)
