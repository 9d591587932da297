"""Runs every mutant of a netlist natively, 64 cases to a word, each until its first difference from the golden twin.

The netlist becomes a program that one small C++ evaluator reads, so that g++ compiles once and not for every entry.
"""

import hashlib
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.bad_input import BadInput
from mxtb.mutation.netlist import MUTANT, Cell, Gates, Mutated
from mxtb.stream_scoreboard import stalls
from mxtb.streams import Beats

__all__ = ["COMPILER", "Difference", "bit_planes", "build_evaluator", "run_lanes", "run_streams"]

COMPILER = "g++"

_SOURCE = Path(__file__).with_name("evaluate.cpp")
_FLAGS = ("-O3", "-std=c++17")
_TIMEOUT = 900
"""Seconds for all mutants of one entry."""

_BLOCK_OF_CASES = 16 * 64
"""Cases that the evaluator takes at a time."""

_STALL_CYCLES = 1 << 16
"""Cycles after which the stalls come round."""

_KINDS = {
    kind: number
    for number, kind in enumerate(
        ("$_NOT_", "$_AND_", "$_OR_", "$_NAND_", "$_NOR_", "$_XOR_", "$_XNOR_", "$_ANDNOT_", "$_ORNOT_", "$_MUX_")
    )
}
_COPY = len(_KINDS)
_FLIP_FLOP = "$_DFF_P_"
_SELECT = "$eq"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A mutant's first: the case, or of a stream the cycle, and what differed."""

    place: int
    what: str


def build_evaluator(cache: Path) -> Path:
    """The evaluator's executable, compiled into ``cache`` unless it is there.

    Raises BadInput, in one line, without a compiler; RuntimeError with its last words if it fails.
    """
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise BadInput(f"mutation testing must have {COMPILER} on PATH, but there is none (Debian: apt install g++)")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    key = hashlib.sha256("\0".join([version, *_FLAGS, _SOURCE.read_text(encoding="utf-8")]).encode()).hexdigest()[:16]
    executable = (cache / f"evaluate-{key}").resolve()
    if not executable.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{cache} must be a folder for what is compiled: {(error.strerror or '').lower()}") from None
        beside = executable.with_name(f".{executable.name}.{os.getpid()}")
        run = subprocess.run(
            [compiler, *_FLAGS, "-o", str(beside), str(_SOURCE)], capture_output=True, text=True, check=False
        )
        if run.returncode != 0:
            raise RuntimeError(f"{COMPILER} failed on {_SOURCE.name}: {run.stderr.strip()[-500:]}")
        beside.replace(executable)
    return executable


def run_lanes(
    evaluator: Path, netlist: Mutated, inputs: Mapping[str, NDArray[np.uint64]], expected: NDArray[Any]
) -> dict[int, Difference | None]:
    """The first difference of every mutant of a combinational entry, and of 0, the entry as it is.

    ``inputs`` is port name -> ``bit_planes`` of the cases, of which a narrower port takes the low ones; ``expected`` is
    [cases].
    """
    gates = netlist.gates
    names = [name for name in gates.inputs if name != MUTANT]
    outputs = gates.outputs[netlist.entry.output_port]
    nets = [bit for name in names for bit in gates.inputs[name]]
    with tempfile.TemporaryDirectory(prefix="mxtwin_mutate_") as folder:
        work = Path(folder)
        _program(netlist, nets, list(outputs)).tofile(work / "program")
        np.concatenate([inputs[name][: len(gates.inputs[name])] for name in names]).tofile(work / "inputs")
        bit_planes(expected)[: len(outputs)].tofile(work / "expected")
        return _run(evaluator, netlist, work, "lanes", "inputs", "expected", str(len(expected)))


def run_streams(evaluator: Path, netlist: Mutated, beats: Beats, seed: int) -> dict[int, Difference | None]:
    """The same for a clocked entry, under the stalls that ``seed`` draws and the laws of ``WatchedStream``."""
    gates = netlist.gates
    nets = [bit for name in ("i__payload", "i__valid", "o__ready", "rst") for bit in gates.inputs[name]]
    outputs = [bit for name in ("o__payload", "i__ready", "o__valid") for bit in gates.outputs[name]]
    sides = [list(itertools.islice(side, _STALL_CYCLES)) for side in stalls(netlist.entry.name, seed)]
    with tempfile.TemporaryDirectory(prefix="mxtwin_mutate_") as folder:
        work = Path(folder)
        _program(netlist, nets, outputs).tofile(work / "program")
        beats.beats.tofile(work / "beats")
        beats.expected.tofile(work / "expected")
        np.array(sides, dtype=np.uint8).T.tofile(work / "stalls")
        return _run(evaluator, netlist, work, "streams", "beats", "expected", "stalls")


