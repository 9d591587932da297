"""Every obligation of some entries, a process for each entry; what is refuted comes back with its counterexample."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from mxhw.catalog import CATALOG, Block, Entry, Form
from mxtb.proof.counterexample import Counterexample, of_lane, of_stream
from mxtb.proof.netlist import netlist_smt
from mxtb.proof.obligation import Obligation, lane_obligations
from mxtb.proof.solver import Result, solve
from mxtb.proof.stream_obligation import stream_obligations

__all__ = ["Proof", "obligations", "prove", "prove_entry", "quick"]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What came of one entry.

    Attributes
    ----------
    entry : its name
    formulas : obligations proved
    result : PROVED where all are; else of the first that is not
    failed : that one's label, or None
    seconds, cpu_seconds : wall and processor time, Yosys's included
    counterexample : where REFUTED
    """

    entry: str
    formulas: int
    result: Result
    failed: str | None
    seconds: float
    cpu_seconds: float
    counterexample: Counterexample | None

    def as_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            "result": self.result.value,
            "formulas": self.formulas,
            "failed": self.failed,
            "seconds": round(self.seconds, 2),
            "cpu_seconds": round(self.cpu_seconds, 2),
            "counterexample": None if self.counterexample is None else self.counterexample.as_json(),
        }


def obligations(entry: Entry) -> tuple[Obligation, ...]:
    """All that must be shown of ``entry``."""
    return stream_obligations(entry) if entry.clocked else lane_obligations(entry)


def quick() -> tuple[Entry, ...]:
    """A part of the catalogue for every commit: all combinational lanes without a scale, all ``ldexp`` and
    ``shared_exponent`` lanes, and of scaled ``narrow`` lanes the first of each element."""
    chosen, elements = [], set()
    for entry in CATALOG:
        if entry.clocked:
            continue
        if entry.block is Block.NARROW and entry.scaled:
            if entry.form is not Form.LANE or entry.elements in elements:
                continue
            elements.add(entry.elements)
        chosen.append(entry)
    return tuple(chosen)


def prove_entry(entry: Entry, *, timeout: float) -> Proof:
    """Prove ``entry`` in this process: Yosys once, then one formula after another, up to the first that fails.

    ``timeout`` is for each formula, in seconds. Raises RuntimeError where a tool breaks.
    """
    start, cpu_start = time.perf_counter(), _cpu_seconds()
    netlist = netlist_smt(entry)
    proved = 0
    result, failed, counterexample = Result.PROVED, None, None
    for obligation in obligations(entry):
        verdict = solve(netlist + obligation.script, obligation.asked, timeout=timeout)
        if verdict.result is not Result.PROVED:
            result, failed = verdict.result, obligation.label
            if result is Result.REFUTED:
                counterexample = (
                    of_stream(entry, netlist, obligation, timeout=timeout)
                    if entry.clocked
                    else of_lane(entry, verdict.values)
                )
            break
        proved += 1
    return Proof(
        entry=entry.name,
        formulas=proved,
        result=result,
        failed=failed,
        seconds=time.perf_counter() - start,
        cpu_seconds=_cpu_seconds() - cpu_start,
        counterexample=counterexample,
    )


def _cpu_seconds() -> float:
    """Of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def prove(
    entries: Sequence[Entry],
    *,
    timeout: float,
    jobs: int = 1,
    progress: Callable[[Proof], None] = lambda proof: None,
) -> list[Proof]:
    """Prove ``entries``, ``jobs`` at a time, each in a process; in their order. With one job, in this process.

    ``progress`` is called here as each entry is done. Raises ValueError unless ``jobs`` is positive; RuntimeError
    where a tool breaks.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, not {jobs!r}")
    done: dict[str, Proof] = {}

    def finished(proof: Proof) -> None:
        done[proof.entry] = proof
        progress(proof)

    if jobs == 1:
        for entry in entries:
            finished(prove_entry(entry, timeout=timeout))
        return [done[entry.name] for entry in entries]
    # Threads are about: nothing is forked.
    pool = ProcessPoolExecutor(min(jobs, len(entries)), mp_context=get_context("spawn"))
    try:
        for future in as_completed([pool.submit(prove_entry, entry, timeout=timeout) for entry in entries]):
            finished(future.result())
    finally:
        pool.shutdown(cancel_futures=True)
    return [done[entry.name] for entry in entries]
