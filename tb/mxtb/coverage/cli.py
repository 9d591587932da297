"""``mxtwin coverage``: the bins of the catalogue, its toggles, and the page that tells both."""

import json
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
from mxmodel.files.whole_file import whole_file
from mxtb import simulators
from mxtb.coverage.bins import Coverage
from mxtb.coverage.page import coverage_page
from mxtb.coverage.survey import survey
from mxtb.coverage.toggle import Toggles, measure, read_recorded, record
from mxtb.regress import tops
from mxtb.streams import StreamTop

__all__ = ["app"]

app = typer.Typer()

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "coverage.md"
_FEWEST = "icarus"
"""The simulator with the fewest random cases by default: what its stimulus hits, the other's hits too."""


@app.command(epilog="Example: mxtwin coverage --block narrow --element fp8_e4m3")
def coverage(
    block: Annotated[list[Block] | None, typer.Option(help="Only these blocks, repeatable.")] = None,
    element: Annotated[list[str] | None, typer.Option(help="Only what serves these elements.")] = None,
    rules: Annotated[list[str] | None, typer.Option(help="Only what serves these rule sets.")] = None,
    entry: Annotated[list[str] | None, typer.Option(help="Only these entries, by Verilog module name.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    toggle: Annotated[bool, typer.Option("--toggle", help="Simulate, and count which bits of the RTL moved.")] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Renew docs/coverage.md (and, with --toggle, its record).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Which bins a regression's stimulus hits, by the golden twin; with --toggle, which bits of the lanes it moves."""
    entries = entries_of(block, element, rules, entry)
    if update and (entries != CATALOG or seed):
        raise BadInput("--update must be of the whole catalogue with seed 0")
    if update and not _PAGE.parent.is_dir():
        raise BadInput(f"--update must run in the source tree, but there is no {_PAGE.parent}")
    lanes = [top for top in tops(entries) if not isinstance(top, StreamTop)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    toggles: list[Toggles] = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("covering", total=len(tops(entries)) + (len(lanes) if toggle else 0))

        def step(name: str) -> None:
            bar.update(task, advance=1, description=name)

        shown = survey(entries, _FEWEST, seed=seed, progress=step)
        if toggle:
            verilator = simulators.find("verilator")
            toggles = measure(entries, verilator, directory=Path("build"), seed=seed, progress=step)
            if update:
                record(toggles, verilator)
    if update:
        try:
            page = coverage_page(shown, _FEWEST, *read_recorded())
        except ValueError as error:
            raise BadInput(str(error)) from None
        with whole_file(_PAGE) as file:
            file.write(page.encode())
    if as_json:
        rows = {"coverage": [{"entry": one.entry, **one.as_json()} for one in shown]}
        typer.echo(json.dumps({**rows, "toggles": [one.as_json() for one in toggles]}, indent=2))
    else:
        _print(shown, toggles)
    if any(one.missed or one.violated for one in shown) or any(one.untoggled for one in toggles):
        raise typer.Exit(1)


def _print(shown: list[Coverage], toggles: list[Toggles]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=132)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("entry", overflow="fold")
    for heading in ("hit", "possible", "impossible"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in shown:
        style = "bold red" if one.missed or one.violated else None
        table.add_row(one.entry, f"{one.hit:,}", f"{one.possible:,}", f"{one.impossible:,}", style=style)
    console.print(table)
    for one in shown:
        lines = [f"never hit: {name}" for name in one.missed]
        lines += [f"impossible, but hit: {name}" for name in one.violated]
        for line in lines:
            console.print(f"{one.entry}: {line}", style="bold red", soft_wrap=True, highlight=False)
    for module in toggles:
        untoggled = f"; never both ways: {', '.join(module.untoggled)}" if module.untoggled else ""
        counts = f"{module.percent:.4g} % of {module.bits} bits toggled, {len(module.waived)} waived"
        line = f"{module.module}: {counts}{untoggled}"
        console.print(line, style="bold red" if module.untoggled else None, soft_wrap=True, highlight=False)
    hit, possible = sum(one.hit for one in shown), sum(one.possible for one in shown)
    console.print(f"{hit:,} of {possible:,} bins hit", highlight=False)
