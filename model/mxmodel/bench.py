"""How fast the array-level model is: ``python -m mxmodel.bench``.

One thread, and every figure beside those it is compared with, taken in turn in the same run: what travels between
machines is the ratio, not the time. Each time is the best of several rounds, in seconds of processor time,
so that a busy machine does not decide.
"""

import json
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import ml_dtypes
import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mxmodel.bench_peers import Peer, installed_peers
from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, ElementFormat
from mxmodel.pe_array import Accumulation, matmul_mx
from mxmodel.quantize import MxTensor, dequantize_mx, quantize_mx
from mxmodel.rules import BIRSIM

__all__ = ["app", "best_of", "machine", "on_one_thread"]

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

OURS, PLAIN, COPY, SGEMM = "mxmodel", "NumPy + ml_dtypes", "copy of fp32 (limit)", "sgemm alone"

QUANTIZE_TARGET = 3.5
DEQUANTIZE_TARGETS = {FP4_E2M1: 4.5}
DEQUANTIZE_TARGET = 4.0
MATMUL_TARGETS = {Accumulation.BLAS: 2.2, Accumulation.SEQUENTIAL: 35.0}
EXACT_TARGET = 1e7
MEMORY_TARGET = 1.5

MATMUL_SIZE = 1024

Work = Callable[[], object]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender at one piece of work.

    Attributes
    ----------
    work, contender : what was done, and by whom
    seconds : processor time, best of the rounds
    rate : items a second; an item is an element, or a multiply-add of a matrix product
    ratio : time against the contender named ``against``: the plain composition's over ours (higher is better), or a
        product's over the bare sgemm's (lower is better)
    target, met : what the ratio, or for EXACT the rate, has to be, and whether it is
    """

    work: str
    contender: str
    seconds: float
    rate: float
    ratio: float | None = None
    against: str | None = None
    target: str | None = None
    met: bool | None = None


@app.command()
def bench(
    elements: Annotated[int, typer.Option(help="Elements of the tensor, a multiple of 2048 x 8.")] = 1 << 22,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each contender runs; the best counts.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object in place of tables.")] = False,
) -> None:
    """Measure quantise, dequantise and matmul on one thread, as ratios to the plain NumPy + ml_dtypes composition.

    Example: python -m mxmodel.bench --rounds 15
    """
    columns = 2048
    if elements < 1 or elements % (columns * 8):
        raise typer.BadParameter(f"elements must be a multiple of {columns * 8}, not {elements}")
    x = np.random.default_rng(0).standard_normal((elements // columns, columns), dtype=np.float32)
    peers, missing = installed_peers()
    stages: list[Callable[[], list[Row]]] = [lambda: _copies(x, rounds)]
    for element in ELEMENTS:
        stages.append(lambda element=element: _quantise(x, element, peers, missing, rounds))  # type: ignore[misc]
        stages.append(lambda element=element: _dequantise(x, element, peers, missing, rounds))  # type: ignore[misc]
    stages.append(lambda: _matmul(rounds))
    rows: list[Row] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for stage in progress.track(stages, description="measuring"):
            rows += stage()
    memory = {element.name: _peak_memory(x, element) for element in ELEMENTS}
    if as_json:
        about = {"machine": machine(), "elements": elements, "rounds": rounds, "threads": 1}
        rules = {"rules": BIRSIM.name, "not_measured": missing}
        print(json.dumps({**about, **rules, "rows": [asdict(row) for row in rows], "quantise_memory_ratio": memory}))
    else:
        _show(rows, memory, missing, elements, rounds)


# --- the work ---------------------------------------------------------------------------------------------------------


def _copies(x: NDArray[np.float32], rounds: int) -> list[Row]:
    target = np.empty_like(x)
    best = best_of({COPY: lambda: np.copyto(target, x)}, rounds)
    return [Row(work="copy", contender=COPY, seconds=best[COPY], rate=x.size / best[COPY])]


def _quantise(
    x: NDArray[np.float32], element: ElementFormat, peers: list[Peer], missing: dict[str, str], rounds: int
) -> list[Row]:
    tensor, (codes, scale) = quantize_mx(x, element), plain_quantize(x, element)
    if not (np.array_equal(tensor.codes, codes) and np.array_equal(tensor.scale, scale)):
        raise AssertionError(f"the plain composition and the model differ on {element.name}: nothing to compare")
    works: dict[str, Work] = {OURS: lambda: quantize_mx(x, element), PLAIN: lambda: plain_quantize(x, element)}
    works |= _peer_works(peers, missing, lambda peer: peer.quantize(x, element), f"quantise {element.name}")
    return _against_plain(f"quantise {element.name}", works, x.size, rounds, QUANTIZE_TARGET)


def _dequantise(
    x: NDArray[np.float32], element: ElementFormat, peers: list[Peer], missing: dict[str, str], rounds: int
) -> list[Row]:
    tensor = quantize_mx(x, element)
    if not np.array_equal(dequantize_mx(tensor), plain_dequantize(tensor)):
        raise AssertionError(f"the plain composition and the model differ on {element.name}: nothing to compare")
    works: dict[str, Work] = {OURS: lambda: dequantize_mx(tensor), PLAIN: lambda: plain_dequantize(tensor)}
    works |= _peer_works(peers, missing, lambda peer: peer.dequantize(x, element), f"dequantise {element.name}")
    target = DEQUANTIZE_TARGETS.get(element, DEQUANTIZE_TARGET)
    return _against_plain(f"dequantise {element.name}", works, x.size, rounds, target)


def _matmul(rounds: int) -> list[Row]:
    size = MATMUL_SIZE
    x = np.random.default_rng(1).standard_normal((2, size // 4, 4 * size), dtype=np.float32)
    stationary, moving = (quantize_mx(operand, FP8_E4M3) for operand in x)
    left, right = x.reshape(2, size, size)
    works: dict[str, Work] = {SGEMM: lambda: left.T @ right}
    for accumulation in Accumulation:
        works[accumulation.value] = lambda accumulation=accumulation: matmul_mx(  # type: ignore[misc]
            stationary, moving, accumulation=accumulation
        )
    best = best_of(works, rounds)
    rows = []
    for name, seconds in best.items():
        row = Row(work=f"matmul {size}^3", contender=name, seconds=seconds, rate=size**3 / seconds)
        if name != SGEMM:
            accumulation = Accumulation(name)
            ratio = seconds / best[SGEMM]
            target, met = f"rate >= {EXACT_TARGET:g}", row.rate >= EXACT_TARGET
            if accumulation in MATMUL_TARGETS:
                target, met = f"<= {MATMUL_TARGETS[accumulation]:g}", ratio <= MATMUL_TARGETS[accumulation]
            row = Row(
                work=row.work, contender=f"{OURS} {name.upper()}", seconds=seconds, rate=row.rate,
                ratio=ratio, against=SGEMM, target=target, met=met,
            )  # fmt: skip
        rows.append(row)
    return rows


def plain_quantize(x: NDArray[np.float32], element: ElementFormat) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """What one would write with NumPy and ml_dtypes for finite data under BIRSIM: the yardstick, not the model."""
    partitions, free = x.shape
    exponent = (x.view(np.uint32) >> 23) & 0xFF
    largest = exponent.reshape(partitions // 8, 8, free // 4, 4).max(axis=(1, 3)).astype(np.int32)
    scale = np.maximum(largest - element.emax, 1).astype(np.uint8)
    factor = np.ldexp(np.float32(1), 127 - scale.astype(np.int32))
    limit = float(np.array(element.max_normal_code, np.uint8).view(_ML_DTYPES[element.name]).astype(np.float32))
    scaled = np.clip(x * np.repeat(np.repeat(factor, 4, axis=1), 8, axis=0), -limit, limit)
    return scaled.astype(_ML_DTYPES[element.name]).view(np.uint8), scale


def plain_dequantize(tensor: MxTensor) -> NDArray[np.float32]:
    """The same for dequantise, of finite codes and scales below 255."""
    factor = np.ldexp(np.float32(1), tensor.scale.astype(np.int32) - 127)
    values = tensor.codes.view(_ML_DTYPES[tensor.element.name]).astype(np.float32)
    return np.asarray(values * np.repeat(np.repeat(factor, 4, axis=1), 8, axis=0))


_ML_DTYPES: dict[str, Any] = {
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


def _peak_memory(x: NDArray[np.float32], element: ElementFormat) -> float:
    """Peak of input, output and all else that quantise holds, over input and output alone."""
    tracemalloc.start()
    tensor = quantize_mx(x, element)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (x.nbytes + peak) / (x.nbytes + tensor.codes.nbytes + tensor.scale.nbytes)


# --- timing -----------------------------------------------------------------------------------------------------------


def best_of(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Least processor time of each, in seconds; the contenders take turns, so that a busy moment hits all alike."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


def _against_plain(work: str, works: dict[str, Work], size: int, rounds: int, target: float) -> list[Row]:
    best = best_of(works, rounds)
    rows = []
    for name, seconds in best.items():
        ratio = best[PLAIN] / seconds
        ours = {"target": f">= {target:g}", "met": ratio >= target} if name == OURS else {}
        rows.append(
            Row(work=work, contender=name, seconds=seconds, rate=size / seconds, ratio=ratio, against=PLAIN, **ours)  # type: ignore[arg-type]
        )
    return rows


def _peer_works(
    peers: list[Peer], missing: dict[str, str], prepare: Callable[[Peer], Work | None], work: str
) -> Iterator[tuple[str, Work]]:
    """What the peers offer for this work, each run once first; one that fails is listed with its reason."""
    for peer in peers:
        try:
            offered = prepare(peer)
            if offered is not None:
                offered()
        except Exception as error:
            reason = str(error).splitlines() or [""]
            missing[f"{peer.name}, {work}"] = f"{type(error).__name__}: {reason[0]}"
            continue
        if offered is not None:
            yield peer.name, offered


# --- showing ----------------------------------------------------------------------------------------------------------


def machine() -> str:
    """What was measured on, in a few words."""
    return f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"


def _show(rows: list[Row], memory: dict[str, float], missing: dict[str, str], elements: int, rounds: int) -> None:
    console = Console()
    table = Table(title=f"One thread, {elements:,} elements, best of {rounds}, rules {BIRSIM.name} ({machine()})")
    for heading in ("work", "contender", "ms", "M/s", "ratio", "target", ""):
        table.add_column(heading, justify="left" if heading in ("work", "contender", "") else "right")
    for row in rows:
        table.add_row(
            row.work,
            row.contender,
            f"{row.seconds * 1e3:.2f}",
            f"{row.rate / 1e6:,.0f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.target or "",
            {None: "", True: "met", False: "MISSED"}[row.met],
        )
    console.print(table)
    console.print(f"Ratio: time of {PLAIN} over the contender's; for matmul, time over that of {SGEMM}.")
    for name, ratio in memory.items():
        verdict = "met" if ratio <= MEMORY_TARGET else "MISSED"
        console.print(
            f"Peak memory of quantise {name}: {ratio:.2f} x (input + output), target {MEMORY_TARGET}: {verdict}"
        )
    for name, reason in missing.items():
        console.print(f"Not measured: {name}: {reason}")


def on_one_thread(module: str) -> None:
    """Start ``module`` over with one thread a library, which must be said before NumPy is loaded."""
    wanted = dict.fromkeys(THREAD_VARIABLES, "1")
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | wanted)


if __name__ == "__main__":
    on_one_thread("mxmodel.bench")
    app()
