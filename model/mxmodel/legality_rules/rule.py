"""A rule of legality as data, and the report of one that does not hold (contract V)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from mxmodel.isa import Instruction, MatmultMx
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation

__all__ = ["GENERATION_FLOOR", "Case", "Rule", "Tile", "Violation", "judged", "tiles_of", "words_of"]

Judged = TypeVar("Judged", bound=Instruction, covariant=True)
Asked = TypeVar("Asked", bound=Instruction, contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """One rule broken by one instruction.

    Attributes
    ----------
    name : of the rule
    code : the verifier's error code, or None where it has none
    line : of the verifier's source, or None
    rule : what must hold, in words
    values : what came
    remedy : how to mend it
    """

    name: str
    code: int | None
    line: int | None
    rule: str
    values: str
    remedy: str

    def __str__(self) -> str:
        numbers = (("code", self.code), ("line", self.line))
        origin = ", ".join(f"{word} {number}" for word, number in numbers if number is not None)
        return f"{self.rule}, not {self.values}{f' [{origin}]' if origin else ''}; {self.remedy}"

    def as_json(self) -> dict[str, str | int | None]:
        """Every field, for machines."""
        return {
            "name": self.name,
            "code": self.code,
            "line": self.line,
            "rule": self.rule,
            "values": self.values,
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class Tile:
    """The entries of the four tile vectors at one index; -1 leaves one to the hardware (S4 §3)."""

    index: int
    row_position: int
    column_position: int
    row_size: int
    column_size: int

    def __str__(self) -> str:
        return (
            f"position ({self.row_position}, {self.column_position}) and size ({self.row_size}, {self.column_size}) of "
            f"tile {self.index}"
        )


def tiles_of(instruction: MatmultMx) -> Iterator[Tile]:
    """The tiles of an instruction. Vectors of unequal length are filled with -1: the verifier refuses them, but a
    public call may leave some out."""
    vectors = (
        instruction.row_tile_positions,
        instruction.column_tile_positions,
        instruction.row_tile_sizes,
        instruction.column_tile_sizes,
    )
    for index, entries in enumerate(zip_longest(*vectors, fillvalue=-1)):
        yield Tile(index, *entries)


_WHOLE = Tile(0, -1, -1, -1, -1)


@dataclass(frozen=True)
class Case(Generic[Judged]):
    """What a rule looks at; ``tile`` is there for rules of one tile."""

    instruction: Judged
    generation: Generation
    options: MachineOptions
    tile: Tile = _WHOLE


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[Asked]):
    """One predicate of a verifier.

    Attributes
    ----------
    name : ours; unique in its table
    must : the predicate in words, "<something> must be <so>"
    seen : the values that break it, in words, or None where it holds
    remedy : how to mend it
    code, line : the verifier's, or None where the sources give none
    """

    name: str
    must: str
    seen: Callable[[Case[Asked]], str | None]
    remedy: str
    code: int | None = None
    line: int | None = None


def judged(rules: Iterable[Rule[Asked]], case: Case[Asked]) -> Iterator[Violation]:
    """Every rule that does not hold, in order."""
    for rule in rules:
        values = rule.seen(case)
        if values is not None:
            yield Violation(
                name=rule.name, code=rule.code, line=rule.line, rule=rule.must, values=values, remedy=rule.remedy
            )


def words_of(values: Iterable[object]) -> str:
    """A set as a sentence lists it: "a, b or c"."""
    words = [str(value) for value in values]
    return " or ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def _below_the_floor(case: Case[Any]) -> str | None:
    if case.generation >= case.instruction.floor:
        return None
    return f"{case.generation.name}: {case.instruction.mnemonic} begins with {case.instruction.floor.name}"


GENERATION_FLOOR: Rule[Instruction] = Rule(
    name="generation",
    must="generation must be one that has the instruction",
    seen=_below_the_floor,
    remedy="target a later generation",
)
"""Of every instruction (I)."""
