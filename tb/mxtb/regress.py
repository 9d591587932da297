"""The regression: emit, simulate and compare every chosen entry on every chosen simulator, and report.

Data's way: stimulus (directed, a user's tensor, random) -> golden twin -> plan -> simulator -> scoreboard -> outcome.
Tops run two at a time; the golden values of a top are worked out before its simulation starts.
"""

import fcntl
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Entry, Form
from mxmodel.bad_input import BadInput
from mxmodel.files.tensor_files import read_tensor
from mxmodel.formats import FP32, MX_BLOCK, SourceFormat
from mxmodel.widen import fp32_bits, source_of
from mxtb import __version__
from mxtb.blocks import golden, group, of_tensor, stimulus
from mxtb.comparison import Mismatch, Outcome
from mxtb.coverage.bins import Coverage
from mxtb.coverage.entries import cover
from mxtb.explain import Case, explain
from mxtb.lanes import Top, compare
from mxtb.simulators import Simulator
from mxtb.streams import Beats, StreamTop, compare_streams, regression_beats

__all__ = [
    "DEFAULT_VECTORS",
    "THOROUGH",
    "Drive",
    "Failure",
    "Regression",
    "TensorBlocks",
    "Row",
    "TopRun",
    "blocks_of",
    "case_of",
    "regress",
    "tensor_blocks",
    "tops",
    "write_report",
]

DEFAULT_VECTORS = {"verilator": 500_000, "icarus": 20_000}
"""Random cases for each top, beside the directed ones; Icarus is some two hundred times slower."""

THOROUGH = ("verilator",)
"""Simulators fast enough for the exhaustive part of a stimulus."""

_CASES_PER_BLOCK = 200
_LEAST_BLOCKS = 100
"""Of a clocked entry: one block of 32 elements for so many random cases asked for, and at least so many blocks."""

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
class Failure:
    """The first mismatch of an entry: what it was, and the command that shows it again."""

    entry: str
    simulator: str
    rows: tuple[tuple[str, str], ...]
    reproduce: str

    def as_json(self) -> dict[str, Any]:
        story = [{"label": label, "text": text} for label, text in self.rows]
        return {"entry": self.entry, "simulator": self.simulator, "story": story, "reproduce": self.reproduce}


@dataclass(frozen=True, kw_only=True)
class TopRun:
    """One top on one simulator: its rows, what it cost, the first mismatch and the coverage of every entry."""

    name: str
    simulator: str
    rows: tuple[Row, ...]
    build_seconds: float
    golden_seconds: float
    simulation_seconds: float
    failures: tuple[Failure, ...]
    waves: Path | None
    coverage: tuple[Coverage, ...]
    coverage_seconds: float


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
    def failures(self) -> list[Failure]:
        return [failure for run in self.runs for failure in run.failures]

    @property
    def coverage(self) -> list[tuple[str, Coverage]]:
        """(simulator, coverage) of every configuration."""
        return [(run.simulator, coverage) for run in self.runs for coverage in run.coverage]

    @property
    def full(self) -> bool:
        """Whether at least the default number of random cases was asked for: only then is a missed bin a failure."""
        return all(self.vectors[s.name] >= DEFAULT_VECTORS[s.name] for s in self.simulators)

    @property
    def uncovered(self) -> list[str]:
        """Bins of a full run that should have been hit, and those of any run that nothing may hit, one line each."""
        lines = []
        for simulator, coverage in self.coverage:
            where = f"{coverage.entry} on {simulator}"
            lines += [f"{where}: never hit: {name}" for name in coverage.missed if self.full]
            lines += [f"{where}: hit, but impossible: {name}" for name in coverage.violated]
        return lines

    @property
    def passed(self) -> bool:
        return not self.mismatches and not self.uncovered

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
                    "coverage_seconds": round(run.coverage_seconds, 2),
                    "waves": None if run.waves is None else str(run.waves),
                }
                for run in self.runs
            ],
            "coverage": {
                "full": self.full,
                "passed": not self.uncovered,
                "rows": [
                    {"entry": coverage.entry, "simulator": simulator, **coverage.as_json()}
                    for simulator, coverage in self.coverage
                ],
            },
            "failures": [failure.as_json() for failure in self.failures],
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorBlocks:
    """A user's tensor, 32 consecutive elements to a block.

    Attributes
    ----------
    fp32 : widened, uint32 [blocks, 32]
    source : its own format
    own : its own bit patterns, of the same shape
    """

    fp32: NDArray[np.uint32]
    source: SourceFormat
    own: NDArray[Any]


