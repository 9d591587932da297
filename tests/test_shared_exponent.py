"""Contract E: the E8M0 byte of a block, clause by clause."""

from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest

from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat
from mxmodel.narrow import narrow
from mxmodel.rules import BIRSIM, BIRSIM_ALT, DEVICE, NKI_SIM, OCP, RULE_SETS, RuleSet
from mxmodel.shared_exponent import shared_exponent
from mxmodel.widen import PrecisionWarning

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)

EMAX = {"fp4_e2m1": 2, "fp8_e4m3": 8, "fp8_e5m2": 15}


def fp32(*words: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(words, dtype=np.uint32).view(np.float32)


def blocks_of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[8, 4n]: one block for each of n values, which stands in a place of its own among zeros."""
    n = len(values)
    x = np.zeros((8, n, 4), dtype=values.dtype)
    place = np.arange(n) % 32
    x[place // 4, np.arange(n), place % 4] = values
    return x.reshape(8, 4 * n)


def closed_form(e: np.ndarray[Any, Any], element: str, rules: str) -> np.ndarray[Any, Any]:
    """E-3, E-4 and E-6 in one line each."""
    emax = EMAX[element]
    return {
        "birsim": np.maximum(1, np.maximum(0, e - emax)),
        "birsim_alt": np.maximum(1, np.maximum(0, e - emax + 1)),
        "nki_sim": (e - emax) % 256,
        "device": np.maximum(0, e - emax + 1),
        "ocp": np.where(e == 255, 255, np.maximum(0, e - emax)),
    }[rules]


@each_rule_set
@each_element
def test_e1_exponent_is_the_bit_field_whatever_sign_and_significand(element: ElementFormat, rules: RuleSet) -> None:
    exponents = np.repeat(np.arange(256, dtype=np.uint32), 8)
    trailing = np.tile(np.array([0, 1, 0x3FFFFF, 0x400000, 0x7FFFFE, 0x7FFFFF, 0x123456, 0x400001]), 256)
    sign = np.arange(len(exponents), dtype=np.uint32) // 3 % 2
    bits = (sign << 31) | (exponents << 23) | trailing.astype(np.uint32)
    scale = shared_exponent(blocks_of(bits.view(np.float32)), element, rules)
    assert scale.dtype == np.uint8
    wanted = closed_form(exponents.astype(np.int64), element.name, rules.name)
    assert scale.ravel().tolist() == wanted.tolist()
    assert scale.size == 2048


@each_rule_set
@each_element
def test_e1_every_bf16_input(element: ElementFormat, rules: RuleSet) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    scale = shared_exponent(blocks_of(bits.view(ml_dtypes.bfloat16)), element, rules)
    wanted = closed_form((bits.astype(np.int64) >> 7) & 0xFF, element.name, rules.name)
    assert scale.ravel().tolist() == wanted.tolist()
    assert scale.size == 1 << 16


FP16_EXPONENTS = np.array([oracle.biased_exponent(word, "fp16") for word in range(1 << 16)])


@each_rule_set
@each_element
def test_f3_e1_every_fp16_input_counts_as_the_fp32_it_widens_to(element: ElementFormat, rules: RuleSet) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    scale = shared_exponent(blocks_of(bits.view(np.float16)), element, rules)
    assert scale.ravel().tolist() == closed_form(FP16_EXPONENTS, element.name, rules.name).tolist()
    assert scale.size == 1 << 16
    assert set(FP16_EXPONENTS.tolist()) == {0, 255, *range(103, 143)}


def test_f3_e1_the_least_fp16_subnormal_has_biased_exponent_103() -> None:
    x = blocks_of(np.array([0x0001, 0x8001], dtype=np.uint16).view(np.float16))
    assert shared_exponent(x, FP8_E4M3, OCP).tolist() == [[103 - 8, 103 - 8]]


@each_element
def test_e1_subnormals_read_0_like_zero(element: ElementFormat) -> None:
    x = blocks_of(fp32(0x00000000, 0x80000000, 0x00000001, 0x007FFFFF, 0x807FFFFF))
    assert shared_exponent(x, element, NKI_SIM).tolist() == [[256 - EMAX[element.name]] * 5]


@each_rule_set
@each_element
def test_e1_the_largest_of_32_decides(element: ElementFormat, rules: RuleSet) -> None:
    """A block of 32 ascending exponents, turned to every one of 32 positions: the byte does not move."""
    ascending = (np.arange(100, 132, dtype=np.uint32) << 23).view(np.float32)
    x = np.hstack([np.roll(ascending, shift).reshape(8, 4) for shift in range(32)])
    wanted = int(closed_form(np.array(131), element.name, rules.name))
    assert shared_exponent(x, element, rules).tolist() == [[wanted] * 32]


def test_e2_block_index_of_every_element() -> None:
    """One large value at each place of a [24, 12] tensor in turn raises its own block and no other."""
    compared = 0
    for r in range(24):
        for c in range(12):
            x = np.ones((24, 12), dtype=np.float32)
            x[r, c] = -32.0
            wanted = np.full((3, 3), 127 - 8)
            wanted[r >> 3, c >> 2] += 5
            assert shared_exponent(x, FP8_E4M3).tolist() == wanted.tolist()
            compared += 1
    assert compared == 288


@pytest.mark.parametrize("shape", [(8, 4), (8, 8), (16, 4), (32, 512), (128, 16), (24, 20)])
def test_e2_scale_grid_shape(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(np.float32)
    scale = shared_exponent(x, FP8_E5M2, OCP)
    assert scale.shape == (shape[0] // 8, shape[1] // 4)
    for (i, j), byte in np.ndenumerate(scale):
        block = x[8 * i : 8 * i + 8, 4 * j : 4 * j + 4]
        assert byte == oracle.shared_exponent(block.view(np.uint32).ravel().tolist(), "fp8_e5m2", "ocp")


@pytest.mark.parametrize("shape", [(8, 20_004), (40_008, 4), (24, 12_004), (560, 280), (2_048, 512)])
@each_rule_set
def test_e2_large_tensors(rules: RuleSet, shape: tuple[int, int]) -> None:
    """Tensors of thousands of blocks, long either way: the maximum of the bit field, block by block."""
    P, F = shape
    rng = np.random.default_rng(P)
    bits = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    ceiling = rng.integers(0, 256, (P // 8, F // 4), dtype=np.uint32).repeat(8, axis=0).repeat(4, axis=1)
    field = np.minimum((bits >> 23) & 0xFF, ceiling)
    bits = (bits & 0x807FFFFF) | (field << 23)
    largest = field.astype(np.int64).reshape(P // 8, 8, F // 4, 4).max(axis=(1, 3))
    scale = shared_exponent(bits.view(np.float32), FP8_E5M2, rules)
    assert np.array_equal(scale, closed_form(largest, "fp8_e5m2", rules.name))
    assert scale.size == P * F // 32 > 4_000
    assert len(set(largest.ravel().tolist())) == 256


@pytest.mark.parametrize(
    ("rules", "bytes_by_element"),
    [
        (BIRSIM, (1, 1, 1)),
        (BIRSIM_ALT, (1, 1, 1)),
        (NKI_SIM, (254, 248, 241)),
        (DEVICE, (0, 0, 0)),
        (OCP, (0, 0, 0)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_e4_all_zero_block(rules: RuleSet, bytes_by_element: tuple[int, ...]) -> None:
    x = np.zeros((8, 4), dtype=np.float32)
    assert tuple(int(shared_exponent(x, element, rules)[0, 0]) for element in ELEMENTS) == bytes_by_element


@each_element
def test_e4_birsim_clamps_0_to_1_too(element: ElementFormat) -> None:
    """At e = EMAX the difference is 0: 1 under BIRSIM, 0 under OCP; one above, both give 1."""
    emax = EMAX[element.name]
    x = blocks_of(fp32(emax << 23, (emax + 1) << 23, (emax + 2) << 23))
    assert shared_exponent(x, element, BIRSIM).tolist() == [[1, 1, 2]]
    assert shared_exponent(x, element, OCP).tolist() == [[0, 1, 2]]
    assert shared_exponent(x, element, NKI_SIM).tolist() == [[0, 1, 2]]
    assert shared_exponent(x, element, BIRSIM_ALT).tolist() == [[1, 2, 3]]
    assert shared_exponent(x, element, DEVICE).tolist() == [[1, 2, 3]]


E5_REACH = [
    # rules, element, finite blocks reach, with Inf/NaN
    (BIRSIM, FP8_E4M3, range(1, 247), 247),
    (BIRSIM, FP8_E5M2, range(1, 240), 240),
    (BIRSIM, FP4_E2M1, range(1, 253), 253),
    (BIRSIM_ALT, FP8_E4M3, range(1, 248), 248),
    (BIRSIM_ALT, FP8_E5M2, range(1, 241), 241),
    (BIRSIM_ALT, FP4_E2M1, range(1, 254), 254),
    (DEVICE, FP8_E4M3, range(248), 248),
    (DEVICE, FP8_E5M2, range(241), 241),
    (OCP, FP8_E4M3, range(247), 255),
    (OCP, FP8_E5M2, range(240), 255),
    (OCP, FP4_E2M1, range(253), 255),
]


@pytest.mark.parametrize("row", E5_REACH, ids=lambda row: f"{row[1].name}-{row[0].name}")
def test_e5_reach(row: tuple[RuleSet, ElementFormat, range, int]) -> None:
    rules, element, finite, special = row
    x = blocks_of((np.arange(256, dtype=np.uint32) << 23).view(np.float32))
    scale = shared_exponent(x, element, rules).ravel().tolist()
    assert sorted(set(scale[:255])) == list(finite)
    assert scale[255] == special


@pytest.mark.parametrize(("element", "wraps_to_255"), [(FP8_E4M3, 7), (FP8_E5M2, 14)], ids=["fp8_e4m3", "fp8_e5m2"])
def test_e5_nki_sim_wrap_reaches_every_byte(element: ElementFormat, wraps_to_255: int) -> None:
    x = blocks_of((np.arange(256, dtype=np.uint32) << 23).view(np.float32))
    scale = shared_exponent(x, element, NKI_SIM).ravel().tolist()
    assert sorted(scale) == list(range(256))
    assert scale[wraps_to_255] == 255


@each_rule_set
@each_element
def test_e6_a_block_with_inf_or_nan(element: ElementFormat, rules: RuleSet) -> None:
    words = (0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF)
    x = blocks_of(fp32(*words))
    x[x == 0] = 1.0
    amount = EMAX[element.name] - (rules.name in {"birsim_alt", "device"})
    wanted = 255 if rules.name == "ocp" else 255 - amount
    assert shared_exponent(x, element, rules).tolist() == [[wanted] * len(words)]


def test_e6_finite_partners_of_an_inf_share_its_scale() -> None:
    x = np.zeros((8, 4), dtype=np.float32)
    x[0] = fp32(0x7F800000, 0x7F7FFFFF, 0x3F800000, 0xBF800000)
    scale = shared_exponent(x, FP8_E4M3)
    assert scale.tolist() == [[247]]
    assert narrow(x, FP8_E4M3, scale=scale[0, 0])[0].tolist() == [0x7E, 0x78, 0x00, 0x80]


def test_e6_ocp_block_is_all_zero_codes() -> None:
    x = np.full((8, 4), -3.0, dtype=np.float32)
    x[7, 3] = np.inf
    for element in ELEMENTS:
        scale = shared_exponent(x, element, OCP)
        assert scale.tolist() == [[255]]
        assert narrow(x, element, scale=scale[0, 0], rules=OCP).tolist() == [[0] * 4] * 8


def test_e7_birsim_alt_fp4_with_inf_gives_254_which_multiplies_by_zero() -> None:
    x = np.zeros((8, 4), dtype=np.float32)
    x[0] = fp32(0x7F800000, 0x7F7FFFFF, 0xC0000000, 0x7FC00000)
    scale = shared_exponent(x, FP4_E2M1, BIRSIM_ALT)
    assert scale.tolist() == [[254]]
    codes = narrow(x, FP4_E2M1, scale=scale[0, 0], rules=BIRSIM_ALT)
    assert codes[0].tolist() == [0x8, 0x0, 0x8, 0x0]


def test_n7_fp64_is_rounded_to_fp32_first_and_says_so() -> None:
    x = np.full((8, 4), np.nextafter(2.0, 1.0))
    with pytest.warns(PrecisionWarning):
        scale = shared_exponent(x, FP8_E4M3)
    assert scale.tolist() == [[128 - 8]]
    with pytest.warns(PrecisionWarning):
        scale = shared_exponent(np.full((8, 4), 1e300), FP8_E4M3, OCP)  # Inf in fp32
    assert scale.tolist() == [[255]]


@pytest.mark.parametrize("shape", [(0, 4), (8, 0), (0, 0), (16, 0)])
def test_zero_size(shape: tuple[int, int]) -> None:
    scale = shared_exponent(np.zeros(shape, dtype=np.float32), FP8_E4M3)
    assert scale.shape == (shape[0] // 8, shape[1] // 4)
    assert scale.dtype == np.uint8


def test_layout_of_the_input_in_memory_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((16, 24)) * 2.0 ** rng.integers(-30, 30, (16, 24))).astype(np.float32)
    wanted = [
        [
            oracle.shared_exponent(x[i : i + 8, j : j + 4].view(np.uint32).ravel().tolist(), "fp8_e4m3", "birsim")
            for j in range(0, 24, 4)
        ]
        for i in (0, 8)
    ]
    spread = np.zeros((32, 72), dtype=np.float32)
    spread[::2, ::3] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    layouts = {
        "C": x,
        "Fortran": np.asfortranarray(x),
        "strided": spread[::2, ::3],
        "reversed twice": x[::-1, ::-1].copy()[::-1, ::-1],
        "big-endian": x.astype(">f4"),
        "read-only": read_only,
    }
    for name, array in layouts.items():
        before = array.tobytes()
        assert shared_exponent(array, FP8_E4M3).tolist() == wanted, name
        assert array.tobytes() == before, name
    assert len(set(np.ravel(wanted).tolist())) > 1


@pytest.mark.parametrize("x", [[[1.0] * 4] * 8, 1.0, None])
def test_x_that_is_no_array_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match=r"^x must be .*, not "):
        shared_exponent(x, FP8_E4M3)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, bool, complex, ml_dtypes.float8_e5m2])
def test_x_of_another_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"^x must be .*, not "):
        shared_exponent(np.zeros((8, 4), dtype=dtype), FP8_E4M3)


@pytest.mark.parametrize("shape", [(), (4,), (8, 4, 1), (7, 4), (8, 3), (4, 4), (8, 2), (12, 4), (1, 1)])
def test_e2_shapes_that_are_not_whole_blocks_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^x must be .*, not "):
        shared_exponent(np.zeros(shape, dtype=np.float32), FP8_E4M3)


def test_element_and_rules_of_another_kind_are_refused() -> None:
    x: Any = np.zeros((8, 4), dtype=np.float32)
    wrong: Any = "fp8_e4m3"
    with pytest.raises(TypeError, match=r"^element must be .*, not 'fp8_e4m3'"):
        shared_exponent(x, wrong)
    wrong = "ocp"
    with pytest.raises(TypeError, match=r"^rules must be .*, not 'ocp'"):
        shared_exponent(x, FP8_E4M3, wrong)
