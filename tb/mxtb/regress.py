"""The regression: emit, simulate and compare every chosen entry on every chosen simulator, and report.

Data's way: stimulus (directed, a user's tensor, random) -> golden twin -> plan -> simulator -> scoreboard -> outcome.
Tops run two at a time; the golden values of a top are worked out before its simulation starts.
"""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Block, Entry
from mxmodel.bad_input import BadInput
from mxmodel.formats import FP32, MX_BLOCK
from mxmodel.tensor_files import read_tensor
from mxmodel.widen import fp32_bits
from mxtb import __version__
from mxtb.blocks import golden, group, of_tensor, stimulus
from mxtb.explain import Case, Explanation, explain
from mxtb.lanes import Mismatch, Outcome, Top, compare
from mxtb.simulators import Simulator

__all__ = [
    "DEFAULT_VECTORS",
    "Regression",
    "Row",
    "TopRun",
    "case_of",
    "regress",
    "tensor_blocks",
    "tops",
    "write_report",
]

DEFAULT_VECTORS = {"verilator": 500_000, "icarus": 20_000}
"""Random cases for each top, beside the directed ones; Icarus is some two hundred times slower."""

STAGES = ("emit", "golden", "simulate")
"""What a top goes through, for progress bars."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration on one simulator."""

    block: str
    entry: str
    rule_sets: tuple[str, ...]
    simulator: str
    comparisons: int
    mismatches: int


