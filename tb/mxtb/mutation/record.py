"""The committed scores, ``mutation.json``: what was measured, with which seed and tools, of which emitted modules."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxhw.catalog import CATALOG
from mxtb.mutation.campaign import GOAL, VECTORS, Score
from mxtb.mutation.netlist import Part, part_of

__all__ = ["COMMITTED", "STIMULUS", "Record", "score_as_json"]

COMMITTED = Path(__file__).with_name("mutation.json")

STIMULUS = {"random_vectors": VECTORS, "thorough": True}
"""The ordinary regression's, as ``mxtb.blocks.stimulus`` and ``mxtb.streams.regression_beats`` draw it."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Scores by entry name, as JSON has them."""

    seed: int
    stimulus: dict[str, Any]
    tools: dict[str, str]
    entries: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, file: Path) -> "Record":
        return cls(**json.loads(file.read_text(encoding="utf-8")))

    @classmethod
    def of(cls, scores: Sequence[Score], *, seed: int, tools: dict[str, str]) -> "Record":
        return cls(seed=seed, stimulus=STIMULUS, tools=tools, entries={s.entry: score_as_json(s) for s in scores})

    def with_scores(self, newer: "Record") -> "Record":
        """With the entries of ``newer``, and none that the catalogue no longer has.

        Raises ValueError unless both are of the same seed, stimulus and tools: scores of unlike runs are no record.
        """
        for name in ("seed", "stimulus", "tools"):
            if getattr(self, name) != getattr(newer, name):
                raise ValueError(f"{name} must be the record's {getattr(self, name)}, not {getattr(newer, name)}")
        entries = {**self.entries, **newer.entries}
        return Record(
            seed=self.seed,
            stimulus=self.stimulus,
            tools=self.tools,
            entries={entry.name: entries[entry.name] for entry in CATALOG if entry.name in entries},
        )

    def faults(self, hashes: dict[str, str], *, mutants: int) -> list[str]:
        """What is wrong with it, one line an entry: missing, stale, too few mutants, below its goal, ill-added.

        ``hashes`` are those of the emitted modules now, by entry name.
        """
        found = [f"{name} is not in the catalogue" for name in self.entries.keys() - {e.name for e in CATALOG}]
        for entry in CATALOG:
            row, part = self.entries.get(entry.name), part_of(entry)
            if row is None:
                found.append(f"{entry.name} has no record")
                continue
            scored = row["mutants"] - row["equivalent"]
            if row["netlist_hash"] != hashes[entry.name]:
                found.append(f"{entry.name} has changed since its mutants were run")
            elif row["part"] != part.value:
                found.append(f"{entry.name} is recorded as {row['part']}, not {part.value}")
            elif part is Part.DATAPATH and row["mutants"] < mutants:
                found.append(f"{entry.name} has {row['mutants']} mutants, not {mutants}")
            elif row["killed"] + row["equivalent"] + len(row["survivors"]) != row["mutants"]:
                found.append(f"{entry.name} has mutants that are neither killed nor equivalent nor named")
            elif row["score"] != round(row["killed"] / scored, 4) or row["score"] < GOAL[part]:
                found.append(f"{entry.name} scores {row['score']}, below {GOAL[part]} or not {row['killed']}/{scored}")
        return found

    def write(self, file: Path) -> None:
        """Beside its place, then renamed."""
        whole = {"seed": self.seed, "stimulus": self.stimulus, "tools": self.tools, "entries": self.entries}
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)


def score_as_json(score: Score) -> dict[str, Any]:
    """One entry's row."""
    survivors = [{"mutant": s.mutant, "place": s.place, "smt": s.verdict.value} for s in score.survivors]
    return {
        "part": score.part.value,
        "mutants": score.mutants,
        "candidates": score.candidates,
        "cases": score.cases,
        "killed": score.killed,
        "equivalent": score.equivalent,
        "survivors": survivors,
        "score": round(score.score, 4),
        "netlist_hash": score.netlist_hash,
    }
