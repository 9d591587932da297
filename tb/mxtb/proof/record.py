"""The committed record of proofs: what was proved of which text, with which tools.

An entry's hash is of all that its proof depends on: the RTL as Amaranth prints it, every formula (the specification's
text among them), and the tools with versions. So a record is current, or visibly is not, without proving anything.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mxhw.catalog import CATALOG, Entry
from mxmodel.bad_input import BadInput
from mxtb.proof.netlist import SCRIPT, netlist_rtlil
from mxtb.proof.prover import Proof, obligations
from mxtb.proof.solver import TACTICS

__all__ = ["COMMITTED", "Record", "Recorded", "proof_hash"]

COMMITTED = Path(__file__).with_name("proofs.json")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One entry: the hash, what came of it, how many formulas, and the seconds of processor time it took."""

    sha256: str
    result: str
    formulas: int
    cpu_seconds: float


@dataclass(frozen=True, kw_only=True)
class Record:
    """Entries by name, and the tools that proved them."""

    tools: Mapping[str, str]
    entries: Mapping[str, Recorded] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Record":
        """Raises BadInput where ``file`` cannot be read as a record."""
        try:
            whole = json.loads(file.read_text(encoding="utf-8"))
            entries = {name: Recorded(**fields) for name, fields in whole["entries"].items()}
            return cls(tools=dict(whole["tools"]), entries=entries)
        except OSError as error:
            raise BadInput(f"{file} must be a record of proofs, but: {(error.strerror or '').lower()}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput(f"{file} must be a record of proofs, but: it is not as prove --update writes it") from None

    @classmethod
    def of(cls, proofs: Sequence[Proof], tools: Mapping[str, str]) -> "Record":
        """What ``proofs``, made with ``tools`` from the source at hand, are to be remembered by."""
        entries = {entry.name: entry for entry in CATALOG}
        return cls(
            tools=tools,
            entries={
                proof.entry: Recorded(
                    sha256=proof_hash(entries[proof.entry], tools),
                    result=proof.result.value,
                    formulas=proof.formulas,
                    cpu_seconds=round(proof.cpu_seconds, 1),
                )
                for proof in proofs
            },
        )

    def write(self, file: Path) -> None:
        """One line an entry, in their order; written beside, then renamed."""
        lines = [f"    {json.dumps(name)}: {json.dumps(vars(recorded))}" for name, recorded in self.entries.items()]
        text = f'{{\n  "tools": {json.dumps(dict(self.tools))},\n  "entries": {{\n' + ",\n".join(lines) + "\n  }\n}\n"
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_text(text, encoding="utf-8")
        beside.replace(file)

    def faults(
        self, entries: Iterable[Entry], tools: Mapping[str, str], progress: Callable[[Entry], None] = lambda entry: None
    ) -> list[str]:
        """A line for each of ``entries`` that this record does not show to be proved as it now stands.

        ``progress`` hears of each before it is looked at.
        """
        lines = []
        for entry in entries:
            progress(entry)
            recorded = self.entries.get(entry.name)
            where = f"{entry.block.value}: {entry.name}"
            if recorded is None:
                lines.append(f"{where} has no recorded proof")
            elif recorded.sha256 != proof_hash(entry, tools):
                lines.append(f"{where} is not what was proved: its RTL, its specification or a tool has changed")
            elif recorded.result != "proved":
                lines.append(f"{where} is recorded as {recorded.result}")
        return lines


def proof_hash(entry: Entry, tools: Mapping[str, str]) -> str:
    """SHA-256 of all that a proof of ``entry`` depends on."""
    parts = [
        json.dumps(dict(sorted(tools.items()))),
        *SCRIPT,
        *TACTICS,
        netlist_rtlil(entry),
        *(part for obligation in obligations(entry) for part in (obligation.label, obligation.script)),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
