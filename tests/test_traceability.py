"""The page that traces the sources names every numbered section, code and tests that exist, and every assumption."""

import ast
import importlib
import re
from pathlib import Path

import pytest

SECTIONS = {
    "S0": [*map(str, range(1, 11)), "6.1", "6.2", "6.3", "6.4"],
    "S1": [
        *map(str, range(11)),
        *(f"{n}.{m}" for n, last in ((2, 3), (3, 3), (5, 3), (6, 4)) for m in range(1, last + 1)),
    ],
    "S4": [*map(str, range(1, 9))],
}
"""The numbered sections of the three documents."""


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "traceability.md").read_text()


def rows(page: str, source: str) -> list[list[str]]:
    """The cells of every row of the table of one source."""
    part = page.split(f"\n## {source}: ", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.parametrize("source", SECTIONS)
def test_every_numbered_section_is_traced(page: str, source: str) -> None:
    table = rows(page, source)
    assert sorted(row[0] for row in table) == sorted(SECTIONS[source])
    for _, title, code, tests in table:
        assert title
        assert re.findall(r"`[^`]+`", code), title
        assert re.findall(r"`[^`]+`", tests), title


def test_every_function_exists(page: str) -> None:
    names = {name for source in SECTIONS for row in rows(page, source) for name in re.findall(r"`([^`]+)`", row[2])}
    for name in names:
        path = name.split(".")
        package = path.pop(0) if path[0] in ("mxhw", "mxtb") else "mxmodel"
        found = importlib.import_module(f"{package}.{path[0]}")
        for part in path[1:]:
            assert hasattr(found, part), name
            found = getattr(found, part)
    assert len(names) >= 40


def test_every_test_exists(page: str, root: Path) -> None:
    names = {name for source in SECTIONS for row in rows(page, source) for name in re.findall(r"`([^`]+)`", row[3])}
    for name in names:
        file, _, function = name.partition("::")
        tree = ast.parse((root / "tests" / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name
    assert len(names) >= 40


def test_every_assumption_is_listed_with_its_option(page: str, root: Path) -> None:
    """The list is that of the register: clause and option of each of its lines."""
    register = (root / "docs" / "assumptions.md").read_text()
    wanted = []
    for line in register.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"[A-Z]-\d+[a-z]?", cells[0]):
            wanted.append((cells[0], re.findall(r"`([a-z_]+\.[A-Za-z_.0-9]+)`", cells[2])[0]))
    listed = re.findall(r"^\| ([A-Z]-\d+[a-z]?) \| `([^`]+)` \|$", page.split("\n## The assumptions", 1)[1], re.M)
    assert sorted(listed) == sorted(set(wanted))
    assert len(listed) >= 20
