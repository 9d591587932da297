"""Tensors into a .npy, .npz or .safetensors file, a chunk at a time, so that no tensor need fit in memory."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, Protocol

import ml_dtypes
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mxmodel.files.numpy_file import MEMBER_SUFFIX
from mxmodel.files.safetensors_file import header_bytes
from mxmodel.files.stored_tensor import unusable
from mxmodel.files.whole_file import whole_file

__all__ = ["PlannedTensor", "TensorOutput", "tensor_output"]

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest date that a zip member may have: the same tensors give the same bytes on any day."""


@dataclass(frozen=True, kw_only=True)
class PlannedTensor:
    """A tensor that is to be written: its type and shape are known before its values."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class _Sink(Protocol):
    """One file format: called with every planned tensor in turn, then with its bytes in C order."""

    def begin(self, name: str, tensor: PlannedTensor) -> None: ...
    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...


class TensorOutput:
    """The planned tensors of one file, filled in order by ``append``."""

    def __init__(self, plan: Mapping[str, PlannedTensor], sink: _Sink) -> None:
        self._sink = sink
        self._waiting = iter(plan.items())
        self._left = 0
        self._dtype: np.dtype[Any] = np.dtype(np.uint8)
        self._next()

    def append(self, chunk: NDArray[Any]) -> None:
        """The next elements, in C order, of the tensor whose turn it is; a chunk may not span two tensors."""
        if chunk.dtype != self._dtype or chunk.size > self._left:
            wanted = f"up to {self._left} elements of {self._dtype}"
            raise ValueError(f"chunk must be {wanted}, not {chunk.size} of {chunk.dtype}")
        self._sink.write(np.ascontiguousarray(chunk).tobytes())
        self._left -= chunk.size
        if self._left == 0:
            self._sink.end()
            self._next()

    def finish(self) -> None:
        """ValueError unless every planned element has come."""
        if self._left:
            raise ValueError(f"chunks must fill the planned tensors, not stop {self._left} elements short")

    def _next(self) -> None:
        for name, tensor in self._waiting:
            self._left, self._dtype = prod(tensor.shape), tensor.dtype
            self._sink.begin(name, tensor)
            if self._left:
                return
            self._sink.end()


@contextmanager
def tensor_output(
    path: Path, plan: Mapping[str, PlannedTensor], metadata: Mapping[str, str] | None = None
) -> Iterator[TensorOutput]:
    """A file that holds the tensors of ``plan``, in that order, and appears when all of them are written.

    Parameters
    ----------
    path : ends in .safetensors, .npz, or .npy for a single tensor without metadata
    plan : by name; bfloat16 only in .safetensors, for NumPy's formats lose the type
    metadata : text by name

    Raises
    ------
    BadInput if ``path`` cannot hold them or cannot be written; ValueError if what is appended is not what was planned
    """
    metadata = metadata or {}
    check_output(path, len(plan), with_metadata=bool(metadata))
    if path.suffix != ".safetensors":
        for name, tensor in plan.items():
            if tensor.dtype == ml_dtypes.bfloat16:
                raise unusable(path, name, "a .safetensors file for bfloat16", f"a {path.suffix} file")
    with whole_file(path) as file:
        if path.suffix == ".safetensors":
            file.write(header_bytes({name: (t.dtype, t.shape) for name, t in plan.items()}, metadata))
            yield from _filled(plan, _PlainSink(file))
        elif path.suffix == ".npy":
            yield from _filled(plan, _NpySink(file))
        else:
            with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
                sink = _NpzSink(archive)
                try:
                    yield from _filled(plan, sink)
                finally:
                    sink.end()  # an archive with an open member cannot be closed, not even to be thrown away
                for name, text in metadata.items():
                    with archive.open(zipfile.ZipInfo(name + MEMBER_SUFFIX, _ZIP_EPOCH), "w") as member:
                        npy.write_array(member, np.array(text), allow_pickle=False)


def check_output(path: Path, tensors: int, *, with_metadata: bool) -> None:
    """``BadInput`` unless a file of this name can hold so many tensors; to be asked before any work is done."""
    if path.suffix in (".safetensors", ".npz"):
        return
    if path.suffix != ".npy":
        raise unusable(path, None, "an output that ends in .safetensors, .npz or .npy", path.suffix or "no suffix")
    if with_metadata:
        raise unusable(path, None, "an output that ends in .safetensors or .npz, to hold the record", ".npy")
    if tensors != 1:
        raise unusable(path, None, f"an output that ends in .safetensors or .npz for {tensors} tensors", ".npy")


def _filled(plan: Mapping[str, PlannedTensor], sink: _Sink) -> Iterator[TensorOutput]:
    output = TensorOutput(plan, sink)
    yield output
    output.finish()


class _PlainSink:
    """Bytes one after another: .safetensors, whose header is written already."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def begin(self, name: str, tensor: PlannedTensor) -> None:
        pass

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def end(self) -> None:
        pass


class _NpySink(_PlainSink):
    def begin(self, name: str, tensor: PlannedTensor) -> None:
        _write_npy_header(self._file, tensor)


class _NpzSink:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._member: IO[bytes] | None = None

    def begin(self, name: str, tensor: PlannedTensor) -> None:
        member = zipfile.ZipInfo(name + MEMBER_SUFFIX, _ZIP_EPOCH)
        self._member = self._archive.open(member, "w", force_zip64=True)
        _write_npy_header(self._member, tensor)

    def write(self, data: bytes) -> None:
        assert self._member is not None
        self._member.write(data)

    def end(self) -> None:
        if self._member is not None:
            self._member.close()


def _write_npy_header(file: IO[bytes], tensor: PlannedTensor) -> None:
    header = {"descr": npy.dtype_to_descr(tensor.dtype), "fortran_order": False, "shape": tensor.shape}
    npy.write_array_header_2_0(file, header)
