"""A catalogue entry as gates, with all its mutants in one netlist: an input selects which of them is alive.

The emitted Verilog goes through Yosys ``synth -flatten``. ``mutate -list`` names every place and fault there is, the
mutants are drawn from them by the seed, and ``mutate -ctrl`` puts them into the netlist behind the input ``MUTANT``:
value 0 is the entry as it is, value k its k-th mutant.

The whole list is asked for and drawn from here, because Yosys 0.70 asked for a part of a short list never ends.
"""

import json
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from mxhw.catalog import Entry
from mxhw.emit import emit
from mxhw.yosys import run_yosys

__all__ = ["MUTANT", "Cell", "Gates", "Mutant", "Mutated", "Part", "control_pins", "mutated", "part_of"]

MUTANT = "mutant"
"""The input that selects the mutant."""

_ALL = 1_000_000
"""More mutants than any entry has."""

_TIMEOUT = 300
"""Seconds for one run of Yosys."""

_CLOCK_PIN = "C"
_STEERING_PINS = ("E", "R")
"""A flip-flop's enable and reset."""


class Part(Enum):
    """Which gates of an entry are mutated."""

    DATAPATH = "datapath"
    """All of a combinational entry."""
    CONTROL = "control"
    """Of a clocked entry the handshake, the beat counter, and the enables and resets that they drive."""


def part_of(entry: Entry) -> Part:
    """What is mutated of ``entry``."""
    return Part.CONTROL if entry.clocked else Part.DATAPATH


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault.

    Attributes
    ----------
    number : the value of ``MUTANT`` that brings it to life, from 1
    mode : Yosys's word for the fault: the pin inverted or stuck
    cell, port : the pin
    place : where that is, for a person
    command : the line of Yosys that makes it
    """

    number: int
    mode: str
    cell: str
    port: str
    place: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a netlist; pin name -> nets. A net is a number, or "0" or "1"."""

    name: str
    kind: str
    pins: dict[str, list[int | str]]
    source: str | None


@dataclass(frozen=True, kw_only=True)
class Gates:
    """A flat netlist as Yosys writes it in JSON."""

    cells: tuple[Cell, ...]
    inputs: dict[str, list[int]]
    outputs: dict[str, list[int | str]]
    names: dict[int, str] = field(default_factory=dict)
    """Of the nets that have one."""

    @classmethod
    def read(cls, text: str, top: str) -> "Gates":
        module = json.loads(text)["modules"][top]
        ports: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
        for name, port in module["ports"].items():
            ports[port["direction"]][name] = port["bits"]
        names: dict[int, str] = {}
        for name, net in module["netnames"].items():
            if not net["hide_name"]:
                for place, bit in enumerate(net["bits"]):
                    names.setdefault(bit, name if len(net["bits"]) == 1 else f"{name}[{place}]")
        cells = (
            Cell(name=name, kind=cell["type"], pins=cell["connections"], source=cell["attributes"].get("src"))
            for name, cell in module["cells"].items()
            if cell["type"] != "$scopeinfo"
        )
        return cls(cells=tuple(cells), inputs=ports["input"], outputs=ports["output"], names=names)


@dataclass(frozen=True, kw_only=True)
class Mutated:
    """An entry with its mutants in it.

    Attributes
    ----------
    gates : one-bit gates, ``$eq`` cells that compare ``MUTANT`` with a constant, and ``$_DFF_P_``
    smt2 : the same netlist as SMT-LIB, as Yosys's ``write_smt2 -stbv`` puts it
    candidates : mutants that there are to draw from
    """

    entry: Entry
    part: Part
    mutants: tuple[Mutant, ...]
    gates: Gates
    smt2: str
    candidates: int

    @property
    def select_bits(self) -> int:
        """Width of ``MUTANT``."""
        return len(self.gates.inputs[MUTANT])


def mutated(entry: Entry, count: int, seed: int) -> Mutated:
    """``entry`` with ``count`` mutants drawn by ``seed``, or all there are if they are fewer.

    Of a clocked entry the gates that steer come first; the enables and resets of the payload, of which there are many
    alike, fill up. Raises RuntimeError with Yosys's last words if it fails.
    """
    top = entry.name
    with tempfile.TemporaryDirectory(prefix="mxtwin_mutate_") as folder:
        work = Path(folder)
        (work / f"{top}.v").write_text(emit(entry).text, encoding="utf-8")
        listing = (
            f"read_verilog {top}.v",
            f"synth -flatten -top {top}",
            "opt_clean -purge",
            "write_rtlil gates.il",
            "write_json gates.json",
            f"mutate -list {_ALL} -seed {seed} -o all.txt",
        )
        run_yosys(work, listing, top, timeout=_TIMEOUT)
        gates = Gates.read((work / "gates.json").read_text(encoding="utf-8"), top)
        lines = (work / "all.txt").read_text(encoding="utf-8").splitlines()
        tiers = _tiers(entry, gates, lines)
        rng = np.random.default_rng([seed, zlib.crc32(top.encode())])
        shuffled = [tier[index] for tier in tiers for index in rng.permutation(len(tier))]
        mutants = tuple(_mutants(shuffled[:count], gates))
        bits = max(len(mutants).bit_length(), 1)
        planting = (
            "read_rtlil gates.il",
            *(f"mutate -ctrl {MUTANT} {bits} {m.number} {m.command.removeprefix('mutate ')}" for m in mutants),
            "dffunmap",
            "simplemap t:$mux t:$not t:$xor t:$xnor t:$and t:$or",
            "write_json mutated.json",
            "write_smt2 -stbv mutated.smt2",
        )
        run_yosys(work, planting, top, timeout=_TIMEOUT)
        return Mutated(
            entry=entry,
            part=part_of(entry),
            mutants=mutants,
            gates=Gates.read((work / "mutated.json").read_text(encoding="utf-8"), top),
            smt2=(work / "mutated.smt2").read_text(encoding="utf-8"),
            candidates=sum(len(tier) for tier in tiers),
        )


