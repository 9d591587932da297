"""Where tensors lie: automatic places in a memory, and views of a place by slices."""

from dataclasses import replace
from math import prod

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.formats import MX_BLOCK, BirDtype
from mxmodel.layout import QUADRANT_PARTITIONS, SCALE_OFFSETS, scale_row_steps, scale_span
from mxmodel.memory import (
    DEFAULT_DRAM_BYTES,
    PARTITIONS,
    PSUM_BANK_BYTES,
    PSUM_BANKS,
    SBUF_PARTITION_BYTES,
    Generation,
)

__all__ = ["Placer", "scattered", "slice_text", "sliced", "tensor_place"]

_ALIGNMENT = {Space.SBUF: 64, Space.PSUM: PSUM_BANK_BYTES, Space.DRAM: 64}
"""Of automatic places; in PSUM every tensor has banks of its own, which a head may clear (P-2)."""


def tensor_place(
    space: Space,
    dtype: BirDtype,
    shape: tuple[int, ...],
    *,
    start_partition: int = 0,
    offset: int = 0,
    partition_step: int | None = None,
) -> AccessPattern:
    """A whole tensor [partitions, free ...] in containers, its free dimensions packed in C order.

    In DRAM its rows are packed too, unless ``partition_step`` says how many bytes apart they lie. ValueError or
    TypeError as ``AccessPattern``, or for a shape of fewer than two dimensions.
    """
    if len(shape) < 2:
        raise ValueError(f"shape must be [partitions, free ...], two dimensions or more, not {list(shape)}")
    free = shape[1:]
    pattern = tuple((prod(free[axis + 1 :]), num) for axis, num in enumerate(free))
    if space is Space.DRAM and partition_step is None:
        partition_step = prod(free) * dtype.size
    return AccessPattern(
        space=space,
        dtype=dtype,
        partitions=shape[0],
        pattern=pattern,
        start_partition=start_partition,
        offset=offset,
        partition_step=partition_step,
    )


def scattered(place: AccessPattern, partitions: int) -> tuple[AccessPattern, AccessPattern]:
    """A place of scale rows, scattered over the quadrants of their data: (what holds them, what instructions name).

    ``place`` starts where row 0 lies, ``partitions`` is of the data (L-2, L-3). The first result names exactly the
    rows owned; the second reaches from the first row over as many partitions as the data has, or as there are.

    Raises ValueError unless the data is on whole quadrants of SBUF and row 0 at 0, 4, 8 or 12 of one (L-4).
    """
    quadrants, rest = divmod(partitions, QUADRANT_PARTITIONS)
    if place.space is not Space.SBUF:
        raise ValueError(f"scattered scales must be in sbuf, not in {place.space.value} (L-2)")
    if place.start_partition % QUADRANT_PARTITIONS not in SCALE_OFFSETS:
        offsets = ", ".join(map(str, SCALE_OFFSETS))
        raise ValueError(
            f"scattered scales must start at partition {offsets} of a quadrant, not "
            f"{place.start_partition % QUADRANT_PARTITIONS} (L-4)"
        )
    if rest or not 1 <= quadrants <= PARTITIONS // QUADRANT_PARTITIONS:
        raise ValueError(f"scattered scales must be of data on 32, 64, 96 or 128 partitions, not {partitions} (L-3)")
    rows = partitions // MX_BLOCK.rows
    span = scale_span(quadrants)
    if place.start_partition + span > PARTITIONS:
        raise ValueError(
            f"scattered scales must end at partition {PARTITIONS - 1}, not {place.start_partition + span - 1}"
        )
    owned = replace(place, partitions=rows)
    if quadrants > 1:
        owned = replace(owned, partition_pattern=scale_row_steps(quadrants))
    reach = min(partitions, PARTITIONS - place.start_partition) if quadrants > 1 else rows
    return owned, replace(place, partitions=reach)


