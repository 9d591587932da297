"""The ``prove`` command."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import mxhw.cli
from mxhw.catalog import CATALOG, Block, Entry
from mxmodel.bad_input import BadInput
from mxmodel.counted import counted
from mxtb import __version__
from mxtb.proof import record as proof_record
from mxtb.proof.page import page_with
from mxtb.proof.prover import Proof, prove, quick
from mxtb.proof.record import Record
from mxtb.proof.solver import Result, tool_versions

__all__ = ["app"]

app = typer.Typer()

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "proofs.md"
"""In the source tree; an installed copy has none."""


@app.command(
    "prove",
    epilog="Example: mxtwin prove narrow ldexp --jobs 2; one alone: mxtwin prove --entry mx_narrow_fp32_fp8_e4m3_zero",
)
def prove_command(
    block: Annotated[list[Block] | None, typer.Argument(help="Only these blocks; all, if none is named.")] = None,
    entry: Annotated[list[str] | None, typer.Option(help="Only these entries, by Verilog module name.")] = None,
    quickly: Annotated[
        bool, typer.Option("--quick", help="Only lanes, and of scaled narrow lanes one of each element.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for each formula.")] = 300.0,
    jobs: Annotated[int, typer.Option(min=1, help="Proofs under way at once, each a process.")] = os.cpu_count() or 1,
    check: Annotated[
        bool, typer.Option("--check", help="Prove nothing; exit 1 if an entry is not what was proved.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Prove all, then renew the record and docs/proofs.md.")
    ] = False,
    file: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Another record than the committed one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Prove that the RTL equals the specification for all inputs; of streams, their laws too, for all states.

    Yosys reads the RTL, z3 looks for an input that breaks the specification. A counterexample is told with what both
    twins make of it, and as a regression vector. What is not proved in time is not proved: exit 1.
    """
    if check and (update or quickly):
        raise BadInput("--check must not be given with --update or --quick: it proves nothing")
    if update and (block or entry or quickly):
        raise BadInput("--update must be of the whole catalogue, without blocks, --entry or --quick")
    tools = tool_versions()
    entries = _chosen(block, entry, quick() if quickly else CATALOG)
    committed = proof_record.COMMITTED if file is None else file
    if check:
        _check(committed, entries, tools, whole=not block and not entry, as_json=as_json)
        return
    if update and file is None and not _PAGE.is_file():
        raise BadInput("--update must be run in mxtwin's source tree, not in an installed copy")
    start = time.perf_counter()
    jobs = min(jobs, len(entries))
    proofs = _proved(entries, timeout, jobs)
    seconds = time.perf_counter() - start
    if as_json:
        whole = {"mxtwin": __version__, "tools": tools, "seconds": round(seconds, 2), "jobs": jobs}
        typer.echo(json.dumps({**whole, "proofs": [proof.as_json() for proof in proofs]}, indent=2))
    else:
        _print(proofs, tools, seconds, jobs)
    if any(proof.result is not Result.PROVED for proof in proofs):
        raise typer.Exit(1)
    if update:
        _update(committed, proofs, tools, with_page=file is None)


def _chosen(block: list[Block] | None, names: list[str] | None, among: Sequence[Entry]) -> tuple[Entry, ...]:
    named = mxhw.cli.entries_of(block, None, None, names)
    chosen = tuple(one for one in among if one in named)
    if not chosen:
        raise BadInput("the selection must name at least one entry, but --quick leaves none of it")
    return chosen


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _proved(entries: Sequence[Entry], timeout: float, jobs: int) -> list[Proof]:
    with _bar() as bar:
        task = bar.add_task("proving", total=len(entries))

        def advance(proof: Proof) -> None:
            bar.update(task, advance=1, description=f"{proof.entry}: {proof.result.value}")

        return prove(entries, timeout=timeout, jobs=jobs, progress=advance)


def _check(file: Path, entries: Sequence[Entry], tools: dict[str, str], *, whole: bool, as_json: bool) -> None:
    record = Record.read(file)
    with _bar() as bar:
        task = bar.add_task("comparing hashes", total=len(entries))
        faults = record.faults(entries, tools, lambda entry: bar.advance(task))
    if dict(record.tools) != tools:
        then, now = (", ".join(f"{name} {one}" for name, one in some.items()) for some in (record.tools, tools))
        faults.insert(0, f"the record is of {then}, and here is {now}")
    if whole:
        names = {one.name for one in CATALOG}
        gone = [name for name in record.entries if name not in names]
        faults += [f"{name} is recorded, but no longer in the catalogue" for name in gone]
    if as_json:
        typer.echo(json.dumps({"entries": len(entries), "faults": faults}, indent=2))
    for line in faults:
        typer.echo(f"mxtwin: {line}", err=True)
    if faults:
        raise typer.Exit(1)
    if not as_json:
        one = len(entries) == 1
        typer.echo("1 entry is as it was proved" if one else f"{len(entries)} entries are as they were proved")


def _update(file: Path, proofs: Sequence[Proof], tools: dict[str, str], *, with_page: bool) -> None:
    record = Record.of(proofs, tools)
    record.write(file)
    if with_page:
        _PAGE.write_text(page_with(_PAGE.read_text(encoding="utf-8"), record, CATALOG), encoding="utf-8")
    typer.echo(f"mxtwin: {file.name} renewed{f', and docs/{_PAGE.name}' if with_page else ''}", err=True)


def _print(proofs: Sequence[Proof], tools: dict[str, str], seconds: float, jobs: int) -> None:
    console = _console()
    title = f"mxtwin {__version__} proofs, {', '.join(f'{name} {one}' for name, one in tools.items())}"
    console.print(title, soft_wrap=True, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("entry", overflow="fold")
    table.add_column("result", no_wrap=True)
    for heading in ("formulas", "seconds", "CPU s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for proof in proofs:
        style = None if proof.result is Result.PROVED else "bold red"
        figures = (str(proof.formulas), f"{proof.seconds:.1f}", f"{proof.cpu_seconds:.1f}")
        table.add_row(proof.entry, proof.result.value, *figures, style=style)
    console.print(table)
    for proof in proofs:
        if proof.failed is not None:
            _print_failure(console, proof)
    proved = sum(proof.result is Result.PROVED for proof in proofs)
    formulas, cpu = sum(proof.formulas for proof in proofs), sum(proof.cpu_seconds for proof in proofs)
    console.print(
        f"{proved} of {len(proofs)} entries proved, {counted(formulas, 'formula')}, in {seconds:.0f} s "
        f"({cpu:.0f} CPU s, {jobs} at once)",
        highlight=False,
    )


def _print_failure(console: Console, proof: Proof) -> None:
    console.print(f"{proof.entry}: {proof.result.value}: {proof.failed}", style="bold", highlight=False, soft_wrap=True)
    found = proof.counterexample
    if found is None:
        console.print("not proved: give it more time with --timeout\n")
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in found.rows:
        table.add_row(label, text, style="bold red" if text.endswith("differs") else None)
    console.print(table)
    replayed = "the twins differ on it" if found.replayed else "NOT seen in simulation"
    console.print(f"replayed: {replayed}; as a regression vector:", highlight=False)
    console.print(found.line, soft_wrap=True, highlight=False, markup=False)
    if found.command is not None:
        console.print(f"show it again with: {found.command}", soft_wrap=True, highlight=False, markup=False)
    console.print()


def _console() -> Console:
    """Standard output; wide where it is a file or a pipe, so that no table is folded there."""
    return Console() if sys.stdout.isatty() else Console(width=max(132, int(os.environ.get("COLUMNS", "0"))))
