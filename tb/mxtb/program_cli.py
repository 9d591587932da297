"""``mxtwin run``: a program on the machine, any of its blocks from the RTL."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from mxhw.catalog import Block
from mxmodel.accumulation import Accumulation
from mxmodel.bad_input import BadInput
from mxmodel.block_functions import Blocks, GoldenBlocks
from mxmodel.counted import counted
from mxmodel.files.tensor_output import PlannedTensor, check_output, tensor_output
from mxmodel.neuron_core import IllegalProgram, NeuronCore, Verification
from mxmodel.program import Program
from mxmodel.program_cli import ProgramFile, plain_violations, print_violations, wide_console
from mxmodel.program_files.fields import word_of
from mxmodel.program_files.program_file import read_program
from mxmodel.rules import RULE_SETS, rule_set
from mxmodel.trace import Trace, TraceKind
from mxtb.rtl_blocks import RtlBlocks, TwinDifference

__all__ = ["app", "run_with_rtl"]

app = typer.Typer()


@app.command(epilog="Example: mxtwin run examples/programs/worked.yaml --rtl narrow,ldexp --trace trace.json")
def run(
    program_file: ProgramFile,
    tensors: Annotated[
        list[str] | None,
        typer.Argument(metavar="TENSOR...", help="What --output writes; default: all that is written."),
    ] = None,
    rules: Annotated[
        str | None,
        typer.Option("--rules", "-r", help=f"Instead of the program's: {', '.join(r.name for r in RULE_SETS)}."),
    ] = None,
    accumulation: Annotated[Accumulation | None, typer.Option(help="Instead of the program's (M-4).")] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Run it even if it breaks rules of legality.")] = False,
    schedule: Annotated[int | None, typer.Option(help="Seed of the order of processes; changes no value.")] = None,
    rtl: Annotated[
        str | None,
        typer.Option(metavar="BLOCK,...", help=f"Blocks from the RTL: {', '.join(b.value for b in Block)}, or all."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="What happened: .jsonl, or .json for Perfetto.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Tensors to .safetensors, .npz or .npy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Run a program, and compare what it leaves with what it expects, bit for bit. Exit 1 if anything differs."""
    program = _changed(read_program(program_file), rules, accumulation)
    if tensors and output is None:
        raise BadInput(f"--output FILE must be given to write {', '.join(tensors)}")
    for name in tensors or []:
        if name not in program.tensors:
            close = get_close_matches(name, program.tensors, n=1)
            hint = f"; perhaps {close[0]}" if close else ""
            raise BadInput(f"{program_file}: tensor must be one of {', '.join(program.tensors)}, not {name}{hint}")
    if trace is not None and trace.suffix not in (".json", ".jsonl"):
        raise BadInput(f"--trace must be a name that ends in .json or .jsonl, not {trace}")
    if output is not None and tensors:
        check_output(output, len(tensors), with_metadata=False)
    blocks = _blocks(rtl)
    watched = _Watched(keep=trace is not None)
    verification = Verification.SKIPPED if no_verify else Verification.FIRST
    try:
        with _progress(program, watched) as step:
            core, compared = run_with_rtl(
                program, blocks, trace=watched, verification=verification, schedule=schedule, progress=step
            )
    except IllegalProgram as error:
        if as_json:
            typer.echo(json.dumps({"violations": plain_violations(program, error.violations)}, indent=2))
        else:
            print_violations(program, error.violations)
        found = counted(len(error.violations), "violation")
        typer.echo(f"mxtwin: {program_file}: {found}; --no-verify runs it all the same", err=True)
        raise typer.Exit(1) from None
    except TwinDifference as error:
        typer.echo(f"mxtwin: {program.name}: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        if trace is not None and (watched.events or not program.instructions):
            watched.write(trace, program.name)
    written = {} if output is None else _write(core, program, output, tensors or [])
    outcomes = _outcomes(core, program)
    if as_json:
        typer.echo(json.dumps(_plain(program, outcomes, compared, written, trace), indent=2))
    else:
        _print(program, outcomes, compared, written, trace)
    if any(one.difference is not None for one in outcomes):
        raise typer.Exit(1)


def run_with_rtl(
    program: Program,
    blocks: Sequence[Block],
    *,
    trace: Trace | None = None,
    verification: Verification = Verification.FIRST,
    schedule: int | None = None,
    progress: "Step | None" = None,
) -> tuple[NeuronCore, dict[str, int]]:
    """Run ``program`` with ``blocks`` from the RTL: (the core afterwards, elements compared by block).

    Raises as ``NeuronCore.run``, BadInput for RTL that the catalogue does not have, TwinDifference at the first element
    that differs.
    """
    twin = RtlBlocks(blocks, progress=progress.rtl if progress is not None else lambda what, total, done: None)
    used: Blocks = twin if blocks else GoldenBlocks()
    core = NeuronCore(generation=program.generation, options=program.options, blocks=used, trace=trace)
    twin.where = lambda: core.current
    core.run(program, verification=verification, schedule=schedule)
    return core, {block.value: count for block, count in twin.compared.items()}


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """An expectation, and whether it holds."""

    name: str
    place: str
    containers: int
    difference: str | None


def _outcomes(core: NeuronCore, program: Program) -> list[_Outcome]:
    outcomes = []
    for one in program.expectations:
        failed = core.failures(replace(program, expectations=(one,)))
        outcomes.append(
            _Outcome(
                name=one.name,
                place=str(one.place),
                containers=one.contents.size,
                difference=failed[0] if failed else None,
            )
        )
    return outcomes


def _changed(program: Program, rules: str | None, accumulation: Accumulation | None) -> Program:
    options = program.options
    if rules is not None:
        try:
            options = replace(options, rules=rule_set(rules))
        except ValueError as error:
            raise BadInput(f"--{error}") from None
    if accumulation is not None:
        options = replace(options, accumulation=accumulation)
    return replace(program, options=options)


def _blocks(rtl: str | None) -> tuple[Block, ...]:
    if rtl is None:
        return ()
    if rtl == "all":
        return tuple(Block)
    names = {block.value: block for block in Block}
    chosen = [name.strip() for name in rtl.split(",")]
    for name in chosen:
        if name not in names:
            raise BadInput(f"--rtl must name blocks among {', '.join(names)}, or all, not {name!r}")
    return tuple(names[name] for name in dict.fromkeys(chosen))


def _write(core: NeuronCore, program: Program, output: Path, names: list[str]) -> dict[str, list[int]]:
    """The tensors written to ``output``, and their shapes; x4 words and scales as unsigned integers."""
    arrays: dict[str, NDArray[Any]] = {}
    for name in names or program.tensors:
        place = program.tensors[name].place
        try:
            arrays[name] = core.memories[place.space].read(place).containers
        except ValueError as error:
            if names:
                raise BadInput(f"{program.name}: tensor {name}: {error}") from None
    storable = {name: _storable(array, output) for name, array in arrays.items()}
    plan = {name: PlannedTensor(dtype=array.dtype, shape=array.shape) for name, array in storable.items()}
    with tensor_output(output, plan) as file:
        for array in storable.values():
            file.append(array)
    return {name: list(array.shape) for name, array in storable.items()}


def _storable(array: NDArray[Any], output: Path) -> NDArray[Any]:
    """The array, or its bits where the format has no such type."""
    if array.dtype.name.startswith("float8") or (array.dtype.name == "bfloat16" and output.suffix != ".safetensors"):
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _plain(
    program: Program,
    outcomes: list[_Outcome],
    compared: dict[str, int],
    written: dict[str, list[int]],
    trace: Path | None,
) -> dict[str, object]:
    return {
        "program": program.name,
        "generation": word_of(program.generation),
        "rules": program.options.rules.name,
        "accumulation": program.options.accumulation.value,
        "instructions": len(program.instructions),
        "rtl": compared,
        "expectations": [
            {
                "name": one.name,
                "containers": one.containers,
                "holds": one.difference is None,
                "difference": one.difference,
            }
            for one in outcomes
        ],
        "written": written,
        "trace": None if trace is None else str(trace),
    }


def _print(
    program: Program,
    outcomes: list[_Outcome],
    compared: dict[str, int],
    written: dict[str, list[int]],
    trace: Path | None,
) -> None:
    console = wide_console()
    if outcomes:
        table = Table("expected", "where", "", box=box.SIMPLE_HEAD, pad_edge=False)
        for one in outcomes:
            result = f"{one.containers:,} equal" if one.difference is None else one.difference
            table.add_row(
                Text(one.name), Text(one.place), Text(result), style=None if one.difference is None else "bold red"
            )
        console.print(table)
    core = f"{word_of(program.generation)} under rules {program.options.rules.name}"
    instructions = counted(len(program.instructions), "instruction")
    computed = f"accumulation {program.options.accumulation.value}"
    lines = [f"{program.name}: {instructions} on {core}, {computed}"]
    lines += [f"{block} in RTL: {counted(n, 'element')}, all as the golden twin's" for block, n in compared.items()]
    if written:
        lines.append(f"written: {', '.join(f'{name} {shape}' for name, shape in written.items())}")
    if trace is not None:
        lines.append(f"trace: {trace}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)


# --- progress ---------------------------------------------------------------------------------------------------------


class _Watched(Trace):
    """A trace that tells of every instruction that retires, and keeps its events only if asked to."""

    def __init__(self, *, keep: bool) -> None:
        super().__init__()
        self._keep = keep
        self.step: Step | None = None

    def add(self, kind: TraceKind, **fields: Any) -> None:
        if self._keep:
            super().add(kind, **fields)
        if self.step is not None and kind is TraceKind.RETIRE:
            self.step.retired()


class Step:
    """Moves the bars: one of instructions, and one of RTL cases while a block is simulated."""

    def __init__(self, bar: Progress, program: Program) -> None:
        self._bar = bar
        self._instructions = bar.add_task("instructions", total=len(program.instructions))
        self._rtl = bar.add_task("RTL cases", visible=False)

    def retired(self) -> None:
        """One more instruction."""
        self._bar.advance(self._instructions)
        self._bar.update(self._rtl, visible=False)

    def rtl(self, what: str, total: int, done: int) -> None:
        """``done`` more cases of ``total`` of ``what``; 0 begins them."""
        if done == 0:
            self._bar.reset(self._rtl, total=total, description=what, visible=True)
        self._bar.advance(self._rtl, done)


@contextmanager
def _progress(program: Program, watched: _Watched) -> Iterator[Step]:
    """Bars on the terminal's error stream; none where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        watched.step = Step(bar, program)
        yield watched.step
