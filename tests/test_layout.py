"""Where MX data sits (contract L). Byte fixtures are written by hand from the sources named beside them, so that no
function is tested by its inverse alone; the round trips come after."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat
from mxmodel.layout import (
    FirstNibble,
    Swizzle,
    TagOrder,
    axis_blocks_of_mx,
    compact_scales,
    deinterleave,
    gather_scales,
    gpt_oss_blocks,
    gpt_oss_codes,
    interleave,
    mx_of_axis_blocks,
    pack_tags,
    pack_x4,
    scale_partitions,
    scatter_scales,
    swizzle,
    unpack_tags,
    unpack_x4,
    unswizzle,
)
from mxmodel.quantize import MxTensor
from mxmodel.rules import BIRSIM, NKI_SIM, OCP

Array = np.ndarray[Any, Any]
U8 = np.uint8


def octets(*values: int) -> Array:
    return np.array(values, dtype=U8)


# -- L-1: x4 words ----------------------------------------------------------------------------------------------------

X4_FIXTURES = [
    # L-1 (D, C, V): E4M3 [1, 2, -3, 448], first element in the low byte.
    (FP8_E4M3, [0x38, 0x40, 0xC4, 0x7E], {}, [0x7EC44038]),
    # The same rule for E5M2 [1, 2, -3, 57344]: 0x3C, 0x40, 0xC2, 0x7B.
    (FP8_E5M2, [0x3C, 0x40, 0xC2, 0x7B], {}, [0x7BC2403C]),
    # L-1: FP4 [1, 2, -3, 6] = 2, 4, D, 7, first element in the low nibble.
    (FP4_E2M1, [0x2, 0x4, 0xD, 0x7], {}, [0x7D42]),
    # L-1, the parity flag: the even nibble in the high half of its byte: bytes 24 D7.
    (FP4_E2M1, [0x2, 0x4, 0xD, 0x7], {"first_nibble": FirstNibble.HIGH}, [0xD724]),
    # L-1 (S0 §6.4 as W gives it): stride 1 is the identity.
    (FP4_E2M1, [0x2, 0x4, 0xD, 0x7], {"stride": 1}, [0x7D42]),
    # Stride 2 maps 0..3 to 2 3 0 1: nibbles D 7 2 4, bytes 7D 42.
    (FP4_E2M1, [0x2, 0x4, 0xD, 0x7], {"stride": 2}, [0x427D]),
    # Stride 4 maps 0..7 to 6 7 4 5 2 3 0 1: bytes 76 54 32 10.
    (FP4_E2M1, [0, 1, 2, 3, 4, 5, 6, 7], {"stride": 4}, [0x5476, 0x1032]),
    # Stride 2 and the parity flag: bytes D7 24.
    (FP4_E2M1, [0x2, 0x4, 0xD, 0x7], {"stride": 2, "first_nibble": FirstNibble.HIGH}, [0x24D7]),
]


@pytest.mark.parametrize(("element", "codes", "options", "words"), X4_FIXTURES)
def test_l1_words(element: ElementFormat, codes: list[int], options: dict[str, Any], words: list[int]) -> None:
    packed = pack_x4(octets(*codes), element, **options)
    assert packed.tolist() == words
    assert packed.dtype == (np.uint16 if element is FP4_E2M1 else np.uint32)
    assert unpack_x4(np.array(words, packed.dtype), element, **options).tolist() == codes


@pytest.mark.parametrize(
    ("stride", "order"), [(1, range(8)), (2, (2, 3, 0, 1, 6, 7, 4, 5)), (4, (6, 7, 4, 5, 2, 3, 0, 1))]
)
def test_l1_fp4_lane_order(stride: int, order: Any) -> None:
    """The worked orders of L-1: code i sits at nibble order[i]."""
    packed = pack_x4(np.arange(8, dtype=U8), FP4_E2M1, stride=stride)
    nibbles = [int(word) >> 4 * position & 0xF for word in packed for position in range(4)]
    assert [nibbles[position] for position in order] == list(range(8))


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 16])
def test_l1_the_lane_order_reverses_bytes_in_groups_of_stride(stride: int) -> None:
    codes = np.random.default_rng(stride).integers(0, 16, 64, dtype=U8)
    plain = pack_x4(codes, FP4_E2M1).astype("<u2").view(U8)
    strided = pack_x4(codes, FP4_E2M1, stride=stride).astype("<u2").view(U8)
    assert strided.tolist() == plain.reshape(-1, stride)[:, ::-1].ravel().tolist()


shapes = st.tuples(st.sampled_from([32, 64, 96, 128]), st.integers(1, 9).map(lambda words: 4 * words))
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(shapes, seeds, st.sampled_from(ELEMENTS), st.sampled_from([0, 1, 2]), st.sampled_from(FirstNibble))
def test_l1_round_trip(
    shape: tuple[int, int], seed: int, element: ElementFormat, stride: int, first: FirstNibble
) -> None:
    codes = np.random.default_rng(seed).integers(0, element.code_count, shape, dtype=U8)
    options: dict[str, Any] = {"stride": stride, "first_nibble": first} if element is FP4_E2M1 else {}
    words = pack_x4(codes, element, **options)
    assert words.shape == (shape[0], shape[1] // 4)
    assert np.array_equal(unpack_x4(words, element, **options), codes)
    assert np.array_equal(pack_x4(unpack_x4(words, element, **options), element, **options), words)


def test_l1_memory_order_of_the_codes_does_not_matter() -> None:
    codes = np.arange(64, dtype=U8).reshape(8, 8)
    for element, limit in ((FP8_E4M3, 255), (FP4_E2M1, 15)):
        wanted = pack_x4(codes & limit, element)
        assert np.array_equal(pack_x4(np.asfortranarray(codes & limit), element), wanted)
        assert np.array_equal(unpack_x4(np.asfortranarray(wanted), element), codes & limit)
        assert np.array_equal(unpack_x4(wanted.astype(wanted.dtype.newbyteorder(">")), element), codes & limit)


def test_l1_the_words_are_the_callers_own() -> None:
    codes = np.zeros(4, U8)
    words = pack_x4(codes, FP8_E4M3)
    words[:] = 0xFFFFFFFF
    assert codes.tolist() == [0, 0, 0, 0]
    unpack_x4(words, FP8_E4M3)[:] = 0
    assert words.tolist() == [0xFFFFFFFF]


@pytest.mark.parametrize(
    ("codes", "element", "options", "error", "message"),
    [
        (octets(0, 0, 0), FP8_E4M3, {}, ValueError, "codes must have a last axis that is a multiple of 4, not shape"),
        (octets(0, 16, 0, 0), FP4_E2M1, {}, ValueError, "codes must be in 0..15 for fp4_e2m1, not 16"),
        (octets(0, 0, 0, 0), FP4_E2M1, {"stride": 4}, ValueError, "codes must .* multiple of 2 \\* stride = 8, not 4"),
        (octets(0, 0, 0, 0), FP4_E2M1, {"stride": -1}, ValueError, "stride must be 0 or more, not -1"),
        (octets(0, 0, 0, 0), FP8_E4M3, {"stride": 2}, ValueError, "stride and first_nibble must be left alone for fp8"),
        (
            octets(0, 0, 0, 0),
            FP4_E2M1,
            {"first_nibble": True},
            TypeError,
            "first_nibble must be a FirstNibble, not True",
        ),
        (np.zeros(4), FP8_E4M3, {}, TypeError, "codes must be a uint8 array, not float64"),
        (octets(0, 0, 0, 0), "fp8", {}, TypeError, "element must be an ElementFormat, not 'fp8'"),
    ],
)
def test_l1_refusals(codes: Any, element: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        pack_x4(codes, element, **options)


def test_l1_words_of_the_other_width_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^words must be a uint32 array, not uint16"):
        unpack_x4(np.zeros(4, np.uint16), FP8_E4M3)


# -- L-2 to L-4: scale rows -------------------------------------------------------------------------------------------


def test_l2_the_sixteen_partitions() -> None:
    """S1 §5.1: "This places 16 scales at positions: 0-3, 32-35, 64-67, 96-99"."""
    wanted = [0, 1, 2, 3, 32, 33, 34, 35, 64, 65, 66, 67, 96, 97, 98, 99]
    assert scale_partitions(16).tolist() == wanted
    scale = np.arange(1, 17, dtype=U8)[:, None]
    tile = scatter_scales(scale)
    assert tile.shape == (128, 1)
    assert {partition: int(tile[partition, 0]) for partition in range(128) if tile[partition, 0]} == dict(
        zip(wanted, range(1, 17), strict=True)
    )


def test_l2_the_flat_interleave_of_s0_is_the_same_map() -> None:
    """S0 §6.4: scale row i goes to output slot (i & 3) + 32 (i >> 2)."""
    assert scale_partitions(16).tolist() == [(i & 3) + 32 * (i >> 2) for i in range(16)]


def test_l4_four_tensors_share_a_tile() -> None:
    """D: start offsets 0, 4, 8, 12 inside each quadrant; free sizes may differ."""
    tile = np.full((64, 5), 0xFF, U8)
    for offset, columns in ((0, 5), (4, 2), (8, 1), (12, 3)):
        tile = scatter_scales(np.full((8, columns), offset + 1, U8), offset=offset, into=tile)
    by_hand = np.full((64, 5), 0xFF, U8)
    for quadrant in (0, 32):
        by_hand[quadrant : quadrant + 4, :5] = 1
        by_hand[quadrant + 4 : quadrant + 8, :2] = 5
        by_hand[quadrant + 8 : quadrant + 12, :1] = 9
        by_hand[quadrant + 12 : quadrant + 16, :3] = 13
    assert np.array_equal(tile, by_hand)
    assert gather_scales(tile, 8, offset=8, columns=1).tolist() == [[9]] * 8
    assert gather_scales(tile, 8, offset=12, columns=3).tolist() == [[13] * 3] * 8


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([8, 32, 64, 96, 128]), st.integers(1, 9), st.integers(0, 3), st.sampled_from([0, 4, 8, 12]), seeds
)
def test_l2_l3_round_trip_and_foreign_rows(partitions: int, columns: int, wider: int, offset: int, seed: int) -> None:
    """Poison 0xFF stays wherever the scales do not go; the tile given is not written."""
    scale = np.random.default_rng(seed).integers(0, 256, (partitions // 8, columns), dtype=U8)
    poison = np.full((128, columns + wider), 0xFF, U8)
    tile = scatter_scales(scale, offset=offset, into=poison)
    assert np.array_equal(gather_scales(tile, partitions // 8, offset=offset, columns=columns), scale)
    owned = np.zeros(tile.shape, bool)
    for row in range(partitions // 8):
        owned[32 * (row // 4) + offset + row % 4, :columns] = True
    assert owned.sum() == scale.size
    assert (tile[~owned] == 0xFF).all()
    assert (poison == 0xFF).all()


def test_l3_scattered_above_32_partitions_compact_only_up_to_them() -> None:
    compact = np.arange(8, dtype=U8)[:, None]
    scattered = scatter_scales(compact)
    assert np.array_equal(compact_scales(scattered, 64), compact)
    with pytest.raises(ValueError, match=r"^scales must be scattered over 64 partitions, not 8 compact rows"):
        compact_scales(compact, 64)
    for rules in (BIRSIM, OCP, NKI_SIM):
        assert np.array_equal(compact_scales(compact[:4], 32, rules=rules), compact[:4])
        assert np.array_equal(compact_scales(scattered[:32], 32, rules=rules), compact[:4])


def test_l3_the_nki_simulator_goes_by_the_shape_alone() -> None:
    """S1 §5.2: shape[0] == P is scattered, anything else compact; so compact rows pass there above 32 partitions."""
    compact = np.arange(8, dtype=U8)[:, None]
    assert np.array_equal(compact_scales(compact, 64, rules=NKI_SIM), compact)
    assert np.array_equal(compact_scales(scatter_scales(compact), 64, rules=NKI_SIM), compact)
    with pytest.raises(ValueError, match=r"^scales must have 64 rows or 8, not 128"):
        compact_scales(scatter_scales(compact, partitions=128), 64, rules=NKI_SIM)
    assert np.array_equal(compact_scales(scatter_scales(compact, partitions=128), 64), compact)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: scatter_scales(np.zeros((4, 1), U8), offset=3),
            ValueError,
            "offset must be one of 0, 4, 8, 12, not 3",
        ),
        (
            lambda: scatter_scales(np.zeros((8, 1), U8), partitions=35),
            ValueError,
            r"partitions must be at least \[36, 1\]",
        ),
        (
            lambda: scatter_scales(np.zeros((4, 2), U8), into=np.zeros((32, 1), U8)),
            ValueError,
            r"into must be at least \[4, 2\], not \[32, 1\]",
        ),
        (
            lambda: scatter_scales(np.zeros((4, 2), U8), into=np.zeros((32, 2), U8), partitions=32),
            ValueError,
            "partitions must be None where into is given, not 32",
        ),
        (lambda: scatter_scales(np.zeros(4, U8)), ValueError, "scale must have 2 dimensions, not shape"),
        (lambda: scatter_scales(np.zeros((4, 1))), TypeError, "scale must be a uint8 array, not float64"),
        (
            lambda: gather_scales(np.zeros((32, 1), U8), 8),
            ValueError,
            r"tile must be at least \[36, 1\], not \[32, 1\]",
        ),
    ],
)
def test_l2_refusals(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


# -- L-5, L-6: matrices -----------------------------------------------------------------------------------------------

COUNTED = np.array([[10 * k + n for n in range(2)] for k in range(8)])
"""K = 8, N = 2; the element at (k, n) reads "kn"."""


def test_l5_1x32_by_hand() -> None:
    """out[p, 4n + q] = in[4p + q, n] (S1 §1: "[32,1] blocks -> [8,4] blocks")."""
    assert swizzle(COUNTED).tolist() == [[0, 10, 20, 30, 1, 11, 21, 31], [40, 50, 60, 70, 41, 51, 61, 71]]


def test_l5_wrap_by_hand() -> None:
    """out[p, 4n + q] = in[q K/4 + p, n] (C, D)."""
    assert swizzle(COUNTED, Swizzle.WRAP).tolist() == [[0, 20, 40, 60, 1, 21, 41, 61], [10, 30, 50, 70, 11, 31, 51, 71]]


def test_l5_1x32_is_the_formula_of_the_source() -> None:
    """S1 §1: reshaped.transpose(1, 2).reshape(M // 4, N * 4), reshaped being [M // 4, 4, N]."""
    matrix = np.arange(64 * 6).reshape(64, 6)
    assert np.array_equal(swizzle(matrix), matrix.reshape(16, 4, 6).transpose(0, 2, 1).reshape(16, 24))


def test_l5_a_block_of_the_1x32_swizzle_is_32_consecutive_k() -> None:
    matrix = np.arange(64 * 3).reshape(64, 3)
    swizzled = swizzle(matrix)
    for block in range(2):
        for column in range(3):
            held = swizzled[8 * block : 8 * block + 8, 4 * column : 4 * column + 4]
            assert sorted(held.ravel().tolist()) == matrix[32 * block : 32 * block + 32, column].tolist()


def test_l6_by_hand() -> None:
    """Row p * factor + q holds lane q of partition p."""
    assert deinterleave(np.array([[0, 1, 2, 3], [4, 5, 6, 7]]), 2).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert deinterleave(np.arange(8)[None], 4).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert interleave(np.array([[0, 2], [1, 3], [4, 6], [5, 7]]), 2).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 2), max_size=1),
    st.sampled_from([4, 36, 128, 384, 512, 516, 1000]),
    st.integers(1, 7),
    st.sampled_from(Swizzle),
)
def test_l5_l6_round_trips(leading: list[int], rows: int, columns: int, order: Swizzle) -> None:
    shape = (*leading, rows, columns)
    matrix = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    swizzled = swizzle(matrix, order)
    assert swizzled.shape == (*leading, rows // 4, 4 * columns)
    assert sorted(swizzled.ravel().tolist()) == matrix.ravel().tolist()
    assert np.array_equal(unswizzle(swizzled, order), matrix)
    assert np.array_equal(
        swizzle(unswizzle(matrix.reshape(*leading, columns, rows), order), order).ravel(), matrix.ravel()
    )
    for factor in (1, 2, 4):
        assert np.array_equal(deinterleave(interleave(matrix, factor), factor), matrix)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: swizzle(np.zeros((6, 2))), "matrix must have a number of rows that is a multiple of 4, not 6"),
        (lambda: unswizzle(np.zeros((2, 6))), "matrix must have a last axis that is a multiple of 4, not 6"),
        (lambda: deinterleave(np.zeros((2, 6)), 4), "matrix must have a last axis that is a multiple of 4, not 6"),
        (lambda: interleave(np.zeros((6, 2)), 4), "matrix must have a number of rows that is a multiple of 4, not 6"),
        (lambda: swizzle(np.zeros(8)), r"matrix must have 2 dimensions or more, not shape \(8,\)"),
    ],
)
def test_l5_refusals(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


# -- L-7, L-8: files --------------------------------------------------------------------------------------------------


def test_l8_low_nibble_is_the_even_element() -> None:
    """One block of 16 bytes, written by hand: bytes 10 32 54 76 98 BA DC FE twice hold codes 0..15 twice."""
    block = octets(0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE)
    blocks = np.concatenate([block, block]).reshape(1, 16)
    assert gpt_oss_codes(blocks).tolist() == [*range(16), *range(16)]
    assert gpt_oss_blocks(octets(*range(16), *range(16))).tolist() == blocks.tolist()


def test_l8_a_synthetic_checkpoint_goes_in_and_out_unchanged() -> None:
    """[2, 6, 3, 16] blocks, [2, 6, 3] scales: two experts, 6 rows of the output, K = 96."""
    rng = np.random.default_rng(8)
    blocks, scales = rng.integers(0, 256, (2, 6, 3, 16), dtype=U8), rng.integers(0, 255, (2, 6, 3), dtype=U8)
    codes, scale = mx_of_axis_blocks(gpt_oss_codes(blocks), scales)
    assert (codes.shape, scale.shape) == ((2, 24, 24), (2, 3, 6))
    # L-7: on disk the same weights are [E, H/4, 2I] words and [E, H/32, 2I] scales, here H = 96, 2I = 6.
    assert pack_x4(codes, FP4_E2M1).shape == (2, 24, 6)
    code_at = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    compared = 0
    for expert in range(2):
        values = MxTensor(codes=codes[expert], scale=scale[expert], element=FP4_E2M1, rules=OCP).values()
        for row in range(6):
            for k in range(96):
                octet = int(blocks[expert, row, k // 32, k % 32 // 2])
                code = octet >> 4 if k % 2 else octet & 0xF
                value = (-1.0) ** (code >> 3) * code_at[code & 7] * 2.0 ** (int(scales[expert, row, k // 32]) - 127)
                assert values[k // 4, 4 * row + k % 4] == np.float32(value)
                compared += 1
    assert compared == 2 * 6 * 96
    back, back_scales = axis_blocks_of_mx(codes, scale)
    assert np.array_equal(gpt_oss_blocks(back), blocks)
    assert np.array_equal(back_scales, scales)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 2), max_size=1), st.integers(1, 5), st.integers(1, 5), st.booleans(), seeds)
def test_l8_axis_blocks_round_trip(leading: list[int], columns: int, count: int, k_first: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inner = ([32 * count, columns], [count, columns]) if k_first else ([columns, 32 * count], [columns, count])
    codes = rng.integers(0, 256, (*leading, *inner[0]), dtype=U8)
    scale = rng.integers(0, 256, (*leading, *inner[1]), dtype=U8)
    axis = -2 if k_first else -1
    mx_codes, mx_scale = mx_of_axis_blocks(codes, scale, axis=axis)
    assert mx_codes.shape == (*leading, 8 * count, 4 * columns)
    assert mx_scale.shape == (*leading, count, columns)
    back, back_scale = axis_blocks_of_mx(mx_codes, mx_scale, axis=axis)
    assert np.array_equal(back, codes)
    assert np.array_equal(back_scale, scale)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: gpt_oss_codes(np.zeros((3, 15), U8)),
            ValueError,
            r"blocks must be \[..., K/32, 16\], not shape \(3, 15\)",
        ),
        (lambda: gpt_oss_codes(np.zeros((3, 16))), TypeError, "blocks must be a uint8 array, not float64"),
        (lambda: gpt_oss_blocks(np.zeros(48, U8)), ValueError, "codes must have a last axis that is a multiple of 32"),
        (
            lambda: mx_of_axis_blocks(np.zeros((2, 48), U8), np.zeros((2, 1), U8)),
            ValueError,
            "codes must have a multiple of 32 along axis -1, not 48",
        ),
        (
            lambda: mx_of_axis_blocks(np.zeros((2, 64), U8), np.zeros((2, 1), U8)),
            ValueError,
            r"scale must be \[2, 2\] for codes of shape \[2, 64\], not \[2, 1\]",
        ),
        (
            lambda: axis_blocks_of_mx(np.zeros((8, 8), U8), np.zeros((2, 1), U8)),
            ValueError,
            r"scale must be \[1, 2\] for codes of shape \[8, 8\], not \[2, 1\]",
        ),
    ],
)
def test_l8_refusals(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        call()


# -- M-8: tags --------------------------------------------------------------------------------------------------------


def test_m8_tags_by_hand() -> None:
    """pos(k, m) = (tags[k, m >> 2] >> 4 (m & 3)) & 0xF."""
    assert pack_tags(octets(1, 2, 3, 4, 15, 0, 0, 8)[None]).tolist() == [[0x4321, 0x800F]]
    assert unpack_tags(np.array([[0x4321, 0x800F]], np.uint16)).tolist() == [[1, 2, 3, 4, 15, 0, 0, 8]]


def test_m8_flipped_tags_begin_with_column_127() -> None:
    positions = np.zeros((1, 256), U8)
    positions[0, [127, 126, 0, 255]] = [1, 2, 3, 4]
    tags = pack_tags(positions, order=TagOrder.FLIPPED)[0].tolist()
    assert tags == [0x0021, *[0] * 30, 0x3000, 0x0004, *[0] * 31]
    assert np.array_equal(unpack_tags(np.array([tags], np.uint16), order=TagOrder.FLIPPED), positions)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.sampled_from(TagOrder), seeds)
def test_m8_tags_round_trip(rows: int, order: TagOrder, seed: int) -> None:
    positions = np.random.default_rng(seed).integers(0, 16, (rows, 256), dtype=U8)
    assert np.array_equal(unpack_tags(pack_tags(positions, order=order), order=order), positions)


@pytest.mark.parametrize(
    ("positions", "order", "message"),
    [
        (octets(0, 0, 16, 0)[None], TagOrder.NATURAL, "positions must be in 0..15, not 16"),
        (octets(0, 0, 0)[None], TagOrder.NATURAL, "positions must have a last axis that is a multiple of 4"),
        (octets(0, 0, 0, 0)[None], TagOrder.FLIPPED, "tags in the flipped order must .* multiple of 128"),
    ],
)
def test_m8_tag_refusals(positions: Any, order: TagOrder, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        pack_tags(positions, order=order)
