"""The assumptions that rule sets make options of: N-4's third NaN, N-5's invalid products, D-4's signed NaN."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from oracle import INF, NAN

from mxhw.catalog import CATALOG
from mxhw.ldexp import Ldexp
from mxhw.narrow import Narrow
from mxmodel.files.arrangement import Arrangement, Layout
from mxmodel.files.mx_record import MxRecord, read_records, record_text
from mxmodel.formats import BF16, ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, FP32, ElementFormat
from mxmodel.ldexp import ldexp, ldexp_table
from mxmodel.narrow import narrow, narrow_bits
from mxmodel.quantize import dequantize_mx, quantize_mx
from mxmodel.rules import (
    BIRSIM,
    DEVICE,
    NKI_SIM,
    OCP,
    RULE_SETS,
    ElementNan,
    InvalidProduct,
    NanCode,
    Overflow,
    PreScale,
    RuleSet,
    Scale255,
)

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)

FP8 = (FP8_E4M3, FP8_E5M2)
SIGN = {"fp4_e2m1": 0x8, "fp8_e4m3": 0x80, "fp8_e5m2": 0x80}

OVERFLOW_FIRST = dataclasses.replace(BIRSIM, name="overflow_first", nan=NanCode.MAX_NORMAL)
POSITIVE = dataclasses.replace(BIRSIM, name="positive", invalid_product=InvalidProduct.POSITIVE)
BOTH = dataclasses.replace(OVERFLOW_FIRST, name="both", invalid_product=InvalidProduct.POSITIVE)
SIGNED = dataclasses.replace(BIRSIM, name="signed", element_nan=ElementNan.SIGNED)
SIGNED_OCP = dataclasses.replace(OCP, name="signed_ocp", element_nan=ElementNan.SIGNED)

INF_BITS, MINUS_INF = 0x7F800000, 0xFF800000
NANS = (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF)


def fp32(*words: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(words, dtype=np.uint32).view(np.float32)


def codes_of(words: tuple[int, ...], element: ElementFormat, rules: RuleSet, **options: Any) -> list[int]:
    listed: list[int] = narrow(fp32(*words), element, rules=rules, **options).tolist()
    return listed


def bits_of(codes: list[int], scale: int, element: ElementFormat, rules: RuleSet) -> list[int]:
    values = ldexp(np.array(codes, dtype=np.uint8), np.uint8(scale), element, rules)
    listed: list[int] = values.view(np.uint32).tolist()
    return listed


# -- the defaults are what was there before ----------------------------------------------------------------------------


@each_rule_set
def test_built_in_rule_sets_have_the_defaults(rules: RuleSet) -> None:
    assert rules.nan is not NanCode.MAX_NORMAL
    assert rules.invalid_product is InvalidProduct.NEGATIVE
    assert rules.element_nan is ElementNan.CANONICAL
    defaults = {field.name: field.default for field in dataclasses.fields(RuleSet)}
    assert defaults["invalid_product"] is InvalidProduct.NEGATIVE
    assert defaults["element_nan"] is ElementNan.CANONICAL


def test_the_catalogue_is_unchanged() -> None:
    assert len(CATALOG) == 67
    assert len({entry.name for entry in CATALOG}) == 67
    for entry in CATALOG:
        assert not re.search(r"max_normal|invalid|nan_signed", entry.name), entry.name
        assert entry.component() is not None


# -- policies ----------------------------------------------------------------------------------------------------------


@each_element
@each_rule_set
def test_an_option_without_effect_is_the_same_policy(element: ElementFormat, rules: RuleSet) -> None:
    """N-4 and D-4 need an element with NaN, N-5 the fp32 product of a live scale."""
    other = dataclasses.replace(
        rules, nan=NanCode.MAX_NORMAL, invalid_product=InvalidProduct.POSITIVE, element_nan=ElementNan.SIGNED
    )
    has_nan, product = element in FP8, rules.pre_scale is PreScale.FP32_PRODUCT
    assert other.exponent_policy(element) == rules.exponent_policy(element)
    assert (other.narrow_policy(element, scaled=False) == rules.narrow_policy(element, scaled=False)) is not has_nan
    same = other.narrow_policy(element, scaled=True) == rules.narrow_policy(element, scaled=True)
    assert same is not (has_nan or product)
    assert (other.dequant_policy(element) == rules.dequant_policy(element)) is not has_nan
    unscaled = dataclasses.replace(rules, invalid_product=InvalidProduct.POSITIVE)
    assert unscaled.narrow_policy(element, scaled=False) == rules.narrow_policy(element, scaled=False)


def test_names_tell_every_policy_from_every_other() -> None:
    variants = [
        dataclasses.replace(rules, nan=nan, invalid_product=invalid, element_nan=element_nan)
        for rules in RULE_SETS
        for nan in NanCode
        for invalid in InvalidProduct
        for element_nan in ElementNan
    ]
    assert len(variants) == 60
    narrowing = {v.narrow_policy(e, scaled=scaled) for v in variants for e in ELEMENTS for scaled in (False, True)}
    dequantising = {v.dequant_policy(e) for v in variants for e in ELEMENTS}
    # Unscaled: 3 NaN codes for each FP8 and 1 for FP4. Scaled: the fp32 product has 2 signs, the exact one two 255s.
    assert len(narrowing) == (3 + 3 + 1) + (3 + 3 + 1) * (2 + 2)
    assert len(dequantising) == 2 * (2 + 2 + 1)
    for policies in (narrowing, dequantising):
        names = {policy.name for policy in policies}
        assert len(names) == len(policies)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)


def test_names_by_hand() -> None:
    assert BIRSIM.narrow_policy(FP8_E4M3, scaled=True).name == "fp8_e4m3_zero_scaled_fp32_product"
    assert OVERFLOW_FIRST.narrow_policy(FP8_E5M2, scaled=False).name == "fp8_e5m2_max_normal"
    assert POSITIVE.narrow_policy(FP4_E2M1, scaled=True).name == "fp4_e2m1_scaled_fp32_product_invalid_positive"
    assert BIRSIM.dequant_policy(FP8_E5M2).name == "fp8_e5m2_power255"
    assert SIGNED.dequant_policy(FP8_E5M2).name == "fp8_e5m2_power255_nan_signed"
    assert SIGNED_OCP.dequant_policy(FP4_E2M1).name == OCP.dequant_policy(FP4_E2M1).name == "fp4_e2m1_nan255"


# -- N-4: NaN taken for an overflow ------------------------------------------------------------------------------------


def test_n4_max_normal_by_hand() -> None:
    compared = 0
    for element, positive, negative in ((FP8_E4M3, 0x7E, 0xFE), (FP8_E5M2, 0x7B, 0xFB), (FP4_E2M1, 0x0, 0x8)):
        wanted = [positive] * 3 + [negative] * 3
        assert codes_of(NANS, element, OVERFLOW_FIRST) == wanted
        for scale in (0, 1, 127, 253, 254, 255):
            assert codes_of(NANS, element, OVERFLOW_FIRST, scale=np.uint8(scale)) == wanted
            compared += len(NANS)
    assert compared == 108


def test_n4_max_normal_of_float64() -> None:
    wide = np.array([0x7FF0000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    assert narrow(wide, FP8_E5M2, rules=OVERFLOW_FIRST).tolist() == [0x7B, 0xFB]
    assert narrow(wide, FP8_E4M3, rules=OVERFLOW_FIRST).tolist() == [0x7E, 0xFE]


def test_n4b_special_propagates_nan_under_max_normal_too() -> None:
    wanted = {"fp8_e4m3": [0x7F] * 3 + [0xFF] * 3, "fp8_e5m2": [0x7E] * 3 + [0xFE] * 3}
    for element in FP8:
        assert codes_of(NANS, element, OVERFLOW_FIRST, overflow=Overflow.SPECIAL) == wanted[element.name]
    assert codes_of((MINUS_INF, 0xC3E80001), FP8_E4M3, OVERFLOW_FIRST, overflow=Overflow.SPECIAL) == [0xFF, 0xFF]


def test_n4_scale_255_still_gives_code_0_where_it_means_nan() -> None:
    rules = dataclasses.replace(OCP, name="mine", nan=NanCode.MAX_NORMAL)
    assert rules.narrow_scale_255 is Scale255.NAN
    for element in FP8:
        assert codes_of(NANS, element, rules, scale=np.uint8(255)) == [0] * len(NANS)


@each_element
def test_n4_max_normal_changes_nan_alone(element: ElementFormat) -> None:
    """Every 16-bit pattern, unscaled: the default's code but for NaN."""
    words = np.arange(1 << 16, dtype=np.uint32) << 16
    x = words.view(np.float32)
    default = narrow(x, element, rules=BIRSIM)
    changed = narrow(x, element, rules=OVERFLOW_FIRST)
    nan = np.isnan(x)
    assert np.count_nonzero(nan) == 254
    assert np.array_equal(changed[~nan], default[~nan])
    top = element.max_normal_code if element in FP8 else 0
    assert np.array_equal(changed[nan], np.where(words[nan] >> 31, SIGN[element.name], 0) | top)


