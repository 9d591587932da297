"""The register of assumptions speaks of options that exist, with the defaults that they have, and of real tests."""

import dataclasses
import importlib
import inspect
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from mxmodel.rules import RULE_SETS, RuleSet, rule_set

CLAUSES = {
    *(f"F-{n}" for n in range(1, 7)),
    *("R-1", "N-4b", "V-1"),
    *(f"E-{n}" for n in range(1, 8)),
    *(f"N-{n}" for n in range(1, 8)),
    *(f"Q-{n}" for n in range(1, 5)),
    *(f"D-{n}" for n in range(1, 5)),
    *(f"L-{n}" for n in range(1, 9)),
    *(f"M-{n}" for n in range(1, 9)),
    *(f"P-{n}" for n in range(1, 6)),
    *(f"I-{n}" for n in range(3)),
}
"""The contract's."""

MARKED = {
    "E-4",
    "E-6",
    "N-4",
    "N-5",
    "D-3",
    "D-4",
    "L-6",
    "M-2",
    "M-5",
    "M-6",
    "M-7",
    "M-8",
    "P-4",
    "P-5",
    "I-0",
    "I-1",
}
"""Those that the contract itself marks as ours."""

CLAUSE = r"\b([A-Z]-\d+[a-z]?)\b"
TOKEN = r"`((?:files\.)?[a-z][a-z0-9_]*\.[A-Za-z_]\w*(?:\.\w+)?)`"
COLUMNS = ["clause", "the sources leave open", "option", "default", "other members", "tested"]


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table with all six columns."""

    clause: str
    option: str
    default: str
    others: str
    tested: str


def register(root: Path) -> str:
    return (root / "docs" / "assumptions.md").read_text(encoding="utf-8")


def table_rows(text: str) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if set(row) != {"---"}]


def lines_of(root: Path) -> list[Line]:
    wide = [row for row in table_rows(register(root)) if len(row) == len(COLUMNS) and row != COLUMNS]
    return [Line(row[0], *row[2:]) for row in wide]


def resolved(token: str) -> Any:
    """What ``module.Name`` is; a third part must be a field of that class or a parameter of that function."""
    package = "mxmodel.files." if token.startswith("files.") else "mxmodel."
    module, name, *rest = token.removeprefix("files.").split(".")
    found = getattr(importlib.import_module(package + module), name)
    if not rest:
        return found
    if dataclasses.is_dataclass(found):
        return {field.name: field for field in dataclasses.fields(found)}[rest[0]]
    return inspect.signature(found).parameters[rest[0]]


def word(value: object) -> str:
    """An option's value as the register writes it."""
    if isinstance(value, Enum):
        return value.name
    return value.name.upper() if isinstance(value, RuleSet) else str(value)


def test_every_option_named_exists(root: Path) -> None:
    tokens = [token for token in re.findall(TOKEN, register(root)) if token != "module.Name"]
    assert len(tokens) > 40
    for token in tokens:
        assert resolved(token) is not None, token


def test_every_clause_named_is_the_contracts_and_none_is_left_out(root: Path) -> None:
    named = set(re.findall(CLAUSE, register(root)))
    assert named <= CLAUSES, named - CLAUSES
    first_cells = {row[0] for row in table_rows(register(root))} - {"clause"}
    assert first_cells <= CLAUSES, first_cells - CLAUSES
    assert first_cells >= MARKED, MARKED - first_cells
    printed = set(re.findall(r"^\| ([A-Z]-\d+[a-z]?) \|", (root / "docs" / "clauses.md").read_text(), re.MULTILINE))
    assert len(printed) >= 24
    assert printed <= CLAUSES, printed - CLAUSES


def test_every_line_has_an_option_a_default_and_a_test(root: Path) -> None:
    lines = lines_of(root)
    assert len(lines) == 40
    for line in lines:
        assert re.search(TOKEN, line.option), line
        assert line.default, line
        assert line.others, line
        assert "::" in line.tested, line


def test_every_test_named_exists(root: Path) -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", register(root))
    assert len(named) >= len(lines_of(root))
    for file, function in named:
        assert re.search(rf"^def {function}\(", (root / "tests" / file).read_text(encoding="utf-8"), re.MULTILINE), (
            f"{file}::{function}"
        )


def test_defaults_are_those_of_the_code(root: Path) -> None:
    """A parameter's or a field's own, or, of a rule set's field, what the rule sets that are named have."""
    compared = 0
    for line in lines_of(root):
        token = re.findall(TOKEN, line.option)[0]
        option = resolved(token)
        if token.startswith("rules.RuleSet."):
            pairs = re.findall(r"`(\w+)` in `(\w+)`", line.default)
            assert pairs, line
            for value, name in pairs:
                assert word(getattr(rule_set(name), option.name)) == value, line
                compared += 1
        elif isinstance(option, (inspect.Parameter, dataclasses.Field)):
            assert line.default.startswith(f"`{word(option.default)}`"), line
            compared += 1
    assert compared == 37


def test_members_are_those_of_the_code_all_of_them(root: Path) -> None:
    compared = 0
    for line in lines_of(root):
        for kind in (resolved(token) for token in re.findall(TOKEN, line.option)[1:]):
            assert issubclass(kind, Enum), line
            written = re.findall(r"`([A-Z][A-Z0-9_]*)`", f"{line.default} {line.others}")
            assert set(written) == set(kind.__members__), line
            compared += 1
    assert compared == 28


@pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
def test_what_is_said_of_every_rule_set(rules: RuleSet) -> None:
    """D-4's line speaks of all of them."""
    assert rules.element_nan.name == "CANONICAL"
