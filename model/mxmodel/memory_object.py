"""A tensor value at rest, as instructions see it: containers of a BIR dtype, and the widening to fp32 (S0 §1, F-4)."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.accumulation import CANONICAL_NAN
from mxmodel.formats import BIR_DTYPES, E8M0, FP8_E4M3, FP8_E5M2, BirDtype, ElementFormat
from mxmodel.layout import unpack_x4
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import DEVICE
from mxmodel.widen import fp32_bits

__all__ = ["MemoryObject", "container_dtype", "dtype_named"]

_SCALE_OF_ONE = np.uint8(E8M0.bias)

_CAST_RULES = DEVICE
"""A cast saturates and keeps NaN (N-4b): what these rules do without a scale."""

_SCALARS: dict[str, Any] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "float4_e2m1fn_x4": np.uint16,
    "float8e3": ml_dtypes.float8_e3m4,
    "float8e4": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e8m0fnu": np.uint8,
    "float8e5": ml_dtypes.float8_e5m2,
    "float8_e4m3fn_x4": np.uint32,
    "float8_e5m2_x4": np.uint32,
    "uint16": np.uint16,
    "int16": np.int16,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "uint32": np.uint32,
    "int32": np.int32,
    "float32": np.float32,
    "float32r": np.float32,
    "uint64": np.uint64,
    "int64": np.int64,
}

_NUMPY: dict[str, np.dtype[Any]] = {name: np.dtype(scalar) for name, scalar in _SCALARS.items()}

_FP8_ELEMENT: dict[str, ElementFormat] = {"float8_e4m3fn": FP8_E4M3, "float8e5": FP8_E5M2}
"""The plain FP8 dtypes whose codes are those of an MX element."""

_BY_NAME = {dtype.name: dtype for dtype in BIR_DTYPES}


def dtype_named(name: str) -> BirDtype:
    """The BIR dtype of that name; ValueError listing the names otherwise (F-4)."""
    if name not in _BY_NAME:
        raise ValueError(f"dtype must be one of {', '.join(_BY_NAME)}, not {name!r}")
    return _BY_NAME[name]


def container_dtype(dtype: BirDtype) -> np.dtype[Any]:
    """The NumPy dtype of one container: x4 words and E8M0 bytes are unsigned integers."""
    return _NUMPY[dtype.name]


@dataclass(frozen=True, eq=False)
class MemoryObject:
    """Containers [partitions, ...] as an instruction reads or writes them.

    Attributes
    ----------
    containers : array of ``container_dtype(dtype)``; the first axis is the partition
    dtype : F-4
    is_psum : whether they were read from PSUM, or are bound for it
    """

    containers: NDArray[Any]
    dtype: BirDtype
    is_psum: bool = False

    def __post_init__(self) -> None:
        if self.containers.dtype != container_dtype(self.dtype):
            raise TypeError(
                f"containers must be {container_dtype(self.dtype)} for {self.dtype.name}, not {self.containers.dtype}"
            )

    @property
    def rows(self) -> NDArray[Any]:
        """The containers as a matrix [partitions, containers per partition]."""
        return self.containers.reshape(self.containers.shape[0], -1)

    def codes(self) -> NDArray[np.uint8]:
        """The element codes of an x4 object, uint8 [partitions, 4 x containers] (L-1); TypeError for another dtype."""
        if self.dtype.element is None:
            raise TypeError(f"dtype must be one of the x4 dtypes to hold codes, not {self.dtype.name}")
        return unpack_x4(self.rows, self.dtype.element)

    def cast_to_fp32(self) -> NDArray[np.float32]:
        """The object widened, float32 [partitions, logical elements]: what every arithmetic instruction sees (M-1).

        An x4 object gives its elements without a scale; an E8M0 byte is a number here, not a power of two (F-4). NaN
        keeps its payload, but for an FP8 code's, which is 0x7FC00000 (D-4). 32- and 64-bit integers are rounded (RNE).
        """
        element = self.dtype.element or _FP8_ELEMENT.get(self.dtype.name)
        if element is not None:
            codes = self.rows.view(np.uint8) if self.dtype.element is None else self.codes()
            return ldexp(codes, _SCALE_OF_ONE, element)
        if self.rows.dtype.kind in "iu" or self.dtype.name in ("float8e3", "float8e4"):
            return self.rows.astype(np.float32)
        return fp32_bits(self.rows).view(np.float32)

    @classmethod
    def from_fp32(cls, values: NDArray[np.float32], dtype: BirDtype) -> "MemoryObject":
        """fp32 values narrowed to ``dtype``, of its float dtypes: nearest even; FP8 saturates and keeps NaN (N-4b).

        Raises ValueError for an integer, x4, E8M0 or legacy FP8 dtype: how a cast rounds there is not pinned.
        """
        if dtype.name in _FP8_ELEMENT:
            codes = narrow(values, _FP8_ELEMENT[dtype.name], rules=_CAST_RULES)
            return cls(codes.view(container_dtype(dtype)), dtype)
        if dtype.name not in ("float32", "float32r", "bfloat16", "float16"):
            raise ValueError(
                f"dtype must be a float dtype to be cast to, not {dtype.name}: how such a cast rounds is not pinned"
            )
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return cls(_canonical_nan(values, dtype), dtype)


def _canonical_nan(values: NDArray[np.float32], dtype: BirDtype) -> NDArray[Any]:
    """``values`` in the narrower dtype, a NaN with the payload that no host chooses."""
    cast = values.astype(container_dtype(dtype))
    if cast.dtype.itemsize < values.dtype.itemsize and (nan := np.isnan(values)).any():
        cast[nan] = CANONICAL_NAN.astype(cast.dtype)
    return cast
