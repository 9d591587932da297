"""Which numbers meet in the PE array (M-1 to M-3, M-5 to M-8); how they are summed is tests/test_matmul_exact.py.

Most products here are of small whole numbers, whose sums are exact in any order: what is tested is the arrangement.
"""

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxmodel.accumulation import accumulate
from mxmodel.formats import BF16, ELEMENTS, FP4_E2M1, FP8_E4M3, FP16, FP32, ElementFormat
from mxmodel.layout import RowOrder, Swizzle, TagOrder, pack_tags, swizzle
from mxmodel.pe_array import (
    Accumulation,
    DoubleRowLayout,
    LoneFloat32r,
    PerfMode,
    Precision,
    Preparation,
    StationaryForm,
    matmul,
    matmul_mx,
    matmul_sparse,
)
from mxmodel.quantize import MxTensor, quantize_mx
from mxmodel.rules import OCP
from mxmodel.widen import PrecisionWarning

Array = np.ndarray[Any, Any]

each_accumulation = pytest.mark.parametrize("accumulation", Accumulation, ids=lambda accumulation: accumulation.value)


def whole(rng: np.random.Generator, shape: tuple[int, ...], limit: int = 9) -> Array:
    """Small whole numbers as fp32: sums of their products are exact in every order."""
    return rng.integers(-limit, limit + 1, shape).astype(np.float32)


def same(got: Array, wanted: Array) -> bool:
    """Bit for bit, -0 and NaN included."""
    assert got.dtype == np.float32
    assert got.size
    return got.shape == wanted.shape and np.array_equal(
        np.ascontiguousarray(got).view(np.uint32), np.ascontiguousarray(wanted, dtype=np.float32).view(np.uint32)
    )


def plain_product(stationary: Array, moving: Array) -> Array:
    """M-2's formula in float64, which holds these sums exactly; + 0.0 as the sums begin at +0."""
    return (stationary.astype(np.float64).T @ moving.astype(np.float64) + 0.0).astype(np.float32)


# -- MX (M-3) ---------------------------------------------------------------------------------------------------------


def mx_operand(rng: np.random.Generator, partitions: int, columns: int, element: ElementFormat) -> MxTensor:
    values = whole(rng, (partitions, 4 * columns), 4)
    values[:, ::5] *= np.float32(0.5)
    return quantize_mx(values, element, OCP)


@each_accumulation
@pytest.mark.parametrize(
    "elements", [*product(ELEMENTS, ELEMENTS)], ids=lambda pair: f"{pair[0].name} x {pair[1].name}"
)
def test_m3_any_mix_of_elements(elements: tuple[ElementFormat, ElementFormat], accumulation: Accumulation) -> None:
    """out[i, j] = sum over p and q, written out as an einsum; 200 partitions and odd columns cross every cut."""
    rng = np.random.default_rng([1, ELEMENTS.index(elements[0]), ELEMENTS.index(elements[1])])
    stationary, moving = mx_operand(rng, 200, 131, elements[0]), mx_operand(rng, 200, 517, elements[1])
    left, right = (tensor.values().astype(np.float64).reshape(200, -1, 4) for tensor in (stationary, moving))
    wanted = np.einsum("piq,pjq->ij", left, right, optimize=True) + 0.0
    assert same(matmul_mx(stationary, moving, accumulation=accumulation), wanted.astype(np.float32))
    narrow = matmul_mx(stationary, moving, accumulation=accumulation, dst=BF16)
    assert narrow.dtype == ml_dtypes.bfloat16
    assert narrow.shape == (131, 517)


