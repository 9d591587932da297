"""Whether an instruction is legal: the verifiers' rules, every violation at once (contract V; S4 §2, §3)."""

from dataclasses import dataclass

from mxmodel.program import Program

__all__ = ["Violation", "check"]


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One rule broken by one instruction.

    Attributes
    ----------
    code : the verifier's error code, or None where it has none
    line : of the verifier's source, or None
    rule : what must hold
    values : what came
    remedy : how to mend it
    """

    code: int | None
    line: int | None
    rule: str
    values: str
    remedy: str

    def __str__(self) -> str:
        number = "" if self.code is None else f" [{self.code}]"
        return f"{self.rule} must hold{number}, not {self.values}; {self.remedy}"


def check(program: Program) -> list[tuple[int, Violation]]:
    """Every violation of a program, with the index of its instruction."""
    return []
