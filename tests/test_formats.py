"""Contract F: formats and dtypes as data, against the contract's tables and two independent libraries."""

import dataclasses
from fractions import Fraction
from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import oracle
import pytest

from mxmodel.formats import (
    BF16,
    BIR_DTYPES,
    E8M0,
    ELEMENTS,
    FP4_E2M1,
    FP8_E4M3,
    FP8_E5M2,
    FP16,
    FP32,
    FP64,
    MX_BLOCK,
    SOURCES,
    X4_DTYPES,
    ElementFormat,
    SourceFormat,
    bir_dtype,
    element_format,
    source_format,
)

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)

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


def fields_value(element: ElementFormat, code: int) -> Fraction:
    """The value of a finite code from the descriptor's own widths and bias."""
    sign, magnitude = divmod(code, element.sign_bit)
    exponent, trailing = divmod(magnitude, element.trailing_mask + 1)
    significand = trailing + (element.trailing_mask + 1 if exponent else 0)
    power = max(exponent, 1) - element.bias - element.trailing_bits
    return (-1) ** sign * significand * Fraction(2) ** power


F1_TABLE = [
    # element, widths of the fields, bias, EMAX, max-normal, its code, Inf, NaN codes, canonical NaN, container, bits
    (FP4_E2M1, (1, 2, 1), 1, 2, 6, 0x7, None, set(), None, "float4_e2m1fn_x4", 16),
    (FP8_E4M3, (1, 4, 3), 7, 8, 448, 0x7E, None, {0x7F}, 0x7F, "float8_e4m3fn_x4", 32),
    (FP8_E5M2, (1, 5, 2), 15, 15, 57344, 0x7B, 0x7C, {0x7D, 0x7E, 0x7F}, 0x7E, "float8_e5m2_x4", 32),
]


@pytest.mark.parametrize("row", F1_TABLE, ids=lambda row: row[0].name)
def test_f1_table(row: tuple[Any, ...]) -> None:
    element, widths, bias, emax, max_normal, max_code, inf, nans, nan, packed_name, packed_bits = row
    assert (element.width, element.exponent_bits, element.trailing_bits) == (sum(widths), *widths[1:])
    assert (element.bias, element.emax) == (bias, emax)
    assert fields_value(element, max_code) == max_normal
    assert (element.max_normal_code, element.infinity_code, element.nan_code) == (max_code, inf, nan)
    assert element.has_nan is bool(nans)
    assert (element.packed_name, element.packed_bits) == (packed_name, packed_bits)
    sign = 1 << (sum(widths) - 1)
    assert element.sign_bit == sign
    assert element.code_count == 2 * sign
    found = {code for code in range(element.code_count) if element.is_nan_code(code)}
    assert found == nans | {code | sign for code in nans}


def test_f1_elements_are_the_three_in_order() -> None:
    assert [element.name for element in ELEMENTS] == ["fp4_e2m1", "fp8_e4m3", "fp8_e5m2"]


def test_f1_fp4_values_by_code() -> None:
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert [fields_value(FP4_E2M1, code) for code in range(8)] == positive
    assert [fields_value(FP4_E2M1, code) for code in range(8, 16)] == [-value for value in positive]


@each_element
def test_f1_every_code_decodes_as_in_the_oracle_ml_dtypes_and_gfloat(element: ElementFormat) -> None:
    theirs = np.arange(element.code_count, dtype=np.uint8).view(ML_DTYPES[element.name]).astype(np.float64).tolist()
    finite = 0
    for code in range(element.code_count):
        sign, magnitude = oracle.decode_element(code, element.name)
        gfloats = gfloat.decode_float(GFLOAT[element.name], code).fval
        if element.is_nan_code(code):
            assert magnitude is oracle.NAN
            assert np.isnan(theirs[code])
            assert np.isnan(gfloats)
        elif code & ~element.sign_bit == element.infinity_code:
            assert magnitude is oracle.INF
            assert theirs[code] == gfloats == (-np.inf if sign else np.inf)
        else:
            value = fields_value(element, code)
            assert value == Fraction((-1) ** sign * magnitude, 1 << oracle.UNIT)
            assert value == Fraction(theirs[code]) == Fraction(gfloats)
            assert np.signbit(theirs[code]) == np.signbit(gfloats) == bool(sign) == (code >= element.sign_bit)
            finite += 1
    assert finite == {"fp4_e2m1": 16, "fp8_e4m3": 254, "fp8_e5m2": 248}[element.name]


@each_element
def test_f1_min_exponent_is_the_exponent_of_the_smallest_normal(element: ElementFormat) -> None:
    smallest_normal = fields_value(element, 1 << element.trailing_bits)
    assert smallest_normal == Fraction(2) ** element.min_exponent
    assert smallest_normal == Fraction(float(ml_dtypes.finfo(ML_DTYPES[element.name]).smallest_normal))


def test_f2_scale_is_e8m0() -> None:
    assert (E8M0.name, E8M0.width, E8M0.bias, E8M0.max_byte) == ("e8m0", 8, 127, 255)


def test_e2_block_geometry() -> None:
    assert (MX_BLOCK.rows, MX_BLOCK.columns, MX_BLOCK.size) == (8, 4, 32)


