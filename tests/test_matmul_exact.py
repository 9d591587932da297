"""How one instruction's products are summed (M-4, P-1): against fractions, and the probes of the contract."""

import os
import platform
import subprocess
import sys
from fractions import Fraction
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest
from test_host_state import host

from mxmodel.accumulation import Accumulation, accumulate, psum_add, psum_write
from mxmodel.formats import BF16, ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, FP32, ElementFormat
from mxmodel.pe_array import matmul, matmul_mx
from mxmodel.quantize import MxTensor
from mxmodel.rules import BIRSIM, DEVICE, OCP, RULE_SETS, RuleSet

Array = np.ndarray[Any, Any]

SEQUENTIAL, EXACT, BLAS = Accumulation.SEQUENTIAL, Accumulation.EXACT, Accumulation.BLAS
ORDERED = [SEQUENTIAL, EXACT]
NAN, INF = 0x7FC00000, 0x7F800000

UNIT = 2 * 149
"""Every product of two finite fp32 numbers is a whole count of 2^-298."""


def words(values: Array) -> list[int]:
    assert values.dtype == np.float32
    return [int(word) for word in np.ascontiguousarray(values).view(np.uint32).ravel()]


def column(*numbers: float) -> Array:
    return np.array(numbers, dtype=np.float32)[:, None]


def exact_bits(stationary: Array, moving: Array) -> int:
    """The exact sum of one column each, by whole numbers, rounded once by the oracle (M-4, EXACT)."""
    total, positive, negative = 0, False, False
    for left, right in zip(words(stationary), words(moving), strict=True):
        numbers = oracle.decode(left), oracle.decode(right)
        sign = numbers[0][0] ^ numbers[1][0]
        magnitudes = [number[1] for number in numbers]
        if oracle.NAN in magnitudes or (oracle.INF in magnitudes and 0 in magnitudes):
            return NAN
        if oracle.INF in magnitudes:
            positive, negative = positive or not sign, negative or bool(sign)
            continue
        count, rest = divmod(magnitudes[0] * magnitudes[1], 1 << (2 * oracle.UNIT - UNIT))
        assert rest == 0
        total += -count if sign else count
    if positive or negative:
        return NAN if positive and negative else INF | negative << 31
    return oracle.fp32_bits((int(total < 0), abs(total)), UNIT)


def sequential_bits(stationary: Array, moving: Array) -> int:
    """Products and sums rounded one at a time, in fractions (M-4, SEQUENTIAL), for finite numbers."""
    total = Fraction(0)
    bits = 0
    for left, right in zip(stationary.ravel().tolist(), moving.ravel().tolist(), strict=True):
        rounded = round_fp32(Fraction(left) * Fraction(right))
        bits = fp32_of(total + rounded)
        total = value_of(bits)
    return bits


def fp32_of(value: Fraction) -> int:
    count = value * (1 << 2 * UNIT)
    assert count.denominator == 1
    return oracle.fp32_bits((int(value < 0), abs(count.numerator)), 2 * UNIT)


def value_of(bits: int) -> Fraction:
    sign, magnitude = oracle.decode(bits)
    assert isinstance(magnitude, int)
    return Fraction((-1) ** sign * magnitude, 1 << oracle.UNIT)


def round_fp32(value: Fraction) -> Fraction:
    return value_of(fp32_of(value))


