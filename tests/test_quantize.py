"""The whole block operation (contracts Q, D): vectors, the exact oracle, ml_dtypes, and the container."""

import json
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest

from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat, element_format
from mxmodel.quantize import MxTensor, dequantize_mx, quantize_mx
from mxmodel.rules import BIRSIM, DEVICE, NKI_SIM, OCP, RULE_SETS, QuantizeToFp4, RuleSet, rule_set
from mxmodel.widen import PrecisionWarning

Array = np.ndarray[Any, Any]

ML_DTYPES: dict[str, Any] = {
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}
EMAX = {"fp4_e2m1": 2, "fp8_e4m3": 8, "fp8_e5m2": 15}
MAX_NORMAL = {"fp4_e2m1": 6.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)


def allowed(rules: RuleSet) -> RuleSet:
    """The rule set, made to write FP4 too: what it would do is defined, only QuantizeMx does not offer it (N-7)."""
    return replace(rules, quantize_to_fp4=QuantizeToFp4.ALLOWED)


def floats(bits: Any) -> Array:
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


# -- Q: against the vectors, the oracle and ml_dtypes -----------------------------------------------------------------


def test_q_vectors() -> None:
    """Every row of quantize.json, each a tensor of one block, and all rows of a configuration as one wide tensor."""
    rows = json.loads((Path(__file__).parent / "vectors" / "quantize.json").read_text())["rows"]
    groups: dict[tuple[str, str], list[tuple[Array, int, Array]]] = {}
    compared = 0
    for row in rows:
        element, rules = element_format(row["element"]), rule_set(row["rules"])
        block = floats([int(word, 16) for word in row["x"]]).reshape(8, 4)
        codes = np.array([int(code, 16) for code in row["codes"]], dtype=np.uint8).reshape(8, 4)
        tensor = quantize_mx(block, element, rules)
        assert (tensor.scale.tolist(), tensor.codes.tolist()) == ([[row["scale"]]], codes.tolist()), row["block"]
        groups.setdefault((row["element"], row["rules"]), []).append((block, row["scale"], codes))
        compared += codes.size
    for (element_name, rules_name), blocks in groups.items():
        wide = np.concatenate([block for block, _, _ in blocks], axis=1)
        tensor = quantize_mx(wide, element_format(element_name), rule_set(rules_name))
        assert tensor.scale.tolist() == [[scale for _, scale, _ in blocks]]
        assert np.array_equal(tensor.codes, np.concatenate([codes for _, _, codes in blocks], axis=1))
    assert len(groups) == 13  # all but FP4 under the two rule sets that refuse it
    assert compared == 32 * len(rows) >= 32 * 100


GRID = (35, 40)
"""Blocks down and across, for each element and rule set: 15 x 1400 = 21,000 blocks in all."""

KINDS = 10


def random_blocks(rng: np.random.Generator) -> Array:
    """fp32 bits [8 * 35, 4 * 40]; the blocks take ten kinds in turn."""
    down, across = GRID
    count = down * across
    sign = rng.integers(0, 2, (count, 32), dtype=np.uint32) << 31
    trailing = rng.integers(0, 1 << 23, (count, 32), dtype=np.uint32)
    short = trailing & np.uint32(0x700000)  # values and midpoints of the grids: ties
    base = rng.integers(1, 255, (count, 1))
    near = np.maximum(base - rng.integers(0, 24, (count, 32)), 0).astype(np.uint32) << 23
    kinds = [
        np.zeros_like(sign),
        sign,  # ±0
        np.full_like(sign, 1 << 31),
        sign | (trailing >> rng.integers(0, 23, (count, 32), dtype=np.uint32)),  # subnormals
        sign | near | trailing,
        sign | near | short,
        sign | (rng.integers(0, 20, (count, 32), dtype=np.uint32) << 23) | trailing,  # the clamps of E-4
        sign | (rng.integers(246, 255, (count, 32), dtype=np.uint32) << 23) | trailing,  # huge
        np.where(rng.random((count, 32)) < 0.1, sign | 0x7F800000, sign | near | trailing),  # Inf
        np.where(rng.random((count, 32)) < 0.1, sign | 0x7F800001 | trailing, sign | near | short),  # NaN
    ]
    assert len(kinds) == KINDS
    chosen = np.stack(kinds).astype(np.uint32)[np.arange(count) % KINDS, np.arange(count)]
    return chosen.reshape(down, across, 8, 4).swapaxes(1, 2).reshape(8 * down, 4 * across)


