"""Contract Q: a block through shared exponent, narrow and ldexp, and round again."""

from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest

from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import BIRSIM, BIRSIM_ALT, DEVICE, NKI_SIM, OCP, RULE_SETS, RuleSet
from mxmodel.shared_exponent import shared_exponent

Array = np.ndarray[Any, Any]

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)


def spread(scale: Array) -> Array:
    """One byte for each element."""
    return scale.repeat(8, axis=0).repeat(4, axis=1)


def quantize(x: Array, element: ElementFormat, rules: RuleSet) -> tuple[Array, Array]:
    """(scale, codes) by the two blocks alone."""
    scale = shared_exponent(x, element, rules)
    return scale, narrow(x, element, scale=spread(scale), rules=rules)


def dequantize(scale: Array, codes: Array, element: ElementFormat, rules: RuleSet) -> Array:
    return ldexp(codes, spread(scale), element, rules)


def block(*values: float) -> Array:
    """One block of 32: ``values``, then zeros."""
    return np.array([*values, *[0.0] * (32 - len(values))], dtype=np.float32).reshape(8, 4)


@pytest.mark.parametrize(
    ("element", "rules", "byte", "codes"),
    [
        (FP8_E4M3, BIRSIM, 119, (0x7E, 0xFE, 0x70)),
        (FP8_E4M3, DEVICE, 120, (0x77, 0xF6, 0x68)),
        (FP8_E5M2, BIRSIM, 112, (0x7B, 0xFB, 0x74)),
        (FP8_E5M2, DEVICE, 113, (0x78, 0xF7, 0x70)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_q3_worked_block(element: ElementFormat, rules: RuleSet, byte: int, codes: tuple[int, ...], dtype: Any) -> None:
    scale, got = quantize(block(1.875, -1.8125, 0.5).astype(dtype), element, rules)
    assert scale.tolist() == [[byte]]
    assert got.ravel().tolist() == [*codes, *[0] * 29]


def test_q3_the_scaled_maximum_lands_in_the_top_binade() -> None:
    """[2^EMAX, 2^(EMAX+1)), so a maximum can exceed max-normal and saturate: S0 §6.3's remark does not hold."""
    saturated = 0
    for element, limit in ((FP4_E2M1, 6), (FP8_E4M3, 448), (FP8_E5M2, 57344)):
        for significand in (1.0, 1.25, 1.5, 1.75, 1.875, 1.99):
            scale, codes = quantize(block(significand), element, BIRSIM)
            scaled = significand / 2.0 ** (int(scale[0, 0]) - 127)
            assert 2.0**element.emax <= scaled < 2.0 ** (element.emax + 1)
            if scaled > limit:
                assert codes[0, 0] == element.max_normal_code
                saturated += 1
    assert saturated == 3 + 2 + 2


BLOCKS = 4_000


def finite_blocks(seed: int) -> Array:
    """[8, 4 * BLOCKS] finite fp32: blocks at every height, some flat, some sparse, some with full significands."""
    rng = np.random.default_rng(seed)
    height = rng.integers(0, 255, BLOCKS)
    height[:600] = rng.integers(0, 24, 600)
    depth = rng.integers(0, 40, (8, BLOCKS, 4))
    exponent = np.clip(height[None, :, None] - depth, 0, 254)
    trailing = rng.integers(0, 1 << 23, exponent.shape)
    trailing = np.where(rng.random(exponent.shape) < 0.2, 0x7FFFFF - (trailing & 0xFF), trailing)
    bits = (rng.integers(0, 2, exponent.shape) << 31) | (exponent << 23) | trailing
    bits[:, ::7] = np.where(rng.random(bits[:, ::7].shape) < 0.9, 0, bits[:, ::7])
    return bits.astype(np.uint32).reshape(8, 4 * BLOCKS).view(np.float32)


@pytest.mark.parametrize("rules", [BIRSIM, OCP], ids=["birsim", "ocp"])
@each_element
def test_q4_idempotent_under_birsim_and_ocp(element: ElementFormat, rules: RuleSet) -> None:
    scale, codes = quantize(finite_blocks(14), element, rules)
    values = dequantize(scale, codes, element, rules)
    assert np.isfinite(values).all()
    again_scale, again_codes = quantize(values, element, rules)
    assert np.array_equal(again_codes, codes)
    assert np.array_equal(again_scale, scale)
    assert np.array_equal(dequantize(again_scale, again_codes, element, rules).view(np.uint32), values.view(np.uint32))
    assert scale.size == BLOCKS
    assert len(set(scale.ravel().tolist())) > 230


@pytest.mark.parametrize("rules", [DEVICE, BIRSIM_ALT], ids=["device", "birsim_alt"])
@pytest.mark.parametrize("element", [FP8_E4M3, FP8_E5M2], ids=lambda element: element.name)
def test_q4_under_emax_minus_1_a_maximum_that_rounds_up_raises_the_scale_and_moves_codes(
    element: ElementFormat, rules: RuleSet
) -> None:
    x = block(1.99, 1.0, -0.5, 0.75)
    scale, codes = quantize(x, element, rules)
    values = dequantize(scale, codes, element, rules)
    assert values[0, 0] == 2.0
    again_scale, again_codes = quantize(values, element, rules)
    assert again_scale.tolist() == [[int(scale[0, 0]) + 1]]
    one_binade = 1 << element.trailing_bits
    assert (codes[0] - again_codes[0]).tolist() == [one_binade] * 4  # every code moves,
    assert np.array_equal(dequantize(again_scale, again_codes, element, rules), values)  # no value does


@pytest.mark.parametrize("rules", [DEVICE, BIRSIM_ALT], ids=["device", "birsim_alt"])
def test_q4_under_emax_minus_1_a_subnormal_code_can_lose_a_bit(rules: RuleSet) -> None:
    x = block(1.99, 2.0**-16)
    scale, codes = quantize(x, FP8_E4M3, rules)
    assert scale.tolist() == [[120]]
    assert codes[0, 1] == 0x01  # 2^-16 under 2^-7 is 2^-9, the least subnormal
    values = dequantize(scale, codes, FP8_E4M3, rules)
    again_scale, again_codes = quantize(values, FP8_E4M3, rules)
    assert again_scale.tolist() == [[121]]
    assert again_codes[0, 1] == 0x00  # half of it is a tie to zero


@pytest.mark.parametrize("element", [FP8_E4M3, FP8_E5M2], ids=lambda element: element.name)
def test_q4_under_nki_sim_wrapped_blocks_change_scale(element: ElementFormat) -> None:
    """A block below 2^(EMAX − 127) wraps to a large byte, under which all its codes are 0, and 0 wraps elsewhere."""
    x = block(2.0**-124)
    scale, codes = quantize(x, element, NKI_SIM)
    assert scale.tolist() == [[(3 - element.emax) % 256]]
    assert not codes.any()
    again_scale, _ = quantize(dequantize(scale, codes, element, NKI_SIM), element, NKI_SIM)
    assert again_scale.tolist() == [[256 - element.emax]]


@each_rule_set
@each_element
def test_e6_q_blocks_with_inf_or_nan_come_back_as_the_oracle_says(element: ElementFormat, rules: RuleSet) -> None:
    x = np.hstack([finite_blocks(15)[:, :400]] * 2)
    words = x.view(np.uint32)
    words[3, ::4] = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA00001] * 50
    scale, codes = quantize(x, element, rules)
    values = dequantize(scale, codes, element, rules).view(np.uint32)
    for i in range(200):
        wanted_scale, wanted_codes = oracle.quantize(
            words[:, 4 * i : 4 * i + 4].ravel().tolist(), element.name, rules.name
        )
        assert scale[0, i] == wanted_scale
        assert codes[:, 4 * i : 4 * i + 4].ravel().tolist() == wanted_codes
        wanted = [oracle.ldexp(code, wanted_scale, element.name, rules.name) for code in wanted_codes]
        assert values[:, 4 * i : 4 * i + 4].ravel().tolist() == wanted
    assert scale.size == 200


def test_e6_ocp_block_dequantises_to_nan_throughout() -> None:
    for element in ELEMENTS:
        scale, codes = quantize(block(1.0, np.inf), element, OCP)
        assert set(dequantize(scale, codes, element, OCP).view(np.uint32).ravel().tolist()) == {0x7FC00000}


def test_n7_fp4_is_accepted_by_the_blocks_under_every_rule_set() -> None:
    compared = 0
    for rules in RULE_SETS:
        scale, codes = quantize(block(6.0, -3.0, 0.5), FP4_E2M1, rules)
        wanted_scale, wanted_codes = oracle.quantize(
            block(6.0, -3.0, 0.5).view(np.uint32).ravel().tolist(), "fp4_e2m1", rules.name
        )
        assert scale.tolist() == [[wanted_scale]]
        assert codes.ravel().tolist() == wanted_codes
        compared += 1
    assert compared == 5