def test_n4_max_normal_in_a_whole_block() -> None:
    x = np.ones((8, 4), dtype=np.float32)
    x[0, 0], x[1, 1] = np.float32(np.nan), np.float32(-np.inf)
    tensor = quantize_mx(x, FP8_E5M2, OVERFLOW_FIRST)
    assert tensor.scale.tolist() == [[240]]
    assert tensor.codes[0, 0] == 0x7B
    assert tensor.codes[1, 1] == 0xFB
    assert np.count_nonzero(tensor.codes) == 2


# -- N-5: the sign of an invalid product -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "nan_magnitude", "sign"),
    [(BIRSIM, 0, 1), (POSITIVE, 0, 0), (OVERFLOW_FIRST, 0x7B, 1), (BOTH, 0x7B, 0)],
    ids=lambda value: value.name if isinstance(value, RuleSet) else "",
)
def test_n5_invalid_products_by_hand(rules: RuleSet, nan_magnitude: int, sign: int) -> None:
    """±Inf x +0.0 at scale 254 and ±0 x -Inf at scale 255; their valid neighbours keep their own signs."""
    invalid = nan_magnitude | (0x80 * sign)
    at_254 = codes_of((INF_BITS, MINUS_INF, 0, 0x80000000), FP8_E5M2, rules, scale=np.uint8(254))
    assert at_254 == [invalid, invalid, 0x00, 0x80]
    at_255 = codes_of((0, 0x80000000, INF_BITS, MINUS_INF), FP8_E5M2, rules, scale=np.uint8(255))
    assert at_255 == [invalid, invalid, 0xFB, 0x7B]
    fp4 = 0x8 * sign
    assert codes_of((INF_BITS, MINUS_INF), FP4_E2M1, rules, scale=np.uint8(254)) == [fp4, fp4]
    assert codes_of((0, 0x80000000), FP4_E2M1, rules, scale=np.uint8(255)) == [fp4, fp4]


