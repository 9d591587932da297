"""The benchmark runs and says what it measured; how fast anything is, is not tested here."""

import json
import os
import subprocess
import sys
from typing import Any

from mxmodel.pe_array import Accumulation


def bench(*arguments: str, module: str = "mxmodel.bench") -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_json() -> None:
    done = bench("--elements", "16384", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert {key: report[key] for key in ("elements", "rounds", "threads", "rules")} == {
        "elements": 16384, "rounds": 1, "threads": 1, "rules": "birsim",
    }  # fmt: skip
    rows = {(row["work"], row["contender"]): row for row in report["rows"]}
    assert len(rows) == len(report["rows"])
    elements = ("fp4_e2m1", "fp8_e4m3", "fp8_e5m2")
    for work in [f"{verb} {element}" for verb in ("quantise", "dequantise") for element in elements]:
        ours, plain = rows[work, "mxmodel"], rows[work, "NumPy + ml_dtypes"]
        assert ours["ratio"] == plain["seconds"] / ours["seconds"]
        assert ours["met"] == (ours["ratio"] >= float(ours["target"].removeprefix(">= ")))
        assert plain["ratio"] == 1.0
    for accumulation in Accumulation:
        row = rows["matmul 1024^3", f"mxmodel {accumulation.name}"]
        assert row["ratio"] == row["seconds"] / rows["matmul 1024^3", "sgemm alone"]["seconds"]
    assert report["quantise_memory_ratio"].keys() == set(elements)


def test_the_table_names_every_piece_of_work_and_bad_input_is_refused() -> None:
    done = bench("--elements", "16384", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    for text in ("quantise fp8_e4m3", "dequantise fp4_e2m1", "matmul 1024^3", "copy of fp32 (limit)", "Peak memory"):
        assert text in done.stdout
    refused = bench("--elements", "1000")
    assert refused.returncode == 2
    assert "elements must be a multiple of 16384, not 1000" in refused.stderr


def test_the_machine_is_measured() -> None:
    """One large program, small instructions of every kind that a program repeats, programs of three lengths."""
    done = bench("--rounds", "1", "--json", module="mxmodel.machine_bench")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    large, *others = rows
    assert large["work"].startswith("MX program 512^3")
    assert large["met"] == (large["seconds"] <= 0.4)
    small = [row for row in others if row["work"].startswith("small ")]
    assert len(small) == 10
    assert all(row["met"] == (row["seconds"] <= 1e-3) for row in small)
    lengths = [row for row in others if row not in small]
    assert [row["count"] for row in lengths] == [100, 1_000, 10_000]
    assert lengths[2]["ratio"] == lengths[2]["seconds"] / lengths[0]["seconds"]
    table = bench("--rounds", "1", module="mxmodel.machine_bench")
    assert "small quantize_mx " in table.stdout
    assert "…" not in table.stdout
