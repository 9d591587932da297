"""A regression as one HTML page that needs nothing else: what was compared, what it showed, how to see it again."""

import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mxhw.catalog import Block, Entry, find
from mxtb import __version__
from mxtb.coverage.bins import Coverage
from mxtb.coverage.toggle import read_recorded
from mxtb.doctor import Finding
from mxtb.regress import Regression
from mxtb.report.plots import plots
from mxtb.report.records import Records

__all__ = ["page"]

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_MISSED_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One configuration, all simulators together."""

    entry: Entry
    block: str
    short: str
    rule_sets: tuple[str, ...]
    comparisons: dict[str, int]
    mismatches: int
    possible: int
    hit: int
    impossible: int
    problem: bool
    area: tuple[int, int, int] | None
    proof: Any
    mutation: Any


def page(
    regression: Regression, records: Records, *, command: str, tools: list[Finding], directory: Path, when: datetime
) -> str:
    """The page's text; links to files are relative to ``directory``. ImportError without jinja2 and matplotlib."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["count"] = lambda number: f"{number:,}"
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    lines = _lines(regression, records)
    return template.render(
        version=__version__,
        regression=regression,
        records=records,
        command=command,
        tools=tools,
        when=when.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        lines=lines,
        blocks=[block.value for block in Block if any(line.block == block.value for line in lines)],
        simulators=[simulator.name for simulator in regression.simulators],
        largest_area=max((line.area[0] for line in lines if line.area), default=1),
        coverage=_coverage(regression),
        toggles=_toggles(lines),
        reasons=_reasons(regression),
        uncovered=regression.uncovered[:_MISSED_SHOWN],
        failures=_failures(regression, directory),
        waves=_waves(regression, directory),
        plots=plots(),
        proofs=_proofs(lines),
        mutation=_mutation(lines),
    )


def _lines(regression: Regression, records: Records) -> list[_Line]:
    coverage: dict[str, list[Coverage]] = {}
    for _, one in regression.coverage:
        coverage.setdefault(one.entry, []).append(one)
    found: dict[str, _Line] = {}
    rows = [row for run in regression.runs for row in run.rows]
    for row in rows:
        if row.entry in found:
            continue
        own = [other for other in rows if other.entry == row.entry]
        bins = coverage.get(row.entry, [])
        mismatches = sum(other.mismatches for other in own)
        found[row.entry] = _Line(
            entry=find(row.entry),
            block=row.block,
            short=row.entry.removeprefix(f"mx_{row.block}_"),
            rule_sets=row.rule_sets,
            comparisons={other.simulator: other.comparisons for other in own},
            mismatches=mismatches,
            possible=sum(one.possible for one in bins),
            hit=sum(one.hit for one in bins),
            impossible=sum(one.impossible for one in bins),
            problem=bool(
                mismatches or (regression.full and any(one.missed for one in bins)) or any(one.violated for one in bins)
            ),
            area=records.area.get(row.entry),
            proof=records.proofs.get(row.entry),
            mutation=records.mutation.get(row.entry),
        )
    return list(found.values())


def _coverage(regression: Regression) -> dict[str, int]:
    names = ("possible", "hit", "impossible")
    total = {name: sum(getattr(one, name) for _, one in regression.coverage) for name in names}
    return {**total, "violated": sum(len(one.violated) for _, one in regression.coverage)}


def _toggles(lines: list[_Line]) -> dict[str, int] | None:
    """Sums over the recorded toggles of the lanes shown; None where nothing is recorded."""
    try:
        _, recorded = read_recorded()
    except ValueError:
        return None
    names = {line.entry.name for line in lines}
    own = [one for one in recorded if one.module in names]
    movable = sum(one.bits - len(one.waived) for one in own)
    return {"modules": len(own), "movable": movable, "toggled": movable - sum(len(one.untoggled) for one in own)}


def _reasons(regression: Regression) -> list[tuple[str, str, str, int]]:
    """(block, clause, why, bins) of the impossible bins, each entry's counted once."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in {one.entry: one for _, one in regression.coverage}.values():
        block = find(one.entry).block.value
        for tally in one.tallies:
            for bin in tally.plan.bins:
                if bin.impossible is not None:
                    counts[block, bin.impossible.clause, bin.impossible.why] += 1
    return [(*key, count) for key, count in sorted(counts.items())]


def _failures(regression: Regression, directory: Path) -> list[dict[str, Any]]:
    waves = {
        (run.simulator, row.entry): run.waves for run in regression.runs for row in run.rows if run.waves is not None
    }
    return [
        {
            "entry": failure.entry,
            "simulator": failure.simulator,
            "rows": failure.rows,
            "reproduce": failure.reproduce,
            "waves": _link(waves.get((failure.simulator, failure.entry)), directory),
        }
        for failure in regression.failures
    ]


def _waves(regression: Regression, directory: Path) -> dict[tuple[str, str], str | None]:
    return {(run.simulator, run.name): _link(run.waves, directory) for run in regression.runs}


def _link(file: Path | None, directory: Path) -> str | None:
    return None if file is None else Path(os.path.relpath(file, directory)).as_posix()


def _proofs(lines: list[_Line]) -> dict[str, int]:
    recorded = [line.proof for line in lines if line.proof is not None]
    return {"recorded": len(recorded), "hold": sum(proof.holds for proof in recorded), "of": len(lines)}


def _mutation(lines: list[_Line]) -> dict[str, Any]:
    own = [line.mutation for line in lines if line.mutation is not None]
    mutants, killed, equivalent = (
        sum(getattr(one, name) for one in own) for name in ("mutants", "killed", "equivalent")
    )
    score = 100.0 * killed / max(mutants - equivalent, 1)
    return {"entries": len(own), "mutants": mutants, "killed": killed, "equivalent": equivalent, "score": score}
