"""Giving back the memory of a mapped file's pages, so that reading a large file does not keep all of it resident."""

import mmap
from typing import Any

from numpy.typing import NDArray

__all__ = ["release_pages"]


def release_pages(array: NDArray[Any]) -> None:
    """Let go of the pages of the file that ``array`` is a view of; they are read again when they are touched again.

    Nothing happens to an array that is not a view of a mapped file, or where the host has no such advice to take.
    """
    base: Any = array
    while hasattr(base, "base"):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
