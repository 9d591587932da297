"""Programs as YAML files: read, with every mistake told by file, line and field, and written.

The format is described in ``program.schema.json``; this module and that schema are made of the same kinds of fields.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.bad_input import BadInput
from mxmodel.files.tensor_output import PlannedTensor, tensor_output
from mxmodel.files.whole_file import whole_file
from mxmodel.formats import MX_BLOCK, BirDtype
from mxmodel.isa import INSTRUCTIONS, Instruction
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.program import Expectation, Program, ProgramTensor
from mxmodel.program_files.contents import ContentsSpec, contents_of
from mxmodel.program_files.fields import NAME, Kind, Places, Record, Schema, kind_of, word_of
from mxmodel.program_files.placement import Placer, scattered, tensor_place
from mxmodel.program_files.yaml_document import Item, flow_text, read_yaml
from mxmodel.rules import RULE_SETS, RuleSet, rule_set

__all__ = [
    "FORMAT_VERSION",
    "HEADER",
    "HEADER_DEFAULTS",
    "RECORDS",
    "ExpectSpec",
    "ScaleLayout",
    "TensorSpec",
    "program_text",
    "read_program",
    "write_program",
]

FORMAT_VERSION = 1
_INLINE_BYTES = 64
"""Longer contents go to a file beside the program."""


class ScaleLayout(Enum):
    """How the rows of a tensor lie on the partitions."""

    PLAIN = "plain"
    """One after the other."""
    SCATTERED = "scattered"
    """As the scale rows of data on 8 times as many partitions: row i at start + (i & 3) + 32 (i >> 2) (L-2)."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec(ContentsSpec):
    """A named place and what it holds first.

    Attributes
    ----------
    memory : where
    dtype : of a container (F-4)
    shape : [partitions, free ...] in containers; of DRAM [rows, ...]
    start_partition : of row 0
    offset : bytes from the beginning of a partition, or of DRAM; without it the tensor is placed after all others
    partition_step : bytes between rows; of DRAM only
    layout : of the rows
    """

    memory: Space
    dtype: BirDtype
    shape: tuple[int, ...]
    start_partition: int = 0
    offset: int | None = None
    partition_step: int | None = None
    layout: ScaleLayout = ScaleLayout.PLAIN


@dataclass(frozen=True, kw_only=True)
class ExpectSpec(ContentsSpec):
    """What a place must hold after the last instruction, bit for bit.

    Attributes
    ----------
    operand : where
    name : for messages; the operand's text without it
    """

    operand: AccessPattern
    name: str = ""


_TENSOR = Record(TensorSpec)
_EXPECT = Record(ExpectSpec)
_OPTIONS = Record(MachineOptions, omit=("rules",))
_RULES = Record(RuleSet)
_GENERATION = kind_of(Generation)
RECORDS = {mnemonic: Record(kind) for mnemonic, kind in INSTRUCTIONS.items()}
"""Every instruction's fields, by its mnemonic."""


class _Version:
    def load(self, item: Item, places: Places) -> int:
        if isinstance(item.value, bool) or item.value != FORMAT_VERSION:
            raise item.wanted(f"{FORMAT_VERSION}, the version of the format")
        return FORMAT_VERSION

    def plain(self, value: Any, places: Places) -> Any:
        return FORMAT_VERSION

    def schema(self) -> Schema:
        return {"const": FORMAT_VERSION}

    def words(self) -> str:
        return str(FORMAT_VERSION)


