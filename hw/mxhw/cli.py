"""The commands of the RTL floor."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from mxhw.catalog import CATALOG, Block, select
from mxhw.emit import description, write
from mxmodel.formats import element_format
from mxmodel.rules import rule_set

app = typer.Typer()


@app.command(epilog="Example: mxtwin verilog --block narrow --element fp8_e4m3 --out build/verilog")
def verilog(
    out: Annotated[Path, typer.Option(help="Directory for the .v and .json files.")] = Path("build/verilog"),
    block: Annotated[list[Block] | None, typer.Option(help="Only these blocks.")] = None,
    element: Annotated[list[str] | None, typer.Option(help="Only what serves these elements.")] = None,
    rules: Annotated[list[str] | None, typer.Option(help="Only what serves these rule sets.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the descriptions as JSON.")] = False,
) -> None:
    """Write every entry of the catalogue as Verilog, with a JSON description beside it."""
    try:
        chosen = select(
            blocks=tuple(block or ()),
            elements=tuple(element_format(name) for name in element or ()),
            rules=tuple(rule_set(name) for name in rules or ()),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not chosen:
        raise typer.BadParameter("the selection must name at least one entry of the catalogue, but matches none")
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True) as progress:
        # A fresh environment compiles its WebAssembly Yosys at the first module.
        task = progress.add_task("emitting (the first module ever takes some 15 s)", total=len(chosen))
        for entry in chosen:
            write(entry, out)
            progress.update(task, advance=1, description="emitting")
    if as_json:
        typer.echo(json.dumps([description(entry) for entry in chosen], indent=2))
    else:
        typer.echo(f"{len(chosen)} of {len(CATALOG)} catalogue entries written to {out}")