def test_n5_a_nan_operand_keeps_its_own_sign() -> None:
    for scale in (254, 255):
        assert codes_of(NANS, FP8_E4M3, POSITIVE, scale=np.uint8(scale)) == [0x00] * 3 + [0x80] * 3


def test_n5_positive_propagated_nan_has_sign_0() -> None:
    rules = dataclasses.replace(POSITIVE, name="mine", nan=NanCode.PROPAGATE)
    assert codes_of((INF_BITS, MINUS_INF), FP8_E4M3, rules, scale=np.uint8(254)) == [0x7F, 0x7F]
    assert codes_of((0, 0x80000000), FP8_E5M2, rules, scale=np.uint8(255)) == [0x7E, 0x7E]
    special = codes_of(
        (INF_BITS, 0), FP8_E4M3, POSITIVE, scale=np.array([254, 255], np.uint8), overflow=Overflow.SPECIAL
    )
    assert special == [0x7F, 0x7F]


@pytest.mark.parametrize("rules", [NKI_SIM, DEVICE, OCP], ids=lambda rules: rules.name)
def test_n5_no_effect_where_the_pre_scale_is_exact(rules: RuleSet) -> None:
    other = dataclasses.replace(rules, name="mine", invalid_product=InvalidProduct.POSITIVE)
    words, scale = (0, 0x80000000, INF_BITS, MINUS_INF), np.array([[254], [255]], dtype=np.uint8)
    x = np.broadcast_to(fp32(*words), (2, 4))
    for element in ELEMENTS:
        assert np.array_equal(
            narrow(x, element, scale=scale, rules=other), narrow(x, element, scale=scale, rules=rules)
        )


# -- N-4, N-5 against rationals ----------------------------------------------------------------------------------------

INTERESTING = (
    *(0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x3F99999A, 0x43E00000, 0x43E80000, 0x47680000, 0x7F7FFFFF),
    *(INF_BITS, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),
)