def _run(evaluator: Path, netlist: Mutated, work: Path, *arguments: str) -> dict[int, Difference | None]:
    mode, *files = arguments
    run = subprocess.run(
        [str(evaluator), mode, "program", *files],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT,
    )
    if run.returncode != 0:
        raise RuntimeError(f"the evaluator failed on {netlist.entry.name}: {run.stderr.strip()[-500:]}")
    found: dict[int, Difference | None] = {}
    for line in run.stdout.splitlines():
        number, place, what = line.split(" ", 2)
        found[int(number)] = None if int(place) < 0 else Difference(place=int(place), what=what)
    if sorted(found) != list(range(len(netlist.mutants) + 1)):
        raise RuntimeError(f"the evaluator must tell of every mutant of {netlist.entry.name}, but told of {len(found)}")
    return found


def bit_planes(words: NDArray[Any]) -> NDArray[np.uint64]:
    """Cases [cases] or [cases, elements] as [bits of a case][words of 64 cases], the first case lowest; padded."""
    rows = words[:, None] if words.ndim == 1 else words
    little = np.ascontiguousarray(rows, dtype=words.dtype.newbyteorder("<"))
    columns = np.ascontiguousarray(little.view(np.uint8).T)
    cases = -(-len(words) // _BLOCK_OF_CASES) * _BLOCK_OF_CASES
    planes = np.zeros((len(columns), 8, cases // 8), dtype=np.uint8)
    for place in range(8):
        packed = np.packbits(columns >> np.uint8(place) & np.uint8(1), axis=1, bitorder="little")
        planes[:, place, : packed.shape[1]] = packed
    return planes.reshape(8 * len(columns), cases // 8).view("<u8")


def _program(netlist: Mutated, inputs: list[int], outputs: list[int | str]) -> NDArray[np.int32]:
    """What the evaluator reads (see there)."""
    gates = netlist.gates
    numbers: dict[int | str, int] = {"0": 0, "1": 1}

    def net(bit: int | str) -> int:
        if bit not in ("0", "1") and isinstance(bit, str):
            raise RuntimeError(f"the netlist of {netlist.entry.name} must have no net {bit!r}")
        return numbers.setdefault(bit, len(numbers))

    rows: list[int] = []
    selects: list[int] = []
    flip_flops: list[int] = []
    for cell in _in_order(gates):
        if cell.kind == _SELECT:
            value = sum(1 << place for place, bit in enumerate(cell.pins["B"]) if bit == "1")
            selects += [net(cell.pins["Y"][0]), value]
        elif cell.kind == _FLIP_FLOP:
            flip_flops += [net(cell.pins["Q"][0]), net(cell.pins["D"][0])]
        else:
            operands = [net(cell.pins[pin][0]) if pin in cell.pins else 0 for pin in ("Y", "A", "B", "S")]
            rows += [_KINDS[cell.kind], *operands]
    ports = [net(bit) for bit in inputs], [net(bit) for bit in outputs]
    counts = [len(numbers), len(rows) // 5, len(flip_flops) // 2, len(selects) // 2, *map(len, ports)]
    return np.array([*counts, len(netlist.mutants), *rows, *flip_flops, *selects, *ports[0], *ports[1]], dtype="<i4")


def _in_order(gates: Gates) -> list[Cell]:
    """The cells, every gate after those that it reads. Raises RuntimeError for a loop or a cell that is not known."""
    known = _KINDS.keys() | {_FLIP_FLOP, _SELECT}
    for cell in gates.cells:
        if cell.kind not in known:
            raise RuntimeError(f"a mutated netlist must be of one-bit gates, but {cell.name} is {cell.kind}")
    ordered = [cell for cell in gates.cells if cell.kind in (_FLIP_FLOP, _SELECT)]
    waiting = {cell.name: cell for cell in gates.cells if cell.kind in _KINDS}
    drivers = {cell.pins["Y"][0]: cell.name for cell in waiting.values()}
    missing = {
        name: {drivers[bits[0]] for pin, bits in cell.pins.items() if pin != "Y" and bits[0] in drivers}
        for name, cell in waiting.items()
    }
    readers: dict[str, list[str]] = {}
    for name, needed in missing.items():
        for other in needed:
            readers.setdefault(other, []).append(name)
    ready = [name for name, needed in missing.items() if not needed]
    for name in ready:  # grows while it is walked
        ordered.append(waiting[name])
        for reader in readers.get(name, []):
            missing[reader].discard(name)
            if not missing[reader]:
                ready.append(reader)
    if len(ready) != len(waiting):
        raise RuntimeError("a netlist must have no combinational loop")
    return ordered
