"""The one list of verified configurations. Emission, regression, proofs and area reports all iterate over it.

The list is derived where it can be: every element under every rule set is projected to its policies, and equal policies
are one entry. What a rule set refuses to write (N-7) has no entry.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any

from amaranth.lib import wiring

from mxhw.accumulating_exponent import AccumulatingExponent
from mxhw.ldexp import Ldexp
from mxhw.multi_format import MultiFormatLdexp, MultiFormatNarrow, format_number
from mxhw.narrow import Narrow
from mxhw.shared_exponent import SharedExponent
from mxhw.streamed import StreamedLdexp, StreamedNarrow
from mxmodel.formats import (
    BF16,
    E8M0,
    ELEMENTS,
    FP4_E2M1,
    FP8_E4M3,
    FP16,
    FP32,
    MX_BLOCK,
    SOURCES,
    ElementFormat,
    SourceFormat,
)
from mxmodel.rules import (
    BIRSIM,
    DEVICE,
    OCP,
    RULE_SETS,
    DequantPolicy,
    ExponentPolicy,
    NarrowPolicy,
    PreScale,
    RuleSet,
)

__all__ = ["CATALOG", "Block", "Entry", "Form", "Policy", "find", "policy_of", "select"]

Policy = ExponentPolicy | NarrowPolicy | DequantPolicy


class Block(Enum):
    """A stem of the trio; the value names the files, the modules and the command-line choice."""

    SHARED_EXPONENT = "shared_exponent"
    NARROW = "narrow"
    LDEXP = "ldexp"


class Form(Enum):
    """How the block is built."""

    LANE = "lane"
    """One value or code in, one result out; for ``shared_exponent`` one whole block in. Combinational."""
    MULTI_FORMAT = "multi"
    """A lane whose element format is selected at run time. Combinational."""
    STREAM = "stream"
    """Several lanes between two streams; for ``shared_exponent`` a block in several beats. Clocked."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One configuration of one block.

    Attributes
    ----------
    policies : what the block needs to know of the rules; one, or one for each element of a multi-format lane
    source : the format of the values that enter, or None where codes enter
    form : how the block is built
    lanes : elements in a beat, for a stream; 1 otherwise
    """

    policies: tuple[Policy, ...]
    source: SourceFormat | None
    form: Form = Form.LANE
    lanes: int = 1

    @property
    def policy(self) -> Policy:
        """The one policy; ValueError for a multi-format lane, which has several."""
        if len(self.policies) != 1:
            raise ValueError(f"an entry must be of one format to have one policy, not {self.name!r}")
        return self.policies[0]

    @property
    def block(self) -> Block:
        first = self.policies[0]
        if isinstance(first, ExponentPolicy):
            return Block.SHARED_EXPONENT
        return Block.NARROW if isinstance(first, NarrowPolicy) else Block.LDEXP

    @property
    def name(self) -> str:
        """The Verilog module's name, unique among all configurations."""
        parts = ["mx", self.block.value]
        if self.source is not None:
            parts.append(self.source.name)
        last = self.policies[-1]
        if self.form is Form.MULTI_FORMAT:
            assert not isinstance(last, ExponentPolicy), "a shared exponent has no element format"
            parts += [self.form.value, last.name.removeprefix(f"{last.element.name}_")]
        else:
            parts.append(last.name)
        if self.form is Form.STREAM:
            parts.append(f"x{self.lanes}_{self.form.value}")
        return "_".join(parts)

    @property
    def scaled(self) -> bool:
        """Whether a scale enters beside the value or code."""
        first = self.policies[0]
        if isinstance(first, NarrowPolicy):
            return first.pre_scale is not PreScale.NONE
        return isinstance(first, DequantPolicy)

    @property
    def elements(self) -> tuple[ElementFormat, ...]:
        """The formats of the codes; empty for ``shared_exponent``, which does not know."""
        return tuple(policy.element for policy in self.policies if not isinstance(policy, ExponentPolicy))

    @property
    def clocked(self) -> bool:
        """Whether there is a clock; everything else is combinational."""
        return self.form is Form.STREAM

    @property
    def latency(self) -> int:
        """Cycles from a beat (of ``shared_exponent``: a block's last beat) taken to its result offered."""
        return 1 if self.clocked else 0

    @property
    def beats(self) -> int:
        """Beats of input for one output."""
        return MX_BLOCK.size // self.lanes if self.block is Block.SHARED_EXPONENT and self.clocked else 1

    @property
    def word_width(self) -> int:
        """Bits of one value or code that enters."""
        return max(element.width for element in self.elements) if self.source is None else self.source.width

    @property
    def result_width(self) -> int:
        """Bits of one result: a scale byte, a code, or an fp32 value."""
        if self.block is Block.NARROW:
            return max(element.width for element in self.elements)
        return E8M0.width if self.block is Block.SHARED_EXPONENT else FP32.width

    @property
    def output_port(self) -> str:
        """The name of a combinational entry's one output."""
        names = {Block.SHARED_EXPONENT: "scale", Block.NARROW: "code", Block.LDEXP: "value"}
        return names[self.block]

    def serves(self) -> Iterator[tuple[ElementFormat, RuleSet]]:
        """Every element and built-in rule set that this entry is the hardware of."""
        return ((element, rules) for element, rules in self.computes() if rules.writes(element))

    def computes(self) -> Iterator[tuple[ElementFormat, RuleSet]]:
        """As ``serves``, and of pairs whose rule set refuses the whole-block operation (N-7) the lane alone."""
        for element in ELEMENTS:
            for rules in RULE_SETS:
                if policy_of(self.block, element, rules, scaled=self.scaled) in self.policies:
                    yield element, rules

    def component(self) -> "wiring.Component[Any]":
        """A new instance of the hardware."""
        component: wiring.Component[Any] = _COMPONENT[self.block, self.form](self)
        return component

    def port_meanings(self) -> dict[str, str]:
        """One line for every flat port but clock and reset, in the order inputs, outputs."""
        word = "code" if self.source is None else "x"
        if self.clocked:
            return self._stream_meanings(word)
        element = "selected" if self.form is Form.MULTI_FORMAT else "".join(e.name for e in self.elements)
        meanings = {word: f"{element} code" if self.source is None else f"{self.source.name} bit pattern"}
        if self.block is Block.SHARED_EXPONENT:
            assert self.source is not None, "a shared exponent has a source"
            meanings[word] = f"{MX_BLOCK.size} {_words(self.source)}"
        if self.scaled:
            meanings["scale"] = "E8M0 byte that the value is divided by" if self.source else "E8M0 byte"
        if self.form is Form.MULTI_FORMAT:
            numbers = ", ".join(f"{format_number(e)} {e.name}" for e in self.elements)
            meanings["format"] = f"{numbers}; the output is 0 for any other"
        meanings[self.output_port] = {
            Block.SHARED_EXPONENT: "E8M0 byte of the block",
            Block.NARROW: f"{element} code",
            Block.LDEXP: "fp32 bits of code x 2^(scale - 127)",
        }[self.block]
        return meanings

    def _stream_meanings(self, word: str) -> dict[str, str]:
        source = self.source
        words = _words(source) if source else f"{self.elements[0].name} codes, LSB first"
        results = {
            Block.SHARED_EXPONENT: f"E8M0 byte of the last {self.beats} beats",
            Block.NARROW: f"{self.lanes} {self.elements[0].name if self.elements else ''} codes, LSB first",
            Block.LDEXP: f"{self.lanes} {_words(FP32)}",
        }
        scale = "; the E8M0 byte they share above them" if self.scaled else ""
        return {
            "i__payload": f"{self.lanes} {words}{scale}",
            "i__valid": "a beat is offered; stays until it is taken",
            "o__ready": "the result is taken in this cycle if it is valid",
            "i__ready": "the beat is taken in this cycle if it is valid",
            "o__payload": results[self.block],
            "o__valid": "a result is offered; stays until it is taken",
        }


