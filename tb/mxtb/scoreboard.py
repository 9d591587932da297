"""Inside the simulator: drive a plan through the lanes and compare every output, bit for bit.

Outputs are compared as the simulator's own strings of 0, 1, X and Z, so an unknown bit can only be a mismatch. What
was really compared is counted here and held against the plan by whoever started the run.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cocotb.triggers import Timer
from numpy.typing import NDArray

__all__ = ["KEPT", "OUTPUTS", "PLAN", "RESULT", "check_lanes"]

PLAN = "MXTB_PLAN"
"""Environment variable that names the plan's directory."""

RESULT = "scoreboard.json"
OUTPUTS = "outputs.npy"
KEPT = 10
"""Mismatches written down for each entry; the rest are only counted."""

_BATCH = 2048
"""Steps prepared at a time."""


async def check_lanes(dut: Any) -> None:
    """Drive every case of the plan; write counts and first mismatches beside it; fail if there was any."""
    directory = Path(os.environ[PLAN])
    plan = json.loads((directory / "plan.json").read_text())
    names, lanes, cases = plan["entries"], plan["lanes"], plan["cases"]
    expected = np.load(directory / "expected.npy", mmap_mode="r")
    inputs = {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in plan["inputs"]}
    output = dut.y
    slot = len(output) // (len(names) * lanes)
    compared = dict.fromkeys(names, 0)
    mismatches = dict.fromkeys(names, 0)
    kept: list[dict[str, Any]] = []
    outputs: list[str] = []
    start = time.perf_counter()
    for first, values, wanted in _steps(inputs, expected, lanes, slot // 8):
        for name, value in values.items():
            getattr(dut, name).value = value
        await Timer(1, "ns")
        got = str(output.value)
        if plan["keep_outputs"]:
            outputs.append(got)
        in_step = min(lanes, cases - first)
        for name in names:
            compared[name] += in_step
        if got == wanted:
            continue
        for index, name in enumerate(names):
            for lane in range(in_step):
                end = len(got) - slot * (index * lanes + lane)
                if got[end - slot : end] != wanted[end - slot : end]:
                    if mismatches[name] < KEPT:
                        kept.append(
                            {
                                "entry": name,
                                "case": first + lane,
                                "got": got[end - slot : end],
                                "expected": wanted[end - slot : end],
                            }
                        )
                    mismatches[name] += 1
    result = {
        "compared": compared,
        "mismatches": mismatches,
        "first": kept,
        "seconds": time.perf_counter() - start,
    }
    (directory / RESULT).write_text(json.dumps(result))
    if plan["keep_outputs"]:
        np.save(directory / OUTPUTS, np.array(outputs))
    total = sum(mismatches.values())
    assert total == 0, f"{total} of {sum(compared.values())} outputs differ"


def _steps(
    inputs: dict[str, NDArray[Any]], expected: NDArray[Any], lanes: int, slot_bytes: int
) -> Iterator[tuple[int, dict[str, int], str]]:
    """For every step: its first case, the integers to drive, the string that must come out.

    Lanes beyond the last case repeat it, and are not counted.
    """
    entries, cases = expected.shape
    for begin in range(0, cases, _BATCH * lanes):
        chosen = np.arange(begin, min(begin + _BATCH * lanes, cases + (-cases) % lanes)).clip(max=cases - 1)
        steps = chosen.size // lanes
        driven = {name: _rows(array[chosen], steps) for name, array in inputs.items()}
        wide = expected[:, chosen].reshape(entries, steps, lanes).transpose(1, 0, 2).astype(f"<u{slot_bytes}")
        strings = _bit_strings(_rows(np.ascontiguousarray(wide), steps))
        for step in range(steps):
            values = {name: int.from_bytes(rows[step].tobytes(), "little") for name, rows in driven.items()}
            yield begin + step * lanes, values, strings[step].tobytes().decode("ascii")


def _rows(array: NDArray[Any], steps: int) -> NDArray[np.uint8]:
    """The bytes of each step, lowest first."""
    return np.ascontiguousarray(array).reshape(steps, -1).view(np.uint8)


def _bit_strings(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each step's bytes as ASCII 0 and 1, highest bit first, as a simulator prints a vector."""
    return np.unpackbits(rows[:, ::-1], axis=1) + np.uint8(ord("0"))