def test_m3_one_instruction_to_bf16_is_its_fp32_rounded() -> None:
    rng = np.random.default_rng(2)
    stationary, moving = mx_operand(rng, 128, 9, FP8_E4M3), mx_operand(rng, 128, 10, FP4_E2M1)
    wide = matmul_mx(stationary, moving)
    assert np.array_equal(matmul_mx(stationary, moving, dst=BF16), wide.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("order", Swizzle)
@pytest.mark.parametrize("length", [32, 480, 512, 544, 1056])
def test_l5_m3_both_swizzles_give_the_matrix_product(order: Swizzle, length: int) -> None:
    """K-major matrices, swizzled alike, quantised and multiplied, are Aᵀ B; K need not be a multiple of 512."""
    rng = np.random.default_rng(length)
    left, right = whole(rng, (length, 5), 2), whole(rng, (length, 6), 2)
    product_of = matmul_mx(quantize_mx(swizzle(left, order), FP8_E4M3), quantize_mx(swizzle(right, order), FP8_E4M3))
    assert same(product_of, plain_product(left, right))


def test_m4_k_runs_over_lanes_within_partitions_unless_asked_otherwise() -> None:
    """L-6: 448^2 in lane 1 of partition 0 is k = 1, or k = 8 when lanes run slowest; all other products are 2^-7.

    Beside 448^2, whose spacing is 2^-6, one 2^-7 is a tie; what was summed before it counts.
    """
    tiny, two = np.full((8, 4), 0x02, np.uint8), np.full((8, 4), 0x40, np.uint8)  # 2^-8 and 2
    tiny[0, 1] = two[0, 1] = 0x7E
    left, right = (MxTensor(codes=c, scale=np.array([[127]], np.uint8), element=FP8_E4M3) for c in (tiny, two))
    totals = []
    for order, before in ((RowOrder.PARTITION_MAJOR, 1), (RowOrder.LANE_MAJOR, 8)):
        total = np.float32(np.float32(before * 2.0**-7) + np.float32(448.0**2))
        for _ in range(31 - before):
            total = np.float32(total + np.float32(2.0**-7))
        assert matmul_mx(left, right, row_order=order).tolist() == [[float(total)]]
        totals.append(float(total))
    assert totals == [200704.0, 200704.0625]


@each_accumulation
def test_m7_cuts_along_m_and_n_change_no_value(accumulation: Accumulation) -> None:
    """Columns one at a time are as the columns of the whole: 130 x 600 cells cross 128 columns and a PSUM bank."""
    rng = np.random.default_rng(3)
    left, right = rng.standard_normal((130, 130), np.float32), rng.standard_normal((130, 600), np.float32)
    together = matmul(left, right, accumulation=accumulation)
    if accumulation is Accumulation.BLAS:
        np.testing.assert_allclose(together, left.T @ right, atol=1e-4)
        return
    for column in (0, 1, 127, 128, 129):
        assert same(matmul(left[:, [column]], right, accumulation=accumulation), together[[column]])
    for column in (0, 511, 512, 599):
        assert same(matmul(left, right[:, [column]], accumulation=accumulation), together[:, [column]])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"moving": np.zeros((8, 4))}, TypeError, "moving must be an MxTensor, not ndarray"),
        ({"accumulation": "exact"}, TypeError, "accumulation must be an Accumulation, not 'exact'"),
        ({"dst": np.float32}, TypeError, "dst must be a SourceFormat, not <class"),
        ({"dst": FP16}, ValueError, "nc_matmul_mx dst dtype must be float32 or bfloat16, not fp16"),
        ({"row_order": 0}, TypeError, "row_order must be a RowOrder, not 0"),
    ],
)
def test_m3_refusals(change: dict[str, Any], error: type[Exception], message: str) -> None:
    tensor = quantize_mx(np.ones((8, 4), np.float32), FP8_E4M3)
    with pytest.raises(error, match=f"^{message}"):
        matmul_mx(**({"stationary": tensor, "moving": tensor} | change))


def test_m1_partitions_must_agree() -> None:
    stationary, moving = (quantize_mx(np.ones((rows, 4), np.float32), FP8_E4M3) for rows in (8, 16))
    with pytest.raises(
        ValueError, match=r"^invalid matrix product: moving must have the 8 partitions of stationary, not 16"
    ):
        matmul_mx(stationary, moving)