class Placer:
    """Places for tensors that name none: after everything placed before, in the same memory.

    Bytes are counted for all partitions alike, so no two tensors share bytes of any partition.
    """

    def __init__(self, generation: Generation) -> None:
        self._end = dict.fromkeys(Space, 0)
        self._limit = {
            Space.SBUF: SBUF_PARTITION_BYTES[generation],
            Space.PSUM: PSUM_BANKS * PSUM_BANK_BYTES,
            Space.DRAM: DEFAULT_DRAM_BYTES,
        }

    def reserve(self, place: AccessPattern) -> None:
        """Keep automatic places clear of an explicit one."""
        self._end[place.space] = max(self._end[place.space], _end_of(place))

    def place(self, place: AccessPattern) -> AccessPattern:
        """``place`` at the next free offset; ValueError if the memory is full."""
        alignment = _ALIGNMENT[place.space]
        moved = replace(place, offset=-(-self._end[place.space] // alignment) * alignment)
        end = _end_of(moved)
        if end > self._limit[place.space]:
            limit = self._limit[place.space]
            raise ValueError(f"{place.space.value} must have room up to byte {end}, and has {limit}; give an offset")
        self._end[place.space] = end
        return moved


def _end_of(place: AccessPattern) -> int:
    return place.end_offset + (place.partition_step or 0) * (place.partitions - 1)


def sliced(place: AccessPattern, index: tuple[int | slice, ...]) -> AccessPattern:
    """The part of ``place`` that ``index`` names, one entry a dimension, partitions first; missing ones are whole.

    An integer keeps its dimension, of length 1. ValueError outside the tensor, for an empty part, and for partitions
    that are not consecutive outside DRAM.
    """
    if len(index) > len(place.shape):
        raise ValueError(f"slices must be at most {len(place.shape)}, one a dimension, not {len(index)}")
    spans = [_span(entry, length, axis) for axis, (entry, length) in enumerate(zip(index, place.shape, strict=False))]
    spans += [(0, 1, length) for length in place.shape[len(index) :]]
    (first, step, partitions), *free = spans
    start, offset, partition_step = place.start_partition, place.offset, place.partition_step
    if place.rows is not None and (first, step, partitions) != (0, 1, place.partitions):
        raise ValueError("the partitions of gathered rows must not be sliced")
    if partition_step is not None:
        offset += first * partition_step
        partition_step *= step
    elif step != 1 and partitions > 1:
        raise ValueError(f"partitions must be consecutive in {place.space.value}, not every {step}th")
    elif place.partition_pattern is not None and (first, partitions) != (0, place.partitions):
        raise ValueError("the rows of a scattered tensor must be taken whole")
    else:
        start += first
    pattern = []
    for (container_step, _), (first, step, num) in zip(place.pattern, free, strict=True):
        offset += first * container_step * place.dtype.size
        pattern.append((container_step * step, num))
    return replace(
        place,
        start_partition=start,
        partitions=partitions,
        offset=offset,
        pattern=tuple(pattern),
        partition_step=partition_step,
    )


def _span(entry: int | slice, length: int, axis: int) -> tuple[int, int, int]:
    """(first, step, count) of one dimension."""
    if isinstance(entry, bool) or not isinstance(entry, (int, slice)):
        raise TypeError(f"slice {axis} must be an integer or a slice, not {entry!r}")
    if isinstance(entry, int):
        start, stop, step = entry, entry + 1, 1
    else:
        start = 0 if entry.start is None else entry.start
        stop = length if entry.stop is None else entry.stop
        step = 1 if entry.step is None else entry.step
    if not 0 <= start < stop <= length or step < 1:
        raise ValueError(f"slice {axis} must name something in 0..{length}, not {start}:{stop}:{step}")
    return start, step, -(-(stop - start) // step)


def slice_text(place: AccessPattern, part: AccessPattern) -> str | None:
    """The slices that make ``part`` of ``place``, as text; "" for all of it; None where no slices do."""
    if part == place:
        return ""
    if len(part.pattern) != len(place.pattern) or part.dtype != place.dtype or part.space is not place.space:
        return None
    delta = part.offset - place.offset
    first, step = part.start_partition - place.start_partition, 1
    if place.partition_step:
        first, delta = divmod(delta, place.partition_step)
        step = max(1, (part.partition_step or 0) // place.partition_step)
    containers, rest = divmod(delta, place.dtype.size)
    if rest or delta < 0:
        return None
    index = [slice(first, first + step * (part.partitions - 1) + 1, step)]
    for (container_step, _), (taken_step, num) in zip(place.pattern, part.pattern, strict=True):
        at, containers = divmod(containers, container_step) if container_step else (0, containers)
        step = max(1, taken_step // container_step) if container_step else 1
        index.append(slice(at, at + step * (num - 1) + 1, step))
    try:
        if sliced(place, tuple(index)) != part:
            return None
    except ValueError:
        return None
    words = [_slice_words(entry, length) for entry, length in zip(index, place.shape, strict=True)]
    return f"[{', '.join(words)}]"


def _slice_words(entry: slice, length: int) -> str:
    if (entry.start, entry.stop, entry.step) == (0, length, 1):
        return ":"
    return f"{entry.start}:{entry.stop}" + ("" if entry.step == 1 else f":{entry.step}")
