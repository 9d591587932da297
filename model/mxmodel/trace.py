"""What a machine did, in order: as JSON lines, and as a Chrome / Perfetto trace.

There is no time in it. A Perfetto trace needs a time axis, so each event is one unit long and begins where its place in
the order says: what is left of something else happened before it.
"""

import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mxmodel.files.whole_file import whole_file

__all__ = ["Trace", "TraceEvent", "TraceKind"]


class TraceKind(Enum):
    """What happened."""

    ISSUE = "issue"
    """The dispatcher hands an instruction to an engine."""
    ACCESS = "access"
    """An engine reads or writes a memory, inside an instruction."""
    RETIRE = "retire"
    """The engine has answered."""


@dataclass(frozen=True, kw_only=True)
class TraceEvent:
    """One line of a trace.

    Attributes
    ----------
    order : counted from 0
    kind : what happened
    index, instruction : of the program's instruction, in program order; -1 and none before the first
    module : hierarchical name of the engine or the memory
    action : ``read``, ``write``, ``head``, ... of an access
    place, size : the operand, and its bytes
    """

    order: int
    kind: str
    index: int
    instruction: str
    module: str
    action: str = ""
    place: str = ""
    size: int = 0


class Trace:
    """Events as they come."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []

    def add(self, kind: TraceKind, **fields: Any) -> None:
        """Append one event; its order is its place in the list."""
        self.events.append(TraceEvent(order=len(self.events), kind=kind.value, **fields))

    def json_lines(self) -> str:
        """One JSON object a line."""
        return "".join(json.dumps({k: v for k, v in asdict(event).items() if v != ""}) + "\n" for event in self.events)

    def perfetto(self, program: str) -> dict[str, Any]:
        """The Chrome trace event format: a track for each module, instructions as spans around their accesses."""
        modules = list(dict.fromkeys(event.module for event in self.events))
        tracks = {module: number for number, module in enumerate(modules, start=1)}
        events: list[dict[str, Any]] = [
            {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"{program} (order, not time)"}}
        ]
        events += [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": module}}
            for module, number in tracks.items()
        ]
        issued: dict[int, TraceEvent] = {}
        for event in self.events:
            if event.kind == TraceKind.ISSUE.value:
                issued[event.index] = event
                continue
            begin = event if event.kind == TraceKind.ACCESS.value else issued.pop(event.index)
            events.append(
                {
                    "name": event.action or event.instruction,
                    "cat": event.kind,
                    "ph": "X",
                    "ts": begin.order,
                    "dur": event.order - begin.order + 1,
                    "pid": 1,
                    "tid": tracks[event.module],
                    "args": {"index": event.index, "instruction": event.instruction, "place": event.place},
                }
            )
        return {"traceEvents": events, "displayTimeUnit": "ns"}

    def write(self, file: Path, program: str) -> None:
        """JSON lines for a name that ends in ``.jsonl``, a Perfetto trace for any other; whole or not at all."""
        text = self.json_lines() if file.suffix == ".jsonl" else json.dumps(self.perfetto(program)) + "\n"
        with whole_file(file) as handle:
            handle.write(text.encode())