def _words(source: SourceFormat) -> str:
    return f"{source.name} bit patterns, element i at [{source.width}i+{source.width - 1}:{source.width}i]"


_COMPONENT: dict[tuple[Block, Form], Callable[[Any], Any]] = {
    (Block.SHARED_EXPONENT, Form.LANE): lambda e: SharedExponent(e.source, e.policy),
    (Block.SHARED_EXPONENT, Form.STREAM): lambda e: AccumulatingExponent(e.source, e.policy, e.lanes),
    (Block.NARROW, Form.LANE): lambda e: Narrow(e.source, e.policy),
    (Block.NARROW, Form.MULTI_FORMAT): lambda e: MultiFormatNarrow(e.source, e.policies),
    (Block.NARROW, Form.STREAM): lambda e: StreamedNarrow(e.source, e.policy, e.lanes),
    (Block.LDEXP, Form.LANE): lambda e: Ldexp(e.policy),
    (Block.LDEXP, Form.MULTI_FORMAT): lambda e: MultiFormatLdexp(e.policies),
    (Block.LDEXP, Form.STREAM): lambda e: StreamedLdexp(e.policy, e.lanes),
}


def policy_of(block: Block, element: ElementFormat, rules: RuleSet, *, scaled: bool) -> Policy:
    """The policy that ``rules`` project to for ``block`` and ``element``."""
    if block is Block.SHARED_EXPONENT:
        return rules.exponent_policy(element)
    if block is Block.LDEXP:
        return rules.dequant_policy(element)
    return rules.narrow_policy(element, scaled=scaled)