class _RuleSets:
    """A built-in rule set's name, or another rule set as a mapping of what differs from one that it is like."""

    def load(self, item: Item, places: Places) -> RuleSet:
        if isinstance(item.value, str):
            return self._built_in(item)
        given = item.mapping(["like", *_RULES.fields], ["like", "name"])
        like = self._built_in(given.pop("like"))
        values = {name: _RULES.kinds[name].load(one, places) for name, one in given.items()}
        try:
            rules = replace(like, **values)
        except ValueError as error:
            raise item.bad(str(error)) from None
        if not rules.name or any(rules.name == one.name and rules != one for one in RULE_SETS):
            raise item.wanted("rules with a name of their own", repr(rules.name))
        return rules

    @staticmethod
    def _built_in(item: Item) -> RuleSet:
        try:
            return rule_set(item.text())
        except BadInput:
            raise
        except ValueError:
            raise item.wanted(f"one of {', '.join(rules.name for rules in RULE_SETS)}") from None

    def plain(self, value: Any, places: Places) -> Any:
        if value in RULE_SETS:
            return value.name
        like = RULE_SETS[0]
        differs = {name for name in _RULES.fields if getattr(value, name) != getattr(like, name)} | {"name"}
        given = {name: _RULES.kinds[name].plain(getattr(value, name), {}) for name in _RULES.fields if name in differs}
        return {"like": like.name, **given}

    def schema(self) -> Schema:
        names = {"enum": [rules.name for rules in RULE_SETS]}
        own = _RULES.schema()
        for field in own["properties"].values():
            field.pop("default", None)
        own |= {"properties": {"like": names, **own["properties"]}, "required": ["like", "name"]}
        return {"anyOf": [names, own]}

    def words(self) -> str:
        return f"{', '.join(f'`{rules.name}`' for rules in RULE_SETS)}, or a mapping of `like` and what differs"


class _Tensors:
    """Tensors by name: a mapping, read by ``_read_tensors``."""

    def load(self, item: Item, places: Places) -> dict[str, Item]:
        return item.mapping(None)

    def plain(self, value: Any, places: Places) -> Any:
        return value

    def schema(self) -> Schema:
        return {"type": "object", "patternProperties": {f"^{NAME}$": _TENSOR.schema()}, "additionalProperties": False}

    def words(self) -> str:
        return "mapping of names to tensors"


class _Instructions:
    """One-key mappings in program order."""

    def load(self, item: Item, places: Places) -> tuple[Instruction, ...]:
        return tuple(self._instruction(one, places) for one in item.items())

    @staticmethod
    def _instruction(item: Item, places: Places) -> Instruction:
        if not isinstance(item.value, dict) or len(item.value) != 1:
            raise item.wanted(f"a mapping of one key, the instruction: one of {', '.join(RECORDS)}")
        ((mnemonic, body),) = item.mapping(RECORDS).items()
        instruction: Instruction = RECORDS[mnemonic].load(body, places)
        return instruction

    def plain(self, value: Any, places: Places) -> Any:
        return [{one.mnemonic: RECORDS[one.mnemonic].plain(one, places)} for one in value]

    def schema(self) -> Schema:
        one_key = {
            "type": "object",
            "properties": {mnemonic: {"$ref": f"#/$defs/{mnemonic}"} for mnemonic in RECORDS},
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
        }
        return {"type": "array", "items": one_key}

    def words(self) -> str:
        return "list of instructions"


class _Expectations:
    """A list, read by ``_read_expectations``."""

    def load(self, item: Item, places: Places) -> list[Item]:
        return item.items()

    def plain(self, value: Any, places: Places) -> Any:
        return value

    def schema(self) -> Schema:
        return {"type": "array", "items": _EXPECT.schema()}

    def words(self) -> str:
        return "list of expectations"


HEADER: dict[str, Kind] = {
    "mxtwin": _Version(),
    "name": kind_of(str),
    "generation": _GENERATION,
    "rules": _RuleSets(),
    "options": _OPTIONS,
    "tensors": _Tensors(),
    "instructions": _Instructions(),
    "expect": _Expectations(),
}
"""The fields of a program."""

REQUIRED = ("mxtwin", "instructions")
HEADER_DEFAULTS = {
    "name": "the file's, without its ending",
    "generation": f"`{word_of(Program.generation)}`",
    "rules": f"`{MachineOptions.rules.name}`",
    "options": "each option's own",
    "tensors": "none",
    "expect": "none",
}
"""Of the others, in words for the documentation."""