def rational_code(word: int, scale: int, element: str, nan: NanCode, invalid: InvalidProduct) -> int:
    """The fp32 product, then N-1..N-4, from the oracle's exact numbers and its grid."""
    sign, magnitude = oracle.decode(word)
    row = oracle.ELEMENTS[element]
    if magnitude is not NAN and scale == 254:
        bad = magnitude is INF
        sign, magnitude = (int(invalid is InvalidProduct.NEGATIVE), NAN) if bad else (sign, 0)
    elif magnitude is not NAN and scale == 255:
        bad = magnitude == 0
        sign, magnitude = (int(invalid is InvalidProduct.NEGATIVE), NAN) if bad else (1 - sign, INF)
    if magnitude is NAN:
        kinds = {NanCode.ZERO: 0, NanCode.PROPAGATE: row.nan, NanCode.MAX_NORMAL: row.max_normal}
        return sign * row.sign + (0 if row.nan is None else kinds[nan] or 0)
    if magnitude is INF:
        return sign * row.sign + row.max_normal
    assert isinstance(magnitude, int)
    value = oracle.Fraction(magnitude, 1 << oracle.UNIT)
    if scale < 254:
        value *= oracle.Fraction(2) ** (127 - scale)
    code = sum(1 for tie in row.midpoints()[:-1] if value > tie)
    ties = [index for index, tie in enumerate(row.midpoints()[:-1]) if value == tie]
    if ties and ties[0] % 2:
        code = ties[0] + 1
    return sign * row.sign + code


@each_element
def test_n4_n5_every_member_is_the_rational(element: ElementFormat) -> None:
    compared = 0
    words = [word | sign for word in INTERESTING for sign in (0, 1 << 31)]
    scales = [0, 1, 119, 120, 126, 127, 128, 200, 253, 254, 255]
    bits = np.array(words, dtype=np.uint32)[:, None]
    scale = np.array(scales, dtype=np.uint8)[None, :]
    for nan in NanCode:
        for invalid in InvalidProduct:
            rules = dataclasses.replace(BIRSIM, name="mine", nan=nan, invalid_product=invalid)
            codes = narrow_bits(bits, rules.narrow_policy(element, scaled=True), scale=scale)
            wanted = [[rational_code(word, s, element.name, nan, invalid) for s in scales] for word in words]
            assert codes.tolist() == wanted
            compared += codes.size
    assert compared == 28 * 11 * 3 * 2


# -- D-4: the sign of an element NaN -----------------------------------------------------------------------------------


def test_d4_signed_by_hand() -> None:
    for scale in (0, 1, 127, 200, 254, 255):
        assert bits_of([0x7F, 0xFF], scale, FP8_E4M3, SIGNED) == [0x7FC00000, 0xFFC00000]
        assert bits_of([0x7D, 0x7E, 0x7F], scale, FP8_E5M2, SIGNED) == [0x7FC00000] * 3
        assert bits_of([0xFD, 0xFE, 0xFF], scale, FP8_E5M2, SIGNED) == [0xFFC00000] * 3
        assert bits_of([0xFF], scale, FP8_E4M3, BIRSIM) == [0x7FC00000]
        assert bits_of([0x7C, 0xFC], scale, FP8_E5M2, SIGNED) == [INF_BITS, MINUS_INF]


def test_d3_the_nan_of_scale_255_stays_canonical() -> None:
    for element in ELEMENTS:
        codes = list(range(element.code_count))
        assert bits_of(codes, 255, element, SIGNED_OCP) == [0x7FC00000] * len(codes)
    assert bits_of([0xFF], 254, FP8_E4M3, SIGNED_OCP) == [0xFFC00000]


@each_element
@pytest.mark.parametrize("rules", [SIGNED, SIGNED_OCP], ids=lambda rules: rules.name)
def test_d4_every_code_under_every_scale_is_the_rational(element: ElementFormat, rules: RuleSet) -> None:
    """Function and table alike against the oracle's numbers; only negative NaN codes differ from the default."""
    count = element.code_count
    codes = np.repeat(np.arange(count, dtype=np.uint8)[:, None], 256, axis=1)
    scales = np.arange(256, dtype=np.uint8)[None, :]
    found = ldexp(codes, scales, element, rules).view(np.uint32)
    assert np.array_equal(found, ldexp_table(rules.dequant_policy(element)))
    wanted = np.empty((count, 256), dtype=np.uint32)
    for code in range(count):
        sign, magnitude = oracle.decode_element(code, element.name)
        for scale in range(256):
            if scale == 255 and rules.dequant_scale_255 is Scale255.NAN:
                wanted[code, scale] = oracle.FP32_NAN
            elif isinstance(magnitude, int):
                # Units of 2^-(UNIT + 127), so that a whole number is multiplied by 2^scale.
                wanted[code, scale] = oracle.fp32_bits((sign, magnitude << scale), oracle.UNIT + 127)
            else:
                wanted[code, scale] = oracle.fp32_bits((sign, magnitude))
    assert np.array_equal(found, wanted)
    default = dataclasses.replace(rules, element_nan=ElementNan.CANONICAL)
    differing = found != ldexp(codes, scales, element, default).view(np.uint32)
    scales_with_sign = 255 if rules.dequant_scale_255 is Scale255.NAN else 256
    negative_nans = {"fp4_e2m1": 0, "fp8_e4m3": 1, "fp8_e5m2": 3}[element.name]
    assert np.count_nonzero(differing) == negative_nans * scales_with_sign


