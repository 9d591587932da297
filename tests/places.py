"""Short ways to write operands and to run a few instructions, for tests of the machine."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.isa import Instruction
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.memory_object import container_dtype, dtype_named
from mxmodel.neuron_core import NeuronCore, Verification
from mxmodel.program import Program, ProgramTensor


def place(space: Space, dtype: str, partitions: int, *nums: int, start: int = 0, at: int = 0) -> AccessPattern:
    """Contiguous containers [partitions, *nums] from byte ``at`` of partition ``start``; of DRAM, rows end to end."""
    steps = [int(np.prod(nums[index + 1 :])) for index in range(len(nums))]
    kind = dtype_named(dtype)
    return AccessPattern(
        space=space,
        dtype=kind,
        partitions=partitions,
        pattern=tuple(zip(steps, nums, strict=True)),
        start_partition=start,
        offset=at,
        partition_step=int(np.prod(nums)) * kind.size if space is Space.DRAM else None,
    )


def in_sbuf(dtype: str, partitions: int, *nums: int, start: int = 0, at: int = 0) -> AccessPattern:
    return place(Space.SBUF, dtype, partitions, *nums, start=start, at=at)


def in_psum(dtype: str, partitions: int, *nums: int, start: int = 0, at: int = 0) -> AccessPattern:
    return place(Space.PSUM, dtype, partitions, *nums, start=start, at=at)


def in_dram(dtype: str, partitions: int, *nums: int, at: int = 0) -> AccessPattern:
    return place(Space.DRAM, dtype, partitions, *nums, at=at)


class Bench:
    """A core, the contents it starts from, and what it holds afterwards."""

    def __init__(self, generation: Generation = Generation.V4, options: MachineOptions | None = None) -> None:
        self.options = options or MachineOptions()
        self.core = NeuronCore(generation=generation, options=self.options)
        self._tensors: dict[str, ProgramTensor] = {}

    def hold(self, pattern: AccessPattern, values: Any) -> AccessPattern:
        """Put ``values`` at ``pattern`` before the next run."""
        contents = np.broadcast_to(np.asarray(values), pattern.shape).astype(container_dtype(pattern.dtype))
        self._tensors[f"t{len(self._tensors)}"] = ProgramTensor(place=pattern, contents=contents)
        return pattern

    def run(
        self,
        *instructions: Instruction,
        verification: Verification = Verification.FIRST,
        schedule: int | None = None,
    ) -> "Bench":
        program = Program(
            instructions=instructions,
            tensors=self._tensors,
            generation=self.core.generation,
            options=self.options,
            name="test",
        )
        self._tensors = {}
        self.core.run(program, verification=verification, schedule=schedule)
        return self

    def read(self, pattern: AccessPattern) -> NDArray[Any]:
        """The containers at ``pattern``, of its shape."""
        return self.core.memories[pattern.space].read(pattern).containers
