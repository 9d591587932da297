"""Where an operand lies: memory, partitions, and a pattern of steps inside each partition (S4 §1).

An access pattern is what instructions carry, what legality rules count and what memories read and write.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, reduce
from math import prod

import numpy as np

from mxmodel.formats import MX_BLOCK, BirDtype
from mxmodel.layout import QUADRANT_PARTITIONS, SCALE_ROWS, scale_row_steps, scale_span
from mxmodel.rules import NKI_SIM, RuleSet

__all__ = ["AccessPattern", "Space"]


class Space(Enum):
    """The memories of a core."""

    SBUF = "sbuf"
    PSUM = "psum"
    DRAM = "dram"


@dataclass(frozen=True, kw_only=True)
class AccessPattern:
    """One operand of an instruction.

    Attributes
    ----------
    space : the memory
    dtype : of a container; four logical elements of an x4 dtype share one (F-5)
    start_partition : the first partition touched. The seeds have it as base byte offset / first stride; it is that
        quotient. 0 in DRAM, which has no partitions.
    partitions : how many partitions are touched, one after the other
    offset : bytes from the beginning of a partition (of DRAM) to the first container
    pattern : (step, num) for each dimension inside a partition, slowest first, steps in containers; a step of 0 reads
        the same container again
    partition_step : bytes from one row to the next; of DRAM only
    rows : the rows to take instead, in any order: an operand of integers (M-7; a gathered stationary only)
    partition_pattern : (step, num) of partitions in place of consecutive ones; made by ``scale_rows`` only

    Raises
    ------
    TypeError or ValueError for an attribute that cannot be, whatever the memory's size: memories check that
    """

    space: Space
    dtype: BirDtype
    partitions: int
    pattern: tuple[tuple[int, int], ...]
    start_partition: int = 0
    offset: int = 0
    partition_step: int | None = None
    rows: "AccessPattern | None" = None
    partition_pattern: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.space, Space):
            raise TypeError(f"space must be a Space, not {self.space!r}")
        if not isinstance(self.dtype, BirDtype):
            raise TypeError(f"dtype must be a BirDtype, not {self.dtype!r}")
        for name, least in (("partitions", 1), ("start_partition", 0), ("offset", 0)):
            _check_count(name, getattr(self, name), least)
        if not isinstance(self.pattern, tuple) or not self.pattern:
            raise TypeError(f"pattern must be a tuple of (step, num), not {self.pattern!r}")
        if len(self.pattern) > _MOST_DIMENSIONS:
            raise ValueError(f"pattern must have at most {_MOST_DIMENSIONS} dimensions, not {len(self.pattern)}")
        for dimension in self.pattern:
            if not isinstance(dimension, tuple) or len(dimension) != 2:
                raise TypeError(f"pattern must be a tuple of (step, num), not {self.pattern!r}")
            _check_count("pattern step", dimension[0], 0)
            _check_count("pattern num", dimension[1], 1)
        if (self.partition_step is None) is (self.space is Space.DRAM):
            wanted = "given in bytes for DRAM" if self.space is Space.DRAM else f"None for {self.space.value}"
            raise ValueError(f"partition_step must be {wanted}, not {self.partition_step!r}")
        if self.partition_step is not None:
            _check_count("partition_step", self.partition_step, 0)
            if self.start_partition:
                raise ValueError(f"start_partition must be 0 for DRAM, not {self.start_partition!r}")

    @cached_property
    def rows_accessed(self) -> int:
        """Partitions of the operand that an instruction sees: of a gathered one as many as there are row numbers."""
        return self.partitions if self.rows is None else prod(self.rows.shape)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """[rows accessed, num, ...] in containers."""
        return (self.rows_accessed, *(num for _, num in self.pattern))

    @cached_property
    def containers_per_partition(self) -> int:
        return prod(num for _, num in self.pattern)

    @cached_property
    def elements_per_partition(self) -> int:
        """The logical count that every legality rule speaks of: four for each x4 container (F-5)."""
        return self.containers_per_partition * self.dtype.elements_per_container

    @cached_property
    def end_offset(self) -> int:
        """Bytes from the beginning of a partition to just past the last container touched."""
        return self.offset + (sum(step * (num - 1) for step, num in self.pattern) + 1) * self.dtype.size

    @cached_property
    def last_partition(self) -> int:
        pattern = self.partition_pattern or ((1, self.partitions),)
        return self.start_partition + sum(step * (num - 1) for step, num in pattern)

    @property
    def quadrant(self) -> int:
        """Of the first partition: 32 partitions are one (S4 §3)."""
        return self.start_partition // QUADRANT_PARTITIONS

    @cached_property
    def repeats(self) -> bool:
        """Whether some byte is named twice, so that the operand can be read but not written."""
        if self.rows is not None:
            return True
        if self.partition_step is None or self.partition_step >= self.end_offset - self.offset or self.partitions == 1:
            return _collide(self.pattern)
        size = self.dtype.size
        octets = (
            (self.partition_step, self.partitions),
            *((step * size, num) for step, num in self.pattern),
            (1, size),
        )
        return _collide(octets)

    def covers(self, part: "AccessPattern") -> bool:
        """Whether the partitions of ``part``, and its bytes from first to last, are within this place's own.

        A place of scattered rows covers what begins at its first row: instructions name it so (L-3).
        """
        if self.space is not part.space or self.offset > part.offset or self.start_partition > part.start_partition:
            return False
        ends = [one.end_offset + (one.partition_step or 0) * (one.partitions - 1) for one in (self, part)]
        if ends[1] > ends[0] or self.space is Space.DRAM:
            return ends[1] <= ends[0]
        if self.partition_pattern is not None:
            return part.start_partition == self.start_partition
        return part.last_partition <= self.last_partition

    @property
    def nbytes(self) -> int:
        """Of all its containers."""
        return self.partitions * self.containers_per_partition * self.dtype.size

    def scale_rows(self, partitions: int, rules: RuleSet) -> "AccessPattern":
        """The scale rows that data on ``partitions`` partitions owns, as an operand of exactly those (L-2, L-3).

        Scattered, row i sits at the start partition + (i & 3) + 32 (i >> 2); this operand must reach that far. Compact
        scales, one row for each 8 partitions, are the same thing for data on up to 32 partitions. Under ``NKI_SIM``
        an operand of just so many rows is compact for any data (S1 §5.2).

        Raises ValueError where the rows are not in reach.
        """
        count = partitions // MX_BLOCK.rows
        if rules == NKI_SIM and self.partitions == count:
            return self
        if count <= SCALE_ROWS:
            if self.partitions < count:
                raise ValueError(f"scales must be on at least {count} partitions, not {self.partitions} (L-3)")
            return replace(self, partitions=count)
        quadrants, rest = divmod(count, SCALE_ROWS)
        if rest:
            raise ValueError(
                f"scales must belong to data on whole quadrants of {QUADRANT_PARTITIONS} partitions, not {partitions}"
            )
        span = scale_span(quadrants)
        if self.partitions < span:
            raise ValueError(
                f"scales of data on {partitions} partitions must be scattered over at least {span}, not on "
                f"{self.partitions} (L-3)"
            )
        return replace(self, partitions=count, partition_pattern=scale_row_steps(quadrants))

    def __str__(self) -> str:
        """Memory, place and shape; steps in containers only where the containers are not packed."""
        place = f"partitions {self.start_partition}..{self.last_partition}, " if self.space is not Space.DRAM else ""
        text = f"{self.space.value} {place}byte {self.offset}, {list(self.shape)} {self.dtype.name}"
        packed = 1
        for step, num in reversed(self.pattern):
            if num > 1 and step != packed:
                text += f" in steps of {', '.join(str(step) for step, _ in self.pattern)}"
                break
            packed *= num
        row = self.containers_per_partition * self.dtype.size
        if self.partition_step is not None and self.partitions > 1 and self.partition_step != row:
            text += f", rows {self.partition_step} bytes apart"
        return text if self.rows is None else f"{text}, of which rows are gathered"


_MOST_DIMENSIONS = 16
"""Inside a partition; the hardware's own patterns have fewer."""


def _collide(dimensions: tuple[tuple[int, int], ...]) -> bool:
    """Whether two indices of such (step, num) dimensions come to the same place."""
    reach = 0
    for step, num in sorted(dimension for dimension in dimensions if dimension[1] > 1):
        if step <= reach:  # perhaps: the dimensions are woven into one another
            places = reduce(np.add.outer, (step * np.arange(num) for step, num in dimensions), np.zeros((), np.int64))
            return np.unique(places).size < places.size
        reach += step * (num - 1)
    return False


_MOST = 1 << 62
"""No byte of any memory is so far away."""


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {value!r}")
    if not least <= value < _MOST:
        wanted = f"{least} or more" if value < least else "below 2^62"
        raise ValueError(f"{name} must be {wanted}, not {value if abs(value) < _MOST else 'a larger number'!r}")
