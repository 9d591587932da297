"""One simulation held to its plan: built, run, its results read back, every planned comparison accounted for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mxtb.scoreboard import OUTPUTS, PLAN, RESULT
from mxtb.simulators import SimulationFault, Simulator, build, failed_tests, run

__all__ = ["Mismatch", "Outcome", "compare_as_planned"]

_WAVE_FILES = ("dump.vcd", "dump.fst")


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One output that differed.

    Attributes
    ----------
    entry : the configuration
    case : index of the case; of a stream, of the output beat
    got, expected : bit strings; ``got`` may hold X or Z, and is a sentence where a stream broke its rules
    """

    entry: str
    case: int
    got: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one top showed on one simulator.

    Attributes
    ----------
    compared, mismatches : counts for every entry
    first : the first few mismatches of every entry
    build_seconds, simulation_seconds : wall time; a cached build took 0
    waves : the wave file, where one was asked for
    outputs : the file of everything that came out, where it was asked for
    """

    compared: Mapping[str, int]
    mismatches: Mapping[str, int]
    first: tuple[Mismatch, ...]
    build_seconds: float
    simulation_seconds: float
    waves: Path | None
    outputs: Path | None


def compare_as_planned(
    simulator: Simulator,
    name: str,
    sources: Mapping[str, str],
    toplevel: str,
    test_module: str,
    planned: Mapping[str, int],
    *,
    work: Path,
    cache: Path,
    waves: bool = False,
) -> Outcome:
    """Simulate ``sources`` under the plan that lies in ``work``; ``planned`` is the comparisons owed for each entry.

    Raises ``SimulationFault`` if the tool broke, or if not exactly the planned comparisons were made.
    """
    result_file, outputs = work / RESULT, work / OUTPUTS
    for stale in (result_file, outputs, *(work / wave for wave in _WAVE_FILES)):
        stale.unlink(missing_ok=True)
    built = build(simulator, sources, toplevel, cache=cache, waves=waves)
    run(built, test_module, work, environment={PLAN: str(work)}, waves=waves)
    where = f"{name} on {simulator.name}"
    if not result_file.exists():
        raise SimulationFault(f"{where}: the scoreboard wrote no result; see {work / 'run.log'}")
    result = json.loads(result_file.read_text())
    if result["compared"] != dict(planned):
        owed, made = sum(planned.values()), sum(result["compared"].values())
        raise SimulationFault(f"{where}: {owed} comparisons were planned, {made} were made")
    total = sum(result["mismatches"].values())
    if bool(failed_tests(work / "results.xml")) != bool(total):
        raise SimulationFault(f"{where}: the results file and the scoreboard disagree; see {work / 'run.log'}")
    return Outcome(
        compared=result["compared"],
        mismatches=result["mismatches"],
        first=tuple(Mismatch(**row) for row in result["first"]),
        build_seconds=built.seconds,
        simulation_seconds=result["seconds"],
        waves=next((work / wave for wave in _WAVE_FILES if (work / wave).exists()), None),
        outputs=outputs if outputs.exists() else None,
    )