@each_rule_set
@each_element
def test_q_d_random_blocks_are_those_of_the_oracle(element: ElementFormat, rules: RuleSet) -> None:
    bits = random_blocks(np.random.default_rng([ELEMENTS.index(element), RULE_SETS.index(rules)]))
    tensor = quantize_mx(bits.view(np.float32), element, allowed(rules))
    values = dequantize_mx(tensor).view(np.uint32)
    compared = 0
    for down in range(GRID[0]):
        for across in range(GRID[1]):
            rows, columns = slice(8 * down, 8 * down + 8), slice(4 * across, 4 * across + 4)
            block = bits[rows, columns].ravel().tolist()
            scale, codes = oracle.quantize(block, element.name, rules.name)
            shown = [hex(word) for word in block]
            assert tensor.scale[down, across] == scale, shown
            assert tensor.codes[rows, columns].ravel().tolist() == codes, shown
            if compared % 4 == 0:
                wanted = [oracle.ldexp(code, scale, element.name, rules.name) for code in codes]
                assert values[rows, columns].ravel().tolist() == wanted, shown
            compared += 1
    assert compared == 1400


def ml_dtypes_scale(bits: Array, element: str, rules: str) -> Array:
    """E-1 to E-4 for finite blocks, in plain NumPy."""
    partitions, free = bits.shape
    exponent = ((bits >> 23) & 0xFF).reshape(partitions // 8, 8, free // 4, 4).max(axis=(1, 3)).astype(np.int64)
    difference = exponent - (EMAX[element] - (rules in ("birsim_alt", "device")))
    if rules == "nki_sim":
        return difference % 256
    return np.maximum(difference, 1 if rules.startswith("birsim") else 0)


@each_rule_set
@each_element
def test_q_four_million_finite_patterns_are_as_ml_dtypes(element: ElementFormat, rules: RuleSet) -> None:
    """Half the blocks random over all finite patterns, half with exponents near that of the block."""
    partitions, free = 2048, 2048
    rng = np.random.default_rng([7, ELEMENTS.index(element), RULE_SETS.index(rules)])
    bits = rng.integers(0, 1 << 32, (partitions, free), dtype=np.uint32)
    below = (bits[1::2] >> 23) & 0x1F
    base = np.repeat(np.repeat(rng.integers(0, 255, (partitions // 8, free // 4), dtype=np.uint32), 4, axis=0), 4, 1)
    bits[1::2] = (bits[1::2] & 0x807FFFFF) | (np.maximum(base.astype(np.int64) - below, 0).astype(np.uint32) << 23)
    bits[(bits & 0x7F800000) == 0x7F800000] ^= 0x40000000
    x = bits.view(np.float32)
    assert np.isfinite(x).all()
    scale = ml_dtypes_scale(bits, element.name, rules.name)
    spread = np.repeat(np.repeat(scale, 8, axis=0), 4, axis=1)
    limit = MAX_NORMAL[element.name]
    with np.errstate(under="ignore", over="ignore"):
        # Exact in double; in single it only loses what is far below the element's grid.
        scaled = np.clip(np.ldexp(x.astype(np.float64), 127 - spread), -limit, limit).astype(np.float32)
    wanted = scaled.astype(ML_DTYPES[element.name]).view(np.uint8)
    tensor = quantize_mx(x, element, allowed(rules))
    assert np.array_equal(tensor.scale, scale)
    wrong = np.argwhere(tensor.codes != wanted)
    assert not len(wrong), (len(wrong), hex(bits[tuple(wrong[0])]), spread[tuple(wrong[0])])
    assert tensor.codes.size == 1 << 22
    with np.errstate(over="ignore"):
        values = np.ldexp(wanted.view(ML_DTYPES[element.name]).astype(np.float64), spread - 127).astype(np.float32)
    if rules in (DEVICE, OCP):
        values[spread == 255] = np.nan
    assert np.array_equal(
        dequantize_mx(tensor).view(np.uint32), np.where(np.isnan(values), np.float32("nan"), values).view(np.uint32)
    )


# -- N-7, F-3: sources ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [NKI_SIM, DEVICE], ids=lambda rules: rules.name)
def test_n7_rules_that_do_not_quantise_to_fp4_say_so(rules: RuleSet) -> None:
    with pytest.raises(
        ValueError, match=rf"^element must be an FP8 format under the rules {rules.name}, not 'fp4_e2m1'"
    ):
        quantize_mx(np.zeros((8, 4), np.float32), FP4_E2M1, rules)
    for element in (FP8_E4M3, FP8_E5M2):
        assert quantize_mx(np.zeros((8, 4), np.float32), element, rules).element is element


def test_n7_fp4_operands_are_still_read_under_those_rules() -> None:
    tensor = MxTensor(
        codes=np.full((8, 4), 7, np.uint8), scale=np.full((1, 1), 128, np.uint8), element=FP4_E2M1, rules=DEVICE
    )
    assert tensor.values().tolist() == [[12.0] * 4] * 8


@each_element
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "fp16"])
def test_f3_every_pattern_of_a_narrow_source_is_as_its_fp32(element: ElementFormat, dtype: Any) -> None:
    x = np.random.default_rng(3).permutation(1 << 16).astype(np.uint16).view(dtype).reshape(256, 256)
    with np.errstate(invalid="ignore"):
        same = x.astype(np.float32)
    assert quantize_mx(x, element) == quantize_mx(same, element)


def test_n7_float64_is_rounded_to_fp32_and_reported_once() -> None:
    x = np.random.default_rng(4).standard_normal((64, 4096))
    with pytest.warns(PrecisionWarning, match="x is float64") as caught:
        tensor = quantize_mx(x, FP8_E4M3)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert tensor == quantize_mx(x.astype(np.float32), FP8_E4M3)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: np.asfortranarray(x),
        lambda x: x.astype(">f4"),
        lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
        lambda x: x[::-1][::-1].copy()[:, :],
        lambda x: np.ascontiguousarray(x[:, ::-1])[:, ::-1],
    ],
    ids=["Fortran order", "big-endian", "strided", "copied", "reversed"],
)
def test_the_order_of_x_in_memory_does_not_matter(other: Callable[[Array], Array]) -> None:
    x = np.random.default_rng(5).standard_normal((72, 260)).astype(np.float32)
    before = x.copy()
    assert quantize_mx(other(x), FP8_E4M3) == quantize_mx(x, FP8_E4M3)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("shape", [(8, 4), (8, 400_000), (65_536, 4), (96, 2052), (8, 0), (0, 4)], ids=str)
@each_element
def test_the_shape_decides_nothing_but_the_grid(shape: tuple[int, int], element: ElementFormat) -> None:
    """Every block as it is on its own, wherever the tensor is cut on the way."""
    partitions, free = shape
    x = np.random.default_rng(6).standard_normal(shape).astype(np.float32) * np.float32(2.0**-20)
    tensor = quantize_mx(x, element)
    assert tensor.shape == shape
    assert tensor.scale.shape == (partitions // 8, free // 4)
    grid = x.reshape(partitions // 8, 8, free // 4, 4).swapaxes(1, 2).reshape(-1, 4)
    alone = quantize_mx(grid, element)
    assert np.array_equal(tensor.scale.ravel(), alone.scale.ravel())
    codes = tensor.codes.reshape(partitions // 8, 8, free // 4, 4).swapaxes(1, 2).reshape(-1, 4)
    assert np.array_equal(codes, alone.codes)
    assert np.array_equal(
        dequantize_mx(tensor).reshape(partitions // 8, 8, free // 4, 4).swapaxes(1, 2).reshape(-1, 4),
        dequantize_mx(alone),
    )


def test_d1_flat_scale_index() -> None:
    """out[r, c] takes scale (F/4)(r/8) + c/4 of the flat array (S0 §4): every block here has its own power of two."""
    partitions, free = 32, 12
    flat = np.arange(120, 120 + 12, dtype=np.uint8)
    one = np.full((partitions, free), 0x38, np.uint8)  # E4M3 1.0
    values = dequantize_mx(MxTensor(codes=one, scale=flat.reshape(4, 3), element=FP8_E4M3))
    wanted = [
        [2.0 ** (int(flat[(free // 4) * (r // 8) + c // 4]) - 127) for c in range(free)] for r in range(partitions)
    ]
    assert values.tolist() == wanted
    assert len({value for row in wanted for value in row}) == 12


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64], ids=str)
def test_quantise_needs_half_again_the_memory_of_input_and_output(dtype: Any) -> None:
    x = np.ones((1024, 2048), dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)
        quantize_mx(x[:8, :4], FP8_E4M3)  # tables are built once
        tracemalloc.start()
        tensor = quantize_mx(x, FP8_E4M3)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    output = tensor.codes.nbytes + tensor.scale.nbytes
    assert peak > output
    assert x.nbytes + peak <= 1.5 * (x.nbytes + output)


# -- the container ----------------------------------------------------------------------------------------------------


def tensor_of(codes: Any, scale: Any, **others: Any) -> MxTensor:
    fields = {"element": FP8_E4M3, "rules": BIRSIM} | others
    return MxTensor(codes=np.asarray(codes, np.uint8), scale=np.asarray(scale, np.uint8), **fields)


def test_equality_is_by_bits() -> None:
    codes = np.zeros((8, 4), np.uint8)
    codes[0, 0] = 0x7F  # NaN
    first = tensor_of(codes, [[127]])
    assert first == tensor_of(codes, [[127]])
    minus_zero = codes.copy()
    minus_zero[1, 1] = 0x80
    different = [
        tensor_of(minus_zero, [[127]]),
        tensor_of(codes, [[126]]),
        tensor_of(codes, [[127]], element=FP8_E5M2),
        tensor_of(codes, [[127]], rules=OCP),
        tensor_of(np.tile(codes, (1, 2)), [[127, 127]]),
        "not a tensor",
    ]
    assert [first != other for other in different] == [True] * 6
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)


def test_it_is_frozen_and_keeps_its_own_bytes() -> None:
    codes, scale = np.zeros((8, 4), np.uint8), np.full((1, 1), 127, np.uint8)
    tensor = MxTensor(codes=codes, scale=scale, element=FP8_E4M3)
    codes[:] = 0x38
    scale[:] = 0
    assert tensor == tensor_of(np.zeros((8, 4)), [[127]])
    assert tensor.rules is BIRSIM
    for made in (tensor, quantize_mx(np.ones((8, 4), np.float32), FP8_E4M3)):
        for array in (made.codes, made.scale):
            with pytest.raises(ValueError, match="read-only"):
                array[0, 0] = 1
        with pytest.raises(FrozenInstanceError):
            made.codes = codes  # type: ignore[misc]
    assert repr(tensor) == "MxTensor(fp8_e4m3 [8, 4], birsim)"


def test_values_packed_words_and_scale_tile() -> None:
    codes = np.zeros((64, 8), np.uint8)
    codes[0, :4] = [0x38, 0x40, 0xC4, 0x7E]  # 1, 2, -3, 448 (L-1)
    scale = np.arange(120, 136, dtype=np.uint8).reshape(8, 2)
    tensor = tensor_of(codes, scale)
    assert tensor.shape == (64, 8)
    assert tensor.packed().dtype == np.uint32
    assert tensor.packed().shape == (64, 2)
    assert tensor.packed()[0].tolist() == [0x7EC44038, 0]
    assert tensor.values()[0, :4].tolist() == [2.0**-7, 2.0**-6, -3 * 2.0**-7, 448 * 2.0**-7]
    tile = tensor.scale_tile(offset=8)
    assert tile.shape == (64, 2)
    assert np.flatnonzero(tile.any(axis=1)).tolist() == [8, 9, 10, 11, 40, 41, 42, 43]
    assert tile[40].tolist() == [128, 129]
    assert tensor.scale_tile(partitions=128).shape == (128, 2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"codes": np.zeros((8, 4), np.int8)}, TypeError, "codes must be a uint8 array, not int8"),
        ({"scale": [[127]]}, TypeError, "scale must be a uint8 array, not list"),
        ({"codes": np.zeros((9, 4), np.uint8)}, ValueError, r"codes must be \[P, F\] .* not shape \(9, 4\)"),
        ({"codes": np.zeros((8, 6), np.uint8)}, ValueError, r"codes must be \[P, F\] .* not shape \(8, 6\)"),
        ({"codes": np.zeros(32, np.uint8)}, ValueError, r"codes must be \[P, F\] .* not shape \(32,\)"),
        ({"scale": np.zeros((1, 2), np.uint8)}, ValueError, r"scale must be \[1, 1\] for codes of shape \(8, 4\), not"),
        ({"element": "fp8"}, TypeError, "element must be an ElementFormat, not 'fp8'"),
        ({"rules": "ocp"}, TypeError, "rules must be a RuleSet, not 'ocp'"),
        (
            {"element": FP4_E2M1, "codes": np.full((8, 4), 16, np.uint8)},
            ValueError,
            r"codes must be in 0..15 for fp4_e2m1, not 16",
        ),
    ],
)
def test_a_tensor_that_cannot_be_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    fields = {"codes": np.zeros((8, 4), np.uint8), "scale": np.zeros((1, 1), np.uint8), "element": FP8_E4M3}
    with pytest.raises(error, match=f"^{message}"):
        MxTensor(**(fields | change))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (np.zeros((8, 4), np.int32), FP8_E4M3),
            TypeError,
            "x must be float32, bfloat16, float16 or float64, not int32",
        ),
        (([[0.0] * 4] * 8, FP8_E4M3), TypeError, "x must be a NumPy array, not list"),
        ((np.zeros((12, 4), np.float32), FP8_E4M3), ValueError, r"x must be \[P, F\] .* not shape \(12, 4\)"),
        ((np.zeros((8, 5), np.float32), FP8_E4M3), ValueError, r"x must be \[P, F\] .* not shape \(8, 5\)"),
        ((np.zeros((2, 8, 4), np.float32), FP8_E4M3), ValueError, r"x must be \[P, F\] .* not shape \(2, 8, 4\)"),
        ((np.zeros((8, 4), np.float32), "fp8_e4m3"), TypeError, "element must be an ElementFormat, not 'fp8_e4m3'"),
        ((np.zeros((8, 4), np.float32), FP8_E4M3, "ocp"), TypeError, "rules must be a RuleSet, not 'ocp'"),
    ],
)
def test_bad_arguments_of_quantise(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        quantize_mx(*arguments)


def test_dequantise_takes_a_tensor() -> None:
    with pytest.raises(TypeError, match=r"^tensor must be an MxTensor, not ndarray"):
        dequantize_mx(np.zeros((8, 4), np.uint8))  # type: ignore[arg-type]
