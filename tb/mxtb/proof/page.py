"""The figures of ``docs/proofs.md``: the committed record as a table between two markers; all else there is written."""

import re
from itertools import groupby

from mxhw.catalog import Entry
from mxmodel.counted import counted
from mxtb.proof.record import Record, Recorded

__all__ = ["BEGIN", "END", "page_with"]

BEGIN = "<!-- proofs: written by mxtwin prove --update -->"
END = "<!-- end of proofs -->"


def page_with(text: str, record: Record, entries: tuple[Entry, ...]) -> str:
    """``text`` with the table of ``record`` between the markers. Raises ValueError unless each stands there once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page must have the lines {BEGIN!r} and {END!r} once each")
    between = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return between.sub(lambda match: f"{BEGIN}\n{_table(record, entries)}\n{END}", text)


def _table(record: Record, entries: tuple[Entry, ...]) -> str:
    tools = ", ".join(f"{name} {version}" for name, version in record.tools.items())
    lines = [
        f"With {tools}; processor seconds, Yosys's included.",
        "",
        "| block | configuration | formulas | result | CPU s |",
        "|---|---|---:|---|---:|",
    ]
    known = [entry for entry in entries if entry.name in record.entries]
    for block, group in groupby(known, key=lambda entry: entry.block):
        shown = block.value
        for entry in group:
            row = record.entries[entry.name]
            name = entry.name.removeprefix(f"mx_{block.value}_")
            lines.append(f"| {shown} | {name} | {row.formulas} | {row.result} | {row.cpu_seconds:.1f} |")
            shown = ""
    rows = [record.entries[entry.name] for entry in known]
    return "\n".join([*lines, "", _total(rows)])


def _total(rows: list[Recorded]) -> str:
    proved = sum(row.result == "proved" for row in rows)
    formulas, seconds = sum(row.formulas for row in rows), sum(row.cpu_seconds for row in rows)
    return f"{proved} of {len(rows)} entries proved, {counted(formulas, 'formula')}, {seconds:.0f} CPU seconds."
