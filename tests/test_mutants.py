"""Faults planted in the RTL: the ordinary regression must find each, and the command it prints must show it again.

The faults are data (``mutants.json``). Each is applied to a copy of ``hw/``; stimulus, golden twin and scoreboard are
the ones every regression uses. The copy without a fault passes the same path.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from planted_faults import MUTANTS, FaultyCopy

REPRODUCE = "reproduce with: mxtwin "


@pytest.fixture
def copied(root: Path, tmp_path: Path) -> FaultyCopy:
    return FaultyCopy(root, tmp_path)


def _regress(copied: FaultyCopy, *entries: str) -> "subprocess.CompletedProcess[str]":
    named = [word for entry in entries for word in ("--entry", entry)]
    return copied.mxtwin("regress", "--sim", "icarus", *named, "--vectors", "2000", "--jobs", "1")


@pytest.fixture(autouse=True)
def _icarus() -> None:
    if shutil.which("iverilog") is None:
        if os.environ.get("CI"):
            raise RuntimeError("CI must have iverilog")
        pytest.skip("optional here, required in CI: iverilog is not on PATH")


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant["name"] for mutant in MUTANTS])
def test_mutant_is_killed(mutant: dict[str, Any], copied: FaultyCopy) -> None:
    copied.plant(mutant)
    done = _regress(copied, mutant["entry"])
    assert done.returncode == 1, done.stdout + done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith(REPRODUCE)]
    assert commands, done.stdout
    again = copied.mxtwin(*shlex.split(commands[0].removeprefix(REPRODUCE)))
    assert again.returncode == 1, again.stdout + again.stderr
    assert "differs" in again.stdout
    assert mutant["entry"] in again.stdout


def test_the_copy_without_a_fault_passes(copied: FaultyCopy) -> None:
    """Every entry that a fault is planted in, in one regression."""
    entries = sorted({mutant["entry"] for mutant in MUTANTS})
    done = _regress(copied, *entries)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f" 0 mismatches, {len(entries)} configurations" in done.stdout


def test_the_mutants_are_many_and_different() -> None:
    """At least four for each block, streams among them."""
    assert len({mutant["name"] for mutant in MUTANTS}) == len(MUTANTS)
    for stem in ("mx_narrow", "mx_shared_exponent", "mx_ldexp"):
        assert sum(mutant["entry"].startswith(stem) for mutant in MUTANTS) >= 4, stem
    assert sum(mutant["entry"].endswith("_stream") for mutant in MUTANTS) >= 4
