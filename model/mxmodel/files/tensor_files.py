"""Tensors by name from .npy, .npz and .safetensors files: ``FILE`` or ``FILE::TENSOR``."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.files.numpy_file import read_npy, read_npz
from mxmodel.files.safetensors_file import read_safetensors
from mxmodel.files.stored_tensor import STORED_FORMATS, StoredTensor, TensorFile, name_list, unusable

__all__ = [
    "NamedTensor",
    "UntypedAs",
    "float_tensor",
    "is_glob",
    "open_tensor_file",
    "read_tensor",
    "select_tensors",
    "split_spec",
]

_SEPARATOR = "::"
_READERS: dict[str, Callable[[Path], TensorFile]] = {
    ".npy": read_npy,
    ".npz": read_npz,
    ".safetensors": read_safetensors,
}
_FLOAT_DTYPES = tuple(np.dtype(kind) for kind in (np.float32, ml_dtypes.bfloat16, np.float16, np.float64))
_FLOATS = "float32, bfloat16, float16 or float64"


class UntypedAs(Enum):
    """What a ``|V2`` array is, where NumPy has dropped the type; only the user can say."""

    BFLOAT16 = "bfloat16"


_UNTYPED = {UntypedAs.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedTensor:
    """A float tensor and where it came from.

    Attributes
    ----------
    name : its name in the file
    values : float32, bfloat16, float16 or float64 of any shape, byte order and memory order; memory-mapped and
        read-only wherever the format allows
    file : the file
    """

    name: str
    values: NDArray[Any]
    file: Path


def open_tensor_file(path: Path) -> TensorFile:
    """The table of contents of a .npy, .npz or .safetensors file; no tensor is read.

    Raises
    ------
    BadInput in one line if there is no such file, it is empty, or it is not of the format its name says
    """
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise unusable(path, None, f"a file that ends in {', '.join(_READERS)}", path.suffix or "no suffix")
    try:
        if path.is_dir():
            raise unusable(path, None, f"a {path.suffix} file", "a directory")
        if path.stat().st_size == 0:
            raise unusable(path, None, f"a {path.suffix} file", "an empty file")
        return reader(path)
    except OSError as error:
        raise unusable(path, None, f"a {path.suffix} file", (error.strerror or str(error)).lower()) from None


def is_glob(pattern: str) -> bool:
    """Whether ``pattern`` may match names other than itself."""
    return any(sign in pattern for sign in "*?[")


def split_spec(spec: str) -> tuple[Path, str | None]:
    """``FILE::TENSOR`` in its two parts; the tensor is None where only a file is named."""
    if _SEPARATOR not in spec or Path(spec).exists():
        return Path(spec), None
    file, _, name = spec.partition(_SEPARATOR)
    return Path(file), name


def select_tensors(spec: str) -> list[StoredTensor]:
    """The tensors that ``spec`` names, in the file's order: all of ``FILE``, or those of ``FILE::GLOB``.

    An exact name goes before a glob (``*``, ``?``, ``[…]``), so that a name with brackets can be given as it is.

    Raises
    ------
    BadInput as ``open_tensor_file``, or if nothing matches
    """
    path, pattern = split_spec(spec)
    file = open_tensor_file(path)
    if pattern is None:
        if not file.tensors:
            raise unusable(path, None, "a tensor", "none")
        return list(file.tensors.values())
    if pattern in file.tensors or not is_glob(pattern):
        return [file.tensor(pattern)]
    chosen = [stored for name, stored in file.tensors.items() if fnmatchcase(name, pattern)]
    if not chosen:
        raise unusable(path, pattern, "a tensor that matches", f"only {name_list(file.tensors)}")
    return chosen


def read_tensor(spec: str, *, untyped_as: UntypedAs | None = None) -> NamedTensor:
    """The one float tensor that ``spec`` names (F-3).

    Parameters
    ----------
    spec : "FILE" where the file holds one tensor, "FILE::TENSOR", or "FILE::GLOB" that matches one
    untyped_as : what a ``|V2`` array is; None refuses it

    Returns
    -------
    NamedTensor; specials and float64 are left as they are

    Raises
    ------
    BadInput in one line naming file, tensor, what was wanted and what came: no such file or tensor, several tensors
    (their names are listed), truncated or not of that format, not of a float type, no elements
    """
    chosen = select_tensors(spec)
    if len(chosen) > 1:
        path, pattern = split_spec(spec)
        names = name_list({stored.name: stored for stored in chosen})
        raise unusable(path, pattern, f"one tensor, named as FILE{_SEPARATOR}TENSOR", f"{len(chosen)}: {names}")
    return float_tensor(chosen[0], untyped_as=untyped_as)


def float_tensor(stored: StoredTensor, *, untyped_as: UntypedAs | None = None) -> NamedTensor:
    """``stored`` as a float tensor, for a caller that has the table of contents; as ``read_tensor``."""
    values = stored.load()
    if stored.type == "V2":
        if untyped_as is None:
            raise stored.unusable(_FLOATS, "V2, which is how NumPy saves bfloat16: say so to have it read as that")
        values = values.view(_UNTYPED[untyped_as])
    if stored.type in STORED_FORMATS or values.dtype.newbyteorder("=") not in _FLOAT_DTYPES:
        raise stored.unusable(_FLOATS, stored.type)
    return NamedTensor(name=stored.name, values=values, file=stored.file)
