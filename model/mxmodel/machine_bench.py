"""How fast the simulated machine is: ``python -m mxmodel.machine_bench``.

Three questions: what a large product costs beside the array-level function of the same work, what a small instruction
of each kind costs, and whether the cost of a program grows with its length and no faster. Processor time, one thread.
"""

import json
from dataclasses import asdict, dataclass
from typing import Annotated

import ml_dtypes
import numpy as np
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.bench import best_of, machine, on_one_thread
from mxmodel.formats import FP8_E4M3
from mxmodel.isa import (
    AccumulationKind,
    Activate,
    Copy,
    Elementwise,
    Instruction,
    Load,
    Matmult,
    MatmultMx,
    Memset,
    Operator,
    QuantizeMx,
    ReadActivationAccumulator,
    Store,
)
from mxmodel.memory_object import container_dtype, dtype_named
from mxmodel.neuron_core import NeuronCore
from mxmodel.pe_array import matmul_mx
from mxmodel.program import Program, ProgramTensor
from mxmodel.quantize import MxTensor, quantize_mx

__all__ = ["app"]

SIZE = 512
LARGE_TARGET = 0.4
"""Seconds, of the whole program of one 512 x 512 x 512 product."""
SMALL_TARGET = 1e-3
"""Seconds, of one small instruction."""
GROWTH_TARGET = 1.5
"""Cost of an instruction among 10^4, over its cost among 10^2."""
LENGTHS = (100, 1_000, 10_000)
ARRAY = "pe_array.matmul_mx"
_WIDTH = 110
"""Columns that the table needs, also in a pipe."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: ``seconds`` for each of ``count`` things, and what they have to stay below."""

    work: str
    count: int
    seconds: float
    ratio: float | None = None
    against: str | None = None
    target: str | None = None
    met: bool | None = None


