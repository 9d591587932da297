"""The same bits on every host: a library loaded beside us may have left the processor in another floating-point mode.

Code built for speed switches on flush-to-zero for the whole thread as it is loaded, and interval arithmetic leaves a
directed rounding behind. D-2 (subnormals are not flushed), N-1 (nearest even) and N-7 hold none the less.
"""

import ctypes
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import oracle
import pytest

from mxmodel.formats import ELEMENTS, ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import RULE_SETS, RuleSet
from mxmodel.shared_exponent import shared_exponent

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="knows the floating-point environment of glibc on x86-64 only",
)

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
each_mode = pytest.mark.parametrize("mode", ["nearest", "flush", "upward", "toward_zero"])

MXCSR = {"nearest": 0x0000, "flush": 0x8040, "upward": 0x4000, "toward_zero": 0x6000}
"""Bits set in the control word: flush-to-zero with denormals-are-zero, or the rounding field."""


@contextmanager
def host(mode: str) -> Iterator[None]:
    """The processor in ``mode`` inside the block, and as it was after it."""
    libm = ctypes.CDLL("libm.so.6")
    before, within = (ctypes.c_uint32 * 8)(), (ctypes.c_uint32 * 8)()  # glibc's fenv_t; the last word is MXCSR
    libm.fegetenv(before)
    libm.fegetenv(within)
    within[7] |= MXCSR[mode]
    libm.fesetenv(within)
    try:
        yield
    finally:
        libm.fesetenv(before)


def cases() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """fp32 patterns and scales where the mode could tell: subnormals, both ends of the scales, ties and near ties."""
    rng = np.random.default_rng(18)
    bits = rng.integers(0, 1 << 32, 12_000, dtype=np.uint32)
    scale = np.clip(((bits >> 23) & 0xFF) + rng.integers(-10, 20, len(bits)), 0, 255)
    bits[:4_000] &= np.uint32(0x807FFFFF)  # subnormal
    scale[:4_000] = rng.integers(0, 24, 4_000)
    bits[4_000:8_000] &= np.uint32(0xFFF80000)  # few bits: ties
    return bits, scale.astype(np.uint8)


def test_the_modes_are_really_entered() -> None:
    least, third = np.array([1], dtype=np.uint32).view(np.float32), np.array([1, 3], dtype=np.float32)
    seen = {}
    for mode in MXCSR:
        with host(mode):
            kept, quotient = least * np.float32(1), third[:1] / third[1:]
        seen[mode] = int(kept.view(np.uint32)[0]), int(quotient.view(np.uint32)[0])
    assert seen == {
        "nearest": (1, 0x3EAAAAAB),
        "flush": (0, 0x3EAAAAAB),
        "upward": (1, 0x3EAAAAAB),
        "toward_zero": (1, 0x3EAAAAAA),
    }


@each_mode
@each_rule_set
@each_element
def test_n1_n5_narrow_does_not_depend_on_the_mode(element: ElementFormat, rules: RuleSet, mode: str) -> None:
    bits, scale = cases()
    wanted = [
        oracle.narrow(word, element.name, rules.name, scale=s)
        for word, s in zip(bits.tolist(), scale.tolist(), strict=True)
    ]
    plain = [oracle.narrow(word, element.name, rules.name) for word in bits.tolist()]
    with host(mode):
        scaled = narrow(bits.view(np.float32), element, scale=scale, rules=rules)
        unscaled = narrow(bits.view(np.float32), element, rules=rules)
    assert np.count_nonzero(scaled != np.array(wanted)) == 0
    assert np.count_nonzero(unscaled != np.array(plain)) == 0


@each_mode
@each_element
def test_n7_fp64_does_not_depend_on_the_mode(element: ElementFormat, mode: str) -> None:
    rng = np.random.default_rng(19)
    words = rng.integers(0, 1 << 64, 4_000, dtype=np.uint64) & np.uint64(0x800FFFFFFFFFFFFF)
    words |= rng.integers(1023 - 24, 1023 + 18, len(words)).astype(np.uint64) << np.uint64(52)
    words[:100] &= np.uint64(0x800FFFFFFFFFFFFF)
    beside = 8 * np.array([1.0625, 1.125, -1.0625, -1.125, 1.25, -1.25])  # ties of E4M3, E5M2 and FP4 at scale 130
    words[100:106], words[106:112] = (beside * (1 + 2**-40)).view(np.uint64), (beside * (1 - 2**-40)).view(np.uint64)
    once = [oracle.narrow(word, element.name, "ocp", source="fp64") for word in words.tolist()]
    twice = [oracle.narrow(oracle.to_fp32(word, "fp64"), element.name, "ocp", scale=130) for word in words.tolist()]
    rules = RULE_SETS[-1]
    assert rules.name == "ocp"
    with host(mode):
        unscaled = narrow(words.view(np.float64), element, rules=rules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scaled = narrow(words.view(np.float64), element, scale=np.uint8(130), rules=rules)
    assert np.count_nonzero(unscaled != np.array(once)) == 0
    assert np.count_nonzero(scaled != np.array(twice)) == 0


@each_mode
@each_rule_set
@each_element
def test_d2_ldexp_does_not_depend_on_the_mode(element: ElementFormat, rules: RuleSet, mode: str) -> None:
    codes = np.arange(element.code_count, dtype=np.uint8)[:, None]
    scales = np.array([*range(40), *range(236, 256)], dtype=np.uint8)
    wanted = [
        [oracle.ldexp(code, s, element.name, rules.name) for s in scales.tolist()] for code in codes.ravel().tolist()
    ]
    with host(mode):
        values = ldexp(codes, scales, element, rules)
    assert np.count_nonzero(values.view(np.uint32) != np.array(wanted, dtype=np.uint32)) == 0


@each_mode
@each_element
def test_e1_shared_exponent_does_not_depend_on_the_mode(element: ElementFormat, mode: str) -> None:
    bits = cases()[0][:11_200].reshape(8, 1_400)
    half = np.array([0x0001, 0x8001, 0x03FF, 0x0400] * 8, dtype=np.uint16).reshape(8, 4)
    wanted = [
        oracle.shared_exponent(bits[:, i : i + 4].ravel().tolist(), element.name, "birsim") for i in range(0, 1_400, 4)
    ]
    with host(mode):
        scale = shared_exponent(bits.view(np.float32), element)
        small = shared_exponent(half.view(np.float16), element)
    assert scale.tolist() == [wanted]
    assert small.tolist() == [[113 - element.emax]]