@dataclass(frozen=True, kw_only=True)
class TopRun:
    """One top on one simulator: its rows, what it cost, and the first mismatch of every entry, explained."""

    name: str
    simulator: str
    rows: tuple[Row, ...]
    build_seconds: float
    golden_seconds: float
    simulation_seconds: float
    failures: tuple[Explanation, ...]
    waves: Path | None


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A whole regression."""

    runs: tuple[TopRun, ...]
    simulators: tuple[Simulator, ...]
    seed: int
    vectors: dict[str, int]
    data: str | None
    seconds: float

    @property
    def rows(self) -> list[Row]:
        """All rows, fewest comparisons first, so that thin evidence is seen first."""
        return sorted((row for run in self.runs for row in run.rows), key=lambda row: (row.comparisons, row.entry))

    @property
    def comparisons(self) -> int:
        return sum(row.comparisons for row in self.rows)

    @property
    def mismatches(self) -> int:
        return sum(row.mismatches for row in self.rows)

    @property
    def failures(self) -> list[Explanation]:
        return [failure for run in self.runs for failure in run.failures]

    def as_json(self) -> dict[str, Any]:
        return {
            "mxtwin": __version__,
            "seed": self.seed,
            "random_vectors": self.vectors,
            "data": self.data,
            "seconds": round(self.seconds, 2),
            "simulators": [
                {"name": s.name, "version": s.version, "origin": s.origin, "path": str(s.executable)}
                for s in self.simulators
            ],
            "comparisons": self.comparisons,
            "mismatches": self.mismatches,
            "rows": [
                {
                    "block": row.block,
                    "entry": row.entry,
                    "rule_sets": list(row.rule_sets),
                    "simulator": row.simulator,
                    "comparisons": row.comparisons,
                    "mismatches": row.mismatches,
                }
                for row in self.rows
            ],
            "tops": [
                {
                    "top": run.name,
                    "simulator": run.simulator,
                    "build_seconds": round(run.build_seconds, 2),
                    "golden_seconds": round(run.golden_seconds, 2),
                    "simulation_seconds": round(run.simulation_seconds, 2),
                    "waves": None if run.waves is None else str(run.waves),
                }
                for run in self.runs
            ],
            "failures": [
                {**failure.as_json(), "reproduce": failure.case.command(next(iter(failure.rtl)))}
                for failure in self.failures
            ],
        }


def tensor_blocks(spec: str) -> NDArray[np.uint32]:
    """A user's tensor as fp32 bit patterns [blocks, 32], 32 consecutive elements to a block.

    Raises BadInput, in one line, for a file or tensor that cannot be used or whose size is no multiple of 32.
    """
    tensor = read_tensor(spec)
    if tensor.values.dtype.itemsize > FP32.width // 8:
        raise BadInput(
            f"{spec}: tensor {tensor.name!r} must be float32, bfloat16 or float16 to drive the RTL, "
            f"not {tensor.values.dtype}"
        )
    if tensor.values.size == 0 or tensor.values.size % MX_BLOCK.size:
        raise BadInput(
            f"{spec}: tensor {tensor.name!r} must hold a multiple of {MX_BLOCK.size} elements, "
            f"not {tensor.values.size} (shape {list(tensor.values.shape)})"
        )
    return fp32_bits(np.ascontiguousarray(tensor.values)).reshape(-1, MX_BLOCK.size)


def regress(
    entries: Sequence[Entry],
    simulators: Sequence[Simulator],
    *,
    directory: Path,
    vectors: int | None = None,
    seed: int = 0,
    jobs: int = 2,
    waves: bool = False,
    data: str | None = None,
    progress: Callable[[str, str], None] = lambda top, stage: None,
) -> Regression:
    """Run ``entries`` on ``simulators``; ``progress`` hears (top on simulator, stage done) from worker threads.

    Parameters
    ----------
    directory : build cache and run files
    vectors : random cases for each top; None takes each simulator's default
    seed : of all randomness
    jobs : tops under way at once
    data : a tensor (``FILE`` or ``FILE::TENSOR``) to drive beside the built-in cases

    Raises ``BadInput`` for unusable data and ``SimulationFault`` where a tool broke or comparisons went missing.
    """
    if not entries:
        raise BadInput("the selection must name at least one entry of the catalogue, but matches none")
    start = time.perf_counter()
    blocks = None if data is None else tensor_blocks(data)
    counts = {s.name: DEFAULT_VECTORS[s.name] if vectors is None else vectors for s in simulators}
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [
            pool.submit(_run_top, top, simulator, counts[simulator.name], seed, blocks, directory, waves, progress)
            for simulator in simulators
            for top in tops(entries)
        ]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return Regression(
        runs=tuple(future.result() for future in futures),
        simulators=tuple(simulators),
        seed=seed,
        vectors=counts,
        data=data,
        seconds=time.perf_counter() - start,
    )


def tops(entries: Sequence[Entry]) -> list[Top]:
    """The tops that ``entries`` are simulated in."""
    return [Top(entries=together) for together in group(entries)]


def _run_top(
    top: Top,
    simulator: Simulator,
    count: int,
    seed: int,
    blocks: NDArray[np.uint32] | None,
    directory: Path,
    waves: bool,
    progress: Callable[[str, str], None],
) -> TopRun:
    label = f"{top.name} on {simulator.name}"
    top.sources()
    progress(label, "emit")
    start = time.perf_counter()
    inputs = stimulus(top.entries, count, seed)
    if blocks is not None and top.entries[0].source in (FP32, None):
        own = of_tensor(top.entries, blocks)
        inputs = {name: np.concatenate([array, own[name]]) for name, array in inputs.items()}
    expected = [golden(entry, inputs) for entry in top.entries]
    golden_seconds = time.perf_counter() - start
    progress(label, "golden")
    outcome = compare(simulator, top, inputs, expected, directory=directory, waves=waves)
    progress(label, "simulate")
    return TopRun(
        name=top.name,
        simulator=simulator.name,
        rows=tuple(
            Row(
                block=top.block.value,
                entry=entry.name,
                rule_sets=tuple(dict.fromkeys(rules.name for _, rules in entry.serves())),
                simulator=simulator.name,
                comparisons=outcome.compared[entry.name],
                mismatches=outcome.mismatches[entry.name],
            )
            for entry in top.entries
        ),
        build_seconds=outcome.build_seconds,
        golden_seconds=golden_seconds,
        simulation_seconds=outcome.simulation_seconds,
        failures=_explained(top, outcome, inputs, simulator.name),
        waves=outcome.waves,
    )


def _explained(top: Top, outcome: Outcome, inputs: dict[str, NDArray[Any]], simulator: str) -> tuple[Explanation, ...]:
    first: dict[str, Mismatch] = {}
    for mismatch in outcome.first:
        first.setdefault(mismatch.entry, mismatch)
    explanations = []
    for entry in top.entries:
        if entry.name in first:
            mismatch = first[entry.name]
            explanation = explain(case_of(entry, inputs, mismatch.case), {})
            bits = mismatch.got[-explanation.width :]
            explanations.append(explain(explanation.case, {simulator: bits}))
    return tuple(explanations)


def case_of(entry: Entry, inputs: dict[str, NDArray[Any]], index: int) -> Case:
    """Case ``index`` of a top's ``inputs``, as ``entry`` sees it."""
    if entry.block is Block.LDEXP:
        words = inputs["code"][index : index + 1] & (entry.policy.element.code_count - 1)  # type: ignore[union-attr]
    else:
        words = inputs["x"][index].reshape(-1)
    scale = int(inputs["scale"][index]) if entry.scaled else None
    return Case(entry=entry, words=tuple(int(word) for word in words), scale=scale)


def write_report(regression: Regression, file: Path) -> None:
    """Write the JSON report beside its place, then rename it there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.part")
    beside.write_text(json.dumps(regression.as_json(), indent=2) + "\n")
    beside.replace(file)
