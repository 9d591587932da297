"""Which survivors no stimulus could kill: an SMT miter of the mutant against the entry as it is, for all inputs.

Of a clocked entry it is one step of a bisimulation: from states that agree, under the same inputs, the same outputs and
states that agree again. States agree if every flip-flop does; those behind ``o__payload`` only while ``o__valid`` is 1,
since nobody reads a payload that is not valid. What this step cannot show counts as not equivalent.
"""

import re
from collections.abc import Sequence
from enum import Enum

from mxtb.mutation.netlist import MUTANT, Mutant, Mutated

__all__ = ["SECONDS", "Verdict", "verdicts"]

SECONDS = 60
"""For one miter."""

_STATE = re.compile(r"^\(define-sort \|(?P<module>.+)_s\| \(\) \(_ BitVec (?P<bits>\d+)\)\)", re.MULTILINE)
_REGISTER = re.compile(r"^; yosys-smt2-register (\S+) \d+$", re.MULTILINE)
_PAYLOAD, _VALID, _READY = "o__payload", "o__valid", "i__ready"


class Verdict(Enum):
    """What the solver says of a mutant."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "different"
    TIMED_OUT = "timed out"


def verdicts(netlist: Mutated, mutants: Sequence[Mutant], *, seconds: float = SECONDS) -> dict[int, Verdict]:
    """By the mutants' numbers."""
    import z3  # an extra, needed here alone

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
    select, payload = places[MUTANT], places.get(_PAYLOAD, []) if netlist.entry.clocked else []
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
    right = free
    if payload:
        unread = f"(ite {of(_VALID, original)} {free} {stale})"
        right = f"(bvor (bvand {free} (bvnot {vector(payload)})) (bvand {vector(payload)} {unread}))"
    chosen = vector(select, mutant.number)
    lines = [
        *(f"(declare-fun {name} () {sort})" for name in (free, stale)),
        f"(define-fun {original} () {sort} (bvand {free} {unselected}))",
        f"(define-fun {other} () {sort} (bvor (bvand {right} {unselected}) {chosen}))",
    ]
    if not netlist.entry.clocked:
        return "\n".join([*lines, f"(assert {differs(netlist.entry.output_port)})"])
    steps = []
    for now, then in ((original, original_next), (other, other_next)):
        lines.append(f"(declare-fun {then} () {sort})")
        steps += [f"(|{module}_t| {now} {then})", f"(= {of(MUTANT, now)} {of(MUTANT, then)})"]
    registers = [name for name in dict.fromkeys(_REGISTER.findall(netlist.smt2)) if name != _PAYLOAD]
    differences = [
        differs(_READY),
        differs(_VALID),
        f"(and {of(_VALID, original)} {differs(_PAYLOAD)})",
        f"(and {of(_VALID, original_next)} {differs(_PAYLOAD, original_next, other_next)})",
        *(differs(name, original_next, other_next) for name in registers),
    ]
    lines.append(f"(assert (and {' '.join(steps)} (or {' '.join(differences)})))")
    return "\n".join(lines)


def _places(smt2: str) -> dict[str, list[int]]:
    """Where in the state the bits of every input and register are, lowest first."""
    places: dict[str, dict[int, int]] = {}
    extract = re.compile(r"\(\(_ extract (\d+) (\d+)\) state\).*; \\(\S+?)(?: \[(\d+)(?::\d+)?\])?$", re.MULTILINE)
    for high, low, name, offset in extract.findall(smt2):
        first = int(offset or 0)
        for bit in range(int(low), int(high) + 1):
            places.setdefault(name, {})[first + bit - int(low)] = bit
    return {name: [bits[index] for index in sorted(bits)] for name, bits in places.items()}