def read_program(path: str | os.PathLike[str]) -> Program:
    """The program in a YAML file; the files it names lie relative to it. It keeps the line of each instruction.

    Raises BadInput in one line, "FILE:LINE: FIELD: must be ..., not ...", at the first mistake. Whether an instruction
    is legal, or a tensor fits its memory, is not asked here.
    """
    path = Path(path)
    top = read_yaml(path)
    given = top.mapping(HEADER, REQUIRED)
    read = {name: HEADER[name].load(item, {}) for name, item in given.items() if name != "instructions"}
    generation = read.get("generation", Generation.V4)
    options = read.get("options", MachineOptions())
    if "rules" in read:
        options = replace(options, rules=read["rules"])
    tensors, places = _read_tensors(read.get("tensors", {}), generation, options.rules)
    instructions = HEADER["instructions"].load(given["instructions"], places)
    owned = {name: tensor.place for name, tensor in tensors.items()}
    return Program(
        instructions=instructions,
        tensors=tensors,
        expectations=tuple(_read_expectation(item, owned, options.rules) for item in read.get("expect", [])),
        generation=generation,
        options=options,
        name=read.get("name", path.stem),
        sources=tuple(f"{one.file}:{one.line}" for one in given["instructions"].items()),
    )


def _read_tensors(
    items: Mapping[str, Item], generation: Generation, rules: RuleSet
) -> tuple[dict[str, ProgramTensor], dict[str, AccessPattern]]:
    """(tensors, what instructions name them as); those with an explicit place are placed first."""
    placer = Placer(generation)
    specs: dict[str, TensorSpec] = {}
    places: dict[str, AccessPattern] = {}
    for name, item in items.items():
        if re.fullmatch(NAME, name) is None:
            raise item.bad(f"a tensor's name must be letters, digits, _, . and -, not {name!r}")
        spec: TensorSpec = _TENSOR.load(item, {})
        specs[name] = spec
        try:
            place = tensor_place(
                spec.memory,
                spec.dtype,
                spec.shape,
                start_partition=spec.start_partition,
                offset=spec.offset or 0,
                partition_step=spec.partition_step,
            )
        except (TypeError, ValueError) as error:
            raise item.bad(str(error)) from None
        places[name] = place
        if spec.offset is not None:
            placer.reserve(place)
    tensors = {}
    for name, item in items.items():
        spec = specs[name]
        try:
            place = places[name] if spec.offset is not None else placer.place(places[name])
            owned, named = place, place
            if spec.layout is ScaleLayout.SCATTERED:
                owned, named = scattered(place, place.partitions * MX_BLOCK.rows)
        except ValueError as error:
            raise item.bad(str(error)) from None
        places[name] = named
        source = f"{item.file}:{item.line}"
        tensors[name] = ProgramTensor(place=owned, contents=contents_of(item, spec, owned, rules), source=source)
    return tensors, places


def _read_expectation(item: Item, places: Places, rules: RuleSet) -> Expectation:
    spec: ExpectSpec = _EXPECT.load(item, places)
    contents = contents_of(item, spec, spec.operand, rules)
    if contents is None:
        raise item.bad("must have one of the fields file, values, bits and hex")
    operand = item.value["operand"].value
    name = spec.name or (operand if isinstance(operand, str) else item.path)
    return Expectation(name=name, place=spec.operand, contents=contents)


# --- writing ----------------------------------------------------------------------------------------------------------


def program_text(program: Program) -> str:
    """``program`` as YAML, its contents inline: what ``read_program`` reads as the same program.

    Raises ValueError for a tensor whose place the format cannot say.
    """
    return _text(program, {})


