"""Toggle coverage of the lane modules: which bits of ports and named signals never went both up and down, and why.

A run of its own, on Verilator with ``--coverage-toggle``. The writer's numbered temporaries are left out: each is a
part of one named signal's expression.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxhw.catalog import Entry
from mxhw.emit import emit
from mxmodel.files.whole_file import whole_file
from mxtb.blocks import golden, group, stimulus
from mxtb.lanes import TOPLEVEL, Top, write_plan
from mxtb.scoreboard import PLAN, RESULT
from mxtb.simulators import SimulationFault, Simulator, build, run

__all__ = ["RECORDED", "Toggles", "constant_bits", "measure", "read_recorded", "read_toggles", "record"]

RECORDED = Path(__file__).with_name("toggles.json")
"""What ``mxtwin coverage --toggle --update`` recorded of the whole catalogue."""

_RANDOM = 2_000
_TEMPORARY = re.compile(r"\\\$(\d+) ")
"""As the writer names it. With a name that begins with an underscore, Verilator does not count it, which makes the
program it compiles a few times smaller."""

_FIELD = re.compile("\x01([^\x02]*)\x02([^\x01]*)")
_POINT = re.compile(r"(?P<signal>[A-Za-z_]\w*)(?:\[(?P<bit>\d+)\])?:(?P<way>0->1|1->0)")

WAIVERS: tuple[tuple[str, str], ...] = ()
"""(pattern of "module.signal[bit]", reason) of bits that are no constants of the text and yet cannot move."""


@dataclass(frozen=True, kw_only=True)
class Toggles:
    """Bits of one module.

    Attributes
    ----------
    module : its name
    bits : of ports and named signals
    untoggled : those that did not go both ways, without a waiver
    waived : (bit, reason) of those that cannot
    """

    module: str
    bits: int
    untoggled: tuple[str, ...]
    waived: tuple[tuple[str, str], ...]

    @property
    def percent(self) -> float:
        """Of the bits that can move."""
        movable = self.bits - len(self.waived)
        return 100.0 * (movable - len(self.untoggled)) / max(movable, 1)

    def as_json(self) -> dict[str, Any]:
        waived = [{"bit": bit, "reason": reason} for bit, reason in self.waived]
        return {
            "module": self.module,
            "bits": self.bits,
            "percent": round(self.percent, 2),
            "untoggled": list(self.untoggled),
            "waived": waived,
        }


class _FewLanes(Top):
    """A top with two instances of each entry: a bit counts for its module, whichever instance moved it."""

    @property
    def lanes(self) -> int:
        return 2


def measure(
    entries: Sequence[Entry],
    simulator: Simulator,
    *,
    directory: Path,
    seed: int = 0,
    progress: Callable[[str], None] = lambda top: None,
) -> list[Toggles]:
    """Drive the combinational ones of ``entries`` with their directed cases and a few random ones.

    Raises ``SimulationFault`` if a tool broke or the twins differ.
    """
    found = []
    for together in group(entry for entry in entries if not entry.clocked):
        top = _FewLanes(entries=together)
        work = (directory / "toggle" / top.name).resolve()
        inputs = stimulus(together, _RANDOM, seed)
        write_plan(work, top, inputs, [golden(entry, inputs) for entry in together])
        database = work / "coverage.dat"
        database.unlink(missing_ok=True)
        cache = (directory / "tops").resolve()
        sources = {name: _TEMPORARY.sub(r"_t\1 ", text) for name, text in top.sources().items()}
        built = build(simulator, sources, TOPLEVEL, cache=cache, more=("--coverage-toggle",))
        run(built, f"mxtb.{top.block.value}", work, environment={PLAN: str(work)})
        result = json.loads((work / RESULT).read_text())
        if not database.exists() or sum(result["mismatches"].values()):
            raise SimulationFault(f"{top.name}: no toggle coverage, or mismatches; see {work / 'run.log'}")
        toggled = read_toggles(database)
        found += [_of_module(entry, toggled.get(entry.name, {})) for entry in together]
        progress(top.name)
    return found


def read_toggles(database: Path) -> dict[str, dict[str, set[str]]]:
    """Module -> bit of a named signal -> the ways it went ("0->1", "1->0"), all instances together."""
    found: dict[str, dict[str, set[str]]] = {}
    for line in database.read_text(encoding="latin-1").splitlines():
        if not line.startswith("C '"):
            continue
        fields = dict(_FIELD.findall(line))
        point = _POINT.fullmatch(fields.get("o", ""))
        if point is None or point["signal"].startswith("_"):
            continue
        bit = point["signal"] if point["bit"] is None else f"{point['signal']}[{point['bit']}]"
        ways = found.setdefault(fields["page"].partition("/")[2], {}).setdefault(bit, set())
        if int(line.rsplit(" ", 1)[1]):
            ways.add(point["way"])
    return found


def _of_module(entry: Entry, toggled: dict[str, set[str]]) -> Toggles:
    if not toggled:
        raise SimulationFault(f"{entry.name}: the coverage database must name its bits, but names none")
    constant = constant_bits(emit(entry).text, entry.name)
    untoggled, waived = [], []
    for bit in sorted(bit for bit, ways in toggled.items() if len(ways) < 2):
        reason = "a constant of the emitted Verilog" if bit in constant else _waiver(entry.name, bit)
        if reason is None:
            untoggled.append(bit)
        else:
            waived.append((bit, reason))
    return Toggles(module=entry.name, bits=len(toggled), untoggled=tuple(untoggled), waived=tuple(waived))


def _waiver(module: str, bit: str) -> str | None:
    return next((why for pattern, why in WAIVERS if re.fullmatch(pattern, f"{module}.{bit}")), None)


def record(toggles: Sequence[Toggles], simulator: Simulator, file: Path = RECORDED) -> None:
    """Write them, one line a module."""
    lines = ",\n".join(f"    {json.dumps(one.as_json())}" for one in sorted(toggles, key=lambda one: one.module))
    text = f'{{\n  "verilator": {json.dumps(simulator.version)},\n  "modules": [\n{lines}\n  ]\n}}\n'
    with whole_file(file) as out:
        out.write(text.encode())


def read_recorded(file: Path = RECORDED) -> tuple[str, list[Toggles]]:
    """The version that measured, and what it found; ValueError, in one line, if that cannot be read."""
    try:
        whole = json.loads(file.read_text(encoding="utf-8"))
        return str(whole["verilator"]), [
            Toggles(
                module=row["module"],
                bits=row["bits"],
                untoggled=tuple(row["untoggled"]),
                waived=tuple((one["bit"], one["reason"]) for one in row["waived"]),
            )
            for row in whole["modules"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: wanted recorded toggles, found something else: {error!r}") from None


# --- constants of the text --------------------------------------------------------------------------------------------

_MODULE = r"^module {name}\b.*?^endmodule"
_DECLARED = re.compile(r"^\s*(?:input|output|wire|reg)\s+(?:\[(\d+):0\]\s+)?(\\?\S+)\s*;", re.MULTILINE)
_ASSIGNED = re.compile(r"^\s*assign (\\?\S+)\s+= (.*);", re.MULTILINE)
_LITERAL = re.compile(r"(\d+)'h([0-9a-f]+)")


def constant_bits(text: str, module: str) -> set[str]:
    """Bits of signals of ``module`` that its Verilog assigns a literal, alone or in a concatenation."""
    body = re.search(_MODULE.format(name=re.escape(module)), text, re.MULTILINE | re.DOTALL)
    if body is None:
        raise ValueError(f"text must hold the module {module}")
    widths = {name.removeprefix("\\"): int(top or 0) + 1 for top, name in _DECLARED.findall(body[0])}
    found = set()
    for target, value in _ASSIGNED.findall(body[0]):
        name = target.removeprefix("\\")
        width = widths.get(name, 1)
        found |= {name if width == 1 else f"{name}[{place}]" for place in _literal_places(value.strip(), widths)}
    return found


def _literal_places(value: str, widths: dict[str, int]) -> Iterator[int]:
    """Places, from the lowest bit, at which an expression is a literal."""
    parts = value[1:-1].split(",") if value.startswith("{") and value.endswith("}") else [value]
    place = 0
    for part in reversed([part.strip() for part in parts]):
        literal = _LITERAL.fullmatch(part)
        if literal is not None:
            yield from range(place, place + int(literal[1]))
            place += int(literal[1])
            continue
        sliced = re.fullmatch(r"\\?(\S+?)\s*(?:\[(\d+)(?::(\d+))?\])?", part)
        if sliced is None:
            return
        if sliced[2] is None:
            place += widths.get(sliced[1], 1)
        else:
            place += int(sliced[2]) - int(sliced[3] or sliced[2]) + 1
