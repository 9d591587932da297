"""A copy of the hardware floor with one of the kept faults in it, for a child process to run on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["MUTANTS", "FaultyCopy"]

MUTANTS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "mutants.json").read_text())["mutants"]


class FaultyCopy:
    """``hw/`` copied below ``place``, where it stands before the real one on the path of ``mxtwin``."""

    def __init__(self, root: Path, place: Path) -> None:
        self._root, self._place = root, place
        shutil.copytree(root / "hw", place / "hw", ignore=shutil.ignore_patterns("__pycache__"))

    def plant(self, mutant: dict[str, Any]) -> None:
        """Change the one place in its file."""
        file = self._place / "hw" / "mxhw" / mutant["file"]
        text = file.read_text()
        assert text.count(mutant["old"]) == 1, "the text to change must stand exactly once"
        file.write_text(text.replace(mutant["old"], mutant["new"]))

    def mxtwin(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the command on the copy, in its folder."""
        path = os.pathsep.join(str(part) for part in (self._place / "hw", self._root / "model", self._root / "tb"))
        return subprocess.run(
            [sys.executable, "-m", "mxtb.cli", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._place,
            env={**os.environ, "PYTHONPATH": path},
        )
