"""A tensor as it lies in a file: known by its header, read only when asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mxmodel.bad_input import BadInput
from mxmodel.formats import E8M0, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat, ScaleFormat

__all__ = ["STORED_FORMATS", "StoredTensor", "TensorFile", "name_list", "unusable"]

STORED_FORMATS: Mapping[str, ElementFormat | ScaleFormat] = {
    "F8_E4M3": FP8_E4M3,
    "F8_E5M2": FP8_E5M2,
    "F4": FP4_E2M1,
    "F8_E8M0": E8M0,
}
"""The safetensors types whose bytes are codes, not numbers."""

_NAMES_SHOWN = 8
_NAME_LENGTH = 80


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredTensor:
    """One tensor of a file; nothing but its header has been read.

    Attributes
    ----------
    file : where it is
    name : its name in the file; a .npy file names its one array after itself
    type : NumPy's name of its type ("float32", "bfloat16", "uint8"), a safetensors name where the bytes are codes (a
        key of ``STORED_FORMATS``), or "V1" / "V2" where NumPy has dropped the type
    shape : the logical shape; the last axis of "F4" counts elements, two to a byte, low nibble first
    loader : reads or maps the array; called by ``load``
    """

    file: Path
    name: str
    type: str
    shape: tuple[int, ...]
    loader: Callable[[], NDArray[Any]]

    @property
    def size(self) -> int:
        """Logical elements."""
        return prod(self.shape)

    def load(self) -> NDArray[Any]:
        """The array, memory-mapped and read-only wherever the format allows.

        Codes come as uint8; "F4" as packed bytes, its last axis halved. ``BadInput`` if the bytes cannot be read.
        """
        self.require_elements()
        try:
            return self.loader()
        except BadInput:
            raise
        except Exception as error:
            # A file may be damaged, cut or replaced after its header was read, and zipfile, zlib and mmap each have
            # errors of their own.
            raise self.unusable("readable data", f"damaged data: {error}") from None

    def require_elements(self) -> None:
        """``BadInput`` if there are none."""
        if self.size == 0:
            raise self.unusable("a tensor with elements", f"shape {self.shape}")

    def unusable(self, wanted: str, found: str) -> BadInput:
        """The error that says this tensor is not what was wanted."""
        return unusable(self.file, self.name, wanted, found)


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorFile:
    """The table of contents of one file.

    Attributes
    ----------
    path : the file
    tensors : by name, in the file's order
    metadata : the file's own text entries (safetensors); empty elsewhere
    """

    path: Path
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]

    def tensor(self, name: str) -> StoredTensor:
        """The tensor called ``name``; ``BadInput`` listing the names if there is none."""
        if name not in self.tensors:
            raise unusable(self.path, name, "a tensor of that name", f"only {name_list(self.tensors)}")
        return self.tensors[name]


def unusable(file: Path, tensor: str | None, wanted: str, found: str) -> BadInput:
    """``BadInput`` in one line: file, tensor, what was wanted and what came."""
    where = _printable(str(file) if tensor is None else f"{file}::{tensor}")
    return BadInput(f"{where}: wanted {_printable(wanted)}, found {_printable(found)}")


def name_list(names: Mapping[str, object]) -> str:
    """The first few of ``names`` and how many more there are."""
    shown = [name if len(name) <= _NAME_LENGTH else f"{name[:_NAME_LENGTH]}…" for name in list(names)[:_NAMES_SHOWN]]
    if not shown:
        return "no tensors"
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _printable(text: str) -> str:
    """``text`` on one line, whatever a file's names hold."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
