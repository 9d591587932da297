"""A refuted proof as a case that people, the golden twin and a simulator can judge."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxhw.catalog import Block, Entry
from mxmodel.formats import E8M0, MX_BLOCK
from mxtb.explain import Case, Explanation, explain
from mxtb.proof.obligation import Obligation, specification
from mxtb.proof.solver import Result, holds, solve
from mxtb.proof.stream_obligation import RESET, payload_widths, trace_script
from mxtb.proof.stream_replay import Cycle, replay
from mxtb.rtl_blocks import evaluate

__all__ = ["Counterexample", "of_lane", "of_stream"]

SIMULATOR = "amaranth"


@dataclass(frozen=True, kw_only=True)
class Counterexample:
    """What a refuted proof found.

    Attributes
    ----------
    rows : (label, text) pairs in reading order, the verdicts last
    vector : the case as data, for a regression: bits in hex, by the names of the ports
    command : a command line that shows it again, or None for a stream, which depends on its past
    replayed : whether the RTL differs from the golden twin on it, in Amaranth's simulator
    """

    rows: tuple[tuple[str, str], ...]
    vector: Mapping[str, Any]
    command: str | None
    replayed: bool

    @property
    def line(self) -> str:
        """The vector as one line of JSON."""
        return json.dumps(self.vector)

    def as_json(self) -> dict[str, Any]:
        story = [{"label": label, "text": text} for label, text in self.rows]
        return {"story": story, "vector": dict(self.vector), "command": self.command, "replayed": self.replayed}


def of_lane(entry: Entry, values: Mapping[str, int]) -> Counterexample:
    """The case that ``values`` (of ``obligation``'s constants) are, told, and replayed on both twins."""
    case = case_of(entry, values)
    (rtl,) = evaluate(entry, [case.ports])
    told = explain(case, {SIMULATOR: f"{rtl:0{entry.result_width}b}"})
    rows = [*told.rows(), *_doubts(told, rtl, values["result"])]
    digits = (entry.result_width + 3) // 4
    vector: dict[str, Any] = {"entry": entry.name, "words": [f"0x{word:x}" for word in case.words]}
    vector |= {} if case.scale is None else {"scale": case.scale}
    vector |= {} if case.selected is None else {"format": case.selected}
    vector |= {"golden": f"0x{told.golden:0{digits}x}", "rtl": f"0x{rtl:0{digits}x}"}
    command = case.command(SIMULATOR)
    return Counterexample(rows=tuple(rows), vector=vector, command=command, replayed=not told.agree)


def case_of(entry: Entry, values: Mapping[str, int]) -> Case:
    """The inputs among ``values`` as a case of ``entry``."""
    lanes = MX_BLOCK.size if entry.block is Block.SHARED_EXPONENT else 1
    words = tuple(_fields(values["word"], entry.word_width, lanes))
    return Case(entry=entry, words=words, scale=values.get("scale"), selected=values.get("format"))


def _doubts(told: Explanation, rtl: int, netlist: int) -> list[tuple[str, str]]:
    """What speaks against one of the proof's own parts."""
    doubts = []
    if rtl != netlist:
        text = f"Yosys's netlist gives 0x{netlist:x} where Amaranth's simulator gives 0x{rtl:x}: suspect the netlist"
        doubts.append(("doubt", text))
    if not _is_specified(told.case, told.golden):
        doubts.append(("doubt", "the golden twin breaks the specification here: suspect the one or the other"))
    return doubts


def _is_specified(case: Case, result: int) -> bool:
    """Whether the specification allows ``result``, by evaluation."""
    entry, policy = case.entry, case.policy
    if policy is None:
        return result == 0
    width = entry.word_width if entry.source is not None else policy_width(policy)
    if entry.block is Block.SHARED_EXPONENT:
        block = sum(word << (width * lane) for lane, word in enumerate(case.words))
        widths, values = {"x": width * len(case.words), "result": E8M0.width}, [block, result]
    else:
        result_width = entry.result_width if entry.source is None else policy_width(policy)
        widths = {"x": width, "s": E8M0.width, "result": result_width}
        values = [case.words[0] & ((1 << width) - 1), case.scale or 0, result]
        if result >> result_width:
            return False
    (allowed,) = holds(specification(entry, policy), widths, [tuple(values)])
    return allowed


def policy_width(policy: Any) -> int:
    """Bits of a code of the policy's element."""
    return int(policy.element.width)


def of_stream(entry: Entry, netlist: str, obligation: Obligation, *, timeout: float) -> Counterexample:
    """The shortest run from power-up that breaks the law of ``obligation``, replayed on both twins.

    A law may break in a state that no run reaches, or only in more cycles than are tried: then there is no run to show.
    """
    if obligation.label == RESET:
        return _told(entry, obligation, _filled_then_reset(entry))
    longest = 2 * entry.beats + 2
    for cycles in range(1, longest + 1):
        if not obligation.broken:
            break
        script, names = trace_script(entry, obligation, cycles)
        verdict = solve(netlist + script, names, timeout=timeout)
        if verdict.result is not Result.REFUTED:
            continue
        run = [
            Cycle(payload=v[f"payload{k}"], valid=bool(v[f"valid{k}"]), ready=bool(v[f"ready{k}"]))
            for v in (verdict.values,)
            for k in range(cycles)
        ]
        return _told(entry, obligation, run)
    told = f"broken in a step, but in none that {longest} cycles from power-up reach"
    rows = (("entry", entry.name), ("law", obligation.label), ("run", told))
    vector = {"entry": entry.name, "law": obligation.label, "cycles": []}
    return Counterexample(rows=rows, vector=vector, command=None, replayed=False)


def _told(entry: Entry, obligation: Obligation, run: Sequence[Cycle]) -> Counterexample:
    story = replay(entry, run)
    rows = (("entry", entry.name), ("law", obligation.label), *story.rows)
    vector = {"entry": entry.name, "law": obligation.label, "cycles": [cycle.as_json() for cycle in run]}
    return Counterexample(rows=rows, vector=vector, command=None, replayed=bool(story.faults))


def _filled_then_reset(entry: Entry) -> list[Cycle]:
    """Ones, one beat short of a block (of a lane: one beat), then a reset: what it should have cleared is not zero."""
    ones = (1 << payload_widths(entry)[0]) - 1
    fill = Cycle(payload=ones, valid=True, ready=False)
    return [fill] * max(entry.beats - 1, 1) + [Cycle(payload=0, valid=False, ready=False, reset=True)]


def _fields(payload: int, width: int, count: int) -> list[int]:
    return [(payload >> (width * lane)) & ((1 << width) - 1) for lane in range(count)]
