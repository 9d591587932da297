"""The ``mxtwin`` command: the bench's own commands, joined with those of the floors below."""

import json
import os
import shlex
import sys
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer.exceptions import TyperException

import mxhw.cli
import mxmodel.cli
import mxmodel.program_cli
import mxtb.coverage.cli
import mxtb.mutation.cli
import mxtb.program_cli
import mxtb.proof.cli
from mxhw.catalog import Block, Entry, Form, find, policy_of
from mxmodel.bad_input import BadInput
from mxmodel.counted import counted
from mxmodel.formats import ELEMENTS, MX_BLOCK, element_format, source_format
from mxmodel.rules import BIRSIM, rule_set
from mxtb import __version__, rtl_blocks, simulators
from mxtb.doctor import examine
from mxtb.exhaustive import PATTERNS, Result, Sweep, sweep
from mxtb.explain import Case, explain
from mxtb.lanes import Top, compare
from mxtb.regress import STAGES, Regression, regress, tops, write_report
from mxtb.report.write import PAGE, check_report, write_report_folder

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,  # an internal fault shows its plain traceback
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Two twins of the Trainium MX datapath: a bit-exact golden model and its RTL, shown to be one function.",
)
for panel, joined in (
    ("Evidence", mxtb.coverage.cli.app),
    ("Evidence", mxtb.mutation.cli.app),
    ("Evidence", mxtb.proof.cli.app),
    ("RTL", mxhw.cli.app),
    ("Tensors", mxmodel.cli.app),
    ("Programs", mxtb.program_cli.app),
    ("Programs", mxmodel.program_cli.app),
):
    for command in joined.registered_commands:
        command.rich_help_panel = panel
    app.add_typer(joined)

BUILD = Path("build")
_UNCOVERED_SHOWN = 20
"""Uncovered bins printed; the report has all."""

SimulatorName = Enum("SimulatorName", {name.upper(): name for name in simulators.NAMES})  # type: ignore[misc]
Origin = Enum("Origin", {name.upper(): name for name in ("amaranth", *simulators.NAMES)})  # type: ignore[misc]