# -- dense (M-1, M-2) -------------------------------------------------------------------------------------------------

OPERAND_DTYPES = [
    np.uint8,
    np.float32,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e3m4,
]


@each_accumulation
@pytest.mark.parametrize(
    "dtypes", [*product(OPERAND_DTYPES, OPERAND_DTYPES)], ids=lambda pair: f"{np.dtype(pair[0])} x {np.dtype(pair[1])}"
)
def test_m1_m2_every_pair_of_dtypes(dtypes: tuple[Any, Any], accumulation: Accumulation) -> None:
    rng = np.random.default_rng(4)
    left, right = rng.integers(0, 8, (130, 3)).astype(dtypes[0]), rng.integers(0, 8, (130, 4)).astype(dtypes[1])
    wanted = plain_product(left.astype(np.float32), right.astype(np.float32))
    assert same(matmul(left, right, accumulation=accumulation), wanted)


def test_m1_n7_float64_is_rounded_and_reported() -> None:
    left, right = np.full((1, 1), 1.0 + 2.0**-40), np.full((1, 1), 3.0, np.float32)
    with pytest.warns(PrecisionWarning, match=r"^stationary is float64"):
        assert matmul(left, right).tolist() == [[3.0]]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.bool_, np.complex64, ml_dtypes.int4], ids=str)
def test_m1_other_dtypes_are_refused_in_the_simulators_words(dtype: Any) -> None:
    good, bad = np.ones((4, 4), np.float32), np.ones((4, 4)).astype(dtype)
    with pytest.raises(TypeError, match=r"^Invalid weights data type for matmult: stationary must be"):
        matmul(bad, good)
    with pytest.raises(TypeError, match=r"^Invalid ifmap data type for matmult: moving must be"):
        matmul(good, bad)
    with pytest.raises(TypeError, match=r"^Invalid ifmap data type for matmult: moving must be .* not list"):
        matmul(good, [[1.0]])  # type: ignore[arg-type]


def test_m1_invalid_matrix_product() -> None:
    with pytest.raises(ValueError, match=r"^invalid matrix product: moving must have the contraction size 4 .* not 5"):
        matmul(np.ones((4, 2), np.float32), np.ones((5, 2), np.float32))


def test_m2_an_empty_contraction_is_plus_zero() -> None:
    for accumulation in Accumulation:
        assert same(
            matmul(np.ones((0, 2), np.float32), np.ones((0, 3), np.float32), accumulation=accumulation),
            np.zeros((2, 3)),
        )


@pytest.mark.parametrize(("zero_s", "zero_m"), [(None, None), (3, None), (None, 255), (7, 128), (0, 0)])
def test_m2_zero_points(zero_s: int | None, zero_m: int | None) -> None:
    rng = np.random.default_rng(5)
    left, right = rng.integers(0, 256, (128, 5), dtype=np.uint8), rng.integers(0, 256, (128, 6), dtype=np.uint8)
    got = matmul(left, right, stationary_zero_point=zero_s, moving_zero_point=zero_m)
    wanted = (left.astype(np.int64) - (zero_s or 0)).T @ (right.astype(np.int64) - (zero_m or 0))
    assert same(got, wanted.astype(np.float32))


def test_m2_the_zero_point_is_subtracted_in_fp32() -> None:
    """2^24 + 1 does not exist in fp32, nor does 2^25 - 3: the difference is rounded before the product."""
    value = np.array([[2.0**25]], np.float32)
    one = np.ones((1, 1), np.float32)
    assert matmul(value, one, stationary_zero_point=1).tolist() == [[2.0**25]]
    assert matmul(value, one, stationary_zero_point=3, accumulation=Accumulation.EXACT).tolist() == [[2.0**25 - 4]]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (256, ValueError, "must be in 0..255, not 256"),
        (-1, ValueError, "must be in 0..255"),
        (1.0, TypeError, "must be an integer or None"),
    ],
)
def test_m2_zero_points_are_bytes(value: Any, error: type[Exception], message: str) -> None:
    one = np.ones((1, 1), np.uint8)
    for name in ("stationary_zero_point", "moving_zero_point"):
        with pytest.raises(error, match=f"^{name} {message}"):
            matmul(one, one, **{name: value})


