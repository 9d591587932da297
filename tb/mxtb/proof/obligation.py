"""What must be shown of an entry: formulas that no input, and no state, may satisfy.

An ``Obligation`` is a script to be read behind the netlist's. It asserts that something goes wrong; the proof is that
the solver finds this impossible. A combinational entry has one, or one for each value of its format select. Those of
a clocked entry are in ``stream_obligation``.
"""

from dataclasses import dataclass

from mxhw.catalog import Block, Entry, Form, Policy
from mxhw.multi_format import FORMAT_BITS, format_number
from mxmodel.formats import E8M0, MX_BLOCK
from mxmodel.rules import DequantPolicy, ExponentPolicy, NarrowPolicy
from mxtb.proof.netlist import port, state
from mxtb.proof.specification import ldexp_specification, narrow_specification, shared_exponent_specification

__all__ = ["Obligation", "lane_obligations", "named", "specification"]


@dataclass(frozen=True, kw_only=True)
class Obligation:
    """One formula.

    Attributes
    ----------
    label : what is shown, in a few words
    script : SMT-LIB text behind the netlist; to be unsatisfiable
    asked : names of constants of ``script`` whose values make up a counterexample
    broken : of a law of a stream, the text that defines ``broken``, of two states that follow each other; else empty
    """

    label: str
    script: str
    asked: tuple[str, ...]
    broken: str = ""


def specification(entry: Entry, policy: Policy, lanes: int = MX_BLOCK.size) -> str:
    """The text that specifies ``policy`` on the source of ``entry``; ``lanes`` matters to ``shared_exponent`` alone."""
    if isinstance(policy, DequantPolicy):
        return ldexp_specification(policy)
    assert entry.source is not None, "what is no ldexp lane has a source"
    if isinstance(policy, ExponentPolicy):
        return shared_exponent_specification(entry.source, policy, lanes)
    assert isinstance(policy, NarrowPolicy)
    return narrow_specification(entry.source, policy)


def lane_obligations(entry: Entry) -> tuple[Obligation, ...]:
    """Of a combinational entry: the output is the specified one, for all inputs (a format at a time)."""
    if entry.form is Form.LANE:
        script = specification(entry, entry.policy) + _ports(entry) + f"(assert (not {_specified(entry)}))\n"
        return (Obligation(label="all inputs", script=script, asked=_inputs(entry)),)
    return tuple(_of_format(entry, number) for number in range(1 << FORMAT_BITS))


def _of_format(entry: Entry, number: int) -> Obligation:
    policies = [
        policy
        for policy in entry.policies
        if not isinstance(policy, ExponentPolicy) and format_number(policy.element) == number
    ]
    chosen = f"(assert (= format (_ bv{number} {FORMAT_BITS})))\n"
    if not policies:
        script = _ports(entry) + chosen + f"(assert (not (= result (_ bv0 {entry.result_width}))))\n"
        return Obligation(label=f"format {number}, of no element", script=script, asked=_inputs(entry))
    (policy,) = policies
    element = policy.element
    script = specification(entry, policy) + _ports(entry) + chosen
    if isinstance(policy, DequantPolicy):
        # Bits above a short code are ignored: they stay free.
        code = f"((_ extract {element.width - 1} 0) word)"
        script += f"(assert (not (specified {code} scale result)))\n"
    else:
        code = f"((_ extract {element.width - 1} 0) result)"
        above = entry.result_width - element.width
        upper = f"((_ extract {entry.result_width - 1} {element.width}) result)"
        zeros = f"(= {upper} (_ bv0 {above}))" if above else "true"
        script += f"(assert (not (and {zeros} (specified word scale {code}))))\n"
    return Obligation(label=f"format {number}, {element.name}", script=script, asked=_inputs(entry))


def _inputs(entry: Entry) -> tuple[str, ...]:
    names = ["word", *(["scale"] if entry.scaled else []), *(["format"] if entry.form is Form.MULTI_FORMAT else [])]
    return (*names, "result")


def _ports(entry: Entry) -> str:
    """The entry's inputs by names of their own, and its result, in the one state of a combinational module."""
    word_width = entry.word_width * (MX_BLOCK.size if entry.block is Block.SHARED_EXPONENT else 1)
    word = "code" if entry.source is None else "x"
    text = state(entry, "now") + named("word", word_width, port(entry, word, "now", word_width))
    text += named("scale", E8M0.width, port(entry, "scale", "now", E8M0.width)) if entry.scaled else ""
    if entry.form is Form.MULTI_FORMAT:
        text += named("format", FORMAT_BITS, port(entry, "format", "now", FORMAT_BITS))
    width = entry.result_width
    return text + named("result", width, port(entry, entry.output_port, "now", width))


def named(name: str, width: int, term: str) -> str:
    """A constant that equals ``term``, so that a counterexample has it by name."""
    return f"(declare-const {name} (_ BitVec {width}))\n(assert (= {name} {term}))\n"


def _specified(entry: Entry) -> str:
    if entry.block is Block.SHARED_EXPONENT:
        return "(specified word result)"
    return f"(specified word {'scale' if entry.scaled else '#x00'} result)"
