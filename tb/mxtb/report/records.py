"""What is recorded of the catalogue beside a regression: area, proofs and mutation scores; all may be absent."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxhw.area.baseline import COMMITTED, Baseline
from mxtb.mutation.record import COMMITTED as MUTATION
from mxtb.proof.record import COMMITTED as PROOFS
from mxtb.proof.solver import Result

__all__ = ["Mutation", "Proof", "Records", "read_records"]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What a solver said of one entry, and the processor seconds that it took."""

    result: str
    seconds: float | None

    @property
    def holds(self) -> bool:
        return self.result == Result.PROVED.value


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """Faults planted into one entry's netlist; ``survivors`` are (mutant, place)."""

    part: str
    mutants: int
    killed: int
    equivalent: int
    survivors: tuple[tuple[str, str], ...]

    @property
    def score(self) -> float:
        """Percent killed of those that change the function."""
        return 100.0 * self.killed / max(self.mutants - self.equivalent, 1)


@dataclass(frozen=True, kw_only=True)
class Records:
    """By entry name; a mapping is empty where nothing is recorded."""

    area: Mapping[str, tuple[int, int, int]]
    yosys: str | None
    proofs: Mapping[str, Proof]
    proof_tools: Mapping[str, str]
    mutation: Mapping[str, Mutation]
    mutation_seed: int | None

    def as_json(self, entry: str) -> dict[str, Any]:
        """What is recorded of one entry; None for what is not."""
        area, proof, mutation = self.area.get(entry), self.proofs.get(entry), self.mutation.get(entry)
        return {
            "area": area and dict(zip(("luts", "levels", "flip_flops"), area, strict=True)),
            "proof": proof and {"result": proof.result, "seconds": proof.seconds},
            "mutation": mutation
            and {"mutants": mutation.mutants, "killed": mutation.killed, "equivalent": mutation.equivalent},
        }


def read_records(*, area: Path = COMMITTED, proofs: Path = PROOFS, mutation: Path = MUTATION) -> Records:
    """Read what there is. A record that is absent or of another shape is left out: a report is no check of records."""
    try:
        baseline = Baseline.read(area)
        figures = {name: (qor.luts, qor.levels, qor.flip_flops) for name, qor in baseline.entries.items()}
        yosys: str | None = baseline.yosys
    except ValueError:
        figures, yosys = {}, None
    proved, planted = _read(proofs), _read(mutation)
    seed = planted.get("seed")
    return Records(
        area=figures,
        yosys=yosys,
        proofs=_each(proved.get("entries"), _proof),
        proof_tools={str(name): str(version) for name, version in _mapping(proved.get("tools")).items()},
        mutation=_each(planted.get("entries"), _mutation),
        mutation_seed=seed if isinstance(seed, int) else None,
    )


def _read(file: Path) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _each(rows: Any, read: Callable[[Any], Any]) -> dict[str, Any]:
    found = {}
    for name, row in _mapping(rows).items():
        try:
            found[str(name)] = read(row)
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return found


def _proof(row: Mapping[str, Any]) -> Proof:
    seconds = row.get("cpu_seconds")
    return Proof(result=str(row["result"]), seconds=None if seconds is None else float(seconds))


def _mutation(row: Mapping[str, Any]) -> Mutation:
    return Mutation(
        part=str(row.get("part", "")),
        mutants=int(row["mutants"]),
        killed=int(row["killed"]),
        equivalent=int(row.get("equivalent", 0)),
        survivors=tuple((str(one["mutant"]), str(one.get("place", ""))) for one in row.get("survivors", ())),
    )
