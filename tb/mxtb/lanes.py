"""Combinational entries side by side on one stimulus: the top that is simulated, and the plan of what it must show.

Every entry of a top is instantiated ``LANES`` times, so that one step of the simulator compares entries x lanes
outputs. What must come out is worked out before the simulation starts and laid beside it as a plan.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Block, Entry
from mxhw.emit import emit
from mxtb.scoreboard import PLAN, RESULT
from mxtb.simulators import SimulationFault, Simulator, build, failed_tests, run

__all__ = ["LANES", "TOPLEVEL", "Mismatch", "Outcome", "Top", "compare", "write_plan"]

TOPLEVEL = "mx_lanes"
LANES = {Block.SHARED_EXPONENT: 4, Block.NARROW: 32, Block.LDEXP: 32}
"""Instances of each entry. A lane of ``shared_exponent`` is a whole block, hence fewer."""

_WAVE_FILES = ("dump.vcd", "dump.fst")


@dataclass(frozen=True, kw_only=True)
class Top:
    """Entries that share their inputs: one block, one source, all with a scale or all without.

    Attributes
    ----------
    entries : at least one
    """

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len({(entry.block, entry.source, entry.scaled) for entry in self.entries}) != 1:
            raise ValueError(f"entries must share block, source and inputs, not {[e.name for e in self.entries]!r}")

    @property
    def block(self) -> Block:
        return self.entries[0].block

    @property
    def lanes(self) -> int:
        return LANES[self.block]

    @property
    def name(self) -> str:
        """A short name for tables, logs and directories."""
        entry = self.entries[0]
        source = "" if entry.source is None else f"_{entry.source.name}"
        scaled = "_scaled" if entry.block is Block.NARROW and entry.scaled else ""
        return f"{entry.block.value}{source}{scaled}"

    def sources(self) -> dict[str, str]:
        """File name -> text: every entry's Verilog, the wrapper, and the control file for Verilator."""
        files = {f"{entry.name}.v": emit(entry).text for entry in self.entries}
        files[f"{TOPLEVEL}.v"] = self._wrapper()
        files[f"{TOPLEVEL}.vlt"] = self._control()
        return files

    @property
    def input_slots(self) -> dict[str, int]:
        """Bits that a lane takes on the bus of each input; a narrower port takes the low ones."""
        slots: dict[str, int] = {}
        for entry in self.entries:
            for port in emit(entry).ports:
                if port.direction == "input":
                    slots[port.name] = max(_slot(port.width), slots.get(port.name, 0))
        return slots

    @property
    def output_slot(self) -> int:
        """Bits that every output takes on the bus ``y``."""
        widths = [port.width for entry in self.entries for port in emit(entry).ports if port.direction == "output"]
        return _slot(max(widths))

    def _wrapper(self) -> str:
        slots = self.input_slots
        instances: list[str] = []
        for index, entry in enumerate(self.entries):
            connections = []
            for port in emit(entry).ports:
                if port.direction == "input":
                    connections.append(f".{port.name}({port.name}[{slots[port.name]} * i +: {port.width}])")
                    continue
                padding = self.output_slot - port.width
                zeros = f"{{{padding}'b0, y{index}}}" if padding else f"y{index}"
                start = f"{self.output_slot} * ({index} * {self.lanes} + i)"
                instances.append(f"    wire [{port.width - 1}:0] y{index};")
                instances.append(f"    assign y[{start} +: {self.output_slot}] = {zeros};")
                connections.append(f".{port.name}(y{index})")
            instances.append(f"    {entry.name} entry{index} ({', '.join(connections)});")
        lines = [f"module {TOPLEVEL} ("]
        lines += [f"  input [{slot * self.lanes - 1}:0] {name}," for name, slot in slots.items()]
        lines += [f"  output [{self.output_slot * len(self.entries) * self.lanes - 1}:0] y", ");", "  genvar i;"]
        lines += [f"  generate for (i = 0; i < {self.lanes}; i = i + 1) begin : lane", *instances]
        lines += ["  end endgenerate", "endmodule", ""]
        return "\n".join(lines)

    def _control(self) -> str:
        lines = ["`verilator_config"]
        # Without it every lane is compiled anew; with it, once.
        lines += [f'no_inline -module "{entry.name}"' for entry in self.entries]
        lines += [f'public_flat_rw -module "{TOPLEVEL}" -var "{name}"' for name in (*self.input_slots, "y")]
        return "\n".join(lines) + "\n"


