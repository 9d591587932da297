"""The page of docs that lists every rule of legality, from the rules themselves."""

from typing import Any

from mxmodel.legality import RULE_TABLES
from mxmodel.legality_rules.rule import Rule

__all__ = ["legality_page"]

_HEAD = """\
# What is legal

Generated from the rules by `python -m mxmodel.legality_rules.page`; do not edit.

An MX matmul passes two verifiers before it is encoded. The first counts: elements, scales, partitions, what a PSUM bank
holds. The second places: the engine, the quadrants of data and scales, the tiles. Theirs are the 18 rules with a code
and a line of their source; a block quantise has a verifier of its own. The originals stop at the first violation;
`check` reports all of them, in the order of the originals' throw sites, and before those what a verifier takes for
granted. Counts are logical: four elements for each container of an x4 dtype (F-5). Letters and numbers such as F-5 are
[clauses](clauses.md); `mxtwin check` judges a [program](programs.md).

The checks of the public NKI calls are a second profile, `Profile.PUBLIC`. They count containers, and are not the same
rules: 96 partitions pass there and in a quantise, and are refused as an MX matmul by line 3091. Of the other
instructions both profiles ask only that the generation has them.

No rule here, but an error when the program runs: an operand outside its memory, a matmul whose destination is not PSUM,
a clear of several banks where the generation has none, a transposed stationary before v4.
"""


def legality_page() -> str:
    """The whole page, Markdown."""
    tables = [f"## {title}\n{_table(rules)}" for title, rules in RULE_TABLES.items()]
    return "\n".join((_HEAD, *tables))


def _table(rules: tuple[Rule[Any], ...]) -> str:
    lines = ["| line | code | rule | must hold | remedy |", "|---|---|---|---|---|"]
    for rule in rules:
        cells = ("–" if rule.line is None else str(rule.line), "–" if rule.code is None else str(rule.code))
        texts = (text.replace("|", "\\|") for text in (rule.must, rule.remedy))
        lines.append("| " + " | ".join((*cells, f"`{rule.name}`", *texts)) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(legality_page(), end="")
