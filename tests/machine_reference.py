"""What a legal program leaves behind, worked out from the array-level functions alone: no memory, no engine, no kernel.

Memory here is a plain byte array, and an operand's bytes are found by adding up index vectors.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.accumulation import psum_add
from mxmodel.isa import (
    AccumulationKind,
    Activate,
    FirstWrite,
    Instruction,
    Matmult,
    MatmultBase,
    MatmultMx,
    MatmultSparse,
    Memset,
    Operator,
    QuantizeMx,
    ReadActivationAccumulator,
)
from mxmodel.layout import unpack_x4
from mxmodel.ldexp import ldexp
from mxmodel.memory_object import container_dtype
from mxmodel.pe_array import StationaryForm, matmul, matmul_mx, matmul_sparse
from mxmodel.quantize import MxTensor, quantize_mx
from mxmodel.rules import RuleSet

__all__ = ["Reference"]


def _columns(pattern: AccessPattern) -> NDArray[np.intp]:
    """Byte columns of one partition, in the order of the containers."""
    places = np.zeros(1, dtype=np.intp)
    for step, num in pattern.pattern:
        places = (places[:, np.newaxis] + step * np.arange(num)).reshape(-1)
    size = pattern.dtype.size
    return (pattern.offset + size * places[:, np.newaxis] + np.arange(size)).reshape(-1)


def _rows(pattern: AccessPattern) -> NDArray[np.intp]:
    return pattern.start_partition + np.arange(pattern.partitions)


def _scale_rows(pattern: AccessPattern, partitions: int) -> NDArray[np.intp]:
    """Row i of the scales at (i & 3) + 32 (i >> 2), from the start (L-2)."""
    row = np.arange(partitions // 8)
    return pattern.start_partition + (row & 3) + 32 * (row >> 2)


@dataclass
class Reference:
    """Two byte arrays, SBUF as wide as it is needed, written bits for PSUM, and the accumulator."""

    rules: RuleSet
    sbuf: NDArray[np.uint8]
    psum: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((128, 8 * 2048), np.uint8))
    written: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((128, 8 * 2048), np.bool_))
    accumulator: NDArray[np.float32] = field(default_factory=lambda: np.zeros(128, np.float32))
    consumed: bool = False

    def get(self, pattern: AccessPattern, rows: NDArray[np.intp] | None = None) -> NDArray[Any]:
        """Containers [rows, containers per partition]."""
        held = self.sbuf if pattern.space is Space.SBUF else self.psum
        octets = held[np.ix_(_rows(pattern) if rows is None else rows, _columns(pattern))]
        return np.ascontiguousarray(octets).view(container_dtype(pattern.dtype))

    def put(self, pattern: AccessPattern, containers: NDArray[Any], rows: NDArray[np.intp] | None = None) -> None:
        octets = np.ascontiguousarray(containers).view(np.uint8).reshape(containers.shape[0], -1)
        at = np.ix_(_rows(pattern) if rows is None else rows, _columns(pattern))
        if pattern.space is Space.SBUF:
            self.sbuf[at] = octets
        else:
            self.psum[at] = octets
            self.written[at] = True

    def run(self, instruction: Instruction) -> None:
        """Carry one legal instruction out."""
        if isinstance(instruction, QuantizeMx):
            self._quantize(instruction)
        elif isinstance(instruction, MatmultBase):
            self._enter(instruction, self._product(instruction))
        elif isinstance(instruction, Memset):
            value = np.full(instruction.dst.shape, instruction.value).astype(container_dtype(instruction.dst.dtype))
            self.put(instruction.dst, value)
        elif isinstance(instruction, Activate):
            self._activate(instruction)
        elif isinstance(instruction, ReadActivationAccumulator):
            self.put(instruction.dst, self.accumulator[: instruction.dst.partitions, np.newaxis])
            self.consumed = True
        else:
            raise NotImplementedError(instruction.mnemonic)

    def _quantize(self, instruction: QuantizeMx) -> None:
        element = instruction.dst.dtype.element
        assert element is not None
        tensor = quantize_mx(self.get(instruction.src), element, self.rules)
        self.put(instruction.dst, tensor.packed())
        rows = _scale_rows(instruction.dst_scale, instruction.src.partitions)
        self.put(instruction.dst_scale, tensor.scale, rows)

    def _product(self, instruction: MatmultBase) -> NDArray[np.float32]:
        if isinstance(instruction, MatmultMx):
            return np.asarray(matmul_mx(self._mx(instruction, "stationary"), self._mx(instruction, "moving")))
        assert isinstance(instruction, Matmult | MatmultSparse)
        stationary, moving = self.get(instruction.stationary), self.get(instruction.moving)
        if isinstance(instruction, MatmultSparse):
            slots = moving.reshape(instruction.moving.shape)
            return np.asarray(matmul_sparse(stationary, self.get(instruction.tags), slots))
        return np.asarray(
            matmul(
                stationary,
                moving,
                stationary_zero_point=instruction.stationary_zero_point,
                moving_zero_point=instruction.moving_zero_point,
                perf_mode=instruction.perf_mode,
                stationary_form=StationaryForm(instruction.stationary_load.value),
            )
        )

    def _mx(self, instruction: MatmultMx, name: str) -> MxTensor:
        data, scale = getattr(instruction, name), getattr(instruction, f"{name}_scale")
        element = data.dtype.element
        rows = _scale_rows(scale, data.partitions)
        return MxTensor(
            codes=unpack_x4(self.get(data), element),
            scale=self.get(scale, rows),
            element=element,
            rules=self.rules,
        )

    def _enter(self, instruction: MatmultBase, product: NDArray[np.float32]) -> None:
        dst = instruction.dst
        cells = product.astype(container_dtype(dst.dtype))
        start, accumulate = instruction.flags & 1, instruction.flags & 4
        if instruction.first_write is FirstWrite.OVERWRITES:
            seen = self.written[np.ix_(_rows(dst), _columns(dst))].reshape(*cells.shape, -1).all(axis=-1)
            cells = np.where(seen, psum_add(self.get(dst), product), cells)
        elif start:
            first = dst.offset // 2048
            area = slice(first * 2048, (first + 2**instruction.zero_banks_log2) * 2048)
            self.psum[_rows(dst), area] = 0
            self.written[_rows(dst), area] = True
        elif accumulate:
            cells = psum_add(self.get(dst), product)
        self.put(dst, cells)

    def _activate(self, instruction: Activate) -> None:
        values = self._numbers(instruction.src)
        partitions = values.shape[0]
        if instruction.kind is AccumulationKind.IDLE:
            return
        start = np.zeros(128, np.float32)
        if instruction.kind is AccumulationKind.LOAD_ACCUMULATE:
            start[:] = instruction.immediate
        elif instruction.kind is AccumulationKind.ADD_ACCUMULATE and not self.consumed:
            start = self.accumulator
        total = start[:partitions].copy()
        with np.errstate(all="ignore"):
            for column in values.T:
                total = _STEP[instruction.operator](total, column)
        total[np.isnan(total)] = np.nan
        self.accumulator = np.concatenate([total, np.zeros(128 - partitions, np.float32)])
        self.consumed = False

    def _numbers(self, pattern: AccessPattern) -> NDArray[np.float32]:
        """An operand as fp32: an x4 word as its four elements."""
        containers, element = self.get(pattern), pattern.dtype.element
        if element is None:
            return containers.astype(np.float32)
        return ldexp(unpack_x4(containers, element), np.uint8(127), element)


def _larger(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """The maximum, +0 above -0; NaN if either is."""
    above = (left > right) | ((left == right) & ~np.signbit(left))
    return np.where(np.isnan(left) | np.isnan(right), np.float32(np.nan), np.where(above, left, right))


_STEP = {
    Operator.ADD: np.add,
    Operator.MULTIPLY: np.multiply,
    Operator.MAX: _larger,
    Operator.MIN: lambda left, right: -_larger(-left, -right),
}
