"""An output file appears whole or not at all: it is written beside its place, then renamed."""

import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from mxmodel.bad_input import BadInput
from mxmodel.files.stored_tensor import unusable

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to write that takes the name ``path`` only when the block ends without an exception.

    Whatever ends the block early (an error, Ctrl-C, SIGTERM) leaves the directory as it was: no new file, and an old
    file of that name untouched.

    Raises
    ------
    BadInput if the file cannot be written: no such directory, not a regular file, no permission, no room
    """
    wanted = "a file that can be written"
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise unusable(path, None, wanted, "a directory" if target.is_dir() else "something that is not a file")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with _termination_as_exit():
            try:
                with beside.open("xb") as file:
                    yield file
                beside.replace(target)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise
    except BadInput:
        raise
    except OSError as error:
        raise unusable(path, None, wanted, (error.strerror or str(error)).lower()) from None


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """SIGTERM ends the block through its ``finally`` clauses, as Ctrl-C does, where nobody else handles it."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