def _tiers(entry: Entry, gates: Gates, lines: Sequence[str]) -> list[list[str]]:
    """The mutants to draw from, the foremost list first."""
    if not entry.clocked:
        return [list(lines)]
    steering, payload = control_pins(gates)
    tiers: list[list[str]] = [[], []]
    for line in lines:
        words = _words(line)
        pin = words["cell"], words["port"]
        if pin in steering:
            tiers[0].append(line)
        elif pin in payload:
            tiers[1].append(line)
    return tiers


def control_pins(gates: Gates) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """The pins (cell, pin) of a clocked entry's control: those of the steering logic, and those that it steers.

    A net is control if it lies in the fan-in of ``i__ready``, ``o__valid`` or of a flip-flop's enable or reset, and no
    input payload reaches it, through gates or flip-flops. Steering pins are all pins of the cells that drive control
    nets; steered ones are pins of other cells that a control net drives. Clocks are left alone.
    """
    drivers = {bit: cell for cell in gates.cells for pin in _output_pins(cell) for bit in cell.pins[pin]}
    carries = set(gates.inputs["i__payload"])
    grown = True
    while grown:
        reached = {
            bit
            for cell in gates.cells
            if any(bit in carries for pin in _data_pins(cell) for bit in cell.pins[pin])
            for pin in _output_pins(cell)
            for bit in cell.pins[pin]
        }
        grown = not reached <= carries
        carries |= reached  # type: ignore[arg-type]  # constants are driven by no cell
    todo = [*gates.outputs["i__ready"], *gates.outputs["o__valid"]]
    todo += [
        bit for cell in gates.cells for pin in _STEERING_PINS if _flip_flop(cell) for bit in cell.pins.get(pin, [])
    ]
    control: set[int | str] = set()
    while todo:
        bit = todo.pop()
        if bit in control or bit in carries or isinstance(bit, str):
            continue
        control.add(bit)
        if bit in drivers:
            cell = drivers[bit]
            todo += [other for pin in _data_pins(cell) for other in cell.pins[pin]]
    steering, steered = set(), set()
    for cell in gates.cells:
        drives = any(bit in control for pin in _output_pins(cell) for bit in cell.pins[pin])
        for pin, bits in cell.pins.items():
            if _flip_flop(cell) and pin == _CLOCK_PIN:
                continue
            if drives:
                steering.add((cell.name, pin))
            elif any(bit in control for bit in bits):
                steered.add((cell.name, pin))
    return steering, steered


def _flip_flop(cell: Cell) -> bool:
    return "DFF" in cell.kind


def _output_pins(cell: Cell) -> tuple[str, ...]:
    return ("Q",) if _flip_flop(cell) else ("Y",)


def _data_pins(cell: Cell) -> list[str]:
    return [pin for pin in cell.pins if pin not in _output_pins(cell) and not (_flip_flop(cell) and pin == _CLOCK_PIN)]


def _words(line: str) -> dict[str, str]:
    """The options of a ``mutate`` line; no name in Yosys has a space."""
    words = line.split()[1:]
    return dict(zip((word.removeprefix("-") for word in words[::2]), words[1::2], strict=True))


def _mutants(lines: Sequence[str], gates: Gates) -> Iterator[Mutant]:
    by_name = {cell.name: cell for cell in gates.cells}
    readers: dict[int | str, list[Cell]] = {}
    for cell in gates.cells:
        for pin in _data_pins(cell):
            for bit in cell.pins[pin]:
                readers.setdefault(bit, []).append(cell)
    for number, line in enumerate(lines, start=1):
        words = _words(line)
        cell = by_name[words["cell"].removeprefix("\\")]
        yield Mutant(
            number=number,
            mode=words["mode"],
            cell=cell.name,
            port=words["port"],
            place=_place(words, cell, gates, readers),
            command=line,
        )


def _place(words: dict[str, str], cell: Cell, gates: Gates, readers: dict[int | str, list[Cell]]) -> str:
    """The pin, its net if that has a name, the line of the emitted Verilog if Yosys knows it, the next named net on.

    The mapper names few nets and no lines, hence the way on.
    """
    parts = [f"{cell.kind} {cell.name} pin {words['port']}"]
    if "wire" in words:
        wire = words["wire"].removeprefix("\\")
        parts.append(f"net {wire}[{words['wirebit']}]" if "wirebit" in words else f"net {wire}")
    source = words.get("src") or cell.source
    if source:
        parts.append(re.sub(r"\.v:(\d+)\S*", r".v line \1", source.split("|")[0]))
    nets, seen = [bit for pin in _output_pins(cell) for bit in cell.pins[pin]], set[int | str]()
    while nets:
        bit = nets.pop(0)
        if isinstance(bit, int) and bit in gates.names:
            parts.append(f"towards {gates.names[bit]}")
            break
        seen.add(bit)
        on = [other for reader in readers.get(bit, []) for pin in _output_pins(reader) for other in reader.pins[pin]]
        nets += [other for other in on if other not in seen]
    return ", ".join(parts)