# -- float32r (M-5) ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "rounded"),
    [
        (0x3F800000, 0x3F800000),
        (0x3F8007FF, 0x3F800000),
        (0x3F800800, 0x3F800000),  # tie, even below
        (0x3F800801, 0x3F801000),
        (0x3F801800, 0x3F802000),  # tie, even above
        (0xBFFFF800, 0xC0000000),  # into the next binade
        (0x7F7FFFFF, 0x7F800000),  # past the top
        (0x7F7FF7FF, 0x7F7FF000),
        (0x00000800, 0x00000000),
        (0x00000801, 0x00001000),
        (0x80001800, 0x80002000),
        (0x7F800000, 0x7F800000),
        (0xFF800000, 0xFF800000),
        (0x7FFFFFFF, 0x7FC00000),
    ],
)
def test_m5_eleven_explicit_bits_to_nearest_even(word: int, rounded: int) -> None:
    value = np.array([[word]], np.uint32).view(np.float32)
    one = np.ones((1, 1), np.float32)
    both = {"stationary_precision": Precision.FLOAT32R, "moving_precision": Precision.FLOAT32R}
    for left, right in ((value, one), (one, value)):
        assert matmul(left, right, accumulation=Accumulation.EXACT, **both).view(np.uint32).tolist() == [[rounded]]  # type: ignore[arg-type]
    if np.isfinite(value).all():
        assert matmul(value, one).view(np.uint32).tolist() == [[word]]


@pytest.mark.parametrize("lone", LoneFloat32r)
def test_m5_which_operands_may_be_float32r(lone: LoneFloat32r) -> None:
    x = np.array([[1.0 + 2.0**-20]], np.float32)
    with pytest.raises(
        ValueError, match=r"^stationary_precision and moving_precision must both .* not FULL and FLOAT32R"
    ):
        matmul(x, x, moving_precision=Precision.FLOAT32R, lone_float32r=lone)
    if lone is LoneFloat32r.REFUSED:
        with pytest.raises(ValueError, match=r"not FLOAT32R and FULL \(M-5\)"):
            matmul(x, x, stationary_precision=Precision.FLOAT32R, lone_float32r=lone)
    else:
        got = matmul(x, x, stationary_precision=Precision.FLOAT32R, lone_float32r=lone)
        assert same(got, x)
    for dtype in (np.float16, np.uint8, ml_dtypes.bfloat16):
        narrow = x.astype(dtype)
        with pytest.raises(TypeError, match=r"must be float32"):
            matmul(narrow, narrow, stationary_precision=Precision.FLOAT32R, moving_precision=Precision.FLOAT32R)


def test_m2_m5_rounding_before_or_after_the_zero_point() -> None:
    """x = 4 + 2^-9, zero point 4: rounded first (spacing 2^-9) it keeps 2^-9; with 2^-10 more the orders differ."""
    x = np.array([[4.0 + 2.0**-10 + 2.0**-11]], np.float32)
    one = np.ones((1, 1), np.float32)
    got = {
        order: matmul(
            x, one, stationary_zero_point=4, preparation=order,
            stationary_precision=Precision.FLOAT32R, moving_precision=Precision.FLOAT32R,
        ).item()
        for order in Preparation
    }  # fmt: skip
    assert got == {Preparation.ROUND_THEN_SUBTRACT: 2.0**-9, Preparation.SUBTRACT_THEN_ROUND: 2.0**-10 + 2.0**-11}


# -- perf modes, transposed and gathered stationary (M-6, M-7) --------------------------------------------------------


