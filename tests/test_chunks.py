"""Cuts, pieces of broadcast operands, working memory, and the block grid."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxmodel.blocks import block_chunks, block_grid, rows_of_blocks, scale_of_columns
from mxmodel.chunks import chunks, part_of, scratch
from mxmodel.formats import FP8_E4M3
from mxmodel.quantize import dequantize_mx, quantize_mx

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@settings(max_examples=200, deadline=None)
@given(shapes, st.integers(1, 40))
def test_parts_cover_the_shape_once_in_order_and_are_small(shape: tuple[int, ...], size: int) -> None:
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    parts = list(chunks(shape, size=size))
    pieces = [numbers[part].ravel() for part in parts]
    assert all(0 < piece.size <= size for piece in pieces)
    assert all(len(part) == len(shape) for part in parts)
    joined = np.concatenate(pieces) if pieces else numbers.ravel()
    assert joined.tolist() == list(range(numbers.size))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), st.integers(1, 9), st.integers(0, 2**16))
def test_a_part_of_an_operand_is_that_of_its_broadcast(shape: tuple[int, ...], size: int, choice: int) -> None:
    own = tuple(1 if choice >> axis & 1 else length for axis, length in enumerate(shape))[choice % (len(shape) + 1) :]
    operand = np.arange(np.prod(own, dtype=int)).reshape(own)
    whole = np.broadcast_to(operand, shape)
    for part in chunks(shape, size=size):
        piece = part_of(operand, part)
        assert np.array_equal(np.broadcast_to(piece, whole[part].shape), whole[part])
        assert piece.size <= operand.size


def test_working_memory_is_kept_for_a_slot_and_a_thread() -> None:
    first = scratch("test", (3, 4), np.uint32)
    assert (first.shape, first.dtype) == ((3, 4), np.uint32)
    assert np.shares_memory(first, scratch("test", (2,), np.uint64))
    assert not np.shares_memory(first, scratch("test other", (3, 4), np.uint32))
    assert scratch("test", (1000,), np.uint32).size == 1000
    elsewhere: list[Any] = []
    worker = threading.Thread(target=lambda: elsewhere.append(scratch("test", (2,), np.uint32)))
    worker.start()
    worker.join()
    assert not np.shares_memory(elsewhere[0], scratch("test", (2,), np.uint32))


def test_results_do_not_share_memory_and_threads_do_not_disturb_each_other() -> None:
    x = np.random.default_rng(0).standard_normal((6, 64, 1024)).astype(np.float32)
    alone = [quantize_mx(tensor, FP8_E4M3) for tensor in x]
    values = [dequantize_mx(tensor) for tensor in alone]
    assert not any(np.shares_memory(values[0], other) for other in values[1:])
    failures: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            tensor = quantize_mx(x[index], FP8_E4M3)
            if tensor != alone[index] or not np.array_equal(dequantize_mx(tensor), values[index]):
                failures.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(len(x))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert failures == []


@pytest.mark.parametrize("shape", [(8, 4), (16, 12), (8, 131_072 * 4), (8 * 5_000, 4)], ids=str)
def test_block_chunks_pair_the_grid_with_the_tensor(shape: tuple[int, int]) -> None:
    grid = block_grid(shape)
    assert grid == (shape[0] // 8, shape[1] // 4)
    seen = np.zeros(grid, int)
    for blocks, elements in block_chunks(grid):
        seen[blocks] += 1
        assert [(cut.start, cut.stop) for cut in elements] == [
            (cut.start * side, cut.stop * side) for cut, side in zip(blocks, (8, 4), strict=True)
        ]
    assert (seen == 1).all()


def test_scale_of_columns_lines_up_with_rows_of_blocks() -> None:
    scale = np.arange(6, dtype=np.uint8).reshape(2, 3)
    tensor = np.zeros((16, 12), np.uint8)
    rows_of_blocks(tensor)[...] = scale_of_columns(scale)
    assert tensor.tolist() == [[int(scale[r // 8, c // 4]) for c in range(12)] for r in range(16)]


def test_the_grid_names_what_it_refuses() -> None:
    with pytest.raises(
        ValueError, match=r"^weights must be \[P, F\] with P % 8 == 0 and F % 4 == 0, not shape \(8, 5\)"
    ):
        block_grid((8, 5), name="weights")
