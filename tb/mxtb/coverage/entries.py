"""From a catalogue entry to its bins: what the cases of one stimulus showed of each entry that saw them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Block, Entry, Form, Policy
from mxhw.multi_format import FORMAT_BITS, format_number
from mxmodel.rules import DequantPolicy, ExponentPolicy, NarrowPolicy
from mxtb.coverage import ldexp, narrow, shared_exponent
from mxtb.coverage.bins import Axis, Coverage, Plan, Reason, Tally

__all__ = ["cover", "plans"]

_SELECT = Axis(name="format select", labels=tuple(str(number) for number in range(1 << FORMAT_BITS)))
_OUTPUT = Axis(name="output", labels=("zero", "other"))


def plans(entry: Entry) -> tuple[Plan, ...]:
    """The bins of ``entry``: a plan for each of its policies, and one for the select of a multi-format lane."""
    own = tuple(_plan(entry, policy) for policy in entry.policies)
    return (*own, _select_plan(entry)) if entry.form is Form.MULTI_FORMAT else own


def cover(
    entries: Sequence[Entry], inputs: Mapping[str, NDArray[Any]], expected: Sequence[NDArray[Any]]
) -> list[Coverage]:
    """What ``inputs`` (port name -> [cases] or [cases, 32]) showed of each of ``entries``, which share them.

    ``expected`` is one [cases] array of result bits for each entry.
    """
    first = entries[0]
    cases: Any = None
    if first.block is Block.SHARED_EXPONENT:
        assert first.source is not None
        cases = shared_exponent.Cases(inputs["x"], first.source)
    elif first.block is Block.NARROW and first.form is not Form.MULTI_FORMAT:
        assert first.source is not None
        cases = narrow.Cases(inputs["x"], inputs["scale"] if first.scaled else None, first.source)
    return [
        Coverage(entry=entry.name, tallies=tuple(_tallies(entry, inputs, wanted, cases)))
        for entry, wanted in zip(entries, expected, strict=True)
    ]


def _label(entry: Entry, policy: Policy) -> str:
    if entry.form is not Form.MULTI_FORMAT or isinstance(policy, ExponentPolicy):
        return ""
    return policy.element.name


def _plan(entry: Entry, policy: Policy) -> Plan:
    if isinstance(policy, DequantPolicy):
        return ldexp.plan(policy, _label(entry, policy))
    assert entry.source is not None, "only codes have no source"
    if isinstance(policy, NarrowPolicy):
        return narrow.plan(entry.source, policy, _label(entry, policy))
    return shared_exponent.plan(entry.source, policy)


def _tallies(entry: Entry, inputs: Mapping[str, NDArray[Any]], expected: NDArray[Any], cases: Any) -> list[Tally]:
    if entry.form is Form.MULTI_FORMAT:
        return _by_format(entry, inputs, expected)
    policy = entry.policy
    if isinstance(policy, DequantPolicy):
        return [ldexp.tally(inputs["code"], inputs["scale"], expected, policy)]
    block = narrow if isinstance(policy, NarrowPolicy) else shared_exponent
    return [block.tally(cases, expected, policy)]


def _by_format(entry: Entry, inputs: Mapping[str, NDArray[Any]], expected: NDArray[Any]) -> list[Tally]:
    tallies = []
    for policy in entry.policies:
        assert not isinstance(policy, ExponentPolicy), "a shared exponent has no element format"
        chosen = inputs["format"] == format_number(policy.element)
        scale, results, label = inputs["scale"][chosen], expected[chosen], _label(entry, policy)
        if isinstance(policy, DequantPolicy):
            tallies.append(ldexp.tally(inputs["code"][chosen], scale, results, policy, label))
        else:
            assert entry.source is not None, "an encoder has a source"
            cases = narrow.Cases(inputs["x"][chosen], scale, entry.source)
            tallies.append(narrow.tally(cases, results, policy, label))
    wanted = _select_plan(entry)
    return [*tallies, Tally(plan=wanted, joint=wanted.count([inputs["format"], (expected != 0).view(np.uint8)]))]


def _select_plan(entry: Entry) -> Plan:
    possible = np.zeros((len(_SELECT.labels), len(_OUTPUT.labels)), dtype=bool)
    possible[:, 0] = True
    possible[[format_number(element) for element in entry.elements], 1] = True
    return Plan(
        label="",
        axes=(_SELECT, _OUTPUT),
        groups=((_SELECT.name,), (_SELECT.name, _OUTPUT.name)),
        possible=possible,
        rules=(),
        otherwise=Reason(clause="N-7", why="the output is zero for a format that no policy permits"),
    )
