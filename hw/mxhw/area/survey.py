"""The area figures of many catalogue entries: two syntheses at a time, and none twice for the same design."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from mxhw.catalog import Entry
from mxhw.qor import RECIPE, Qor, measure_rtlil, rtlil_of
from mxhw.yosys import yosys_version

__all__ = ["survey"]


def survey(
    entries: Iterable[Entry],
    *,
    cache: Path,
    jobs: int = 2,
    progress: Callable[[Entry], None] = lambda entry: None,
) -> dict[Entry, Qor]:
    """Measure ``entries``, ``jobs`` at a time; in their order.

    What was measured before is read from ``cache``, a directory of figures by the hash of the design, the recipe and
    Yosys's version, so that only what changed is synthesised. ``progress`` is called from this thread's workers as
    each entry is done.

    Raises ModuleNotFoundError and RuntimeError as ``mxhw.qor.measure``; ValueError unless ``jobs`` is positive.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs!r}")
    version = yosys_version()

    def figures(entry: Entry, text: str) -> Qor:
        file = cache / f"{_key(version, text)}.json"
        qor = _kept(file)
        if qor is None:
            qor = measure_rtlil(text, entry.name)
            _keep(file, qor)
        progress(entry)
        return qor

    # Elaboration is Python and stays in this thread; the syntheses are child processes that the workers wait for.
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting: dict[Entry, Future[Qor]] = {
            entry: pool.submit(figures, entry, rtlil_of(entry.component(), entry.name)) for entry in entries
        }
        return {entry: future.result() for entry, future in waiting.items()}
    finally:
        pool.shutdown(cancel_futures=True)


def _key(version: str, text: str) -> str:
    return hashlib.sha256("\n".join([version, *RECIPE, text]).encode()).hexdigest()


def _kept(file: Path) -> Qor | None:
    """What ``file`` says; None if it is not there or not whole, which costs a synthesis and nothing else."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        return Qor(luts=int(fields["luts"]), levels=int(fields["levels"]), flip_flops=int(fields["flip_flops"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(file: Path, qor: Qor) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(json.dumps(asdict(qor)) + "\n", encoding="utf-8")
    beside.replace(file)