def tensor_blocks(spec: str) -> TensorBlocks:
    """A user's tensor in blocks of 32.

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
    values = np.ascontiguousarray(tensor.values).reshape(-1, MX_BLOCK.size)
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    source = source_of(native)
    return TensorBlocks(fp32=fp32_bits(native), source=source, own=native.view(f"uint{source.width}"))


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
    drive = Drive(seed=seed, blocks=blocks, data=data, directory=directory, waves=waves, progress=progress)
    with _alone(directory / "runs"), ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [
            pool.submit(drive.run, top, simulator, counts[simulator.name])
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


@contextmanager
def _alone(runs: Path) -> Iterator[None]:
    """Hold ``runs`` for one regression; BadInput if another has it, since they would write the same files."""
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"{runs} must be free, but another regression is running in it") from None
        yield


def blocks_of(count: int) -> int:
    """Blocks of 32 elements that a clocked entry is given where ``count`` random cases are asked for."""
    return max(count // _CASES_PER_BLOCK, _LEAST_BLOCKS)


def tops(entries: Sequence[Entry]) -> list[Top | StreamTop]:
    """The tops that ``entries`` are simulated in: combinational ones by their inputs, clocked ones together."""
    clocked = tuple(entry for entry in entries if entry.clocked)
    groups = group(entry for entry in entries if not entry.clocked)
    lanes: list[Top | StreamTop] = [Top(entries=together) for together in groups]
    return [*lanes, StreamTop(entries=clocked)] if clocked else lanes


@dataclass(frozen=True, kw_only=True)
class Drive:
    """What is the same for every top of a regression."""

    seed: int
    blocks: TensorBlocks | None
    data: str | None
    directory: Path
    waves: bool
    progress: Callable[[str, str], None]

    def run(self, top: Top | StreamTop, simulator: Simulator, count: int) -> TopRun:
        label = f"{top.name} on {simulator.name}"
        work, cache = self.directory / "runs" / simulator.name / top.name, self.directory / "tops"
        top.sources()
        self.progress(label, "emit")
        start = time.perf_counter()
        if isinstance(top, StreamTop):
            beats = {entry.name: self._beats(entry, count) for entry in top.entries}
            golden_seconds = time.perf_counter() - start
            self.progress(label, "golden")
            outcome = compare_streams(simulator, top, beats, seed=self.seed, work=work, cache=cache, waves=self.waves)
            start = time.perf_counter()
            shown = [
                cover((e,), own.inputs, [golden(e, own.inputs)])
                for e, own in zip(top.entries, beats.values(), strict=True)
            ]
            coverage = tuple(one for (one,) in shown)
            coverage_seconds = time.perf_counter() - start
            failures = self._stream_failures(outcome, simulator, count)
        else:
            inputs = self.inputs(top, simulator, count)
            expected = [golden(entry, inputs) for entry in top.entries]
            golden_seconds = time.perf_counter() - start
            self.progress(label, "golden")
            outcome = compare(simulator, top, inputs, expected, work=work, cache=cache, waves=self.waves)
            start = time.perf_counter()
            coverage = tuple(cover(top.entries, inputs, expected))
            coverage_seconds = time.perf_counter() - start
            failures = _lane_failures(top, outcome, inputs, simulator)
        self.progress(label, "simulate")
        return TopRun(
            name=top.name,
            simulator=simulator.name,
            rows=tuple(
                Row(
                    block=entry.block.value,
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
            failures=failures,
            waves=outcome.waves,
            coverage=coverage,
            coverage_seconds=coverage_seconds,
        )

    def inputs(self, top: Top, simulator: Simulator, count: int) -> dict[str, NDArray[Any]]:
        """The stimulus of a combinational top, and the user's tensor after it where it can enter."""
        inputs = stimulus(top.entries, count, self.seed, thorough=simulator.name in THOROUGH)
        source = top.entries[0].source
        if self.blocks is None or source not in (FP32, None, self.blocks.source):
            return inputs
        own = of_tensor(top.entries, self.blocks.fp32)
        if source == self.blocks.source:  # its own bits, as often as they are asked for
            own["x"] = np.resize(self.blocks.own, own["x"].shape)
        return {name: np.concatenate([array, own[name]]) for name, array in inputs.items()}

    def _beats(self, entry: Entry, count: int) -> Beats:
        return regression_beats(entry, blocks_of(count), self.seed)

    def _stream_failures(self, outcome: Outcome, simulator: Simulator, count: int) -> tuple[Failure, ...]:
        """A beat of a stream depends on those before it and on the stalls: the whole run shows it again."""
        failures = []
        for name, mismatch in _first(outcome).items():
            words = ["mxtwin", "regress", "--entry", name, "--sim", simulator.name]
            words += ["--vectors", str(count), "--seed", str(self.seed)]
            rows = (
                ("entry", name),
                ("beat", f"{mismatch.case} of the output, counted from 0"),
                ("golden", mismatch.expected),
                (f"rtl ({simulator.name})", f"{mismatch.got}   <- differs"),
            )
            failures.append(Failure(entry=name, simulator=simulator.name, rows=rows, reproduce=shlex.join(words)))
        return tuple(failures)


def _first(outcome: Outcome) -> dict[str, Mismatch]:
    """The first mismatch of every entry that has one."""
    first: dict[str, Mismatch] = {}
    for mismatch in outcome.first:
        first.setdefault(mismatch.entry, mismatch)
    return first


def _lane_failures(
    top: Top, outcome: Outcome, inputs: dict[str, NDArray[Any]], simulator: Simulator
) -> tuple[Failure, ...]:
    failures = []
    entries = {entry.name: entry for entry in top.entries}
    for name, mismatch in _first(outcome).items():
        case = case_of(entries[name], inputs, mismatch.case)
        story = explain(case, {simulator.name: mismatch.got[-entries[name].result_width :]})
        failures.append(
            Failure(
                entry=name,
                simulator=simulator.name,
                rows=tuple(story.rows()),
                reproduce=case.command(simulator.name),
            )
        )
    return tuple(failures)


def case_of(entry: Entry, inputs: dict[str, NDArray[Any]], index: int) -> Case:
    """Case ``index`` of a top's ``inputs``, as ``entry`` sees it: a format chosen, a code cut to its width."""
    words = inputs["code" if entry.source is None else "x"][index].reshape(-1)
    return Case(
        entry=entry,
        words=tuple(int(word) & ((1 << entry.word_width) - 1) for word in words),
        scale=int(inputs["scale"][index]) if entry.scaled else None,
        selected=int(inputs["format"][index]) if entry.form is Form.MULTI_FORMAT else None,
    )


def write_report(regression: Regression, file: Path) -> None:
    """Write the JSON report beside its place, then rename it there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.part")
    beside.write_text(json.dumps(regression.as_json(), indent=2) + "\n")
    beside.replace(file)
