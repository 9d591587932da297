"""The JSON Schema of program files, and the field tables of its page of docs: both from what the loader reads by.

python -m mxmodel.program_files.schema docs/programs.md    # renews program.schema.json and the page's tables
"""

import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path

from mxmodel.isa import INSTRUCTIONS, Instruction
from mxmodel.program_files.fields import NUMBERS, OPERAND, Record, Schema
from mxmodel.program_files.program_file import HEADER, HEADER_DEFAULTS, RECORDS, REQUIRED, ExpectSpec, TensorSpec

__all__ = ["SCHEMA_FILE", "page_with_tables", "program_schema", "schema_text"]

SCHEMA_FILE = Path(__file__).with_name("program.schema.json")
"""Part of the package."""


def program_schema() -> Schema:
    """What ``read_program`` takes, as far as a schema can say it: names of tensors and shapes it cannot."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A program of mxtwin",
        "type": "object",
        "properties": {name: kind.schema() for name, kind in HEADER.items()},
        "required": list(REQUIRED),
        "additionalProperties": False,
        "$defs": {
            "operand": OPERAND.definition(),
            "numbers": NUMBERS.definition(),
            **{mnemonic: record.schema() for mnemonic, record in RECORDS.items()},
        },
    }


def schema_text() -> str:
    """The contents of ``SCHEMA_FILE``."""
    return json.dumps(program_schema(), indent=1, ensure_ascii=False) + "\n"


# --- the page ---------------------------------------------------------------------------------------------------------

_TABLES = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page_with_tables(page: str) -> str:
    """``page`` with what stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` renewed."""
    return _TABLES.sub(lambda found: f"{found[1]}{_TABLE[found[2]]()}{found[3]}", page)


def _header_table() -> str:
    rows = [
        (f"`{name}`", kind.words(), "required" if name in REQUIRED else HEADER_DEFAULTS[name])
        for name, kind in HEADER.items()
    ]
    return _table(("field", "takes", "default"), rows)


def _instruction_tables() -> str:
    parts = []
    for mnemonic, record in RECORDS.items():
        kind = INSTRUCTIONS[mnemonic]
        opcode = "" if kind.opcode is None else f", opcode {kind.opcode}"
        about = (kind.__doc__ or "").strip().partition("\n")[0].replace("``", "`")
        shapes = kind.shapes.replace("``", "`").replace("->", "→")
        table = _record_table(record, skip=_EVERYWHERE)
        parts.append(f"#### `{mnemonic}`{opcode}\n{about}\n\nShapes: {shapes}.\n\n{table}\n")
    return "".join(parts)


_EVERYWHERE = tuple(Record(Instruction).fields)
"""Fields of every instruction: told once."""


def _common_table() -> str:
    return _record_table(Record(Instruction), defaults={"engine": "its own"})


def _record_table(record: Record, skip: Collection[str] = (), defaults: Mapping[str, str] | None = None) -> str:
    names = [name for name in record.fields if name not in skip]
    rows = [
        (
            f"`{name}`",
            record.kinds[name].words(),
            (defaults or {}).get(name, _default(record, name)),
            record.meanings.get(name, "").replace("``", "`"),
        )
        for name in sorted(names, key=lambda name: name not in record.required)
    ]
    return _table(("field", "takes", "default", "meaning"), rows)


def _default(record: Record, name: str) -> str:
    if name in record.required:
        return "required"
    default = record.fields[name].default
    if default is MISSING or default is None or default in ("", ()):
        return ""
    plain = record.kinds[name].plain(default, {})
    return f"`{plain if isinstance(plain, str) else json.dumps(plain)}`"


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    lines += [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


_TABLE = {
    "header": _header_table,
    "options": lambda: _record_table(HEADER["options"]),  # type: ignore[arg-type]
    "tensor": lambda: _record_table(Record(TensorSpec)),
    "expect": lambda: _record_table(Record(ExpectSpec)),
    "common": _common_table,
    "instructions": _instruction_tables,
}


def _renew(page: Path) -> None:
    SCHEMA_FILE.write_text(schema_text())
    page.write_text(page_with_tables(page.read_text()))


if __name__ == "__main__":
    _renew(Path(sys.argv[1]))