def test_d4_signed_survives_quantise_and_dequantise() -> None:
    rules = dataclasses.replace(DEVICE, name="mine", element_nan=ElementNan.SIGNED)
    x = np.ones((8, 4), dtype=np.float32)
    x[0, 0:2] = fp32(0x7FC00000, 0xFFC00000)
    for element, codes in ((FP8_E4M3, [0x7F, 0xFF]), (FP8_E5M2, [0x7E, 0xFE])):
        tensor = quantize_mx(x, element, rules)
        assert tensor.codes[0, 0:2].tolist() == codes
        assert dequantize_mx(tensor).view(np.uint32)[0, 0:2].tolist() == [0x7FC00000, 0xFFC00000]


@pytest.mark.parametrize("codes_shape", [(3, 1), (3, 5), (1, 5), (5,)])
@pytest.mark.parametrize("scale_shape", [(3, 5), (3, 1), (1,), ()])
def test_d4_signed_where_shapes_broadcast(codes_shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> None:
    codes, scale = np.full(codes_shape, 0xFF, dtype=np.uint8), np.full(scale_shape, 3, dtype=np.uint8)
    values = ldexp(codes, scale, FP8_E4M3, SIGNED)
    assert values.shape == np.broadcast_shapes(codes_shape, scale_shape)
    assert set(values.view(np.uint32).ravel().tolist()) == {0xFFC00000}


# -- the hardware has the defaults only --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [FP32, BF16], ids=lambda source: source.name)
def test_narrow_hardware_refuses_the_other_members(source: Any) -> None:
    refused = 0
    for element in FP8:
        for scaled in (False, True):
            with pytest.raises(
                ValueError, match=r"^policy\.nan must be PROPAGATE or ZERO in hardware, not MAX_NORMAL$"
            ):
                Narrow(source, OVERFLOW_FIRST.narrow_policy(element, scaled=scaled))
            refused += 1
    for element in ELEMENTS:
        with pytest.raises(ValueError, match=r"^policy\.invalid_product must be NEGATIVE in hardware, not POSITIVE$"):
            Narrow(source, POSITIVE.narrow_policy(element, scaled=True))
        refused += 1
        Narrow(source, POSITIVE.narrow_policy(element, scaled=False))
    assert refused == 7
    Narrow(source, OVERFLOW_FIRST.narrow_policy(FP4_E2M1, scaled=True))


def test_ldexp_hardware_refuses_a_signed_nan() -> None:
    for element in FP8:
        with pytest.raises(ValueError, match=r"^policy\.element_nan must be CANONICAL in hardware, not SIGNED$"):
            Ldexp(SIGNED.dequant_policy(element))
    Ldexp(SIGNED.dequant_policy(FP4_E2M1))


# -- records -----------------------------------------------------------------------------------------------------------

ARRANGEMENT = Arrangement(layout=Layout.TILE, axis=0, shape=(16, 12))


@pytest.mark.parametrize("rules", [BIRSIM, OVERFLOW_FIRST, BOTH, SIGNED_OCP], ids=lambda rules: rules.name)
def test_a_record_holds_the_options(rules: RuleSet) -> None:
    record = MxRecord(element=FP8_E5M2, rules=rules, arrangement=ARRANGEMENT)
    assert read_records(Path("f"), record_text({"w": record})) == {"w": record}
    plain = json.loads(record_text({"w": record}))["tensors"]["w"]["rules"]
    assert (plain["invalid_product"], plain["element_nan"]) == (rules.invalid_product.value, rules.element_nan.value)


@each_rule_set
def test_a_record_from_before_the_options_reads_as_their_defaults(rules: RuleSet) -> None:
    record = MxRecord(element=FP8_E5M2, rules=rules, arrangement=ARRANGEMENT)
    whole = json.loads(record_text({"w": record}))
    for name in ("invalid_product", "element_nan"):
        del whole["tensors"]["w"]["rules"][name]
    assert read_records(Path("f"), json.dumps(whole)) == {"w": record}
