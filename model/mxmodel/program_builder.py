"""Programs from Python: tiles that are sliced like arrays, instructions that read like the public NKI calls.

core = Core()
x = core.dram("x", array)
tile = core.sbuf("tile", (128, 32), "bfloat16")
core.load(tile, x)
...
core.run()
core.result(tile)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.block_functions import Blocks
from mxmodel.formats import BIR_DTYPES, MX_BLOCK, BirDtype
from mxmodel.isa import (
    AccumulationKind,
    Activate,
    ActivationFunction,
    Copy,
    Elementwise,
    FirstWrite,
    Instruction,
    Load,
    Matmult,
    MatmultMx,
    MatmultSparse,
    Memset,
    Operator,
    PsumFlag,
    QuantizeMx,
    ReadActivationAccumulator,
    StationaryLoad,
    Store,
)
from mxmodel.layout import pack_x4
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.memory_object import container_dtype, dtype_named
from mxmodel.neuron_core import NeuronCore, Verification
from mxmodel.pe_array import PerfMode
from mxmodel.program import Expectation, Program, ProgramTensor
from mxmodel.program_files.fields import NAME
from mxmodel.program_files.placement import Placer, scattered, sliced, tensor_place
from mxmodel.quantize import MxTensor
from mxmodel.trace import Trace

__all__ = ["Core", "Tile"]


@dataclass(frozen=True, eq=False)
class Tile:
    """A tensor of a program, or a part of one: what the instructions of a ``Core`` take.

    Attributes
    ----------
    name : of the tensor
    pattern : the operand
    owned : the rows that hold something, where ``pattern`` reaches further: scattered scales (L-3)
    """

    name: str
    pattern: AccessPattern
    owned: AccessPattern

    @property
    def shape(self) -> tuple[int, ...]:
        """[partitions, free ...] in containers."""
        return self.owned.shape

    @property
    def dtype(self) -> BirDtype:
        return self.pattern.dtype

    def __getitem__(self, index: int | slice | tuple[int | slice, ...]) -> "Tile":
        """A part, as ``placement.sliced``: an integer keeps its dimension. Of scattered scales, all the rows."""
        entries = index if isinstance(index, tuple) else (index,)
        owned = sliced(self.owned, entries)
        pattern = owned if self.pattern is self.owned else sliced(self.pattern, (slice(None), *entries[1:]))
        return Tile(self.name, pattern, owned)

    def seen_as(
        self,
        pattern: Sequence[tuple[int, int]],
        *,
        partitions: int | None = None,
        partition_step: int | None = None,
        dtype: str | BirDtype | None = None,
    ) -> "Tile":
        """The same place read by other steps: (step, num) in containers, slowest first.

        ``partition_step``, bytes from one row to the next, is of DRAM only, where it makes swizzles and transposes.
        """
        changes: dict[str, Any] = {"pattern": tuple(tuple(one) for one in pattern)}
        if partitions is not None:
            changes["partitions"] = partitions
        if partition_step is not None:
            changes["partition_step"] = partition_step
        if dtype is not None:
            changes["dtype"] = _dtype(dtype)
        seen = replace(self.pattern, **changes)
        return Tile(self.name, seen, seen)


class Core:
    """A program under construction, and the core that runs it.

    Parameters
    ----------
    generation, options : of the program
    name : for messages and traces
    """

    def __init__(
        self,
        *,
        generation: Generation = Generation.V4,
        options: MachineOptions | None = None,
        name: str = "program",
    ) -> None:
        self.generation, self.options, self.name = generation, options or MachineOptions(), name
        self._placer = Placer(generation)
        self._tensors: dict[str, ProgramTensor] = {}
        self._instructions: list[Instruction] = []
        self._expectations: list[Expectation] = []
        self._core: NeuronCore | None = None

    # --- tensors ------------------------------------------------------------------------------------------------------

    def sbuf(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        dtype: str | BirDtype | None = None,
        *,
        contents: NDArray[Any] | None = None,
        start_partition: int = 0,
        offset: int | None = None,
    ) -> Tile:
        """A tile in SBUF, [partitions, free ...] in containers, after all others unless ``offset`` says where.

        Shape and dtype come from ``contents`` where they are not given. ValueError for a name that is taken, and as
        ``placement.tensor_place``.
        """
        return self._add(name, Space.SBUF, shape, dtype, contents, start_partition=start_partition, offset=offset)

    def psum(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str | BirDtype = "float32",
        *,
        start_partition: int = 0,
        offset: int | None = None,
    ) -> Tile:
        """A tile in PSUM, in banks of its own unless ``offset`` says where; as ``sbuf``."""
        return self._add(name, Space.PSUM, shape, dtype, None, start_partition=start_partition, offset=offset)

    def dram(
        self,
        name: str,
        contents: NDArray[Any] | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | BirDtype | None = None,
        offset: int | None = None,
    ) -> Tile:
        """A tensor in DRAM, [rows, ...], with ``contents`` or of ``shape`` and ``dtype``; as ``sbuf``."""
        return self._add(name, Space.DRAM, shape, dtype, contents, offset=offset)

    def scale_tile(
        self,
        data: Tile,
        offset: int = 4,
        *,
        name: str | None = None,
        beside: Tile | None = None,
        dtype: str | BirDtype = "float8_e8m0fnu",
    ) -> Tile:
        """The scales of an x4 tile [P, F], [P/8, F], scattered from partition ``offset`` of the data's first quadrant.

        Parameters
        ----------
        data : the packed elements
        offset : 0, 4, 8 or 12 (L-4)
        name : ``data``'s with ``_scale`` without it
        beside : scales to share the bytes of a partition with, at another offset; they must be as wide or wider
        """
        if data.dtype.element is None:
            raise ValueError(f"data must be of an x4 dtype, not {data.dtype.name} (F-5)")
        partitions = data.shape[0]
        shape = (partitions // MX_BLOCK.rows, int(np.prod(data.shape[1:])))
        place = tensor_place(
            Space.SBUF, _dtype(dtype), shape, start_partition=data.pattern.quadrant * 32 + offset, offset=0
        )
        if beside is None:
            place = self._placer.place(place)
        else:
            place = replace(place, offset=beside.pattern.offset)
            if place.end_offset > beside.pattern.end_offset:
                raise ValueError(f"beside must be {shape[1]} bytes wide or wider, not {beside.shape[1]}")
        owned, named = scattered(place, partitions)
        return self._enter(name or f"{data.name}_scale", owned, named, None)

    def mx(self, name: str, tensor: MxTensor, *, offset: int = 4, beside: Tile | None = None) -> tuple[Tile, Tile]:
        """An MX tensor in SBUF before the first instruction: (x4 words, scales scattered as ``scale_tile``).

        ValueError if the tensor's own rules would dequantise it otherwise than the core's do (M-3, D-3, D-4).
        """
        element = tensor.element
        own, ours = tensor.rules, self.options.rules
        if own.dequant_policy(element) != ours.dequant_policy(element):
            raise ValueError(
                f"{name} must be read as under rules {own.name}, and a core under {ours.name} reads {element.name} "
                "otherwise (D-3, D-4)"
            )
        dtype = next(one for one in BIR_DTYPES if one.element == element)
        data = self.sbuf(name, dtype=dtype, contents=pack_x4(tensor.codes, element))
        scale = self.scale_tile(data, offset, beside=beside)
        self._tensors[scale.name] = ProgramTensor(place=scale.owned, contents=np.asarray(tensor.scale))
        return data, scale

    def _add(
        self,
        name: str,
        space: Space,
        shape: Sequence[int] | None,
        dtype: str | BirDtype | None,
        contents: NDArray[Any] | None,
        *,
        start_partition: int = 0,
        offset: int | None = None,
    ) -> Tile:
        if shape is None:
            if contents is None:
                raise ValueError(f"{name} must be given a shape, or contents")
            shape = contents.shape
        if dtype is None:
            if contents is None:
                raise ValueError(f"{name} must be given a dtype, or contents")
            dtype = str(contents.dtype)
        place = tensor_place(
            space, _dtype(dtype), tuple(shape), start_partition=start_partition, offset=0 if offset is None else offset
        )
        if offset is None:
            place = self._placer.place(place)
        else:
            self._placer.reserve(place)
        return self._enter(name, place, place, contents)

    def _enter(self, name: str, owned: AccessPattern, named: AccessPattern, contents: NDArray[Any] | None) -> Tile:
        if re.fullmatch(NAME, name) is None:
            raise ValueError(f"name must be letters, digits, '_', '.' and '-', not {name!r}")
        if name in self._tensors:
            raise ValueError(f"name must be new, not {name!r} again")
        if contents is not None:
            wanted = container_dtype(owned.dtype)
            if contents.dtype != wanted and contents.dtype.kind == "u" and contents.dtype.itemsize == wanted.itemsize:
                contents = np.ascontiguousarray(contents).view(wanted)
        self._tensors[name] = ProgramTensor(place=owned, contents=contents)
        return Tile(name, named, owned)

    # --- instructions -------------------------------------------------------------------------------------------------

    def add(self, instruction: Instruction) -> None:
        """Any record of ``isa``, for what the methods below do not offer."""
        self._instructions.append(instruction)

    def quantize_mx(self, dst: Tile, src: Tile, dst_scale: Tile, *, label: str = "") -> None:
        """``src`` to x4 words and E8M0 scales (opcode 96); ``dst``'s dtype names the element."""
        self.add(QuantizeMx(src=src.pattern, dst=dst.pattern, dst_scale=dst_scale.pattern, label=label))

    def matmul_mx(
        self,
        dst: Tile,
        stationary: Tile,
        moving: Tile,
        stationary_scale: Tile,
        moving_scale: Tile,
        *,
        accumulate: bool | None = None,
        tile_position: tuple[int, int] | None = None,
        tile_size: tuple[int, int] | None = None,
        label: str = "",
    ) -> None:
        """stationary x moving into PSUM (opcode 95).

        ``accumulate``: None overwrites at a cell's first write and adds later; True adds; False overwrites (P-4).
        ``tile_position`` and ``tile_size`` are (row, column), both or neither; they change no value.
        """
        if (tile_position is None) is not (tile_size is None):
            raise ValueError("tile_position and tile_size must be given both or neither (V-1)")
        tiles: dict[str, tuple[int, ...]] = {}
        if tile_position is not None and tile_size is not None:
            tiles = {
                "row_tile_positions": (tile_position[0],),
                "column_tile_positions": (tile_position[1],),
                "row_tile_sizes": (tile_size[0],),
                "column_tile_sizes": (tile_size[1],),
            }
        self.add(
            MatmultMx(
                dst=dst.pattern,
                stationary=stationary.pattern,
                moving=moving.pattern,
                stationary_scale=stationary_scale.pattern,
                moving_scale=moving_scale.pattern,
                label=label,
                **tiles,  # type: ignore[arg-type]
                **_psum(accumulate),
            )
        )

    def matmul(
        self,
        dst: Tile,
        stationary: Tile,
        moving: Tile,
        *,
        accumulate: bool | None = None,
        stationary_zero_point: int | None = None,
        moving_zero_point: int | None = None,
        perf_mode: PerfMode = PerfMode.NONE,
        stationary_load: StationaryLoad = StationaryLoad.PLAIN,
        label: str = "",
    ) -> None:
        """The dense product into PSUM (opcode 8); ``accumulate`` as in ``matmul_mx``."""
        self.add(
            Matmult(
                dst=dst.pattern,
                stationary=stationary.pattern,
                moving=moving.pattern,
                stationary_zero_point=stationary_zero_point,
                moving_zero_point=moving_zero_point,
                perf_mode=perf_mode,
                stationary_load=stationary_load,
                label=label,
                **_psum(accumulate),
            )
        )

    def matmul_sparse(
        self, dst: Tile, stationary: Tile, tags: Tile, moving: Tile, *, accumulate: bool | None = None, label: str = ""
    ) -> None:
        """The structured-sparse product into PSUM (opcode 9); ``accumulate`` as in ``matmul_mx``."""
        self.add(
            MatmultSparse(
                dst=dst.pattern,
                stationary=stationary.pattern,
                tags=tags.pattern,
                moving=moving.pattern,
                label=label,
                **_psum(accumulate),
            )
        )

    def load(self, dst: Tile, src: Tile, *, label: str = "") -> None:
        """DRAM to SBUF."""
        self.add(Load(src=src.pattern, dst=dst.pattern, label=label))

    def store(self, dst: Tile, src: Tile, *, label: str = "") -> None:
        """SBUF or PSUM to DRAM."""
        self.add(Store(src=src.pattern, dst=dst.pattern, label=label))

    def copy(self, dst: Tile, src: Tile, *, label: str = "") -> None:
        """``src`` to ``dst``, through fp32 where the dtypes differ."""
        self.add(Copy(src=src.pattern, dst=dst.pattern, label=label))

    def memset(self, dst: Tile, value: float, *, label: str = "") -> None:
        """One value everywhere."""
        self.add(Memset(dst=dst.pattern, value=value, label=label))

    def activate(
        self,
        dst: Tile | None,
        src: Tile,
        function: ActivationFunction = ActivationFunction.IDENTITY,
        *,
        scale: float = 1.0,
        kind: AccumulationKind = AccumulationKind.IDLE,
        operator: Operator = Operator.ADD,
        immediate: float | None = None,
        label: str = "",
    ) -> None:
        """function(scale * src), out and into the accumulator (P-5)."""
        self.add(
            Activate(
                src=src.pattern,
                dst=None if dst is None else dst.pattern,
                function=function,
                scale=scale,
                kind=kind,
                operator=operator,
                immediate=immediate,
                label=label,
            )
        )

    def read_accumulator(self, dst: Tile, *, label: str = "") -> None:
        """The accumulator to memory (opcode 5)."""
        self.add(ReadActivationAccumulator(dst=dst.pattern, label=label))

    def elementwise(self, dst: Tile, src: Tile, operator: Operator, operand: Tile | float, *, label: str = "") -> None:
        """``src`` operator ``operand``: a tile of the same shape, one number a partition, or a number."""
        right = operand.pattern if isinstance(operand, Tile) else float(operand)
        self.add(Elementwise(src=src.pattern, operand=right, dst=dst.pattern, operator=operator, label=label))

    def expect(self, tile: Tile, contents: NDArray[Any], *, name: str | None = None) -> None:
        """What ``tile`` must hold at the end, bit for bit."""
        self._expectations.append(Expectation(name=name or tile.name, place=tile.owned, contents=contents))

    # --- running ------------------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """What has been said so far."""
        return Program(
            instructions=tuple(self._instructions),
            tensors=dict(self._tensors),
            expectations=tuple(self._expectations),
            generation=self.generation,
            options=self.options,
            name=self.name,
        )

    def run(
        self,
        *,
        blocks: Blocks | None = None,
        trace: Trace | None = None,
        verification: Verification = Verification.FIRST,
        schedule: int | None = None,
    ) -> NeuronCore:
        """Run the program on an empty core, which is returned and kept for ``result``; errors as ``NeuronCore.run``."""
        core = NeuronCore(generation=self.generation, options=self.options, blocks=blocks, trace=trace)
        core.run(self.program(), verification=verification, schedule=schedule)
        self._core = core
        return core

    def result(self, tile: Tile) -> NDArray[Any]:
        """The containers of ``tile`` after the last run; ValueError before one, and for bytes that nobody wrote."""
        if self._core is None:
            raise ValueError("the program must be run before it has results")
        return self._core.memories[tile.owned.space].read(tile.owned).containers

    def failures(self) -> list[str]:
        """The expectations that the last run did not meet, one line each; ValueError before a run."""
        if self._core is None:
            raise ValueError("the program must be run before it has results")
        return self._core.failures(self.program())


def _psum(accumulate: bool | None) -> dict[str, Any]:
    if accumulate is None:
        return {"first_write": FirstWrite.OVERWRITES, "flags": int(PsumFlag.NONE)}
    return {"flags": int(PsumFlag.ACCUMULATE if accumulate else PsumFlag.NONE)}


def _dtype(dtype: str | BirDtype) -> BirDtype:
    return dtype if isinstance(dtype, BirDtype) else dtype_named(dtype)
