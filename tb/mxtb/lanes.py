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

from mxhw.catalog import Block, Entry, Form
from mxhw.emit import emit
from mxtb.comparison import Outcome, compare_as_planned
from mxtb.simulators import Simulator

__all__ = ["LANES", "TOPLEVEL", "Top", "compare", "write_plan"]

TOPLEVEL = "mx_lanes"
LANES = {Block.SHARED_EXPONENT: 4, Block.NARROW: 32, Block.LDEXP: 32}
"""Instances of each entry. A lane of ``shared_exponent`` is a whole block, hence fewer."""


@dataclass(frozen=True, kw_only=True)
class Top:
    """Combinational entries that share their inputs: one block, source and form, all with a scale or all without.

    Attributes
    ----------
    entries : at least one
    """

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len({(entry.block, entry.source, entry.scaled, entry.form) for entry in self.entries}) != 1:
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
        kind = "_scaled" if entry.block is Block.NARROW and entry.scaled else ""
        if entry.form is Form.MULTI_FORMAT:
            kind = f"_{entry.form.value}"
        return f"{entry.block.value}{source}{kind}"

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


def write_plan(
    directory: Path,
    top: Top,
    inputs: Mapping[str, NDArray[Any]],
    expected: Sequence[NDArray[Any]],
    *,
    keep_outputs: bool = False,
) -> int:
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
        "keep_outputs": keep_outputs,
    }
    for name, array in inputs.items():
        np.save(directory / f"{name}.npy", array)
    np.save(directory / "expected.npy", np.stack(expected))
    (directory / "plan.json").write_text(json.dumps(plan))
    return count


def compare(
    simulator: Simulator,
    top: Top,
    inputs: Mapping[str, NDArray[Any]],
    expected: Sequence[NDArray[Any]],
    *,
    work: Path,
    cache: Path,
    waves: bool = False,
    keep_outputs: bool = False,
) -> Outcome:
    """Simulate ``top`` on ``inputs`` and compare every output with ``expected`` (as in ``write_plan``).

    ``work`` takes the run's files and is this run's own; ``cache`` keeps builds. With ``keep_outputs`` everything that
    came out is kept as a NumPy file of bit strings [steps]. Raises ``SimulationFault`` if the tool broke, or if not
    exactly the planned comparisons were made.
    """
    work = work.resolve()  # the simulator runs in a folder of its own
    cases = write_plan(work, top, inputs, expected, keep_outputs=keep_outputs)
    return compare_as_planned(
        simulator,
        top.name,
        top.sources(),
        TOPLEVEL,
        f"mxtb.{top.block.value}",
        {entry.name: cases for entry in top.entries},
        work=work,
        cache=cache.resolve(),
        waves=waves,
    )