def _distinct(block: Block, *, scaled: bool, rule_sets: tuple[RuleSet, ...] = RULE_SETS) -> tuple[Policy, ...]:
    """The distinct policies of what ``rule_sets`` write, in the order of elements, then of rule sets."""
    permitted = ((element, rules) for element in ELEMENTS for rules in rule_sets if rules.writes(element))
    return tuple(dict.fromkeys(policy_of(block, element, rules, scaled=scaled) for element, rules in permitted))


def _catalog() -> Iterator[Entry]:
    birsim_e4m3 = BIRSIM.exponent_policy(FP8_E4M3)
    exponent_policies = _distinct(Block.SHARED_EXPONENT, scaled=False)
    yield from (Entry(policies=(policy,), source=FP32) for policy in exponent_policies)
    yield from (Entry(policies=(birsim_e4m3,), source=source) for source in (BF16, FP16))
    for source, lanes in ((BF16, 4), (BF16, 8), (BF16, 16), (FP16, 8)):
        yield Entry(policies=(birsim_e4m3,), source=source, form=Form.STREAM, lanes=lanes)

    unscaled, scaled = (_distinct(Block.NARROW, scaled=has_scale) for has_scale in (False, True))
    yield from (Entry(policies=(policy,), source=source) for source in SOURCES for policy in unscaled)
    yield from (Entry(policies=(policy,), source=source) for source in (FP32, BF16) for policy in scaled)
    birsim = _distinct(Block.NARROW, scaled=True, rule_sets=(BIRSIM,))
    yield from (Entry(policies=(policy,), source=FP16) for policy in birsim)
    # One multi-format lane for each class of rule sets whose policies differ by the element alone.
    for rules in (BIRSIM, DEVICE, OCP):
        policies = _distinct(Block.NARROW, scaled=True, rule_sets=(rules,))
        yield Entry(policies=policies, source=FP32, form=Form.MULTI_FORMAT)
    for source in (BF16, FP32):
        policy = BIRSIM.narrow_policy(FP8_E4M3, scaled=True)
        yield Entry(policies=(policy,), source=source, form=Form.STREAM, lanes=8)

    yield from (Entry(policies=(policy,), source=None) for policy in _distinct(Block.LDEXP, scaled=True))
    yield Entry(policies=_distinct(Block.LDEXP, scaled=True, rule_sets=(BIRSIM,)), source=None, form=Form.MULTI_FORMAT)
    for element in (FP8_E4M3, FP4_E2M1):
        yield Entry(policies=(BIRSIM.dequant_policy(element),), source=None, form=Form.STREAM, lanes=8)


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
    close = get_close_matches(name, [entry.name for entry in CATALOG], n=1)
    hint = f"; perhaps {close[0]}" if close else ""
    raise ValueError(f"entry must be a name in the catalogue, not {name!r}{hint} (mxtwin coverage lists them)")
