"""SBUF, PSUM and DRAM: bytes, a written bit for each, and the one way in and out (S0 §1, §5; contract P).

A memory reads and writes what an ``AccessPattern`` names. PSUM besides accumulates, and clears its banks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.accumulation import psum_add, psum_write
from mxmodel.formats import BF16, FP32, SourceFormat
from mxmodel.memory_object import MemoryObject, container_dtype

__all__ = [
    "DEFAULT_DRAM_BYTES",
    "PARTITIONS",
    "PSUM_BANKS",
    "PSUM_BANK_BYTES",
    "SBUF_PARTITION_BYTES",
    "Generation",
    "Memory",
    "MemoryFault",
    "MemoryRequest",
    "Psum",
    "PsumCommand",
    "Read",
    "Reserve",
    "Transfer",
    "Uninitialised",
    "UnwrittenRead",
    "Write",
    "WriteAccumulate",
    "cell_format",
    "sbuf",
]

PARTITIONS = 128
PSUM_BANKS = 8
PSUM_BANK_BYTES = 2048
"""Of one partition (P-1)."""
DEFAULT_DRAM_BYTES = 1 << 28
"""DRAM is as large as a program wants it; this much costs nothing until it is written."""


class Generation(IntEnum):
    """Of the core; the code names are the vendor's."""

    V2 = 2
    V3 = 3
    V4 = 4
    """MARIANA: the first with MX instructions."""
    V5 = 5
    """MAVERICK."""


SBUF_PARTITION_BYTES = {
    Generation.V2: (24 << 20) // PARTITIONS,
    Generation.V3: (28 << 20) // PARTITIONS,
    Generation.V4: (32 << 20) // PARTITIONS,
    Generation.V5: (32 << 20) // PARTITIONS,
}
"""v5's is not known: taken to be v4's (A)."""


class Uninitialised(Enum):
    """What an instruction may do with bytes that nobody has written (P-4)."""

    REFUSED = "refused"
    ALLOWED = "allowed"
    """They read as zero."""


class PsumCommand(Enum):
    """What a matmul does with what its destination holds (P-2, P-3)."""

    HEAD = "head"
    """Clear the banks, then write."""
    BODY = "body"
    """Add, without a clear."""
    IDLE = "idle"
    """Overwrite, without a clear."""
    FIRST_WRITE = "first_write"
    """The public API's ``accumulate=None``: a cell's first write overwrites, later ones add (P-4)."""


class MemoryFault(ValueError):
    """A program reached where it may not; one line that names the operand, the place and what was wanted."""


class UnwrittenRead(MemoryFault):
    """A byte is read, or added onto, that was never written (P-4).

    Attributes
    ----------
    pattern : what was to be read
    address : of the first such byte, as messages name it
    """

    def __init__(self, pattern: AccessPattern, address: str) -> None:
        super().__init__(f"{address} must be written before it is read (P-4)")
        self.pattern, self.address = pattern, address


@dataclass(frozen=True, kw_only=True)
class Read:
    """A request to a memory: answered with the object read."""

    pattern: AccessPattern
    uninitialised: Uninitialised = Uninitialised.REFUSED


@dataclass(frozen=True, kw_only=True, eq=False)
class Write:
    """A request to a memory: overwrite."""

    pattern: AccessPattern
    value: MemoryObject


@dataclass(frozen=True, kw_only=True, eq=False)
class WriteAccumulate:
    """A request to PSUM: let a product enter."""

    pattern: AccessPattern
    product: NDArray[np.float32]
    command: PsumCommand
    zero_banks_log2: int = 0
    uninitialised: Uninitialised = Uninitialised.REFUSED


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """A request to a memory: refuse what could not be written, before an instruction changes anything."""

    pattern: AccessPattern


