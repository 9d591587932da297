"""A catalogue entry as Verilog text and files, with a JSON description beside each."""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from amaranth.back import verilog as amaranth_verilog
from amaranth.hdl import ValueCastable
from amaranth.lib import wiring

from mxhw import __version__
from mxhw.catalog import CATALOG, Entry

__all__ = ["Module", "Port", "description", "emit", "write"]


@dataclass(frozen=True, kw_only=True)
class Port:
    """A flat port of an emitted module. ``direction`` is "input" or "output"; ``width`` is in bits."""

    name: str
    direction: str
    width: int
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Module:
    """An emitted Verilog module: its name, its ports in the signature's order, its text."""

    name: str
    ports: tuple[Port, ...]
    text: str

    @property
    def body_sha256(self) -> str:
        """SHA-256 of the text without its heading comment: it changes when bits or ports do, not with the version."""
        body = re.sub(r"\A(//[^\n]*\n)+", "", self.text)
        return hashlib.sha256(body.encode()).hexdigest()


@cache
def emit(entry: Entry) -> Module:
    """The module of ``entry``: the same text, byte for byte, for the same source on every host."""
    component = entry.component()
    meanings = entry.port_meanings()
    directions = {}
    for path, member, value in component.signature.flatten(component):
        name = "__".join(str(part) for part in path)
        width = len(value.as_value() if isinstance(value, ValueCastable) else value)
        directions[name] = ("input" if member.flow is wiring.In else "output", width)
    ports = [Port(name=name, direction=d, width=w, meaning=meanings[name]) for name, (d, w) in directions.items()]
    if entry.clocked:
        ports = [
            Port(name="clk", direction="input", width=1, meaning="clock, rising edge"),
            Port(name="rst", direction="input", width=1, meaning="synchronous reset"),
            *ports,
        ]
    body = amaranth_verilog.convert(component, name=entry.name, emit_src=False, strip_internal_attrs=True)
    # The converter's own heading names its build; ours names what a reader needs.
    body = re.sub(r"\A/\*.*?\*/\s*", "", body, flags=re.DOTALL)
    heading = [f"// {entry.name}: mxtwin {__version__}, Apache-2.0"]
    if entry not in CATALOG:
        heading.append("// NOT in the verified catalogue")
    heading.append("//")
    heading += [f"// {port.direction:6} [{port.width - 1}:0] {port.name}: {port.meaning}" for port in ports]
    heading.append(f"// {_timing(entry)}")
    return Module(name=entry.name, ports=tuple(ports), text="\n".join(heading) + "\n" + body)


def _timing(entry: Entry) -> str:
    if not entry.clocked:
        return "combinational"
    return f"latency {entry.latency} cycle, one beat a cycle; {entry.beats} beat(s) for an output"


def description(entry: Entry) -> dict[str, Any]:
    """What the JSON beside the Verilog of ``entry`` says."""
    module = emit(entry)
    return {
        "name": entry.name,
        "version": __version__,
        "block": entry.block.value,
        "source": None if entry.source is None else entry.source.name,
        "form": entry.form.value,
        "policies": [policy.name for policy in entry.policies],
        "lanes": entry.lanes,
        "rule_sets": [{"element": element.name, "rules": rules.name} for element, rules in entry.serves()],
        "lane_only_rule_sets": [
            {"element": element.name, "rules": rules.name}
            for element, rules in entry.computes()
            if not rules.writes(element)
        ],
        "verified_catalogue": entry in CATALOG,
        "ports": [
            {"name": port.name, "direction": port.direction, "width": port.width, "meaning": port.meaning}
            for port in module.ports
        ],
        "latency_cycles": entry.latency,
        "beats_per_output": entry.beats,
        "sha256": hashlib.sha256(module.text.encode()).hexdigest(),
        "body_sha256": module.body_sha256,
    }


def write(entry: Entry, directory: Path) -> Path:
    """Write ``<name>.v`` and ``<name>.json`` into ``directory``; returns the Verilog file's path."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{entry.name}.v"
    _replace(directory / f"{entry.name}.json", json.dumps(description(entry), indent=2) + "\n")
    _replace(file, emit(entry).text)
    return file


def _replace(file: Path, text: str) -> None:
    """Write beside, then rename, so that an interrupted run leaves no half-written file."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(file)
