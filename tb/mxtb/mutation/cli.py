"""``mxtwin mutate``."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mxhw.catalog import CATALOG, Block
from mxhw.cli import entries_of
from mxmodel.bad_input import BadInput
from mxtb import __version__
from mxtb.mutation.campaign import GOAL, MUTANTS, Score, campaign, tools
from mxtb.mutation.netlist import Part
from mxtb.mutation.page import renewed
from mxtb.mutation.record import COMMITTED, STIMULUS, Record, score_as_json

__all__ = ["SEED", "app"]

app = typer.Typer()

SEED = 2027
"""Of the published scores; no stimulus was written by looking at the survivors of this one."""

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "mutation.md"


@app.command(epilog="Example: mxtwin mutate narrow --mutants 500 --seed 7")
def mutate(
    block: Annotated[list[Block] | None, typer.Argument(help="Only these blocks.")] = None,
    entry: Annotated[list[str] | None, typer.Option(help="Only these entries, by Verilog module name.")] = None,
    mutants: Annotated[int, typer.Option(min=1, help="Mutants of each entry.")] = MUTANTS,
    seed: Annotated[int, typer.Option(min=0, help="Draws the mutants and the stimulus.")] = SEED,
    jobs: Annotated[int, typer.Option(min=1, help="Entries under way at once.")] = min(2, os.cpu_count() or 1),
    cache: Annotated[Path, typer.Option(help="Where the compiled evaluator is kept.")] = Path("build/mutation"),
    update: Annotated[bool, typer.Option("--update", help="Renew the committed scores and docs/mutation.md.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Plant faults in the gate-level netlists and count how many of them the ordinary regression finds.

    A clocked entry is mutated in its control alone. Mutants that survive and are shown by SMT to be equivalent do not
    count. Exit 1 if an entry is below its goal.
    """
    entries = entries_of(block, None, None, entry)
    versions = tools()
    before = _record_to_renew(mutants, seed, versions, whole=entries == CATALOG) if update else None
    stderr = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task("planting and running mutants", total=len(entries))
        scores = campaign(
            entries,
            count=mutants,
            seed=seed,
            jobs=jobs,
            cache=cache,
            progress=lambda one: bar.update(task, advance=1, description=f"{one.name}: done"),
        )
    now = Record.of(scores, seed=seed, tools=versions)
    if as_json:
        typer.echo(json.dumps(_as_json(scores, now), indent=2))
    else:
        _print(scores, seed)
    wrong = [score for score in scores if score.unmutated is not None]
    for score in wrong:
        assert score.unmutated is not None
        stderr.print(f"{score.entry} without a mutant differs from the golden twin: {score.unmutated.what}")
    if before is not None and not wrong:
        record = before.with_scores(now)
        record.write(COMMITTED)
        _PAGE.write_text(renewed(_PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")
        stderr.print(f"{COMMITTED.name} and docs/{_PAGE.name} renewed", highlight=False)
    if not all(score.met for score in scores):
        raise typer.Exit(1)


def _record_to_renew(mutants: int, seed: int, versions: dict[str, str], *, whole: bool) -> Record:
    """What is kept of the committed record; BadInput before anything is run if it cannot be renewed like this."""
    if mutants < MUTANTS:
        raise BadInput(f"--update must be with at least {MUTANTS} mutants, not {mutants}")
    if not _PAGE.exists():
        raise BadInput("--update must run from the source tree, where docs/mutation.md is")
    fresh = Record(seed=seed, stimulus=STIMULUS, tools=versions, entries={})
    if whole:
        return fresh
    if not COMMITTED.exists():
        raise BadInput("--update of a part must find a committed record, but there is none; update it all")
    try:
        return Record.read(COMMITTED).with_scores(fresh)
    except ValueError as error:
        raise BadInput(f"--update of a part must be like the committed record: {error}; update it all") from None


def _as_json(scores: list[Score], record: Record) -> dict[str, object]:
    return {
        "mxtwin": __version__,
        "seed": record.seed,
        "stimulus": record.stimulus,
        "tools": record.tools,
        "goals": {part.value: goal for part, goal in GOAL.items()},
        "entries": {s.entry: {**score_as_json(s), "met": s.met} for s in scores},
    }


def _print(scores: list[Score], seed: int) -> None:
    # Wide where it is a file or a pipe, so that no table is folded there.
    wide = max(160, int(os.environ.get("COLUMNS", "0")))
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=wide, highlight=False)
    title = f"mxtwin {__version__} mutation testing, seed {seed}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("entry", overflow="fold")
    table.add_column("part")
    for heading in ("mutants", "killed", "equivalent", "survivors", "score"):
        table.add_column(heading, justify="right", no_wrap=True)
    for score in scores:
        counts = (score.mutants, score.killed, score.equivalent, len(score.survivors))
        cells = [score.entry, score.part.value, *map(str, counts), f"{score.score:.2%}"]
        table.add_row(*cells, style=None if score.met else "bold red")
    console.print(table)
    for score in scores:
        for one in score.survivors:
            console.print(f"{score.entry}: {one.mutant} at {one.place} ({one.verdict.value})", soft_wrap=True)
    for part in Part:
        chosen = [score for score in scores if score.part is part]
        if chosen:
            met = sum(score.met for score in chosen)
            console.print(f"{part.value}: {met} of {len(chosen)} entries meet {GOAL[part]:.0%}")
