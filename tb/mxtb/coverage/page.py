"""``docs/coverage.md``: the bins of every entry, why others are impossible, and the toggle figures, as a page."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mxhw.catalog import Block, find
from mxtb.coverage.bins import Coverage
from mxtb.coverage.toggle import Toggles
from mxtb.regress import DEFAULT_VECTORS

__all__ = ["coverage_page"]

_HEADING = """# Coverage

Made by `mxtwin coverage --update` (functional) and `mxtwin coverage --toggle --update` (toggle as well). What a
regression shows of itself is in its own report; this page is the catalogue under the default stimulus with the fewest
random cases.

## Functional

Every case of the stimulus is put into one class along each axis: how its value stood between two codes, what that
became, its sign before and after, its source's kind, its scale; for a shared exponent the largest exponent, who holds
it, what the block holds and what the rules make of it; for ldexp the code, the scale and the result. A bin is a class
of one axis, or a pair (for ldexp also the triple) of classes. Bins follow from the format and the policy; classes are
worked out from the stimulus and the expected outputs. A bin that no input can hit is impossible, by a clause of
[the contract](clauses.md); hitting one fails a regression, and so does missing any other in a run with the default
number of cases.
"""


def coverage_page(coverage: Sequence[Coverage], simulator: str, verilator: str, toggles: Sequence[Toggles]) -> str:
    """The page's text, from ``coverage`` under ``simulator``'s stimulus and the recorded ``toggles``."""
    parts = [_HEADING, *_functional(coverage, simulator), *_reasons(coverage), *_toggled(verilator, toggles)]
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Iterable[Sequence[object]], numbers: int) -> str:
    """``numbers`` columns at the end are right-aligned."""
    rule = ["---"] * (len(headings) - numbers) + ["---:"] * numbers
    lines = [headings, rule, *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def _functional(coverage: Sequence[Coverage], simulator: str) -> list[str]:
    names = ("hit", "possible", "impossible")
    hit, possible, impossible = (sum(getattr(one, name) for one in coverage) for name in names)
    intro = (
        f"With {simulator}'s stimulus (the directed cases and {DEFAULT_VECTORS[simulator]:,} random ones, seed 0): "
        f"{hit:,} of {possible:,} possible bins hit, {impossible:,} impossible.\n"
    )
    rows = [
        (f"`{one.entry}`", f"{one.hit:,}", f"{one.possible:,}", f"{one.percent:.4g} %", f"{one.impossible:,}")
        for one in coverage
    ]
    missed = [f"- `{one.entry}`: {name}" for one in coverage for name in one.missed]
    table = _table(("entry", "hit", "possible", "", "impossible"), rows, 4)
    return [intro, table, *(["Never hit:\n", "\n".join(missed) + "\n"] if missed else [])]


def _reasons(coverage: Sequence[Coverage]) -> list[str]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for one in coverage:
        block = find(one.entry).block.value
        for tally in one.tallies:
            counts.update(
                (block, bin.impossible.clause, bin.impossible.why)
                for bin in tally.plan.bins
                if bin.impossible is not None
            )
    parts = ["## Impossible bins\n"]
    for stem in Block:
        rows = [(clause, why, f"{n:,}") for (name, clause, why), n in sorted(counts.items()) if name == stem.value]
        parts += [f"### {stem.value}\n", _table(("clause", "why", "bins"), rows, 1)]
    return parts


def _toggled(verilator: str, toggles: Sequence[Toggles]) -> list[str]:
    rows = []
    for one in toggles:
        reasons = Counter(reason for _, reason in one.waived)
        waived = "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        rows.append((f"`{one.module}`", waived, ", ".join(one.untoggled), one.bits, f"{one.percent:.4g} %"))
    intro = (
        "## Toggle\n\nBits of the ports and named signals of each lane module that went both up and down under the\n"
        f"directed cases and a few random ones, measured with Verilator {verilator}. Bits that cannot move are\n"
        "waived, each with its reason; the percentage is of the others.\n"
    )
    return [intro, _table(("module", "waived", "untoggled", "bits", "toggled"), rows, 2)]
