"""Commands on programs that need no machine: are they legal, and what is the device given."""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxmodel.counted import counted
from mxmodel.legality import Profile, Violation, check
from mxmodel.lowering import LOWERINGS, Confidence, NotLowered, Reason, Refusal, lower
from mxmodel.memory import Generation
from mxmodel.program import Program
from mxmodel.program_files.fields import word_of
from mxmodel.program_files.program_file import read_program
from mxmodel.program_files.schema import program_schema

__all__ = [
    "GenerationName",
    "ProgramFile",
    "app",
    "generation_of",
    "plain_violations",
    "print_violations",
    "wide_console",
]

app = typer.Typer()

ProgramFile = Annotated[
    Path, typer.Argument(metavar="PROGRAM.yaml", help="A program; docs/programs.md has the format.")
]
GenerationName = Enum("GenerationName", {one.name: word_of(one) for one in Generation})  # type: ignore[misc]
GenerationOption = Annotated[GenerationName | None, typer.Option(help="Instead of the program's own.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command("check", epilog="Example: mxtwin check program.yaml --generation v4 --profile public")
def check_command(
    program_file: ProgramFile,
    generation: GenerationOption = None,
    profile: Annotated[Profile, typer.Option(help="The compiler's verifiers, or the public calls' checks.")] = (
        Profile.BIR
    ),
    as_json: Json = False,
) -> None:
    """Judge every instruction of a program; list every rule it breaks, and how to mend it. Exit 1 if there is any.

    Each instruction is judged by itself. Data flow is not judged: that something reads what nothing wrote, run finds.
    """
    program = _read(program_file, generation)
    violations = check(program, profile)
    if as_json:
        plain = {
            "program": program.name,
            "generation": word_of(program.generation),
            "profile": profile.value,
            "instructions": len(program.instructions),
            "violations": plain_violations(program, violations),
        }
        typer.echo(json.dumps(plain, indent=2))
    else:
        print_violations(program, violations)
        found = counted(len(violations), "violation") if violations else "no violations"
        _print(f"{_counted_on(program)}, profile {profile.value}: {found}")
        for other in Profile:
            differing = [] if other is profile else check(program, other)
            if other is not profile and bool(differing) is not bool(violations):
                verdict = counted(len(differing), "violation") if differing else "legal"
                _print(f"profile {other.value}: {verdict}; docs/legality.md has the rules of both")
    if violations:
        raise typer.Exit(1)


@app.command("lower", epilog="Example: mxtwin lower program.yaml --generation v5")
def lower_command(program_file: ProgramFile, generation: GenerationOption = None, as_json: Json = False) -> None:
    """Show what the device is given for every instruction. Exit 1 if the generation does not have one of them."""
    program = _read(program_file, generation)
    target = program.generation
    table = _table("instruction", "opcode", "operation", "struct", "bundle", "operand dtype codes")
    plain: list[dict[str, object]] = []
    inferred: dict[str, None] = {}
    lacking = unknown = 0
    for index, instruction in enumerate(program.instructions):
        name = f"{index} {instruction}"
        cell = LOWERINGS[type(instruction)][target]
        entry: dict[str, object] = {"index": index, "instruction": str(instruction), "operations": []}
        plain.append(entry)
        try:
            operations = lower(instruction, target)
        except NotLowered as error:
            is_open = isinstance(cell, Refusal) and cell.reason is Reason.NOT_PINNED
            lacking, unknown = lacking + (not is_open), unknown + is_open
            entry["why_none"] = str(error)
            why = str(error)
            if isinstance(cell, Refusal):
                why = "opcode not known" if is_open else f"not on {word_of(target)}: {cell.why}"
            table.add_row(Text(name), "-", Text(why), "", "", "", style="dim" if is_open else "bold red")
            continue
        entry["operations"] = [one.as_json() for one in operations]
        for one in operations:
            operands = ", ".join(f"{operand.name} 0x{operand.wire:02X}" for operand in one.operands)
            bundle, opcode = "-" if one.bundle is None else str(one.bundle), f"0x{one.opcode:02X}"
            if one.confidence is not Confidence.STATED:
                inferred[f"* {opcode} ({one.name}) is inferred: {one.confidence.why} (I-0)"] = None
                opcode += "*"
            table.add_row(Text(name), opcode, f"{one.name} on {one.engine.name}", one.struct or "-", bundle, operands)
            name = ""
    if as_json:
        typer.echo(
            json.dumps({"program": program.name, "generation": word_of(target), "instructions": plain}, indent=2)
        )
    else:
        wide_console().print(table)
        lowered = len(plain) - lacking - unknown
        counts = [f"{lowered} with a device form"]
        counts += [f"{unknown} whose opcode is not known"] if unknown else []
        counts += [f"{lacking} that cannot be lowered"] if lacking else []
        for line in (
            *inferred,
            *(["- no source names it"] if lowered else []),
            f"{_counted_on(program)}: {', '.join(counts)}",
        ):
            _print(line)
    if lacking:
        raise typer.Exit(1)


@app.command("schema", epilog="Example: mxtwin schema > program.schema.json")
def schema_command() -> None:
    """Print the JSON Schema of program files, for editors and generators."""
    typer.echo(json.dumps(program_schema(), indent=2))


def generation_of(name: Enum) -> Generation:
    """The generation that a command line names."""
    return Generation[name.name]


def plain_violations(program: Program, violations: Iterable[tuple[int, Violation]]) -> list[dict[str, object]]:
    """For machines."""
    return [
        {
            "index": index,
            "instruction": str(program.instructions[index]),
            "source": program.source_of(index),
            **violation.as_json(),
        }
        for index, violation in violations
    ]


def print_violations(program: Program, violations: Iterable[tuple[int, Violation]]) -> None:
    """A table; nothing if there are none."""
    found = list(violations)
    if not found:
        return
    table = _table("where", "instruction", "verifier code", "verifier line", "must hold", "found", "remedy")
    for index, one in found:
        numbers = ("-" if number is None else str(number) for number in (one.code, one.line))
        where = Path(program.source_of(index) or "-").name
        name = Text(f"{index} {program.instructions[index]}")
        table.add_row(Text(where), name, *numbers, *(map(Text, (one.rule, one.values, one.remedy))))
    wide_console().print(table)


def _counted_on(program: Program) -> str:
    instructions = counted(len(program.instructions), "instruction")
    return f"{program.name}: {instructions} on {word_of(program.generation)}"


def wide_console() -> Console:
    """Standard output; wide where it is a file or a pipe, so that no table is folded there."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(width=max(132, int(os.environ.get("COLUMNS", "0"))), highlight=False)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _print(line: str) -> None:
    wide_console().print(Text(line), soft_wrap=True)


def _read(file: Path, generation: Enum | None) -> Program:
    program = read_program(file)
    return program if generation is None else replace(program, generation=generation_of(generation))
