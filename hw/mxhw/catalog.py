"""The one list of verified configurations. Emission, regression, proofs and area reports all iterate over it.

The list is derived, not typed: every element under every rule set is projected to its policies, and equal policies
are one entry. What a rule set refuses to write (N-7) has no entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from amaranth.lib import wiring

from mxhw.ldexp import Ldexp
from mxhw.narrow import Narrow
from mxhw.shared_exponent import SharedExponent
from mxmodel.formats import ELEMENTS, FP32, MX_BLOCK, ElementFormat, SourceFormat
from mxmodel.rules import RULE_SETS, DequantPolicy, ExponentPolicy, NarrowPolicy, PreScale, RuleSet

__all__ = ["CATALOG", "Block", "Entry", "find", "select"]


class Block(Enum):
    """A stem of the trio; the value names the files, the modules and the command-line choice."""

    SHARED_EXPONENT = "shared_exponent"
    NARROW = "narrow"
    LDEXP = "ldexp"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One configuration of one block.

    Attributes
    ----------
    policy : what the block needs to know of the rules; its type decides the block
    source : the format of the values that enter, or None where codes enter
    """

    policy: ExponentPolicy | NarrowPolicy | DequantPolicy
    source: SourceFormat | None

    @property
    def block(self) -> Block:
        if isinstance(self.policy, ExponentPolicy):
            return Block.SHARED_EXPONENT
        return Block.NARROW if isinstance(self.policy, NarrowPolicy) else Block.LDEXP

    @property
    def name(self) -> str:
        """The Verilog module's name, unique in the catalogue."""
        source = () if self.source is None else (self.source.name,)
        return "_".join(("mx", self.block.value, *source, self.policy.name))

    @property
    def scaled(self) -> bool:
        """Whether a scale enters beside the value or code."""
        if isinstance(self.policy, NarrowPolicy):
            return self.policy.pre_scale is not PreScale.NONE
        return isinstance(self.policy, DequantPolicy)

    @property
    def word_width(self) -> int:
        """Bits of one value or code that enters."""
        if isinstance(self.policy, DequantPolicy):
            return self.policy.element.width
        assert self.source is not None, "only ldexp takes codes"
        return self.source.width

    @property
    def output_port(self) -> str:
        """The name of the one output."""
        names = {Block.SHARED_EXPONENT: "scale", Block.NARROW: "code", Block.LDEXP: "value"}
        return names[self.block]

    def serves(self) -> Iterator[tuple[ElementFormat, RuleSet]]:
        """Every element and built-in rule set that this entry is the hardware of."""
        for element in ELEMENTS:
            for rules in RULE_SETS:
                if rules.writes(element) and _policy(self.block, element, rules, scaled=self.scaled) == self.policy:
                    yield element, rules

    def component(self) -> "wiring.Component[Any]":
        """A new instance of the hardware."""
        if isinstance(self.policy, DequantPolicy):
            return Ldexp(self.policy)
        assert self.source is not None, "only ldexp takes codes"
        if isinstance(self.policy, ExponentPolicy):
            return SharedExponent(self.source, self.policy)
        return Narrow(self.source, self.policy)

    def port_meanings(self) -> dict[str, str]:
        """One line for every port, in the order inputs, outputs."""
        if isinstance(self.policy, DequantPolicy):
            element = self.policy.element.name
            return {"code": f"{element} code", "scale": "E8M0 byte", "value": "fp32 bits of code x 2^(scale - 127)"}
        assert self.source is not None, "only ldexp takes codes"
        if isinstance(self.policy, ExponentPolicy):
            width = self.source.width
            return {
                "x": f"{MX_BLOCK.size} {self.source.name} bit patterns, element i at [{width}i+{width - 1}:{width}i]",
                "scale": "E8M0 byte of the block",
            }
        meanings = {"x": f"{self.source.name} bit pattern"}
        if self.scaled:
            meanings["scale"] = "E8M0 byte that x is divided by"
        meanings["code"] = f"{self.policy.element.name} code"
        return meanings


def _policy(
    block: Block, element: ElementFormat, rules: RuleSet, *, scaled: bool
) -> ExponentPolicy | NarrowPolicy | DequantPolicy:
    if block is Block.SHARED_EXPONENT:
        return rules.exponent_policy(element)
    if block is Block.LDEXP:
        return rules.dequant_policy(element)
    return rules.narrow_policy(element, scaled=scaled)


def _catalog() -> Iterator[Entry]:
    for block, scaled in (
        (Block.SHARED_EXPONENT, False),
        (Block.NARROW, False),
        (Block.NARROW, True),
        (Block.LDEXP, True),
    ):
        permitted = ((element, rules) for element in ELEMENTS for rules in RULE_SETS if rules.writes(element))
        policies = dict.fromkeys(_policy(block, element, rules, scaled=scaled) for element, rules in permitted)
        for policy in policies:
            yield Entry(policy=policy, source=None if block is Block.LDEXP else FP32)


CATALOG: tuple[Entry, ...] = tuple(_catalog())


def select(
    *, blocks: tuple[Block, ...] = (), elements: tuple[ElementFormat, ...] = (), rules: tuple[RuleSet, ...] = ()
) -> tuple[Entry, ...]:
    """The entries that serve any of ``blocks``, ``elements`` and ``rules``; an empty tuple asks for all."""
    return tuple(
        entry
        for entry in CATALOG
        if (not blocks or entry.block in blocks)
        and any((not elements or e in elements) and (not rules or r in rules) for e, r in entry.serves())
    )


def find(name: str) -> Entry:
    """The entry whose Verilog module is ``name``; ValueError otherwise."""
    for entry in CATALOG:
        if entry.name == name:
            return entry
    raise ValueError(f"entry must be a name in the catalogue, not {name!r}")