@pytest.mark.parametrize("partitions", [4, 128, 150])
def test_m6_double_row_sw_interleave(partitions: int) -> None:
    """Stationary row 2p + q column m is S[p, 2m + q]; moving row 2p + q is columns qN .. qN + N - 1 of partition p."""
    rng = np.random.default_rng(partitions)
    left, right = whole(rng, (partitions, 2 * 3)), whole(rng, (partitions, 2 * 5))
    wanted = np.zeros((3, 5))
    for p, q, m, n in product(range(partitions), range(2), range(3), range(5)):
        wanted[m, n] += left[p, 2 * m + q] * right[p, q * 5 + n]
    assert same(matmul(left, right, perf_mode=PerfMode.DOUBLE_ROW_SW_INTERLEAVE), wanted + 0.0)


@pytest.mark.parametrize("partitions", [4, 128, 150])
def test_m6_double_row(partitions: int) -> None:
    """Both row-major: no de-interleave. The same operands in the public [P, 2, W] form are the same product."""
    rng = np.random.default_rng(partitions)
    left, right = whole(rng, (partitions, 2 * 3)), whole(rng, (partitions, 2 * 5))
    wanted = np.zeros((3, 5))
    for p, q, m, n in product(range(partitions), range(2), range(3), range(5)):
        wanted[m, n] += left[p, q * 3 + m] * right[p, q * 5 + n]
    assert same(matmul(left, right, perf_mode=PerfMode.DOUBLE_ROW), wanted + 0.0)
    public = matmul(
        left.reshape(partitions, 2, 3),
        right.reshape(partitions, 2, 5),
        perf_mode=PerfMode.DOUBLE_ROW,
        double_row_layout=DoubleRowLayout.PUBLIC,
    )
    assert same(public, wanted + 0.0)


def test_m6_the_order_of_the_two_rows() -> None:
    """K = 2p + t row-major, t P + p in public form: 2^24 at p = 1, t = 0 has two ones before it, or one.

    2 + 2^24 is 2^24 + 2, from where one more 1 is a tie that goes up; 1 + 2^24 is a tie that goes down, as all after.
    """
    left = np.ones((4, 2), np.float32)
    left[1, 0] = 2.0**24
    right = np.ones((4, 2), np.float32)
    assert matmul(left, right, perf_mode=PerfMode.DOUBLE_ROW).tolist() == [[2.0**24 + 4]]
    public = {"perf_mode": PerfMode.DOUBLE_ROW, "double_row_layout": DoubleRowLayout.PUBLIC}
    assert matmul(left[..., None], right[..., None], **public).tolist() == [[2.0**24]]  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [PerfMode.DOUBLE_COLUMN, PerfMode.DOUBLE_PIXEL])
def test_m6_modes_without_a_known_effect_are_refused(mode: PerfMode) -> None:
    x = np.ones((4, 4), np.float32)
    with pytest.raises(
        ValueError, match=rf"^perf_mode must be NONE, .*, not {mode.name}: it has no known numeric effect"
    ):
        matmul(x, x, perf_mode=mode)


