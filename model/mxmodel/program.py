"""A program: tensors with their places and contents, instructions in order, and what must have come out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern
from mxmodel.isa import Instruction
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.memory_object import container_dtype

__all__ = ["Expectation", "Program", "ProgramTensor"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramTensor:
    """A named place, and what it holds before the first instruction.

    Attributes
    ----------
    place : the whole tensor
    contents : containers of the shape of ``place``, of ``container_dtype``; None leaves it unwritten
    source : where it stands, such as ``prog.yaml:4``; None for a tensor of no file
    """

    place: AccessPattern
    contents: NDArray[Any] | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if self.contents is not None:
            _check_containers("contents", self.contents, self.place)


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectation:
    """What a place must hold after the last instruction, bit for bit.

    Attributes
    ----------
    name : for messages
    place : where
    contents : containers of the shape of ``place``
    """

    name: str
    place: AccessPattern
    contents: NDArray[Any]

    def __post_init__(self) -> None:
        _check_containers(f"expectation {self.name}", self.contents, self.place)

    def difference(self, got: NDArray[Any]) -> str | None:
        """The first container that differs and how many do, in one line; None if every bit agrees."""
        width = self.contents.dtype.itemsize
        wanted_bits, got_bits = (
            np.ascontiguousarray(array).view(np.uint8).reshape(*self.contents.shape, width)
            for array in (self.contents, got)
        )
        wrong = (wanted_bits != got_bits).any(axis=-1)
        if not wrong.any():
            return None
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        wanted_hex, got_hex = (_hex(bits[index]) for bits in (wanted_bits, got_bits))
        return (
            f"{self.name}{list(index)} must be {wanted_hex} ({self.contents[index]}), not {got_hex} ({got[index]}); "
            f"{int(wrong.sum())} of {wrong.size} differ"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """What a core runs.

    Attributes
    ----------
    instructions : in program order
    tensors : by name; those with contents are put in place first
    expectations : checked last
    generation : of the core
    options : how to compute
    name : for messages and traces
    sources : where each instruction stands, such as ``prog.yaml:17``; empty for a program of no file
    """

    instructions: tuple[Instruction, ...]
    tensors: Mapping[str, ProgramTensor] = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()
    generation: Generation = Generation.V4
    options: MachineOptions = field(default_factory=MachineOptions)
    name: str = "program"
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise ValueError(f"name must be text on one line, not {self.name!r}")

    def source_of(self, index: int) -> str | None:
        """Where an instruction stands; None if no file says, or if instructions were put in or taken out since."""
        return self.sources[index] if len(self.sources) == len(self.instructions) else None

    def place_of(self, index: int) -> str:
        """An instruction as messages name it: by file and line where they are known."""
        source, instruction = self.source_of(index), self.instructions[index]
        if source is None:
            return f"{self.name}: instruction {index} ({instruction})"
        return f"{source}: instructions[{index}] ({instruction})"

    def tensor_of(self, operand: AccessPattern) -> str | None:
        """The tensor that ``operand`` lies in, the smallest if there are several; None if there is none."""
        covering = [
            (tensor.place.nbytes, i, name)
            for i, (name, tensor) in enumerate(self.tensors.items())
            if tensor.place.covers(operand)
        ]
        return min(covering)[2] if covering else None


def _check_containers(name: str, contents: NDArray[Any], place: AccessPattern) -> None:
    if contents.dtype != container_dtype(place.dtype):
        raise TypeError(f"{name} must be {container_dtype(place.dtype)} for {place.dtype.name}, not {contents.dtype}")
    if contents.shape != place.shape:
        raise ValueError(f"{name} must be of shape {list(place.shape)}, not {list(contents.shape)}")


def _hex(octets: NDArray[np.uint8]) -> str:
    return "0x" + bytes(octets[::-1]).hex()
