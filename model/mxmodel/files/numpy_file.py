"""The .npy and .npz formats, memory-mapped: an .npz member that is not compressed is mapped inside its archive."""

import struct
import warnings
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from mxmodel.bad_input import BadInput
from mxmodel.files.stored_tensor import StoredTensor, TensorFile, unusable

__all__ = ["MEMBER_SUFFIX", "read_npy", "read_npz"]

MEMBER_SUFFIX = ".npy"
"""What an archive adds to an array's name."""
_LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a zip member: the lengths of its name and of its extra field are the last two of thirty bytes."""


def read_npy(path: Path) -> TensorFile:
    """The one array of an .npy file, named after the file.

    Raises
    ------
    BadInput if the file is not of that format, is truncated, or holds Python objects or records
    """
    with path.open("rb") as file:
        stored = _stored(path, path.stem, file, path.stat().st_size, mapped=True)
    return TensorFile(path=path, tensors={path.stem: stored}, metadata={})


def read_npz(path: Path) -> TensorFile:
    """The arrays of an .npz archive by name; members that are not arrays are passed over, and text is metadata.

    Raises
    ------
    BadInput if the file is not such an archive, is damaged, or a member is as ``read_npy`` refuses
    """
    tensors = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.filename.endswith(MEMBER_SUFFIX):
                    continue
                name = member.filename.removesuffix(MEMBER_SUFFIX)
                if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
                    tensors[name] = _stored_inside(path, name, member)
                else:
                    with archive.open(member) as file:
                        tensors[name] = _stored(path, name, file, member.file_size, mapped=False)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise unusable(path, None, "an .npz archive", str(error) or type(error).__name__) from None
    metadata = {name: str(stored.load()) for name, stored in tensors.items() if _is_text(stored)}
    tensors = {name: stored for name, stored in tensors.items() if name not in metadata}
    return TensorFile(path=path, tensors=tensors, metadata=metadata)


def _is_text(stored: StoredTensor) -> bool:
    return stored.shape == () and stored.type.startswith("str")


def _stored_inside(path: Path, name: str, member: zipfile.ZipInfo) -> StoredTensor:
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            raise zipfile.BadZipFile("a truncated member")
        start = file.tell() + sum(_LOCAL_HEADER.unpack(header))
        file.seek(start)
        return _stored(path, name, file, start + member.file_size, mapped=True)


def _stored(path: Path, name: str, file: IO[bytes], end: int, *, mapped: bool) -> StoredTensor:
    """The array whose header ``file`` is at; ``end`` is the position just past its bytes."""
    shape, fortran, dtype = _header(path, name, file)
    offset = file.tell()
    if offset + prod(shape) * dtype.itemsize > end:
        wanted = f"{prod(shape) * dtype.itemsize} bytes for {dtype} {shape}"
        raise unusable(path, name, wanted, f"{max(0, end - offset)} bytes (truncated?)")

    def load() -> NDArray[Any]:
        if mapped:
            order: Any = "F" if fortran else "C"
            return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order=order)
        with zipfile.ZipFile(path) as archive, archive.open(name + MEMBER_SUFFIX) as member:
            member.seek(offset)
            data = member.read()
        flat = np.frombuffer(data, dtype=dtype, count=prod(shape))
        return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)

    type_name = f"V{dtype.itemsize}" if dtype.kind == "V" else dtype.newbyteorder("=").name
    return StoredTensor(file=path, name=name, type=type_name, shape=shape, loader=load)


def _header(path: Path, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
    except ValueError:
        raise unusable(path, name, "an .npy array", "bytes that do not begin as one") from None
    try:
        with warnings.catch_warnings():
            # Of a header written by Python 2, which is read all the same.
            warnings.simplefilter("ignore", UserWarning)
            if version == (1, 0):
                shape, fortran, dtype = npy.read_array_header_1_0(file)
            elif version == (2, 0):
                shape, fortran, dtype = npy.read_array_header_2_0(file)
            else:
                raise unusable(path, name, "an .npy array of version 1.0 or 2.0", f"version {version}")
    except BadInput:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise
    except Exception as error:
        # NumPy parses this header as a Python literal; a damaged one can fail in any way.
        raise unusable(path, name, "an .npy array", f"a header that NumPy refuses ({error})") from None
    if dtype.hasobject:
        raise unusable(path, name, "an array of numbers", "Python objects")
    if dtype.names is not None or dtype.subdtype is not None:
        raise unusable(path, name, "an array of numbers", f"records of type {dtype}")
    return shape, fortran, dtype
