"""The pages: every relative link and anchor leads somewhere, and nothing is left to be filled in."""

import re
from pathlib import Path

import pytest

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs")


@pytest.fixture(scope="module")
def pages(root: Path) -> dict[Path, str]:
    files = [file for name in PAGES for file in ([root / name] if name.endswith(".md") else (root / name).glob("*.md"))]
    assert len(files) >= 13
    return {file: file.read_text(encoding="utf-8") for file in files}


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere(pages: dict[Path, str]) -> None:
    followed = 0
    for file, text in pages.items():
        for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", text):
            if target and "://" not in target:
                assert (file.parent / target).exists(), f"{file.name}: {target}"
                followed += 1
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
            if "://" not in target:
                other = pages[(file.parent / target).resolve()] if target else text
                assert anchor in anchors(other), f"{file.name}: {target}#{anchor}"
    assert followed >= 30


def test_nothing_is_left_to_be_filled_in(pages: dict[Path, str]) -> None:
    for file, text in pages.items():
        for mark in ("@@", "TODO", "TBD", "XXX"):
            assert mark not in text, f"{file.name}: {mark}"