def write_program(program: Program, path: str | os.PathLike[str]) -> None:
    """``program`` as YAML at ``path``; contents of more than a few bytes in a .npz file of the same stem beside it.

    An older .npz file of that name is replaced.
    """
    large = {
        name: contents
        for name, contents in _all_contents(program).items()
        if contents is not None and contents.nbytes > _INLINE_BYTES
    }
    path = Path(path)
    beside = path.with_suffix(".npz")
    if large:
        bits = {name: np.ascontiguousarray(one).view(f"u{one.dtype.itemsize}") for name, one in large.items()}
        plan = {name: PlannedTensor(dtype=one.dtype, shape=one.shape) for name, one in bits.items()}
        with tensor_output(beside, plan) as output:
            for one in bits.values():
                output.append(one)
    text = _text(program, {name: f"{beside.name}::{name}" for name in large})
    with whole_file(path) as file:
        file.write(text.encode())


def _all_contents(program: Program) -> dict[str, NDArray[Any] | None]:
    contents = {name: tensor.contents for name, tensor in program.tensors.items()}
    return contents | {f"expect:{i}": one.contents for i, one in enumerate(program.expectations)}


def _text(program: Program, files: Mapping[str, str]) -> str:
    contents = _all_contents(program)
    specs = {name: _plain_tensor(name, tensor.place) for name, tensor in program.tensors.items()}
    owned = {name: tensor.place for name, tensor in program.tensors.items()}
    named = {name: place if place.partition_pattern is None else _named(place) for name, place in owned.items()}
    lines = [
        f"mxtwin: {FORMAT_VERSION}",
        flow_text({"name": program.name})[1:-1],
        f"generation: {_GENERATION.plain(program.generation, {})}",
        flow_text({"rules": HEADER["rules"].plain(program.options.rules, {})})[1:-1],
    ]
    options = _OPTIONS.plain(program.options, {})
    if options:
        lines += ["options:", *(f"  {flow_text({name: value})[1:-1]}" for name, value in options.items())]
    lines += ["", "tensors:" if specs else "tensors: {}"]
    for name, spec in specs.items():
        lines.append(f"  {name}: {flow_text(spec | _plain_contents(name, contents[name], files))}")
    instructions = HEADER["instructions"].plain(program.instructions, named)
    lines += ["", "instructions:" if instructions else "instructions: []"]
    for one in instructions:
        ((mnemonic, body),) = one.items()
        lines.append(f"  - {mnemonic}: {flow_text(body)}")
    if program.expectations:
        lines += ["", "expect:"]
    operand_kind = kind_of(AccessPattern)
    for i, expectation in enumerate(program.expectations):
        key = f"expect:{i}"
        body = {"operand": operand_kind.plain(expectation.place, owned), "name": expectation.name}
        lines.append(f"  - {flow_text(body | _plain_contents(key, expectation.contents, files))}")
    return "\n".join(lines) + "\n"


def _named(owned: AccessPattern) -> AccessPattern:
    """What instructions name a scattered tensor as: ``scattered``'s second result, from its first."""
    return scattered(replace(owned, partition_pattern=None), owned.partitions * MX_BLOCK.rows)[1]


def _plain_contents(name: str, contents: NDArray[Any] | None, files: Mapping[str, str]) -> dict[str, Any]:
    if contents is None:
        return {}
    if name in files:
        return {"file": files[name]}
    little = contents.astype(contents.dtype.newbyteorder("<"), copy=False)
    return {"hex": np.ascontiguousarray(little).tobytes().hex()}


def _plain_tensor(name: str, place: AccessPattern) -> dict[str, Any]:
    spec: dict[str, Any] = {"memory": place.space.value, "dtype": place.dtype.name, "shape": list(place.shape)}
    if place.start_partition:
        spec["start_partition"] = place.start_partition
    spec["offset"] = place.offset
    if place.partition_step is not None:
        spec["partition_step"] = place.partition_step
    again = tensor_place(
        place.space,
        place.dtype,
        place.shape,
        start_partition=place.start_partition,
        offset=place.offset,
        partition_step=place.partition_step,
    )
    if place.partition_pattern is not None:
        spec["layout"] = ScaleLayout.SCATTERED.value
        again = scattered(again, place.partitions * MX_BLOCK.rows)[0]
    if again != place:
        raise ValueError(f"tensor {name} must be packed in its partitions to be written, not {place}")
    return spec