MemoryRequest = Read | Write | WriteAccumulate | Reserve


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One access, as a trace shows it."""

    action: str
    pattern: AccessPattern
    size: int


class Memory:
    """Bytes in partitions. DRAM is one partition, whose rows lie ``partition_step`` bytes apart.

    Parameters
    ----------
    space : which memory
    partition_bytes : of each of ``partitions``
    observe : is told of every access
    """

    def __init__(
        self,
        space: Space,
        partition_bytes: int,
        *,
        partitions: int = PARTITIONS,
        observe: Callable[[Transfer], None] | None = None,
    ) -> None:
        self.space, self.partitions, self.partition_bytes = space, partitions, partition_bytes
        self.observe = observe
        self._bytes = np.zeros(partitions * partition_bytes, dtype=np.uint8)
        self._written = np.zeros(partitions * partition_bytes, dtype=np.bool_)
        self._reach = 0

    def transport(self, request: MemoryRequest) -> MemoryObject | None:
        """Carry out a request that came through a socket."""
        if isinstance(request, Read):
            return self.read(request.pattern, request.uninitialised)
        if isinstance(request, Write):
            self.write(request.pattern, request.value)
            return None
        if isinstance(request, Reserve):
            self._check_destination(request.pattern)
            return None
        raise MemoryFault(f"a matmul must write to PSUM, not to {request.pattern} (P-4)")

    def read(self, pattern: AccessPattern, uninitialised: Uninitialised = Uninitialised.REFUSED) -> MemoryObject:
        """The containers that ``pattern`` names, as an object of its shape.

        Raises MemoryFault outside the memory, or for a byte that was never written, naming its address.
        """
        self._check(pattern)
        rows = None if pattern.rows is None else self._row_numbers(pattern)
        if uninitialised is Uninitialised.REFUSED:
            written = self._view(self._written, pattern)
            self._check_written(pattern, written if rows is None else written[rows], rows)
        octets = self._view(self._bytes, pattern)
        octets = np.array(octets if rows is None else octets[rows], order="C")  # a copy: what is read stays as it was
        containers = octets.reshape(-1).view(container_dtype(pattern.dtype))
        self._tell("read", pattern, octets.size)
        return MemoryObject(containers.reshape(pattern.shape), pattern.dtype, self.space is Space.PSUM)

    def write(self, pattern: AccessPattern, value: MemoryObject) -> None:
        """Overwrite what ``pattern`` names (P-5).

        Raises MemoryFault outside the memory, for an object of another dtype or size, or if a byte is named twice.
        """
        self._check_write(pattern, value)
        self._put(pattern, value.containers)
        self._tell("write", pattern, value.containers.nbytes)

    def contents(self) -> tuple[bytes, bytes]:
        """All partitions up to the furthest byte that was written in any: their bytes, and their written bits."""
        held, written = (array.reshape(self.partitions, -1)[:, : self._reach] for array in (self._bytes, self._written))
        return held.tobytes(), written.tobytes()

    def clear(self) -> None:
        """Nothing was ever written."""
        for array in (self._bytes, self._written):
            array.reshape(self.partitions, -1)[:, : self._reach] = 0
        self._reach = 0

    def _put(self, pattern: AccessPattern, containers: NDArray[Any]) -> None:
        octets = self._view(self._bytes, pattern)
        octets[...] = np.ascontiguousarray(containers).view(np.uint8).reshape(octets.shape)
        self._view(self._written, pattern)[...] = True
        self._reach = max(self._reach, self._end(pattern))

    def _view(self, array: NDArray[Any], pattern: AccessPattern) -> NDArray[Any]:
        """The bytes of ``array`` that ``pattern`` names, [partitions, ..., bytes of a container], not copied."""
        size, stride = pattern.dtype.size, pattern.partition_step
        per_partition = self.partition_bytes if stride is None else stride
        partition_pattern = pattern.partition_pattern or ((1, pattern.partitions),)
        dimensions = [(step * per_partition, num) for step, num in partition_pattern]
        dimensions += [(step * size, num) for step, num in pattern.pattern] + [(1, size)]
        return np.ndarray(
            tuple(num for _, num in dimensions),
            dtype=array.dtype,
            buffer=array.data,
            offset=pattern.start_partition * per_partition + pattern.offset,
            strides=tuple(step for step, _ in dimensions),
        )

    def _check(self, pattern: AccessPattern) -> None:
        if pattern.space is not self.space:
            raise MemoryFault(f"operand must be in {self.space.value}, not {pattern}")
        last = pattern.last_partition if pattern.partition_step is None else 0
        end = self._end(pattern)
        if last >= self.partitions or end > self.partition_bytes:
            raise MemoryFault(
                f"operand must lie in the {self.partitions} x {self.partition_bytes} bytes of {self.space.value}, not "
                f"reach partition {last}, byte {end - 1}: {pattern}"
            )
        named, held = pattern.partitions * pattern.containers_per_partition * pattern.dtype.size, self._bytes.size
        if named > held:  # by steps of 0; nothing could take so much, and the host has not the memory
            raise MemoryFault(
                f"operand must name at most the {held} bytes of {self.space.value}, not {named}: {pattern}"
            )

    @staticmethod
    def _end(pattern: AccessPattern) -> int:
        """Just past the last byte of a partition, or of DRAM, that is touched."""
        return pattern.end_offset + (pattern.partition_step or 0) * (pattern.partitions - 1)

    def _check_write(self, pattern: AccessPattern, value: MemoryObject) -> None:
        self._check_destination(pattern)
        if value.dtype.name != pattern.dtype.name:
            raise MemoryFault(f"value must be {pattern.dtype.name} to be written to {pattern}, not {value.dtype.name}")
        wanted = pattern.partitions * pattern.containers_per_partition
        if value.containers.shape[0] != pattern.partitions or value.containers.size != wanted:
            raise MemoryFault(
                f"value must be {pattern.partitions} partitions of {pattern.containers_per_partition} to be written "
                f"to {pattern}, not shape {list(value.containers.shape)}"
            )

    def _check_destination(self, pattern: AccessPattern) -> None:
        self._check(pattern)
        if pattern.repeats:
            raise MemoryFault(f"destination must name every byte once, which this does not: {pattern}")

    def _check_written(self, pattern: AccessPattern, written: NDArray[np.bool_], rows: NDArray[Any] | None) -> None:
        if written.all():
            return
        first = np.unravel_index(int(np.argmin(written)), written.shape)
        place = int(first[0]) if rows is None else int(rows[first[0]])
        index = (place, *map(int, first[1:]))
        raise UnwrittenRead(pattern, f"{self.space.value} {self._address(pattern, index)}")

    def _address(self, pattern: AccessPattern, index: tuple[int, ...]) -> str:
        steps = [step for step, _ in pattern.partition_pattern or ((1, 0),)]
        inner = index[len(steps) :]
        byte = pattern.offset + inner[-1]
        byte += sum(step * place * pattern.dtype.size for (step, _), place in zip(pattern.pattern, inner, strict=False))
        rows = sum(step * place for step, place in zip(steps, index, strict=False))
        if pattern.partition_step is not None:
            return f"byte {byte + rows * pattern.partition_step}"
        text = f"partition {pattern.start_partition + rows}, byte {byte}"
        if self.space is Space.PSUM:
            text += f" (bank {byte // PSUM_BANK_BYTES})"
        return text

    def _row_numbers(self, pattern: AccessPattern) -> NDArray[Any]:
        """The rows of a gathered operand (M-7)."""
        assert pattern.rows is not None
        if pattern.rows.space is not self.space or container_dtype(pattern.rows.dtype).kind not in "iu":
            raise MemoryFault(
                f"rows must be integers in {self.space.value}, not {pattern.rows.dtype.name} in "
                f"{pattern.rows.space.value} (M-7)"
            )
        numbers = self.read(pattern.rows).containers.reshape(-1)
        if int(numbers.min()) < 0 or int(numbers.max()) >= pattern.partitions:
            raise MemoryFault(
                f"rows must be in 0..{pattern.partitions - 1}, not {int(numbers.min())}..{int(numbers.max())} (M-7)"
            )
        return np.asarray(numbers, dtype=np.intp)

    def _tell(self, action: str, pattern: AccessPattern, size: int) -> None:
        if self.observe is not None:
            self.observe(Transfer(action=action, pattern=pattern, size=size))


def sbuf(generation: Generation, observe: Callable[[Transfer], None] | None = None) -> Memory:
    """The state buffer of a core of that generation: 24, 28 or 32 MiB in 128 partitions, four quadrants."""
    return Memory(Space.SBUF, SBUF_PARTITION_BYTES[generation], observe=observe)


class Psum(Memory):
    """The accumulators: 128 partitions x 8 banks x 2 KiB; a cell is fp32 or bf16 (P-1).

    ``most_banks_log2`` is what one head may clear: 0 on a core without multi-bank clears (P-2).
    """

    def __init__(self, *, most_banks_log2: int, observe: Callable[[Transfer], None] | None = None) -> None:
        super().__init__(Space.PSUM, PSUM_BANKS * PSUM_BANK_BYTES, observe=observe)
        self._most_banks_log2 = most_banks_log2

    def transport(self, request: MemoryRequest) -> MemoryObject | None:
        if not isinstance(request, WriteAccumulate):
            return super().transport(request)
        self.write_accumulate(
            request.pattern,
            request.product,
            request.command,
            zero_banks_log2=request.zero_banks_log2,
            uninitialised=request.uninitialised,
        )
        return None

    def write_accumulate(
        self,
        pattern: AccessPattern,
        product: NDArray[np.float32],
        command: PsumCommand,
        *,
        zero_banks_log2: int = 0,
        uninitialised: Uninitialised = Uninitialised.REFUSED,
    ) -> None:
        """Let a matmul's product [M, N] enter, in one fp32 add for each cell at most (P-1 to P-4).

        Raises MemoryFault for a destination elsewhere, of another dtype or shape, for an addition onto cells never
        written, and for a clear past bank 7 or of several banks on a generation that cannot.
        """
        self._check(pattern)
        cell = cell_format(pattern)
        rows = psum_write(product, cell)
        self._check_write(pattern, MemoryObject(rows, pattern.dtype))
        if not 0 <= zero_banks_log2 <= self._most_banks_log2:
            raise MemoryFault(
                f"banks to clear must be 2^0 to 2^{self._most_banks_log2} on this generation, not "
                f"2^{zero_banks_log2} (P-2)"
            )
        if command is PsumCommand.HEAD:
            self.clear_banks(pattern, zero_banks_log2)
        elif command is not PsumCommand.IDLE:
            written = self._view(self._written, pattern)
            if command is PsumCommand.BODY and uninitialised is Uninitialised.REFUSED:
                self._check_written(pattern, written, None)
            held = np.ascontiguousarray(self._view(self._bytes, pattern)).reshape(-1).view(rows.dtype)
            total = psum_add(held.reshape(product.shape), product)
            if command is PsumCommand.FIRST_WRITE:
                total = np.where(written.all(axis=-1).reshape(product.shape), total, rows)
            rows = total
        self._put(pattern, rows)
        self._tell(command.value, pattern, rows.nbytes)

    def clear_banks(self, pattern: AccessPattern, log2: int) -> None:
        """Zero 2^log2 whole banks from that of the first byte, in the partitions of ``pattern``; they count as written
        (P-2, P-4)."""
        first = pattern.offset // PSUM_BANK_BYTES
        end = first + (1 << log2)
        if end > PSUM_BANKS:
            raise MemoryFault(
                f"banks to clear must end at bank {PSUM_BANKS - 1}, not {end - 1}: 2^{log2} from {first} on"
            )
        for array in (self._bytes, self._written):
            partitions = array.reshape(PARTITIONS, -1)[pattern.start_partition : pattern.last_partition + 1]
            partitions[:, first * PSUM_BANK_BYTES : end * PSUM_BANK_BYTES] = array is self._written
        self._reach = max(self._reach, end * PSUM_BANK_BYTES)


def cell_format(pattern: AccessPattern) -> SourceFormat:
    """The format of the PSUM cells of ``pattern``; MemoryFault unless fp32 or bf16 (P-1)."""
    if pattern.dtype.name not in _CELLS:
        raise MemoryFault(f"matmul dst dtype must be {' or '.join(_CELLS)}, not {pattern.dtype.name} (P-1)")
    return _CELLS[pattern.dtype.name]


_CELLS = {"float32": FP32, "bfloat16": BF16}
