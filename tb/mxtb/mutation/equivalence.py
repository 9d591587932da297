"""Which survivors no stimulus could kill: an SMT miter of the mutant against the entry as it is, for all inputs.

Of a clocked entry it is one step of a bisimulation: from states that agree, under the same inputs, the same outputs and
states that agree again. States agree if every flip-flop does; those behind ``o__payload`` only while ``o__valid`` is 1,
since nobody reads a payload that is not valid; and two maxima ``so_far`` also if both are so small that the scale byte
is clamped alike (E-4). What this step cannot show counts as not equivalent.
"""

import re
from collections.abc import Sequence
from enum import Enum

import numpy as np

from mxhw.catalog import Entry
from mxmodel.formats import FP32
from mxmodel.rules import ExponentPolicy
from mxmodel.shared_exponent import scale_from_exponent
from mxtb.mutation.netlist import MUTANT, Mutant, Mutated

__all__ = ["SECONDS", "Verdict", "verdicts"]

SECONDS = 60
"""For one miter."""

_STATE = re.compile(r"^\(define-sort \|(?P<module>.+)_s\| \(\) \(_ BitVec (?P<bits>\d+)\)\)", re.MULTILINE)
_REGISTER = re.compile(r"^; yosys-smt2-register (\S+) \d+$", re.MULTILINE)
_PAYLOAD, _VALID, _READY, _MAXIMUM = "o__payload", "o__valid", "i__ready", "so_far"


class Verdict(Enum):
    """What the solver says of a mutant."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    TIMED_OUT = "timed out"


def verdicts(netlist: Mutated, mutants: Sequence[Mutant], *, seconds: float = SECONDS) -> dict[int, Verdict]:
    """By the mutants' numbers."""
    import z3  # type: ignore[import-untyped]

    by_answer = {"unsat": Verdict.EQUIVALENT, "sat": Verdict.DIFFERENT}
    if not mutants:
        return {}
    context = z3.Context()
    # Read once for all of them: reading a large netlist takes longer than most of the proofs.
    text = netlist.smt2 + "\n".join(_miter(netlist, mutant) for mutant in mutants) + "\n"
    miters = z3.parse_smt2_string(text, ctx=context)
    if len(miters) != len(mutants):
        raise RuntimeError(f"there must be one miter for each of {len(mutants)} mutants, not {len(miters)}")
    found = {}
    for mutant, miter in zip(mutants, miters, strict=True):
        solver = z3.SolverFor("QF_BV", ctx=context)
        solver.set("timeout", int(seconds * 1000))
        solver.add(miter)
        found[mutant.number] = by_answer.get(str(solver.check()), Verdict.TIMED_OUT)
    return found


def _miter(netlist: Mutated, mutant: Mutant) -> str:
    """SMT-LIB with one assertion, which can be satisfied if and only if the mutant differs."""
    state = _STATE.search(netlist.smt2)
    if state is None:
        raise RuntimeError(f"yosys gave no state of {netlist.entry.name} in its SMT-LIB")
    module, bits = state["module"], int(state["bits"])
    places = _places(netlist.smt2)
    select = places[MUTANT]
    free, stale, original, other, original_next, other_next = (
        f"{name}_{mutant.number}" for name in ("free", "stale", "original", "other", "original_next", "other_next")
    )

    def vector(chosen: list[int], ones: int | None = None) -> str:
        """The bits ``chosen``, lowest first, as a constant of the state's width that holds ``ones`` there."""
        value = sum(1 << bit for place, bit in enumerate(chosen) if ones is None or ones >> place & 1)
        return f"(_ bv{value} {bits})"

    def of(name: str, at: str) -> str:
        return f"(|{module}_n {name}| {at})"

    def differs(name: str, one: str = original, two: str = other) -> str:
        return f"(not (= {of(name, one)} {of(name, two)}))"

    sort = f"(_ BitVec {bits})"
    # Both sides share their free bits by construction, so that the solver sees equal logic once.
    unselected = f"(bvnot {vector(select)})"
    chosen = vector(select, mutant.number)
    lines = [
        *(f"(declare-fun {name} () {sort})" for name in (free, stale)),
        f"(define-fun {original} () {sort} (bvand {free} {unselected}))",
    ]
    if not netlist.entry.clocked:
        lines.append(f"(define-fun {other} () {sort} (bvor {original} {chosen}))")
        return "\n".join([*lines, f"(assert {differs(netlist.entry.output_port)})"])

    nothing, registers = vector([]), [name for name in _registers(netlist) if name != _PAYLOAD]
    apart = f"(ite {of(_VALID, original)} {nothing} {vector(places.get(_PAYLOAD, []))})"
    steps, differences = [], []
    alike = _clamped_alike(netlist.entry)
    if alike is not None and _MAXIMUM in registers:

        def small(at: str) -> str:
            return f"(bvule {of(_MAXIMUM, at)} (_ bv{alike} {FP32.exponent_bits}))"

        registers.remove(_MAXIMUM)
        apart = f"(bvor {apart} (ite {small(original)} {vector(places.get(_MAXIMUM, []))} {nothing}))"
        steps.append(f"(=> {small(original)} {small(other)})")
        both = f"(and {small(original_next)} {small(other_next)})"
        differences.append(f"(and {differs(_MAXIMUM, original_next, other_next)} (not {both}))")
    mixed = f"(bvor (bvand {free} (bvnot {apart})) (bvand {stale} {apart}))"
    lines.append(f"(define-fun {other} () {sort} (bvor (bvand {mixed} {unselected}) {chosen}))")
    for now, then in ((original, original_next), (other, other_next)):
        lines.append(f"(declare-fun {then} () {sort})")
        steps += [f"(|{module}_t| {now} {then})", f"(= {of(MUTANT, now)} {of(MUTANT, then)})"]
    differences += [
        differs(_READY),
        differs(_VALID),
        f"(and {of(_VALID, original)} {differs(_PAYLOAD)})",
        f"(and {of(_VALID, original_next)} {differs(_PAYLOAD, original_next, other_next)})",
        *(differs(name, original_next, other_next) for name in registers),
    ]
    lines.append(f"(assert (and {' '.join(steps)} (or {' '.join(differences)})))")
    return "\n".join(lines)


def _registers(netlist: Mutated) -> list[str]:
    return list(dict.fromkeys(_REGISTER.findall(netlist.smt2)))


def _clamped_alike(entry: Entry) -> int | None:
    """The largest maximum that gives the same scale byte as 0 and all below it; None for an entry without maxima."""
    if not isinstance(entry.policies[0], ExponentPolicy):
        return None
    scales = scale_from_exponent(np.arange(FP32.max_biased_exponent + 1, dtype=np.uint8), entry.policies[0])
    return int(np.argmax(scales != scales[0])) - 1


def _places(smt2: str) -> dict[str, list[int]]:
    """Where in the state the bits of every input and register are, lowest first."""
    places: dict[str, dict[int, int]] = {}
    extract = re.compile(r"\(\(_ extract (\d+) (\d+)\) state\).*; \\(\S+?)(?: \[(\d+)(?::\d+)?\])?$", re.MULTILINE)
    for high, low, name, offset in extract.findall(smt2):
        first = int(offset or 0)
        for bit in range(int(low), int(high) + 1):
            places.setdefault(name, {})[first + bit - int(low)] = bit
    return {name: [bits[index] for index in sorted(bits)] for name, bits in places.items()}
