"""The whole block operation on a tensor: QuantizeMx and its inverse (contracts Q, D)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.blocks import block_chunks, block_grid, rows_of_blocks, scale_of_columns
from mxmodel.formats import FP64, ElementFormat
from mxmodel.layout import FirstNibble, pack_x4, scatter_scales
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow_bits
from mxmodel.rules import BIRSIM, RuleSet
from mxmodel.shared_exponent import block_exponent, scale_from_exponent
from mxmodel.widen import fp32_bits, source_of

__all__ = ["MxTensor", "dequantize_mx", "quantize_mx"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MxTensor:
    """A tensor in the MX format: element codes, one scale for every 8 x 4 of them, and how to read both.

    Two are equal when their codes, scales, element and rules are, bit for bit: a NaN code equals itself and -0 does
    not equal +0. The arrays cannot be written to. It is not hashable.

    Attributes
    ----------
    codes : uint8 [P, F], one code a byte (FP4: 0..15), P % 8 == 0, F % 4 == 0
    scale : uint8 [P/8, F/4] E8M0 bytes, compact (D-1)
    element : the format of the codes
    rules : the rule set that made the tensor, and that says what scale 255 means (D-3)

    Raises
    ------
    TypeError if an attribute is not of its kind; ValueError if the shapes do not agree or an FP4 code exceeds 15
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.uint8]
    element: ElementFormat
    rules: RuleSet = BIRSIM

    def __post_init__(self) -> None:
        _check_kinds(self.element, self.rules)
        for name in ("codes", "scale"):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
                kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
                raise TypeError(f"{name} must be a uint8 array, not {kind}")
            object.__setattr__(self, name, _frozen(array))
        grid = block_grid(self.codes.shape, name="codes")
        if self.scale.shape != grid:
            raise ValueError(f"scale must be {list(grid)} for codes of shape {self.shape}, not {self.scale.shape}")
        if self.element.width < 8 and self.codes.size and (largest := int(self.codes.max())) >= self.element.code_count:
            raise ValueError(
                f"codes must be in 0..{self.element.code_count - 1} for {self.element.name}, not {largest}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape [P, F]: elements, not x4 words."""
        return self.codes.shape

    def packed(self, *, stride: int = 0, first_nibble: FirstNibble = FirstNibble.LOW) -> NDArray[Any]:
        """The x4 words [P, F/4], uint16 (FP4) or uint32 (FP8); the options are those of ``layout.pack_x4`` (L-1)."""
        return pack_x4(self.codes, self.element, stride=stride, first_nibble=first_nibble)

    def scale_tile(self, *, offset: int = 0, partitions: int | None = None) -> NDArray[np.uint8]:
        """The scales as they sit in SBUF, uint8 [partitions, F/4], 0 elsewhere; see ``layout.scatter_scales`` (L-2)."""
        return scatter_scales(self.scale, offset=offset, partitions=partitions)

    def values(self) -> NDArray[np.float32]:
        """What the codes stand for, float32 [P, F]: ``dequantize_mx`` (D-1)."""
        return dequantize_mx(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MxTensor):
            return NotImplemented
        return (
            self.element == other.element
            and self.rules == other.rules
            and np.array_equal(self.codes, other.codes)
            and np.array_equal(self.scale, other.scale)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"MxTensor({self.element.name} {list(self.shape)}, {self.rules.name})"


def quantize_mx(x: NDArray[Any], element: ElementFormat, rules: RuleSet = BIRSIM) -> MxTensor:
    """Quantise a tensor: the shared exponent of every 8 x 4 block, then its elements narrowed (Q; S0 §6, S1 §4).

    Parameters
    ----------
    x : float32, bfloat16 or float16 [P, F], P % 8 == 0, F % 4 == 0, of any strides and byte order; float64 is rounded
        to fp32 with a ``PrecisionWarning`` (N-7). The instruction's own, narrower shapes are Q-2.
    element : the format to narrow to
    rules : the rule set (R)

    Returns
    -------
    ``MxTensor`` of the same shape. Beside ``x`` and the result it needs memory for one piece (``chunks.CHUNK``).

    Specials
    --------
    Those of ``shared_exponent`` and ``narrow``: an all-zero block takes the rule set's lowest scale (E-4), a block with
    Inf or NaN follows E-6, elements saturate (N-2), NaN is N-3 and N-4.

    Raises
    ------
    TypeError if ``x`` is not such an array or ``element`` / ``rules`` not descriptors; ValueError if the shape is not
    a whole number of blocks, or if these rules do not quantise to FP4 (N-7)
    """
    _check_kinds(element, rules)
    source = source_of(x)
    if not rules.writes(element):
        raise ValueError(
            f"element must be an FP8 format under the rules {rules.name}, not {element.name!r}: their QuantizeMx "
            "writes FP8 only, and FP4 operands come packed from the host (N-7)"
        )
    scale = np.empty(block_grid(x.shape), dtype=np.uint8)
    codes = np.empty(x.shape, dtype=np.uint8)
    if source is FP64:
        x = fp32_bits(x).view(np.float32)  # as a whole, so that it is reported once
    exponent_policy, narrow_policy = rules.exponent_policy(element), rules.narrow_policy(element, scaled=True)
    for blocks, elements in block_chunks(scale.shape):
        bits = fp32_bits(x[elements])
        scale[blocks] = scale_from_exponent(block_exponent(bits), exponent_policy)
        columns, rows = scale_of_columns(scale[blocks]), rows_of_blocks(codes[elements])
        narrow_bits(rows_of_blocks(bits), narrow_policy, scale=columns, out=rows)
    return MxTensor(codes=_sealed(codes), scale=_sealed(scale), element=element, rules=rules)


def dequantize_mx(tensor: MxTensor) -> NDArray[np.float32]:
    """The values of an MX tensor, float32 [P, F] (D-1; S0 §4).

    Every value is exact but for overflow, which is ±Inf (D-2). An element NaN is 0x7FC00000 and an E5M2 Inf ±Inf
    (D-4); scale 255 follows the tensor's own rule set (D-3). Raises TypeError if ``tensor`` is not an ``MxTensor``.
    """
    if not isinstance(tensor, MxTensor):
        raise TypeError(f"tensor must be an MxTensor, not {type(tensor).__name__}")
    codes, scale = rows_of_blocks(tensor.codes), scale_of_columns(tensor.scale)
    return ldexp(codes, scale, tensor.element, tensor.rules).reshape(tensor.shape)


def _check_kinds(element: ElementFormat, rules: RuleSet) -> None:
    if not isinstance(element, ElementFormat):
        raise TypeError(f"element must be an ElementFormat, not {element!r}")
    if not isinstance(rules, RuleSet):
        raise TypeError(f"rules must be a RuleSet, not {rules!r}")


def _sealed(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``array`` itself, made read-only: for one that nobody else holds."""
    array.flags.writeable = False
    return array


def _frozen(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``array`` if nobody can write to it, else a read-only copy in C order."""
    if array.base is None and not array.flags.writeable and array.flags.c_contiguous:
        return array
    return _sealed(array.copy(order="C"))
