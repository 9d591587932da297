"""Contract F-3 and N-7: sources become fp32 bit patterns, exactly but for float64, which says so."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest

from mxmodel.widen import PrecisionWarning, fp32_bits

ALL_16_BIT = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize(("source", "dtype"), [("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)])
def test_f3_every_16_bit_input_widens_exactly(source: str, dtype: Any) -> None:
    bits = fp32_bits(ALL_16_BIT.view(dtype))
    assert bits.dtype == np.uint32
    wanted = [oracle.decode(word, source) for word in range(1 << 16)]
    assert [oracle.decode(word) for word in bits.tolist()] == wanted
    assert len(wanted) == 1 << 16


def test_f3_the_least_subnormals() -> None:
    assert int(fp32_bits(np.array(0x0001, dtype=np.uint16).view(np.float16))) >> 23 == 103
    assert int(fp32_bits(np.array(0x0001, dtype=np.uint16).view(ml_dtypes.bfloat16))) == 0x00010000


def test_f3_fp32_bits_pass_unchanged_with_nan_payloads() -> None:
    words = np.array([0x7F800001, 0xFFBFFFFF, 0x80000000, 0x00000001, 0x3F800000], dtype=np.uint32)
    assert fp32_bits(words.view(np.float32)).tolist() == words.tolist()
    assert fp32_bits(words.view(np.float32).astype(">f4", copy=True)[2:]).tolist() == words[2:].tolist()


def test_n7_fp64_is_rounded_to_fp32_and_says_so() -> None:
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1 << 64, 20_000, dtype=np.uint64)
    words[5_000:] &= np.uint64(0x800FFFFFFFFFFFFF)
    words[5_000:] |= rng.integers(1023 - 155, 1023 + 130, 15_000).astype(np.uint64) << np.uint64(52)
    words[10_000:] &= np.uint64(0xFFFFFFFFF0000000)  # many ties: bit 28 is half an fp32 unit, lower bits are clear
    words[:4] = [0x7FF0000000000001, 0xFFF0000000000001, 0x7FF0000000000000, 0x47EFFFFFF0000000]
    with pytest.warns(PrecisionWarning):
        bits = fp32_bits(words.view(np.float64))
    wanted = [oracle.decode(oracle.to_fp32(word, "fp64")) for word in words.tolist()]
    assert [oracle.decode(word) for word in bits.tolist()] == wanted
    assert wanted[:4] == [(0, oracle.NAN), (1, oracle.NAN), (0, oracle.INF), (0, oracle.INF)]
    assert len(wanted) == 20_000


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_n7_other_sources_do_not_warn(dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fp32_bits(np.zeros(3, dtype=dtype)).tolist() == [0, 0, 0]