@pytest.mark.parametrize(
    ("source", "dtype", "infinity", "quiet_nan"),
    [
        (FP32, np.float32, 0x7F800000, 0x7FC00000),
        (BF16, ml_dtypes.bfloat16, 0x7F80, 0x7FC0),
        (FP16, np.float16, 0x7C00, 0x7E00),
        (FP64, np.float64, 0x7FF0000000000000, 0x7FF8000000000000),
    ],
    ids=["fp32", "bf16", "fp16", "fp64"],
)
def test_f3_sources_are_the_ieee_formats(source: SourceFormat, dtype: Any, infinity: int, quiet_nan: int) -> None:
    info = ml_dtypes.finfo(dtype)
    assert (source.width, source.exponent_bits, source.trailing_bits) == (info.bits, info.nexp, info.nmant)
    assert 2.0 ** (1 - source.bias) == float(info.smallest_normal)
    assert (source.infinity_bits, source.quiet_nan_bits) == (infinity, quiet_nan)
    assert source.magnitude_mask == (1 << (info.bits - 1)) - 1
    assert source.trailing_mask == (1 << info.nmant) - 1
    assert source.max_biased_exponent == (1 << info.nexp) - 1


def test_f3_datapath_sources() -> None:
    assert SOURCES == (FP32, BF16, FP16)


F4_TABLE = [
    # code, name, bytes, wire
    (0, "uint8", 1, 0x03),
    (1, "int8", 1, 0x02),
    (2, "float4_e2m1fn_x4", 2, 0x10),
    (3, "float8e3", 1, 0x0D),
    (4, "float8e4", 1, 0x0E),
    (5, "float8_e4m3fn", 1, 0x0E),
    (6, "float8_e8m0fnu", 1, 0x03),
    (7, "float8e5", 1, 0x0F),
    (8, "float8_e4m3fn_x4", 4, 0x0E),
    (9, "float8_e5m2_x4", 4, 0x0F),
    (10, "uint16", 2, 0x05),
    (11, "int16", 2, 0x04),
    (12, "bfloat16", 2, 0x06),
    (13, "float16", 2, 0x07),
    (14, "uint32", 4, 0x09),
    (15, "int32", 4, 0x08),
    (16, "float32", 4, 0x0A),
    (17, "float32r", 4, 0x0B),
    (18, "uint64", 8, 0x01),
    (19, "int64", 8, 0x0C),
]


@pytest.mark.parametrize("row", F4_TABLE, ids=lambda row: row[1])
def test_f4_bir_dtype_row(row: tuple[int, str, int, int]) -> None:
    code, wire = row[0], row[3]
    dtype = bir_dtype(code)
    assert (dtype.code, dtype.name, dtype.size, dtype.wire) == row
    assert dtype.wire_before_v4 == (0x05 if code == 2 else wire)
    assert BIR_DTYPES[code] is dtype


def test_f4_table_is_whole() -> None:
    assert len(BIR_DTYPES) == len(F4_TABLE) == 20


def test_f4_emax_bytes_of_codes_2_to_9_and_no_others() -> None:
    assert [dtype.emax_byte for dtype in BIR_DTYPES[2:10]] == [2, 0, 0, 8, 0, 15, 8, 15]
    assert {dtype.emax_byte for dtype in BIR_DTYPES[:2] + BIR_DTYPES[10:]} == {None}


@pytest.mark.parametrize("code", [-1, 20, 255])
def test_f4_unknown_dtype(code: int) -> None:
    with pytest.raises(ValueError, match=rf"unknown dtype.* must be .*, not {code}$"):
        bir_dtype(code)


def test_f5_exactly_the_x4_dtypes_hold_four_elements() -> None:
    assert set(X4_DTYPES) == {2, 8, 9}
    assert len(X4_DTYPES) == 3
    for dtype in BIR_DTYPES:
        assert dtype.elements_per_container == (4 if dtype.code in {2, 8, 9} else 1)


@pytest.mark.parametrize(("code", "element"), [(2, FP4_E2M1), (8, FP8_E4M3), (9, FP8_E5M2)])
def test_f5_containers_are_as_wide_as_four_elements(code: int, element: ElementFormat) -> None:
    dtype = bir_dtype(code)
    assert dtype.element is element
    assert dtype.name == element.packed_name
    assert dtype.size * 8 == element.packed_bits == 4 * element.width
    assert dtype.emax_byte == element.emax


def test_formats_are_found_by_name() -> None:
    assert [element_format(name) for name in ML_DTYPES] == list(ELEMENTS)
    assert [source_format(name) for name in ("fp32", "bf16", "fp16")] == list(SOURCES)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^element must be one of fp4_e2m1, fp8_e4m3, fp8_e5m2, not 'fp8'$"):
        element_format("fp8")
    with pytest.raises(ValueError, match=r"^source must be one of fp32, bf16, fp16, not 'fp64'$"):
        source_format("fp64")


@pytest.mark.parametrize("instance", [FP32, FP8_E4M3, E8M0, MX_BLOCK, BIR_DTYPES[8]], ids=lambda i: type(i).__name__)
def test_descriptors_are_frozen_and_keyword_only(instance: Any) -> None:
    names = [field.name for field in dataclasses.fields(instance)]
    values = [getattr(instance, name) for name in names]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(instance, names[0], values[0])
    with pytest.raises(TypeError):
        type(instance)(*values)
    rebuilt = type(instance)(**dict(zip(names, values, strict=True)))
    assert rebuilt == instance
    assert hash(rebuilt) == hash(instance)