@app.command()
def bench(
    rounds: Annotated[int, typer.Option(min=1, help="Times that each runs; the best counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of a table.")] = False,
) -> None:
    """Measure the machine: a 512 x 512 x 512 MX program, small instructions, long programs.

    Example: python -m mxmodel.machine_bench --rounds 10
    """
    rows = [*_large(rounds), *_small(rounds), *_long(rounds)]
    if as_json:
        print(json.dumps({"machine": machine(), "rounds": rounds, "rows": [asdict(row) for row in rows]}))
        return
    table = Table(title=f"One thread, best of {rounds} ({machine()})", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("work", "of", "each, ms", "ratio", "against", "target", ""):
        table.add_column(heading, justify="left" if heading in ("work", "against", "") else "right", no_wrap=True)
    for row in rows:
        verdict = {None: "", True: "met", False: "MISSED"}[row.met]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        each = f"{row.seconds * 1e3:.3f}"
        table.add_row(row.work, f"{row.count:,}", each, ratio, row.against or "", row.target or "", verdict)
    Console(width=max(Console().width, _WIDTH)).print(table)


def _place(
    dtype: str, partitions: int, containers: int, at: int, *, start: int = 0, space: Space = Space.SBUF
) -> AccessPattern:
    kind = dtype_named(dtype)
    step = containers * kind.size if space is Space.DRAM else None
    return AccessPattern(
        space=space, dtype=kind, partitions=partitions, pattern=((1, containers),), start_partition=start, offset=at,
        partition_step=step,
    )  # fmt: skip


def _large(rounds: int) -> list[Row]:
    """K = 512 fills the array once; 512 stationary columns are four instructions, 512 moving ones fill a bank."""
    rng = np.random.default_rng(0)
    stationary, moving = (
        quantize_mx(rng.standard_normal((SIZE // 4, 4 * SIZE), dtype=np.float32), FP8_E4M3) for _ in range(2)
    )
    tensors, places = {}, {}
    for number, (name, operand) in enumerate((("stationary", stationary), ("moving", moving))):
        data = _place("float8_e4m3fn_x4", SIZE // 4, SIZE, number * 8192)
        scale = _place("float8_e8m0fnu", SIZE // 4, SIZE, number * 8192 + 4096)
        tensors[name] = ProgramTensor(place=data, contents=operand.packed())
        tensors[f"{name}_scale"] = ProgramTensor(place=scale, contents=_tile(operand))
        places[name] = data, scale
    instructions = []
    for first in range(0, SIZE, 128):
        data, scale = (
            _place(whole.dtype.name, SIZE // 4, 128, whole.offset + first * whole.dtype.size)
            for whole in places["stationary"]
        )
        instructions.append(
            MatmultMx(
                moving=places["moving"][0],
                moving_scale=places["moving"][1],
                stationary=data,
                stationary_scale=scale,
                dst=_place("float32", 128, SIZE, first // 128 * 2048, space=Space.PSUM),
            )
        )
    program = Program(instructions=tuple(instructions), tensors=tensors)
    best = best_of({"machine": lambda: NeuronCore().run(program), ARRAY: lambda: matmul_mx(stationary, moving)}, rounds)
    seconds = best["machine"]
    return [
        Row(
            work=f"MX program {SIZE}^3, a new core each time", count=1, seconds=seconds,
            ratio=seconds / best[ARRAY], against=ARRAY, target=f"<= {LARGE_TARGET * 1e3:g} ms",
            met=seconds <= LARGE_TARGET,
        )
    ]  # fmt: skip


def _tile(operand: MxTensor) -> NDArray[np.uint8]:
    return operand.scale_tile(partitions=operand.shape[0])


def _small(rounds: int) -> list[Row]:
    """One instruction of each kind on a handful of elements, a hundred times over."""
    src, dst = _place("float32", 32, 4, 0), _place("float32", 32, 4, 64)
    half, words = _place("bfloat16", 32, 16, 128), _place("float8_e4m3fn_x4", 32, 4, 192)
    scale, product = _place("float8_e8m0fnu", 32, 4, 256), _place("float32", 4, 4, 0, space=Space.PSUM)
    column, rows = _place("float32", 32, 1, 320), _place("float32", 32, 4, 0, space=Space.DRAM)
    one = _place("float32", 1, 4, 0, space=Space.PSUM)
    tensors = {
        "src": ProgramTensor(place=src, contents=np.ones(src.shape, np.float32)),
        "half": ProgramTensor(place=half, contents=np.ones(half.shape, ml_dtypes.bfloat16)),
        "words": ProgramTensor(place=words, contents=np.zeros(words.shape, container_dtype(words.dtype))),
        "scale": ProgramTensor(place=scale, contents=np.full(scale.shape, 127, np.uint8)),
        "rows": ProgramTensor(place=rows, contents=np.ones(rows.shape, np.float32)),
    }
    activate = Activate(src=src, dst=dst, kind=AccumulationKind.ZERO_ACCUMULATE)
    kinds: list[tuple[Instruction, ...]] = [
        (QuantizeMx(src=half, dst=words, dst_scale=scale),),
        (MatmultMx(moving=words, stationary=words, moving_scale=scale, stationary_scale=scale, dst=product),),
        (Matmult(moving=src, stationary=_place("float32", 32, 1, 0), dst=one),),
        (Copy(src=src, dst=dst),),
        (Elementwise(src=src, operand=2.0, dst=dst, operator=Operator.MULTIPLY),),
        (activate,),
        (activate, ReadActivationAccumulator(dst=column)),
        (Memset(dst=dst, value=1.0),),
        (Load(src=rows, dst=dst),),
        (Store(src=src, dst=rows),),
    ]
    count, out = 100, []
    for kind in kinds:
        program = Program(instructions=kind * count, tensors=tensors)
        core = NeuronCore()
        seconds = best_of({"": lambda core=core, program=program: core.run(program)}, rounds)[""]  # type: ignore[misc]
        each = seconds / len(program.instructions)
        out.append(
            Row(
                work=f"small {' + '.join(one.mnemonic for one in kind)}", count=len(program.instructions),
                seconds=each, target=f"<= {SMALL_TARGET * 1e3:g} ms", met=each <= SMALL_TARGET,
            )
        )  # fmt: skip
    return out


def _long(rounds: int) -> list[Row]:
    """Programs of ever more small instructions: the cost of each must not grow."""
    src, dst = _place("float32", 32, 4, 0), _place("float32", 32, 4, 64)
    step = (Memset(dst=src, value=1.0), Copy(src=src, dst=dst))
    each: dict[int, float] = {}
    rows = []
    for length in LENGTHS:
        program = Program(instructions=step * (length // 2))
        core = NeuronCore()
        each[length] = best_of({"": lambda core=core, program=program: core.run(program)}, rounds)[""] / length  # type: ignore[misc]
        row = Row(work="program of small instructions", count=length, seconds=each[length])
        if length != LENGTHS[0]:
            ratio = each[length] / each[LENGTHS[0]]
            row = Row(
                work=row.work, count=length, seconds=row.seconds, ratio=ratio, against=f"{LENGTHS[0]} of them",
                target=f"<= {GROWTH_TARGET:g} x", met=ratio <= GROWTH_TARGET,
            )  # fmt: skip
        rows.append(row)
    return rows


if __name__ == "__main__":
    on_one_thread("mxmodel.machine_bench")
    app()
