"""Toggle coverage of the lane modules: which bits of ports and named signals never went both up and down, and why.

A run of its own, on Verilator with ``--coverage-toggle``. The writer's numbered temporaries are left out: each is a
part of one named signal's expression.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
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

WAIVERS: tuple[tuple[str, str], ...] = (
    (
        r"mx_narrow_fp16_fp8_e[45]m[23]_(zero|propagate)\.within",
        "true of every fp16 exponent: its upper part is one bit, and both its values are within reach",
    ),
)
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
    moved = sorted(bit for bit, ways in toggled.items() if len(ways) == 2 and bit in constant)
    if moved:
        raise SimulationFault(f"{entry.name}: constants of the Verilog must not move, but these do: {', '.join(moved)}")
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

_MODULE = r"^module {name}\s*[(].*?^endmodule"
_DECLARED = re.compile(r"^\s*(?:input|output|wire|reg)\s+(?:\[(\d+):0\]\s+)?(\\?\S+)\s*;", re.MULTILINE)
_ASSIGNED = re.compile(r"^\s*(?:assign )?(\\\S+(?= )|\w+) *(?:\[(\d+)(?::(\d+))?\])? +<?= (.*);", re.MULTILINE)
_INSTANCE = re.compile(r"^\s*(\\?\S+) +(?:\\?\S+) +\(\n((?:\s+\.\w+\(.*\),?\n)+)\s*\);", re.MULTILINE)
_CONNECTED = re.compile(r"\.(\w+)\((\\?\S+) *\)")
_LITERAL = re.compile(r"(\d+)'(?:h([0-9a-f]+)|d(\d+))")
_SLICED = re.compile(r"(\\\S+|\w+)\s*(?:\[(\d+)(?::(\d+))?\])?")

Bits = list[str | None]
"""From the lowest: "0", "1", or None for what is no constant."""


def constant_bits(text: str, module: str) -> set[str]:
    """Bits of signals of ``module``, named as Verilator does, that are constants of its Verilog as it stands.

    A literal is followed through names, slices, concatenations, choices and repeated assignments of the same literal,
    through "or", and out of submodules; other logic is not.
    """
    found = set()
    for name, bits in _constants(text, module).items():
        plain = re.sub(r"\W", lambda odd: f"__0{ord(odd[0]):02X}", name.removeprefix("\\"))
        places = [place for place, bit in enumerate(bits) if bit is not None]
        found |= {plain if len(bits) == 1 else f"{plain}[{place}]" for place in places}
    return found


def _constants(text: str, module: str) -> dict[str, Bits]:
    """Signal as the text names it -> its bits."""
    body = re.search(_MODULE.format(name=re.escape(module)), text, re.MULTILINE | re.DOTALL)
    if body is None:
        raise ValueError(f"text must hold the module {module}")
    widths = {name: int(top or 0) + 1 for top, name in _DECLARED.findall(body[0])}
    assigned: dict[str, list[tuple[int, int, str]]] = {}
    for name, high, low, value in _ASSIGNED.findall(body[0]):
        if name in widths:
            top = int(high) if high else widths[name] - 1
            assigned.setdefault(name, []).append((int(low or high or 0), top, value.strip()))
    outputs: dict[str, Bits] = {}
    for submodule, connections in _INSTANCE.findall(body[0]):
        inside = _constants(text, submodule)
        outputs |= {
            name: inside[port] for port, name in _CONNECTED.findall(connections) if _is_output(text, submodule, port)
        }

    @cache
    def of_signal(name: str) -> tuple[str | None, ...]:
        if name in outputs:
            return tuple(outputs[name])
        seen: list[set[str | None]] = [set() for _ in range(widths[name])]
        for low, high, value in assigned.get(name, ()):
            bits = of_value(value)
            for place in range(low, high + 1):
                # What an expression does not reach is filled with zeros; one that cannot be read is no constant.
                seen[place].add(None if not bits else bits[place - low] if place - low < len(bits) else "0")
        return tuple(next(iter(one)) if len(one) == 1 else None for one in seen)

    def of_value(value: str) -> Bits:
        if value.startswith("{") and value.endswith("}") and value.count("{") == 1:
            parts = [of_value(part.strip()) for part in reversed(value[1:-1].split(","))]
            return [bit for part in parts for bit in part] if all(parts) else []
        choice = re.fullmatch(r"[^?]+\? (.*) : (.*)", value)
        if choice is not None:
            return [a if a == b else None for a, b in _paired(of_value(choice[1].strip()), of_value(choice[2].strip()))]
        either = re.fullmatch(r"([^|]+) \| ([^|]+)", value)
        if either is not None:
            pairs = _paired(of_value(either[1].strip()), of_value(either[2].strip()))
            return ["1" if "1" in pair else "0" if pair == ("0", "0") else None for pair in pairs]
        literal = _LITERAL.fullmatch(value)
        if literal is not None:
            number = int(literal[2], 16) if literal[2] else int(literal[3])
            return list(f"{number:0{int(literal[1])}b}"[::-1])
        sliced = _SLICED.fullmatch(value)
        if sliced is None or sliced[1] not in widths:
            return []
        bits = list(of_signal(sliced[1]))
        return bits if sliced[2] is None else bits[int(sliced[3] or sliced[2]) : int(sliced[2]) + 1]

    return {name: list(of_signal(name)) for name in widths}


def _is_output(text: str, module: str, port: str) -> bool:
    body = re.search(_MODULE.format(name=re.escape(module)), text, re.MULTILINE | re.DOTALL)
    return body is not None and re.search(rf"^\s*output\b[^;]*\b{port};", body[0], re.MULTILINE) is not None


def _paired(one: Bits, other: Bits) -> list[tuple[str | None, str | None]]:
    """Bits of the same weight, the shorter filled with zeros; none if either cannot be read."""
    if not one or not other:
        return []
    longest = max(len(one), len(other))
    return list(zip(*(bits + ["0"] * (longest - len(bits)) for bits in (one, other)), strict=True))