def mx(codes: Array, scale: Array | int, element: ElementFormat, rules: RuleSet = BIRSIM) -> MxTensor:
    partitions, free = codes.shape
    scale = np.broadcast_to(np.asarray(scale, np.uint8), (partitions // 8, free // 4))
    return MxTensor(codes=codes.astype(np.uint8), scale=scale, element=element, rules=rules)


# -- the probes of M-4 ------------------------------------------------------------------------------------------------


def ones(scale: int) -> MxTensor:
    """32 ones on 8 partitions: one block, contracted to one number."""
    return mx(np.full((8, 4), 0x38), scale, FP8_E4M3)


def test_m4_scale_probes() -> None:
    """32 ones x 32 ones: scales 52 and 52 give 32 x 2^-150; 254 and 0 give 32 x 2^0."""
    for accumulation, small in ((SEQUENTIAL, 0), (EXACT, 0x00000010)):
        assert words(matmul_mx(ones(52), ones(52), accumulation=accumulation)) == [small]
        assert matmul_mx(ones(254), ones(0), accumulation=accumulation).tolist() == [[32.0]]
        assert matmul_mx(ones(0), ones(254), accumulation=accumulation).tolist() == [[32.0]]


@pytest.mark.parametrize(
    ("accumulation", "reverse", "total"),
    [
        (SEQUENTIAL, False, 200704.0),
        (SEQUENTIAL, True, 200704.25),
        (EXACT, False, 200704.25),
        (EXACT, True, 200704.25),
    ],
)
def test_m4_order_probe(accumulation: Accumulation, reverse: bool, total: float) -> None:
    """448^2, then 31 products of 2^-7: all in one block of E4M3 codes, k = 4p + q ascending."""
    codes = np.full(32, 0x02)  # 2^-8
    other = np.full(32, 0x40)  # 2
    codes[0] = other[0] = 0x7E
    if reverse:
        codes, other = codes[::-1], other[::-1]
    stationary, moving = (mx(side.reshape(8, 4), 127, FP8_E4M3) for side in (codes, other))
    assert matmul_mx(stationary, moving, accumulation=accumulation).tolist() == [[total]]


@pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
@pytest.mark.parametrize("accumulation", ORDERED)
def test_m4_zero_under_scale_255_follows_the_rule_set(rules: RuleSet, accumulation: Accumulation) -> None:
    """D-3: as a power of two 0 stays 0 and the sum is +0; as NaN every code is NaN, and so is the sum."""
    zeros = mx(np.zeros((8, 4)), 255, FP8_E4M3, rules)
    plain = MxTensor(codes=ones(127).codes, scale=ones(127).scale, element=FP8_E4M3, rules=rules)
    wanted = NAN if rules in (DEVICE, OCP) else 0
    assert words(matmul_mx(zeros, plain, accumulation=accumulation)) == [wanted]
    assert words(matmul_mx(plain, zeros, accumulation=accumulation)) == [wanted]


def test_m4_operands_under_different_rule_sets() -> None:
    """Each is dequantised under its own: only the OCP one makes NaN of scale 255."""
    for rules, wanted in ((OCP, NAN), (BIRSIM, 0)):
        zeros = mx(np.zeros((8, 4)), 255, FP8_E4M3, rules)
        assert words(matmul_mx(zeros, ones(127))) == [wanted]


def test_m4_exact_rounds_once_just_past_a_tie() -> None:
    """-(2^24 + 1) - 2^-20 lies past the midpoint between -2^24 and -(2^24 + 2)."""
    stationary = column(-(2.0**24), -1.0, -(2.0**-20))
    moving = column(1.0, 1.0, 1.0)
    assert accumulate(stationary, moving, EXACT).tolist() == [[-16777218.0]]
    assert accumulate(stationary[:2], moving[:2], EXACT).tolist() == [[-16777216.0]]
    assert accumulate(stationary, moving, SEQUENTIAL).tolist() == [[-16777216.0]]


@pytest.mark.parametrize(
    ("stationary", "moving", "bits"),
    [
        ([], [], 0),
        ([0.0, -0.0], [-0.0, 3.0], 0),
        ([1.0, -1.0], [1.0, 1.0], 0),
        ([2.0**127, -(2.0**127), 2.0**-149], [2.0**127, 2.0**127, 1.0], 1),
        ([2.0**127, 2.0**127], [2.0, -2.0], 0),
        ([2.0**127, 2.0**127, -(2.0**127)], [1.0, 1.0, 1.0], 0x7F000000),
        ([2.0**127, 2.0**127], [1.0, 1.0], INF),
        ([-(2.0**127), 2.0**127], [1.0, -1.0], INF | 1 << 31),
        ([2.0**128 - 2.0**104, 2.0**103 - 2.0**80], [1.0, 1.0], 0x7F7FFFFF),
        ([2.0**128 - 2.0**104, 2.0**103], [1.0, 1.0], INF),
        ([2.0**-75, 2.0**-149], [2.0**-75, 2.0**-149], 1),
        ([2.0**-75], [2.0**-75], 0),
        ([2.0**-75], [-(2.0**-76)], 1 << 31),
        ([2.0**-75, 2.0**-75, 2.0**-75], [2.0**-75] * 3, 2),
        ([2.0**23, 2.0**-149], [2.0**-149, 2.0**-149], 0x00800000),
    ],
    ids=str,
)
def test_m4_exact_by_hand(stationary: list[float], moving: list[float], bits: int) -> None:
    """Zeros, cancellation from 2^254, overflow and its edge, fp32-subnormal results with ties at half the smallest."""
    assert words(accumulate(column(*stationary), column(*moving), EXACT)) == [bits]


SPECIAL_CASES = [
    ([np.nan, 1.0], [1.0, 1.0], NAN),
    ([1.0, 1.0], [-np.nan, 1.0], NAN),
    ([np.inf, 1.0], [0.0, 1.0], NAN),
    ([0.0, 1.0], [-np.inf, 1.0], NAN),
    ([np.inf, np.inf], [1.0, -1.0], NAN),
    ([np.inf, -np.inf], [1.0, np.inf], NAN),
    ([np.inf, -np.inf], [1.0, -np.inf], INF),
    ([-np.inf, 5.0], [2.0**-149, 2.0], INF | 1 << 31),
    ([np.inf, -3e38], [1.0, 1.0], INF),
    ([-np.inf, np.nan], [1.0, 1.0], NAN),
]


@pytest.mark.parametrize("accumulation", [*ORDERED, BLAS])
@pytest.mark.parametrize(("stationary", "moving", "bits"), SPECIAL_CASES, ids=str)
def test_m4_specials(stationary: list[float], moving: list[float], bits: int, accumulation: Accumulation) -> None:
    """Every NaN is 0x7FC00000, whatever the host and whatever payload came in; +Inf with -Inf is NaN; Inf wins."""
    left, right = column(*stationary), column(*moving)
    left.view(np.uint32)[np.isnan(left)] = 0xFFFFFFFF
    for first, second in ((left, right), (right, left)):
        assert words(accumulate(first, second, accumulation)) == [bits]
        # A wide product takes other paths through the host's loops and libraries.
        wide = accumulate(np.tile(first, (1, 40)), np.tile(second, (1, 70)), accumulation)
        assert set(words(wide)) == {bits}


# -- against fractions ------------------------------------------------------------------------------------------------


def wild(rng: np.random.Generator, shape: tuple[int, ...], kind: int) -> Array:
    """fp32 operands: all finite exponents, a narrow band, small integers, subnormals, or with Inf, NaN and zeros."""
    bits = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    exponents = [
        rng.integers(0, 255, shape, dtype=np.uint32),
        rng.integers(120, 135, shape, dtype=np.uint32),
        rng.choice(np.array([1, 126, 127, 128, 254], np.uint32), shape),
        rng.integers(0, 3, shape, dtype=np.uint32),
        rng.integers(60, 70, shape, dtype=np.uint32),
    ]
    bits = (bits & np.uint32(0x807FFFFF)) | exponents[kind % 5] << np.uint32(23)
    if kind % 3 == 1:
        bits &= np.uint32(0xFFF00000)  # short significands: ties, exact cancellation
    if kind % 4 == 3:
        bits[rng.random(shape) < 0.3] &= np.uint32(0x80000000)
    if kind >= 10:
        bits[rng.random(shape) < 0.002] = INF
        bits[rng.random(shape) < 0.001] |= np.uint32(0xFF800000)
    return bits.view(np.float32)


def test_m4_exact_is_the_fraction() -> None:
    """One instruction: K up to 2048, every operand range, with half of the sums made to cancel."""
    rng = np.random.default_rng(11)
    compared = 0
    kinds_seen = set()
    for kind in range(15):
        for length in (1, 2, 31, 128, 512, 2048):
            columns = 7 if length < 512 else 3
            stationary, moving = wild(rng, (length, columns), kind), wild(rng, (length, columns + 1), kind)
            if length > 2:
                half = length // 2  # the second half takes the first half away again, but for its last product
                stationary[half : 2 * half - 1] = -stationary[: half - 1]
                moving[half : 2 * half - 1] = moving[: half - 1]
            result = words(accumulate(stationary, moving, EXACT))
            pairs = product(range(columns), range(columns + 1))
            wanted = [exact_bits(stationary[:, i], moving[:, j]) for i, j in pairs]
            assert result == wanted, (kind, length)
            compared += len(wanted)
            kinds_seen |= {
                "nan"
                if w == NAN
                else "inf"
                if w & INF == INF
                else "zero"
                if w << 1 & 0xFFFFFFFF == 0
                else "subnormal"
                if w & INF == 0
                else "normal"
                for w in wanted
            }
    assert compared >= 2_000
    assert kinds_seen == {"nan", "inf", "zero", "subnormal", "normal"}


@pytest.mark.parametrize("length", [3, 129, 511, 512, 2048])
def test_m4_exact_when_every_digit_is_full(length: int) -> None:
    """All significand bits set: sums as large as they can be, some of which cancel down to one unit.

    Sixteen by sixteen results, so that a host's library takes the path on which one accumulator sees every product.
    """
    ones = np.float32(2**24 - 1)
    half = length // 2
    full = np.full((length, 16), ones)
    cancelling = np.concatenate([full[:half], -full[:half], np.ones((1, 16), np.float32)])
    beside = np.concatenate([full[: 2 * half], np.ones((1, 16), np.float32)])
    assert set(accumulate(cancelling, beside, EXACT).ravel().tolist()) == {1.0}
    # Bits 20 to 43 beside a lowest bit 0: the upper digit is full too, and the sum runs far above it.
    high = np.concatenate([full * np.float32(2.0**20), np.ones((1, 16), np.float32)])
    for left, right in ((high, high), (-high, high)):
        wanted = exact_bits(left[:, 0], right[:, 0])
        assert set(words(accumulate(left, right, EXACT))) == {wanted}


def test_m4_sequential_is_one_rounding_a_step() -> None:
    rng = np.random.default_rng(12)
    compared = 0
    for kind in (1, 3, 4, 6, 8):
        stationary, moving = wild(rng, (96, 5), kind), wild(rng, (96, 4), kind)
        result = words(accumulate(stationary, moving, SEQUENTIAL))
        wanted = [sequential_bits(stationary[:, i], moving[:, j]) for i, j in product(range(5), range(4))]
        assert result == wanted, kind
        compared += len(wanted)
    assert compared == 100


def random_mx(
    rng: np.random.Generator,
    shape: tuple[int, int],
    element: ElementFormat,
    low: int,
    high: int,
    rules: RuleSet = BIRSIM,
) -> MxTensor:
    codes = rng.integers(0, element.code_count, shape)
    if element.has_nan:
        codes[(codes & 0x7F) > element.max_normal_code] = 0
    return mx(codes, rng.integers(low, high, (shape[0] // 8, shape[1] // 4)), element, rules)


@pytest.mark.parametrize(
    "elements", [*product(ELEMENTS, ELEMENTS)], ids=lambda pair: f"{pair[0].name} x {pair[1].name}"
)
def test_m3_m4_exact_matmul_mx_is_the_fraction(elements: tuple[ElementFormat, ElementFormat]) -> None:
    """K up to 2048 with any scale: every 512 products are one instruction, and each further one is one fp32 add."""
    rng = np.random.default_rng([13, ELEMENTS.index(elements[0]), ELEMENTS.index(elements[1])])
    compared = 0
    for partitions, low, high in ((32, 0, 255), (128, 0, 255), (200, 90, 160), (512, 120, 126), (512, 0, 20)):
        stationary = random_mx(rng, (partitions, 12), elements[0], low, high)
        moving = random_mx(rng, (partitions, 16), elements[1], low, high)
        result = words(matmul_mx(stationary, moving, accumulation=EXACT))
        left, right = stationary.values(), moving.values()
        for i, j in product(range(3), range(4)):
            cell: Array | None = None
            for first in range(0, partitions, 128):
                rows = slice(first, first + 128)
                bits = exact_bits(left[rows, 4 * i : 4 * i + 4].ravel(), right[rows, 4 * j : 4 * j + 4].ravel())
                term = np.uint32(bits).view(np.float32)
                cell = term if cell is None else np.float32(cell + term)
            assert cell is not None
            assert result[4 * i + j] == (NAN if np.isnan(cell) else int(cell.view(np.uint32)))
            compared += 1
    assert compared == 60


def test_m4_small_spreads_agree_three_ways() -> None:
    """FP4 x FP4, K = 512, scales 119..122: every partial sum is exact in fp32, so all agree with float64."""
    rng = np.random.default_rng(14)
    stationary = random_mx(rng, (128, 4 * 64), FP4_E2M1, 119, 123)
    moving = random_mx(rng, (128, 4 * 96), FP4_E2M1, 119, 123)
    left, right = (tensor.values().astype(np.float64).reshape(128, -1, 4) for tensor in (stationary, moving))
    wanted = np.einsum("piq,pjq->ij", left, right)
    assert np.array_equal(wanted, wanted.astype(np.float32))
    for accumulation in ORDERED:
        assert words(matmul_mx(stationary, moving, accumulation=accumulation)) == words(wanted.astype(np.float32))
    assert wanted.size == 64 * 96


@pytest.mark.parametrize("element", [FP8_E4M3, FP8_E5M2], ids=lambda element: element.name)
def test_m4_blas_is_near_and_no_more_is_claimed(element: ElementFormat) -> None:
    rng = np.random.default_rng(15)
    stationary, moving = random_mx(rng, (256, 64), element, 110, 118), random_mx(rng, (256, 48), element, 110, 118)
    exact = matmul_mx(stationary, moving, accumulation=EXACT)
    bound = np.abs(stationary.values()).max() * np.abs(moving.values()).max() * 1024 * 2.0**-20
    assert np.abs(matmul_mx(stationary, moving, accumulation=BLAS) - exact).max() <= bound


# -- PSUM (P-1) -------------------------------------------------------------------------------------------------------


def test_p1_one_add_per_instruction() -> None:
    """What a second instruction makes is summed on its own, from +0, and enters PSUM in one add."""
    # Each of the second instruction's products is below half an ulp of the first one's sum; their own sum is not.
    stationary = np.concatenate([column(2.0**24), np.zeros((127, 1), np.float32), np.ones((5, 1), np.float32)])
    moving = np.ones((133, 1), np.float32)
    assert matmul(stationary, moving).tolist() == [[2.0**24 + 4.0]]
    one_instruction = np.concatenate([stationary[:1], stationary[128:]])
    assert matmul(one_instruction, moving[:6]).tolist() == [[2.0**24]]
    assert matmul(stationary, moving, accumulation=EXACT).tolist() == [[2.0**24 + 4.0]]


def test_p1_bf16_rounds_at_every_instruction() -> None:
    """256 + 1 + 1: bf16 holds 256 and 258, so adding 1 twice goes nowhere; in fp32 it reaches 258."""
    stationary = np.zeros((384, 1), np.float32)
    stationary[[0, 128, 256], 0] = [256.0, 1.0, 1.0]
    moving = np.ones((384, 1), np.float32)
    for accumulation in ORDERED:
        assert matmul(stationary, moving, accumulation=accumulation).tolist() == [[258.0]]
        narrow = matmul(stationary, moving, accumulation=accumulation, dst=BF16)
        assert narrow.dtype == ml_dtypes.bfloat16
        assert narrow.astype(np.float32).tolist() == [[256.0]]
    # The product itself is fp32 until it is written: 256 + 1 + 1 in one instruction is 258.
    together = matmul(stationary[[0, 128, 256]], moving[:3], dst=BF16)
    assert together.astype(np.float32).tolist() == [[258.0]]


def test_p1_bf16_ties_go_to_even() -> None:
    values = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF800000, NAN, 0x00008000, 0x00018000], np.uint32
    )
    wanted = [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0xFF80, 0x7FC0, 0x0000, 0x0002]
    assert psum_write(values.view(np.float32), BF16).view(np.uint16).tolist() == wanted
    assert words(psum_write(values.view(np.float32), FP32)) == values.tolist()


@pytest.mark.parametrize("dst", [FP32, BF16], ids=lambda dst: dst.name)
def test_p1_a_nan_made_by_the_add_is_canonical(dst: Any) -> None:
    cells = psum_write(np.array([np.inf, -np.inf, 1.0, np.inf], np.float32), dst)
    added = psum_add(cells, np.array([-np.inf, np.inf, np.nan, 1.0], np.float32))
    assert added.dtype == cells.dtype
    word, shift = (np.uint16, 16) if dst is BF16 else (np.uint32, 0)
    assert added.view(word).tolist() == [NAN >> shift] * 3 + [INF >> shift]


def test_m4_a_nan_of_two_instructions_is_canonical() -> None:
    stationary = np.zeros((256, 1), np.float32)
    stationary[[0, 128], 0] = [np.inf, -np.inf]
    for accumulation in (*ORDERED, BLAS):
        assert words(matmul(stationary, np.ones((256, 1), np.float32), accumulation=accumulation)) == [NAN]


# -- the host ---------------------------------------------------------------------------------------------------------

DIGEST = """
import hashlib
import numpy as np
from mxmodel.formats import FP8_E4M3
from mxmodel.pe_array import Accumulation, matmul, matmul_mx
from mxmodel.quantize import quantize_mx
x = np.random.default_rng(16).standard_normal((2, 256, 4 * 300)).astype(np.float32)
stationary, moving = (quantize_mx(operand, FP8_E4M3) for operand in x)
digest = hashlib.sha256()
for accumulation in (Accumulation.SEQUENTIAL, Accumulation.EXACT):
    digest.update(matmul_mx(stationary, moving, accumulation=accumulation).tobytes())
    digest.update(matmul(x[0], x[1], accumulation=accumulation).tobytes())
print(digest.hexdigest())
"""


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    digests = set()
    for threads in ("1", "2", "5"):
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, threads) | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    assert len(digests) == 1
    assert len(digests.pop()) == 65


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="sets the floating-point environment of glibc on x86-64",
)
@pytest.mark.parametrize("mode", ["flush", "upward", "toward_zero"])
def test_m4_another_floating_point_mode_is_refused(mode: str) -> None:
    one = np.ones((1, 1), np.float32)
    with host(mode):
        for accumulation in Accumulation:
            with pytest.raises(RuntimeError, match=r"^the processor must round to nearest even and keep subnormals"):
                accumulate(one, one, accumulation)
        with pytest.raises(RuntimeError, match=r"^the processor must"):
            psum_add(one, one)
    assert accumulate(one, one, EXACT).tolist() == [[1.0]]