def _slot(width: int) -> int:
    """Bits on a bus for a port of ``width``: whole bytes, so that NumPy arrays are the bus."""
    return (width + 7) // 8 * 8


def write_plan(directory: Path, top: Top, inputs: Mapping[str, NDArray[Any]], expected: Sequence[NDArray[Any]]) -> int:
    """Lay inputs and expected outputs beside a run of ``top``; returns the comparisons that it must make.

    Parameters
    ----------
    inputs : port name -> [cases] or [cases, elements], unsigned, little-endian
    expected : one [cases] array for every entry, of the output slot's width
    """
    cases = {len(array) for array in (*inputs.values(), *expected)}
    if len(cases) != 1 or len(expected) != len(top.entries):
        raise ValueError(f"inputs and expected must hold the same number of cases, not {sorted(cases)}")
    directory.mkdir(parents=True, exist_ok=True)
    (count,) = cases
    plan = {
        "entries": [entry.name for entry in top.entries],
        "lanes": top.lanes,
        "cases": count,
        "inputs": sorted(inputs),
    }
    for name, array in inputs.items():
        np.save(directory / f"{name}.npy", array)
    np.save(directory / "expected.npy", np.stack(expected))
    (directory / "plan.json").write_text(json.dumps(plan))
    return count * len(top.entries)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """One output that differed. ``got`` and ``expected`` are bit strings; ``got`` may hold X or Z."""

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
    """

    compared: Mapping[str, int]
    mismatches: Mapping[str, int]
    first: tuple[Mismatch, ...]
    build_seconds: float
    simulation_seconds: float
    waves: Path | None


def compare(
    simulator: Simulator,
    top: Top,
    inputs: Mapping[str, NDArray[Any]],
    expected: Sequence[NDArray[Any]],
    *,
    directory: Path,
    waves: bool = False,
) -> Outcome:
    """Simulate ``top`` on ``inputs`` and compare every output with ``expected`` (as in ``write_plan``).

    ``directory`` takes the build cache and the run's files. Raises ``SimulationFault`` if the tool broke, or if not
    exactly the planned comparisons were made.
    """
    directory = directory.resolve()  # the simulator runs in a folder of its own
    work = directory / "runs" / simulator.name / top.name
    planned = write_plan(work, top, inputs, expected)
    result_file = work / RESULT
    for stale in (result_file, *(work / name for name in _WAVE_FILES)):
        stale.unlink(missing_ok=True)
    built = build(simulator, top.sources(), TOPLEVEL, cache=directory / "tops", waves=waves)
    run(built, f"mxtb.{top.block.value}", work, environment={PLAN: str(work)}, waves=waves)
    where = f"{top.name} on {simulator.name}"
    if not result_file.exists():
        raise SimulationFault(f"{where}: the scoreboard wrote no result; see {work / 'run.log'}")
    result = json.loads(result_file.read_text())
    made = sum(result["compared"].values())
    if made != planned or len(set(result["compared"].values())) != 1:
        raise SimulationFault(f"{where}: {planned} comparisons were planned, {made} were made")
    total = sum(result["mismatches"].values())
    if bool(failed_tests(work / "results.xml")) != bool(total):
        raise SimulationFault(f"{where}: the results file and the scoreboard disagree; see {work / 'run.log'}")
    return Outcome(
        compared=result["compared"],
        mismatches=result["mismatches"],
        first=tuple(Mismatch(**row) for row in result["first"]),
        build_seconds=built.seconds,
        simulation_seconds=result["seconds"],
        waves=next((work / name for name in _WAVE_FILES if (work / name).exists()), None),
    )
