"""Contract D: element code and scale to fp32, clause by clause."""

from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest

from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.rules import BIRSIM, DEVICE, OCP, RULE_SETS, RuleSet

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)

ML_DTYPES = {
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
GFLOAT = {
    "fp4_e2m1": gfloat.formats.format_info_ocp_e2m1,
    "fp8_e4m3": gfloat.formats.format_info_ocp_e4m3,
    "fp8_e5m2": gfloat.formats.format_info_ocp_e5m2,
}
NAN_AT_255 = {"birsim": False, "birsim_alt": False, "nki_sim": False, "device": True, "ocp": True}
"""Table R, "scale 255 on dequant"."""


def u8(*values: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.array(values, dtype=np.uint8)


def bits_of(values: np.ndarray[Any, Any]) -> list[int]:
    words: list[int] = values.view(np.uint32).ravel().tolist()
    return words


def all_codes(element: ElementFormat) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.arange(element.code_count, dtype=np.uint8)


@each_rule_set
@each_element
def test_d4_decode_at_scale_127_is_that_of_ml_dtypes_and_gfloat(element: ElementFormat, rules: RuleSet) -> None:
    codes = all_codes(element)
    values = ldexp(codes, np.uint8(127), element, rules)
    assert values.dtype == np.float32
    theirs = codes.view(ML_DTYPES[element.name]).astype(np.float32)
    nan = np.isnan(theirs)
    assert bits_of(values[~nan]) == bits_of(theirs[~nan])
    gfloats = np.array([gfloat.decode_float(GFLOAT[element.name], code).fval for code in codes.tolist()])
    assert bits_of(values[~nan]) == bits_of(gfloats.astype(np.float32)[~nan])
    assert np.isnan(gfloats).tolist() == nan.tolist()
    assert bits_of(values[nan]) == [0x7FC00000] * int(nan.sum())
    assert nan.sum() == {"fp4_e2m1": 0, "fp8_e4m3": 2, "fp8_e5m2": 6}[element.name]


@each_rule_set
@each_element
def test_d1_d2_every_code_under_every_scale_is_numpys_float64_product(element: ElementFormat, rules: RuleSet) -> None:
    """In float64 each product is exact, and its one rounding to fp32 changes nothing or overflows."""
    codes = all_codes(element)
    scales = np.arange(256)
    exact = codes.view(ML_DTYPES[element.name]).astype(np.float64)[:, None] * 2.0 ** (scales - 127)
    with np.errstate(over="ignore"):
        theirs = exact.astype(np.float32)
    finite = np.isfinite(theirs)
    assert np.array_equal(theirs[finite].astype(np.float64), exact[finite])
    wanted = theirs.view(np.uint32)
    wanted[np.isnan(theirs)] = 0x7FC00000
    if NAN_AT_255[rules.name]:
        wanted[:, 255] = 0x7FC00000
    values = ldexp(codes[:, None], scales.astype(np.uint8), element, rules)
    assert values.shape == (element.code_count, 256)
    assert values.view(np.uint32).tolist() == wanted.tolist()


def test_f2_scale_bytes_are_powers_of_two() -> None:
    """1.0 under byte b is 2^(b - 127): byte 0 is an fp32 subnormal, byte 254 the last finite one."""
    scales = np.arange(255, dtype=np.uint8)
    for element, one in ((FP4_E2M1, 0x2), (FP8_E4M3, 0x38), (FP8_E5M2, 0x3C)):
        values = ldexp(np.full(255, one, dtype=np.uint8), scales, element)
        assert bits_of(values) == [0x00400000] + [byte << 23 for byte in range(1, 255)]


def test_d1_scale_of_each_element_by_flat_index() -> None:
    """out[r, c] takes scale (F/4)·(r/8) + (c/4), with a different scale in every block."""
    P, F = 24, 20
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 0x7E, (P, F), dtype=np.uint8)
    scale = (100 + np.arange(P // 8 * F // 4)).astype(np.uint8).reshape(P // 8, F // 4)
    values = ldexp(codes, scale.repeat(8, axis=0).repeat(4, axis=1), FP8_E4M3)
    decoded = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    for r in range(P):
        for c in range(F):
            byte = int(scale.ravel()[(F // 4) * (r // 8) + (c // 4)])
            assert float(values[r, c]) == decoded[r, c] * 2.0 ** (byte - 127)
    assert len(set(scale.ravel().tolist())) == 15


def test_d2_overflow_is_infinite_and_its_neighbour_is_not() -> None:
    assert bits_of(ldexp(u8(0x7E, 0xFE), np.uint8(254), FP8_E4M3)) == [0x7F800000, 0xFF800000]
    assert bits_of(ldexp(u8(0x7E, 0xFE), np.uint8(246), FP8_E4M3)) == [0x7F600000, 0xFF600000]
    assert bits_of(ldexp(u8(0x7E, 0xFE), np.uint8(247), FP8_E4M3)) == [0x7F800000, 0xFF800000]


def test_d2_subnormal_results_are_produced() -> None:
    assert bits_of(ldexp(u8(0x01, 0x81), np.uint8(0), FP8_E4M3)) == [0x00002000, 0x80002000]
    assert bits_of(ldexp(u8(0x01, 0x81), np.uint8(0), FP8_E5M2)) == [0x00000040, 0x80000040]
    assert bits_of(ldexp(u8(0x1, 0x9), np.uint8(0), FP4_E2M1)) == [0x00200000, 0x80200000]


@each_rule_set
@each_element
def test_d2_signed_zero_is_kept_under_every_scale_but_nan(element: ElementFormat, rules: RuleSet) -> None:
    last = 255 if NAN_AT_255[rules.name] else 256
    scales = np.arange(last, dtype=np.uint8)
    values = ldexp(u8(0, element.sign_bit)[:, None], scales, element, rules)
    assert values.view(np.uint32).tolist() == [[0] * last, [1 << 31] * last]


def test_d3_scale_255_as_a_power() -> None:
    values = ldexp(u8(0x00, 0x80, 0x01, 0x38, 0xB8, 0x7F), np.uint8(255), FP8_E4M3, BIRSIM)
    assert bits_of(values) == [0, 1 << 31, (119 + 127) << 23, 0x7F800000, 0xFF800000, 0x7FC00000]


@pytest.mark.parametrize("rules", [DEVICE, OCP], ids=["device", "ocp"])
@each_element
def test_d3_scale_255_as_nan(element: ElementFormat, rules: RuleSet) -> None:
    values = ldexp(all_codes(element), np.uint8(255), element, rules)
    assert bits_of(values) == [0x7FC00000] * element.code_count


@each_rule_set
def test_d4_element_nan_and_inf_under_every_finite_scale(rules: RuleSet) -> None:
    scales = np.arange(255, dtype=np.uint8)
    for element, codes in ((FP8_E4M3, (0x7F, 0xFF)), (FP8_E5M2, (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF))):
        values = ldexp(u8(*codes)[:, None], scales, element, rules)
        assert bits_of(values) == [0x7FC00000] * (255 * len(codes))
    values = ldexp(u8(0x7C, 0xFC)[:, None], scales, FP8_E5M2, rules)
    assert bits_of(values) == [0x7F800000] * 255 + [0xFF800000] * 255


@pytest.mark.parametrize(
    ("codes_shape", "scale_shape", "shape"),
    [
        ((), (), ()),
        ((5,), (), (5,)),
        ((3, 5), (5,), (3, 5)),
        ((3, 5), (3, 1), (3, 5)),
        ((3, 1), (1, 5), (3, 5)),
        ((), (4,), (4,)),
        ((0, 4), (4,), (0, 4)),
        ((0,), (), (0,)),
    ],
)
def test_d1_scale_broadcasts(
    codes_shape: tuple[int, ...], scale_shape: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 0x7E, codes_shape).astype(np.uint8)
    scale = rng.integers(100, 150, scale_shape).astype(np.uint8)
    values = ldexp(np.asarray(codes), np.asarray(scale), FP8_E4M3)
    assert values.shape == shape
    assert values.dtype == np.float32
    wanted = np.asarray(codes).view(ml_dtypes.float8_e4m3fn).astype(np.float64) * 2.0 ** (scale.astype(int) - 127)
    assert np.array_equal(values.astype(np.float64), wanted)


@pytest.mark.parametrize(
    ("codes_shape", "scale_shape"),
    [
        ((200_003,), ()),
        ((200_003,), (200_003,)),
        ((3, 70_001), (3, 1)),
        ((70_001, 3), (3,)),
        ((5, 7, 9_001), (7, 1)),
        ((1, 1_001), (301, 1)),
        ((401,), (2, 401, 401)),
    ],
)
@each_element
def test_d1_large_tensors(element: ElementFormat, codes_shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(codes_shape))
    codes = rng.integers(0, element.code_count, codes_shape, dtype=np.uint8)
    scale = np.asarray(rng.integers(0, 256, scale_shape), dtype=np.uint8)
    values = ldexp(codes, scale, element)
    with np.errstate(over="ignore"):
        exact = codes.view(ML_DTYPES[element.name]).astype(np.float64) * 2.0 ** (scale.astype(np.int64) - 127)
        wanted = exact.astype(np.float32)
    nan = np.isnan(wanted)
    assert values.shape == wanted.shape
    assert np.array_equal(values.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])
    assert set(values.view(np.uint32)[nan].tolist()) <= {0x7FC00000}
    assert values.size > 200_000


def test_inputs_are_unchanged_and_may_be_strided_or_read_only() -> None:
    codes = np.arange(240, dtype=np.uint8).reshape(12, 20)
    view, scale = codes.T[::3, ::-2], u8(*range(120, 126))
    codes.flags.writeable = scale.flags.writeable = False
    before = codes.copy(), scale.copy()
    values = ldexp(view, scale, FP8_E5M2)
    wanted = view.copy().view(ml_dtypes.float8_e5m2).astype(np.float32) * np.float32(2) ** (scale.astype(np.int8) - 127)
    finite = np.isfinite(wanted)
    assert finite.sum() > 30
    assert np.array_equal(values[finite], wanted[finite])
    assert np.array_equal(codes, before[0])
    assert np.array_equal(scale, before[1])


def test_the_result_may_be_written_without_harm_to_later_calls() -> None:
    first = ldexp(u8(0x38), np.uint8(127), FP8_E4M3)
    first[...] = 7.0
    assert ldexp(u8(0x38), np.uint8(127), FP8_E4M3).tolist() == [1.0]


@pytest.mark.parametrize("codes", [[1], 1, np.array([1]), np.array([1], dtype=np.int8), np.array([1.0]), None])
def test_codes_of_another_kind_are_refused(codes: Any) -> None:
    with pytest.raises(TypeError, match=r"^codes must be .*, not "):
        ldexp(codes, np.uint8(127), FP8_E4M3)


@pytest.mark.parametrize("scale", [[127], 127, np.array([127]), np.array([127], dtype=np.int8), np.array([1.0]), None])
def test_scale_of_another_kind_is_refused(scale: Any) -> None:
    with pytest.raises(TypeError, match=r"^scale must be .*, not "):
        ldexp(u8(1), scale, FP8_E4M3)


def test_fp4_codes_over_15_are_refused() -> None:
    assert ldexp(u8(15), np.uint8(127), FP4_E2M1).tolist() == [-6.0]
    with pytest.raises(ValueError, match=r"^codes must be .*, not "):
        ldexp(u8(0, 16), np.uint8(127), FP4_E2M1)


def test_scale_that_does_not_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^scale must .*, not "):
        ldexp(np.zeros((8, 4), dtype=np.uint8), np.zeros(3, dtype=np.uint8), FP8_E4M3)


def test_element_and_rules_of_another_kind_are_refused() -> None:
    wrong: Any = "fp8_e4m3"
    with pytest.raises(TypeError, match=r"^element must be .*, not 'fp8_e4m3'"):
        ldexp(u8(1), np.uint8(127), wrong)
    wrong = None
    with pytest.raises(TypeError, match=r"^rules must be .*, not None"):
        ldexp(u8(1), np.uint8(127), FP8_E4M3, wrong)
