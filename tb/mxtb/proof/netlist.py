"""The RTL of an entry for a solver: Amaranth's RTLIL, through Yosys, as SMT-LIB text.

Yosys gives a module as functions of one bit-vector, its *state*: registers and inputs. ``port`` and ``moves`` are how
to ask them; nothing else here knows their names.
"""

import tempfile
from pathlib import Path

from mxhw.catalog import Entry
from mxhw.qor import rtlil_of
from mxhw.yosys import run_yosys

__all__ = ["SCRIPT", "initially", "moves", "netlist_rtlil", "netlist_smt", "port", "sort", "state"]

SCRIPT = (
    "read_rtlil design.il",
    "hierarchy -check -top {top}",
    "proc",
    "flatten",
    "dffunmap",
    "write_smt2 -stbv design.smt2",
)
"""Nothing is optimised on the way: what is proved is what was written."""


def netlist_rtlil(entry: Entry) -> str:
    """What the proof is of, as text: the same for the same source on every host."""
    return rtlil_of(entry.component(), entry.name)


def netlist_smt(entry: Entry) -> str:
    """The SMT-LIB text of ``entry``. Raises RuntimeError with Yosys's last words if it fails."""
    with tempfile.TemporaryDirectory(prefix="mxtwin_prove_") as folder:
        work = Path(folder)
        (work / "design.il").write_text(netlist_rtlil(entry), encoding="utf-8")
        run_yosys(work, (command.format(top=entry.name) for command in SCRIPT), entry.name)
        return (work / "design.smt2").read_text(encoding="utf-8")


def state(entry: Entry, name: str) -> str:
    """Declares one state of the entry: its registers, and the inputs of that cycle."""
    return f"(declare-const {name} {sort(entry)})\n"


def sort(entry: Entry) -> str:
    """The sort of the entry's states."""
    return f"|{entry.name}_s|"


def port(entry: Entry, name: str, at: str, width: int) -> str:
    """The term for a port or register of ``width`` bits in the state ``at``, as a bit-vector."""
    term = f"(|{entry.name}_n {name}| {at})"
    return f"(ite {term} #b1 #b0)" if width == 1 else term


def moves(entry: Entry, before: str, after: str) -> str:
    """The term that says that one clock edge leads from one state to the next."""
    return f"(|{entry.name}_t| {before} {after})"


def initially(entry: Entry, at: str) -> str:
    """The term that says that the registers are as at power-up."""
    return f"(|{entry.name}_i| {at})"
