"""The .safetensors format: eight bytes of length, a JSON header, then the tensors' bytes, little-endian.

Read here rather than through the safetensors package, whose NumPy side has no bfloat16, FP8 or FP4 arrays, no memory
map, and no writing of a file larger than memory.
"""

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.files.stored_tensor import STORED_FORMATS, StoredTensor, TensorFile, unusable

__all__ = ["METADATA", "header_bytes", "read_safetensors"]

METADATA = "__metadata__"
"""The header's one entry that is not a tensor: text by name."""

_WANTED = "a .safetensors file"
_LENGTH_BYTES = 8
_LARGEST_HEADER = 100_000_000
"""The format's own limit."""

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def read_safetensors(path: Path) -> TensorFile:
    """The tensors and the metadata of a .safetensors file; arrays are memory-mapped when loaded.

    Raises
    ------
    BadInput if the file is not of that format, is truncated, or a tensor's bytes do not fit its type and shape
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(_LENGTH_BYTES)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < _LENGTH_BYTES or length > _LARGEST_HEADER:
            raise unusable(path, None, _WANTED, "no header of that format")
        if _LENGTH_BYTES + length > size:
            raise unusable(path, None, f"a header of {length} bytes", f"a file of {size} bytes (truncated?)")
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise unusable(path, None, _WANTED, "a header that is not JSON") from None
    if not isinstance(header, dict):
        raise unusable(path, None, _WANTED, "a header that is not a JSON object")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise unusable(path, None, _WANTED, f"a {METADATA} entry that is not text by name")
    start = _LENGTH_BYTES + length
    tensors = {name: _stored(path, name, entry, start, size) for name, entry in header.items()}
    return TensorFile(path=path, tensors=tensors, metadata=metadata)


def _stored(path: Path, name: str, entry: Any, start: int, file_size: int) -> StoredTensor:
    try:
        stored_type = str(entry["dtype"])
        shape = tuple(entry["shape"])
        first, end = entry["data_offsets"]
        numbers = (*shape, first, end)
        if not all(type(number) is int and number >= 0 for number in numbers) or end < first:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise unusable(path, name, "dtype, shape and data_offsets", "a damaged header entry") from None
    if start + end > file_size:
        raise unusable(path, name, f"data up to byte {start + end}", f"a file of {file_size} bytes (truncated?)")
    if stored_type == "F4":
        dtype = np.dtype("u1")
        if not shape or shape[-1] % 2:
            raise unusable(path, name, "an even number of F4 elements along the last axis", f"shape {shape}")
        array_shape = (*shape[:-1], shape[-1] // 2)
    elif stored_type in STORED_FORMATS:
        dtype, array_shape = np.dtype("u1"), shape
    elif stored_type in _DTYPES:
        dtype, array_shape = _DTYPES[stored_type], shape
    else:
        return StoredTensor(
            file=path, name=name, type=stored_type, shape=shape, loader=_refuse(path, name, stored_type)
        )
    if prod(array_shape) * dtype.itemsize != end - first:
        raise unusable(path, name, f"{prod(array_shape) * dtype.itemsize} bytes for its shape", f"{end - first} bytes")

    def load() -> NDArray[Any]:
        return np.memmap(path, dtype=dtype, mode="r", offset=start + first, shape=array_shape)

    known = stored_type if stored_type in STORED_FORMATS else dtype.name
    return StoredTensor(file=path, name=name, type=known, shape=shape, loader=load)


def _refuse(path: Path, name: str, stored_type: str) -> Callable[[], NDArray[Any]]:
    def load() -> NDArray[Any]:
        raise unusable(path, name, f"one of the types {', '.join((*_DTYPES, *STORED_FORMATS))}", stored_type)

    return load


def header_bytes(tensors: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """The length and the header of a file that holds ``tensors`` (type and shape by name) one after another.

    Padded with spaces to eight bytes, as the format asks, so that the first tensor is aligned.
    """
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        first, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [first, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
