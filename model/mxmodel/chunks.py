"""Cutting a whole-tensor operation into pieces whose temporaries stay in cache, and memory for those temporaries.

What is computed depends neither on where the cuts fall nor on what the memory held.
"""

import threading
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "Part", "chunks", "part_of", "scratch"]

Part: TypeAlias = tuple[slice, ...]
"""One slice for each axis of the shape that was cut."""

CHUNK = 1 << 17
"""Elements in one piece: 512 KiB of fp32, so that a few temporaries stay in cache and Python's share stays small."""


def chunks(shape: tuple[int, ...], *, size: int = CHUNK) -> Iterator[Part]:
    """Cut ``shape`` into parts of about ``size`` elements, in order, each as wide in the trailing axes as it can be.

    A part has at most ``size`` elements; parts do not overlap and together cover the shape. An empty shape
    has none.
    """
    if 0 in shape:
        return
    axis = 0
    while axis < len(shape) and prod(shape[axis + 1 :]) > size:
        axis += 1
    if axis == len(shape):
        yield ()
        return
    step = max(1, size // prod(shape[axis + 1 :]))
    whole = tuple(slice(0, length) for length in shape[axis + 1 :])
    for leading in product(*(range(length) for length in shape[:axis])):
        for start in range(0, shape[axis], step):
            yield (
                *(slice(index, index + 1) for index in leading),
                slice(start, min(start + step, shape[axis])),
                *whole,
            )


def part_of(array: NDArray[Any], part: Part) -> NDArray[Any]:
    """The piece of ``array`` that broadcasts to ``part`` of the shape it was broadcast to (a view)."""
    own = part[len(part) - array.ndim :] if array.ndim else ()
    cuts = (slice(0, 1) if length == 1 else cut for length, cut in zip(array.shape, own, strict=True))
    return array[(*cuts, ...)]


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.of: dict[str, NDArray[np.uint8]] = {}


_BUFFERS = _Buffers()


def scratch(slot: str, shape: tuple[int, ...], dtype: type[Any]) -> NDArray[Any]:
    """An array to work in, of unspecified content: the same memory at every call of this thread with this ``slot``.

    Fresh memory would cost more than the arithmetic done in it. It must not outlive the piece it was taken for, and a
    slot belongs to one place in the code.
    """
    size = prod(shape) * np.dtype(dtype).itemsize
    buffer = _BUFFERS.of.get(slot)
    if buffer is None or buffer.size < size:
        buffer = _BUFFERS.of[slot] = np.empty(size, dtype=np.uint8)
    return np.asarray(buffer[:size].view(dtype).reshape(shape))
