"""What the options of ``mxtwin verilog`` ask for: entries of the catalogue, and configurations beside it.

Every option narrows the catalogue. Where elements and rule sets are both named, what they spell out is complete: the
configurations that the catalogue lacks are there too, each one an ``Entry`` that is not in ``CATALOG``.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mxhw.catalog import CATALOG, Block, Entry, Form, policy_of
from mxmodel.formats import FP32, MX_BLOCK, ElementFormat, SourceFormat
from mxmodel.rules import RuleSet

__all__ = ["Request", "refused_pairs", "selected"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options; an empty tuple or None leaves that side open.

    Attributes
    ----------
    blocks, elements, rules, sources : any of these
    scaled : narrowing encoders with a scale (True) or without (False), and no other block
    lanes : streams of so many elements a beat, and no other form

    Raises ValueError, in the words of the command line, for what cannot be.
    """

    blocks: tuple[Block, ...] = ()
    elements: tuple[ElementFormat, ...] = ()
    rules: tuple[RuleSet, ...] = ()
    sources: tuple[SourceFormat, ...] = ()
    scaled: bool | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        if self.sources and Block.LDEXP in self.blocks:
            raise ValueError(
                "--source must go with shared_exponent or narrow, not with --block ldexp, which takes codes"
            )
        others = [block.value for block in self.blocks if block is not Block.NARROW]
        if self.scaled is not None and others:
            option = "--scaled" if self.scaled else "--unscaled"
            raise ValueError(f"{option} must go with narrow, not with --block {others[0]}, which has no such choice")
        if self.lanes is None:
            return
        if not 1 <= self.lanes <= MX_BLOCK.size:
            raise ValueError(f"--stream must be 1 to {MX_BLOCK.size} elements a beat, not {self.lanes}")
        partial = self.lanes < MX_BLOCK.size and MX_BLOCK.size % self.lanes == 0
        if not partial and Block.SHARED_EXPONENT in (self._open_blocks if self._spelled_out else self.blocks):
            raise ValueError(
                f"--stream must be less than {MX_BLOCK.size} and divide it for shared_exponent, not {self.lanes}; "
                "other blocks: --block narrow, --block ldexp"
            )

    @property
    def _spelled_out(self) -> bool:
        return bool(self.elements and self.rules)

    @property
    def _open_blocks(self) -> tuple[Block, ...]:
        """The blocks that every option leaves in."""
        return tuple(
            block
            for block in self.blocks or tuple(Block)
            if (self.scaled is None or block is Block.NARROW) and (not self.sources or block is not Block.LDEXP)
        )

    def admits(self, entry: Entry) -> bool:
        """Whether ``entry`` is among what is asked for, by all but its element and rule set."""
        return (
            entry.block in self._open_blocks
            and (not self.sources or entry.source in self.sources)
            and (self.scaled is None or entry.scaled == self.scaled)
            and (self.lanes is None or (entry.form is Form.STREAM and entry.lanes == self.lanes))
        )

    def spelled_out(self) -> Iterator[Entry]:
        """Every configuration of the elements under the rule sets; nothing unless both are named.

        A lane each, or a stream where lanes are asked for; from the sources asked for, or fp32.
        """
        form = Form.LANE if self.lanes is None else Form.STREAM
        for block in self._open_blocks:
            sources = (None,) if block is Block.LDEXP else self.sources or (FP32,)
            kinds = (False, True) if block is Block.NARROW and self.scaled is None else (bool(self.scaled),)
            for element in self.elements:
                for rules in self.rules:
                    policies = [policy_of(block, element, rules, scaled=scaled) for scaled in kinds]
                    for source in sources:
                        for policy in policies:
                            yield Entry(policies=(policy,), source=source, form=form, lanes=self.lanes or 1)


def selected(request: Request) -> tuple[Entry, ...]:
    """The catalogue entries that ``request`` admits, in the catalogue's order, then what it spells out beside them.

    A configuration that is in the catalogue is the catalogue's entry, and none is there twice.
    """
    served = (entry for entry in CATALOG if request.admits(entry) and _serves_any(entry, request))
    spelled_out = tuple(request.spelled_out())
    entries = dict.fromkeys([*served, *spelled_out])
    return tuple(sorted(entries, key=lambda entry: CATALOG.index(entry) if entry in CATALOG else len(CATALOG)))


def refused_pairs(request: Request) -> list[tuple[ElementFormat, RuleSet]]:
    """The pairs named whose rule set refuses the whole-block operation (N-7): only lanes of them can be had."""
    return [(element, rules) for element in request.elements for rules in request.rules if not rules.writes(element)]


def _serves_any(entry: Entry, request: Request) -> bool:
    return any(
        (not request.elements or element in request.elements) and (not request.rules or rules in request.rules)
        for element, rules in entry.serves()
    )