def test_m6_codes() -> None:
    assert {mode.name: mode.value for mode in PerfMode} == {
        "NONE": 0, "DOUBLE_ROW": 1, "DOUBLE_COLUMN": 2, "DOUBLE_PIXEL": 3, "DOUBLE_ROW_SW_INTERLEAVE": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4, 3), {"perf_mode": PerfMode.DOUBLE_ROW}, r"stationary must be \[P, 2 W\], not shape \(4, 3\)"),
        ((4, 2, 2), {}, r"stationary must be two-dimensional, not shape \(4, 2, 2\)"),
        (
            (4, 4),
            {"perf_mode": PerfMode.DOUBLE_ROW, "double_row_layout": DoubleRowLayout.PUBLIC},
            r"stationary must be \[P, 2, W\], not shape \(4, 4\)",
        ),
        ((4, 4), {"double_row_layout": DoubleRowLayout.PUBLIC}, "perf_mode must be DOUBLE_ROW with the PUBLIC layout"),
        (
            (4, 4),
            {"perf_mode": PerfMode.DOUBLE_ROW, "stationary_form": StationaryForm.TRANSPOSED},
            "perf_mode must be NONE with a transposed stationary, not DOUBLE_ROW",
        ),
    ],
)
def test_m6_refusals(shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    x = np.ones(shape, np.float32)
    with pytest.raises(ValueError, match=f"^{message}"):
        matmul(x, x, **options)


@pytest.mark.parametrize("length", [7, 128, 300])
def test_m7_transposed_stationary(length: int) -> None:
    """moving [A, K], stationary [B, K]: out[b, a] = sum over k of moving[a, k] * stationary[b, k]."""
    rng = np.random.default_rng(length)
    stationary, moving = whole(rng, (5, length)), whole(rng, (3, length))
    got = matmul(stationary, moving, stationary_form=StationaryForm.TRANSPOSED)
    wanted = [[sum(moving[a] * stationary[b]) for a in range(3)] for b in range(5)]
    assert same(got, np.array(wanted) + 0.0)


def test_m7_transposed_sums_run_upwards() -> None:
    values = np.array([[2.0**24, 1.0, 1.0]], np.float32)
    ones = np.ones((1, 3), np.float32)
    assert matmul(values, ones, stationary_form=StationaryForm.TRANSPOSED).tolist() == [[2.0**24]]
    assert matmul(values[:, ::-1], ones, stationary_form=StationaryForm.TRANSPOSED).tolist() == [[2.0**24 + 2]]


def test_m7_gathered_stationary() -> None:
    rng = np.random.default_rng(6)
    table, moving = whole(rng, (20, 3)), whole(rng, (6, 4))
    rows = np.array([19, 0, 0, 7, 3, 19])
    wanted = plain_product(np.stack([table[row] for row in (19, 0, 0, 7, 3, 19)]), moving)
    assert same(matmul(table, moving, stationary_rows=rows), wanted)
    for bad, error in (
        (rows - 1, ValueError),
        (rows + 1, ValueError),
        (rows.astype(float), TypeError),
        ([0], TypeError),
    ):
        with pytest.raises(error, match=r"^stationary_rows must be"):
            matmul(table, moving, stationary_rows=bad)  # type: ignore[arg-type]


# -- sparse (M-8) -----------------------------------------------------------------------------------------------------


def sparse_case(slots: int, columns: int = 12, free: int = 5) -> tuple[Array, Array, Array, Array]:
    rng = np.random.default_rng([7, slots])
    stationary, moving = whole(rng, (128, columns)), whole(rng, (128, slots, free))
    positions = rng.integers(0, 4 * slots, (128, columns), dtype=np.uint8)
    return stationary, positions, pack_tags(positions), moving


@each_accumulation
@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_m8_sparse_by_its_formula(slots: int, accumulation: Accumulation) -> None:
    stationary, positions, tags, moving = sparse_case(slots)
    wanted = np.zeros((12, 5))
    for k, m in product(range(128), range(12)):
        pos = int(tags[k, m >> 2]) >> 4 * (m & 3) & 0xF
        assert pos == positions[k, m]
        wanted[m] += stationary[k, m] * moving[4 * (k >> 2) + pos // slots, pos % slots]
    assert same(matmul_sparse(stationary, tags, moving, accumulation=accumulation), wanted + 0.0)


def test_m8_two_to_four_is_a_dense_product_with_zeros_put_back() -> None:
    """R = 1, two kept of every four rows: as a dense matrix [128, M] with two zeros in every group of four."""
    rng = np.random.default_rng(8)
    dense = np.zeros((128, 8), np.float32)
    kept, positions = np.zeros((128, 8), np.float32), np.zeros((128, 8), np.uint8)
    for group, m in product(range(32), range(8)):
        for index, row in enumerate(sorted(rng.choice(4, 2, replace=False))):
            value = float(rng.integers(1, 9))
            dense[4 * group + row, m] = kept[4 * group + index, m] = value
            positions[4 * group + index, m] = row
    moving = whole(rng, (128, 1, 6))
    assert same(matmul_sparse(kept, pack_tags(positions), moving), plain_product(dense, moving[:, 0]))


def test_m8_sums_run_upwards_and_as_the_dense_kernel() -> None:
    """Column m alone is a dense product with the rows its tags name, bit for bit, also where order shows."""
    rng = np.random.default_rng(9)
    stationary, moving = rng.standard_normal((128, 20), np.float32), rng.standard_normal((128, 4, 7), np.float32)
    positions = rng.integers(0, 16, (128, 20), dtype=np.uint8)
    for accumulation in (Accumulation.SEQUENTIAL, Accumulation.EXACT):
        got = matmul_sparse(stationary, pack_tags(positions), moving, accumulation=accumulation)
        for m in range(20):
            rows = np.stack([moving[4 * (k >> 2) + positions[k, m] // 4, positions[k, m] % 4] for k in range(128)])
            assert same(got[[m]], accumulate(stationary[:, [m]], rows, accumulation))


def test_m8_a_row_that_no_tag_names_is_not_read() -> None:
    stationary, positions, _, moving = sparse_case(2)
    clean = matmul_sparse(stationary, pack_tags(positions & 6), moving)
    moving[:, 1] = np.nan
    assert same(matmul_sparse(stationary, pack_tags(positions & 6), moving), clean)


def test_m8_flipped_tags_and_bf16() -> None:
    stationary, positions, _, moving = sparse_case(3, columns=256)
    tags = pack_tags(positions, order=TagOrder.FLIPPED)
    wanted = matmul_sparse(stationary, pack_tags(positions), moving)
    assert same(matmul_sparse(stationary, tags, moving, tag_order=TagOrder.FLIPPED), wanted)
    narrow = matmul_sparse(stationary, tags, moving, tag_order=TagOrder.FLIPPED, dst=BF16)
    assert np.array_equal(narrow, wanted.astype(ml_dtypes.bfloat16))
    assert matmul_sparse(stationary, tags, moving, dst=FP32).dtype == np.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stationary": np.zeros((126, 4), np.float32)}, r"Error: num_active_rows should be divisible by 4\."),
        ({"stationary": np.zeros((64, 4), np.float32)}, "Only the 128-active-rows case is supported!"),
        ({"moving": np.zeros((130, 2, 3), np.float32)}, r"Error: num_active_rows should be divisible by 4\."),
        ({"moving": np.zeros((64, 2, 3), np.float32)}, "Only the 128-active-rows case is supported!"),
        ({"moving": np.zeros((128, 5, 3), np.float32)}, "moving must have 1..4 slots in a partition, not 5"),
        ({"moving": np.zeros((128, 3), np.float32)}, r"stationary and moving must be \[128, M\] and \[128, R, N\]"),
        ({"tags": np.zeros((128, 2), np.uint16)}, r"tags must be \[128, 1\] for stationary of shape \(128, 4\), not"),
        ({"tags": np.full((128, 1), 0x8000, np.uint16)}, "tags must name positions below 8 for 2 slots, not 8"),
    ],
)
def test_m8_refusals(change: dict[str, Any], message: str) -> None:
    good = {
        "stationary": np.zeros((128, 4), np.float32),
        "tags": np.zeros((128, 1), np.uint16),
        "moving": np.zeros((128, 2, 3), np.float32),
    }
    assert matmul_sparse(**good).shape == (4, 3)
    with pytest.raises(ValueError, match=f"^{message}"):
        matmul_sparse(**(good | change))


def test_m2_a_signalling_nan_meets_a_zero_point_in_silence() -> None:
    """Found by random programs: the host calls it an invalid operand, and warned."""
    signalling = np.array([[0x7F800001]], np.uint32).view(np.float32)
    result = matmul(signalling, np.ones((1, 1), np.float32), stationary_zero_point=1)
    assert result.view(np.uint32)[0, 0] == 0x7FC00000