def main() -> None:
    """Run the command line: exit 0, 1 (a check failed) or 2 (bad input, told in one line)."""
    try:
        status = app(standalone_mode=False)
    except (BadInput, TyperException) as error:
        message = error.format_message() if isinstance(error, TyperException) else str(error)
        print(f"mxtwin: error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("mxtwin: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mxtwin {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Two twins of the Trainium MX datapath: a bit-exact golden model and its RTL, shown to be one function."""


@app.command(
    "regress",
    epilog="Example: mxtwin regress --sim verilator --sim icarus --block narrow --element fp8_e4m3 --vectors 50000",
)
def regress_command(
    sim: Annotated[list[SimulatorName] | None, typer.Option(help="Simulator, repeatable.")] = None,
    block: Annotated[list[Block] | None, typer.Option(help="Only these blocks, repeatable.")] = None,
    element: Annotated[list[str] | None, typer.Option(help="Only what serves these elements.")] = None,
    rules: Annotated[list[str] | None, typer.Option(help="Only what serves these rule sets.")] = None,
    entry: Annotated[list[str] | None, typer.Option(help="Only these entries, by Verilog module name.")] = None,
    vectors: Annotated[int | None, typer.Option(min=0, help="Random cases for each top, beside the directed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Tops under way at once.")] = min(2, os.cpu_count() or 1),
    waves: Annotated[bool, typer.Option("--waves", help="Record waves (slow; narrow the run first).")] = False,
    data: Annotated[str | None, typer.Option(help="FILE or FILE::TENSOR to drive beside the built-in cases.")] = None,
    report: Annotated[
        Path, typer.Option(help="A folder for the page, JUnit XML and JSON; or a .json file for that alone.")
    ] = BUILD / "regress.json",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report instead of tables.")] = False,
) -> None:
    """Simulate the catalogue's Verilog and compare it with the golden twin, bit for bit."""
    folder = report.suffix != ".json"
    if folder:
        check_report(report)
    chosen_simulators = [simulators.find(name.value) for name in sim or [SimulatorName(simulators.NAMES[0])]]
    entries = mxhw.cli.entries_of(block, element, rules, entry)
    total = len(chosen_simulators) * len(tops(entries)) * len(STAGES)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("emitting Verilog", total=total)
        done = {"emit": "emitted", "golden": "building and simulating", "simulate": "finished"}
        result = regress(
            entries,
            chosen_simulators,
            directory=BUILD,
            vectors=vectors,
            seed=seed,
            jobs=jobs,
            waves=waves,
            data=data,
            progress=lambda top, stage: bar.update(task, advance=1, description=f"{top}: {done[stage]}"),
        )
    if folder:
        write_report_folder(result, report, command=shlex.join(["mxtwin", *sys.argv[1:]]))
        report /= PAGE
    else:
        write_report(result, report)
    if as_json:
        typer.echo(json.dumps(result.as_json(), indent=2))
    else:
        _print_regression(result, report)
    if not result.passed:
        raise typer.Exit(1)


def _console() -> Console:
    """Standard output; wide where it is a file or a pipe, so that no table is folded there."""
    return Console() if sys.stdout.isatty() else Console(width=max(132, int(os.environ.get("COLUMNS", "0"))))


def _print_regression(result: Regression, report: Path) -> None:
    console = _console()
    title = f"mxtwin {__version__} regression, seed {result.seed}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("block", "configuration", "simulator"):
        table.add_column(heading, overflow="fold")
    for heading in ("comparisons", "mismatches", "build s", "golden s", "sim s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in result.runs:
        # The entries of one top are built and run together: its name and seconds stand once.
        block = run.rows[0].block
        seconds = [f"{run.build_seconds:.1f}", f"{run.golden_seconds:.1f}", f"{run.simulation_seconds:.1f}"]
        for row in run.rows:
            name = row.entry.removeprefix(f"mx_{row.block}_")
            counts = (f"{row.comparisons:,}", f"{row.mismatches:,}")
            style = "bold red" if row.mismatches else None
            table.add_row(block, name, row.simulator, *counts, *seconds, style=style)
            block, seconds = "", ["", "", ""]
        table.add_section()
    console.print(table)
    for failure in result.failures:
        _print_story(console, failure.rows)
        console.print(f"reproduce with: {failure.reproduce}\n", soft_wrap=True)
    _print_coverage(console, result)
    mismatches = "mismatch" if result.mismatches == 1 else "mismatches"
    console.print(
        f"{counted(result.comparisons, 'comparison')}, {result.mismatches:,} {mismatches}, "
        f"{counted(len(result.rows), 'configuration')} in {result.seconds:.0f} s; report: {report}"
    )


def _print_coverage(console: Console, result: Regression) -> None:
    for line in result.uncovered[:_UNCOVERED_SHOWN]:
        console.print(line, style="bold red", soft_wrap=True, highlight=False)
    possible, hit, impossible = (
        sum(getattr(coverage, name) for _, coverage in result.coverage) for name in ("possible", "hit", "impossible")
    )
    narrowed = "" if result.full else "; no failure, since fewer random cases than by default were asked for"
    missed = narrowed if hit < possible else ""
    console.print(f"coverage: {hit:,} of {possible:,} bins hit, {impossible:,} impossible{missed}")


@app.command(
    "explain",
    epilog="Example: mxtwin explain --element fp8_e4m3 --rules device 0x3f99999a --scale 120",
)
def explain_command(
    words: Annotated[list[str], typer.Argument(help="Bits in hex: a value, a code, or up to 32 values of a block.")],
    element: Annotated[str, typer.Option(help="Element format.")] = "fp8_e4m3",
    rules: Annotated[str, typer.Option(help="Rule set.")] = BIRSIM.name,
    block: Annotated[Block, typer.Option(help="Which block.")] = Block.NARROW,
    source: Annotated[str, typer.Option(help="Format of the values.")] = "fp32",
    scale: Annotated[int | None, typer.Option(min=0, max=255, help="E8M0 byte.")] = None,
    entry: Annotated[str | None, typer.Option(help="A catalogue entry instead of element, rules and block.")] = None,
    selected: Annotated[int | None, typer.Option("--format", min=0, max=3, help="Of a multi-format entry.")] = None,
    sim: Annotated[list[Origin] | None, typer.Option(help="Where the RTL runs, repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Tell one case in words: fields, rounding position, clauses, and what both twins make of it."""
    case = _case(words, element, rules, block, source, scale, entry, selected)
    outputs = {origin.value: _rtl_output(case, origin.value) for origin in sim or [Origin("amaranth")]}
    explanation = explain(case, outputs)
    if as_json:
        typer.echo(json.dumps(explanation.as_json(), indent=2))
    else:
        _print_story(_console(), explanation.rows())
    if not explanation.agree:
        raise typer.Exit(1)


def _case(
    words: list[str],
    element: str,
    rules: str,
    block: Block,
    source: str,
    scale: int | None,
    name: str | None,
    selected: int | None,
) -> Case:
    try:
        if name is not None:
            entry = find(name)
        else:
            policy = policy_of(block, element_format(element), rule_set(rules), scaled=scale is not None)
            entry = Entry(policies=(policy,), source=None if block is Block.LDEXP else source_format(source))
    except ValueError as error:
        raise BadInput(str(error)) from None
    if entry.clocked:
        raise BadInput(f"a case must be of a combinational entry, not of {entry.name}: a stream depends on its past")
    if (entry.form is Form.MULTI_FORMAT) != (selected is not None):
        raise BadInput(f"--format must {'' if selected is None else 'not '}be given for {entry.name}")
    if entry.scaled != (scale is not None):
        raise BadInput(f"--scale must {'' if entry.scaled else 'not '}be given for {entry.name}")
    width = entry.word_width
    bits = [_word(text, width) for text in words]
    if entry.block is Block.SHARED_EXPONENT:
        if len(bits) > MX_BLOCK.size:
            raise BadInput(f"a block must have at most {MX_BLOCK.size} values, not {len(bits)}")
        bits += [0] * (MX_BLOCK.size - len(bits))
    elif len(bits) != 1:
        raise BadInput(f"{entry.block.value} must be given one value, not {len(bits)}")
    return Case(entry=entry, words=tuple(bits), scale=scale, selected=selected)


def _word(text: str, width: int) -> int:
    try:
        value = int(text, 16)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << width:
        raise BadInput(f"a value must be {width} bits in hex, not {text!r}")
    return value


def _rtl_output(case: Case, origin: str) -> str:
    """The RTL's output bits as a string: from Amaranth's simulator, or from a real one."""
    width = case.entry.result_width
    if origin == "amaranth":
        return f"{rtl_blocks.evaluate(case.entry, [case.ports])[0]:0{width}b}"
    top = Top(entries=(case.entry,))
    # Expected bits that are wrong on purpose make the scoreboard write down what it saw.
    wrong = np.array([~explain(case, {}).golden & ((1 << width) - 1)], dtype=f"uint{top.output_slot}")
    outcome = compare(
        simulators.find(origin), top, case.arrays, [wrong], work=BUILD / "explain" / origin, cache=BUILD / "tops"
    )
    return outcome.first[0].got[-width:] if outcome.first else f"{int(wrong[0]):0{width}b}"


def _print_story(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, text, style="bold red" if text.endswith("differs") else None)
    console.print(table)


@app.command(epilog="Example: mxtwin doctor --json")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List simulators and tools with real paths and versions, and what is missing."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps([finding.as_json() for finding in findings], indent=2))
    else:
        table = Table("what", "for", "version", "where", title="mxtwin doctor", title_justify="left")
        for finding in findings:
            missing = finding.version is None
            style = ("bold red" if finding.needed else "yellow") if missing else None
            where = finding.problem if missing else finding.path
            table.add_row(finding.name, finding.role, finding.version or "missing", where or "", style=style)
        _console().print(table)
    if any(finding.needed and finding.version is None for finding in findings):
        raise typer.Exit(1)


@app.command(epilog="Example: mxtwin exhaustive --element fp8_e4m3 --stride 64 --seed 1")
def exhaustive(
    element: Annotated[list[str] | None, typer.Option(help="Only these elements, repeatable.")] = None,
    first: Annotated[str, typer.Option("--from", help="First pattern, decimal or 0x hex.")] = "0",
    stop: Annotated[str, typer.Option("--to", help="Pattern to stop before.")] = str(PATTERNS),
    stride: Annotated[int, typer.Option(help="Visit one of every so many patterns, a power of two (64: 2^26).")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Picks the pattern inside each stride.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Compare the golden narrow with ml_dtypes and the closed form on all 2^32 fp32 patterns, element by element."""
    try:
        elements = tuple(element_format(name) for name in element) if element else ELEMENTS
    except ValueError as error:
        raise BadInput(str(error)) from None
    plan = Sweep(
        elements=elements, first=_pattern("--from", first), stop=_pattern("--to", stop), stride=stride, seed=seed
    )
    stderr = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        task = bar.add_task(f"{plan.visits} patterns an element", total=plan.visits)
        result = sweep(plan, jobs=jobs, progress=lambda visits: bar.advance(task, visits))
    if as_json:
        typer.echo(json.dumps(result.as_json(), indent=2))
    else:
        _print_sweep(result)
    if result.resume is not None:
        stderr.print(f"interrupted; the rest: {result.resume}", soft_wrap=True, highlight=False)
    if result.mismatches:
        raise typer.Exit(1)
    if result.resume is not None:
        raise typer.Exit(130)


def _pattern(option: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise BadInput(f"{option} must be a pattern in 0..{PATTERNS}, decimal or 0x hex, not {text!r}") from None


def _print_sweep(result: Result) -> None:
    console = _console()
    plan = result.plan
    picked = "" if plan.stride == 1 else f", one of every {plan.stride}, seed {plan.seed}"
    title = f"mxtwin {__version__} exhaustive narrow, fp32 patterns {plan.first}..{plan.stop - 1}{picked}"
    console.print(title, soft_wrap=True, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("element", "rules"):
        table.add_column(heading)
    for heading in ("patterns", "mismatches"):
        table.add_column(heading, justify="right", no_wrap=True)
    for count in result.counts:
        wrong = sum(count.mismatches.values())
        style = "bold red" if wrong else None
        table.add_row(count.element, ", ".join(count.mismatches), str(count.patterns), str(wrong), style=style)
    console.print(table)
    for one in result.differences:
        console.print(
            f"{one.element} under {one.rules}: {one.pattern:#010x} expected {one.expected:#04x}, got {one.got:#04x}; "
            f"reproduce with: {one.command}",
            soft_wrap=True,
            highlight=False,
        )
    total = f"{result.comparisons:,} comparisons, {result.mismatches:,} mismatches in {result.seconds:.0f} s"
    console.print(total, highlight=False)


if __name__ == "__main__":
    main()
