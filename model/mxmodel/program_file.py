"""Programs as YAML files: read, with every mistake told by file, line and field, and written.

The format is described in ``program.schema.json``; this module and that schema are made of the same kinds of fields.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.bad_input import BadInput
from mxmodel.formats import MX_BLOCK, BirDtype
from mxmodel.isa import INSTRUCTIONS, Instruction
from mxmodel.layout import pack_x4
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.memory_object import MemoryObject, container_dtype
from mxmodel.mx_file import read_mx
from mxmodel.placement import Placer, scattered, tensor_place
from mxmodel.program import Expectation, Program, ProgramTensor
from mxmodel.program_fields import NAME, Kind, Nested, Places, Record, Schema, kind_of, parsed_slices
from mxmodel.rules import RULE_SETS, RuleSet, rule_set
from mxmodel.tensor_files import select_tensors
from mxmodel.tensor_output import PlannedTensor, tensor_output
from mxmodel.whole_file import whole_file
from mxmodel.yaml_document import Item, flow_text, read_yaml

__all__ = [
    "FORMAT_VERSION",
    "HEADER",
    "RECORDS",
    "ExpectSpec",
    "MxPart",
    "ScaleLayout",
    "TensorSpec",
    "program_text",
    "read_program",
    "write_program",
]

FORMAT_VERSION = 1
_INLINE_BYTES = 64
"""Longer contents go to a file beside the program."""


class MxPart(Enum):
    """What of an MX tensor in a file: its codes as x4 words, or its scale bytes."""

    CODES = "codes"
    SCALES = "scales"


class ScaleLayout(Enum):
    """How the rows of a tensor lie on the partitions."""

    PLAIN = "plain"
    """One after the other."""
    SCATTERED = "scattered"
    """As the scale rows of data on 8 times as many partitions: row i at start + (i & 3) + 32 (i >> 2) (L-2)."""


@dataclass(frozen=True, kw_only=True)
class ContentsSpec:
    """What a place holds: at most one of ``file``, ``values``, ``bits`` and ``hex``.

    Attributes
    ----------
    file : FILE or FILE::TENSOR, beside the program; containers, or their bits as unsigned integers
    part : of an MX tensor in the file
    slice : the part of the file's array to take
    values : numbers, narrowed as a cast does; words where the dtype is no number's
    bits : the containers as unsigned integers
    hex : the bytes in order
    """

    file: str | None = None
    part: MxPart | None = None
    slice: str | None = None
    values: Nested | None = None
    bits: Nested | None = None
    hex: str | None = None


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
            return replace(like, **values)
        except ValueError as error:
            raise item.bad(str(error)) from None

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


def read_program(path: Path) -> Program:
    """The program in a YAML file; the files it names lie relative to it.

    Raises BadInput in one line, "FILE:LINE: FIELD: must be ..., not ...", at the first mistake. Whether an instruction
    is legal, or a tensor fits its memory, is not asked here.
    """
    top = read_yaml(path)
    given = top.mapping(HEADER, REQUIRED)
    read = {name: HEADER[name].load(given[name], {}) for name in given if name not in ("instructions",)}
    generation = read.get("generation", Generation.V4)
    options = read.get("options", MachineOptions())
    if "rules" in read:
        options = replace(options, rules=read["rules"])
    tensors, places = _read_tensors(read.get("tensors", {}), generation)
    instructions = HEADER["instructions"].load(given["instructions"], places)
    owned = {**places, **{name: tensor.place for name, tensor in tensors.items()}}
    return Program(
        instructions=instructions,
        tensors=tensors,
        expectations=tuple(_read_expectation(item, owned) for item in read.get("expect", [])),
        generation=generation,
        options=options,
        name=read.get("name", path.stem),
    )


def _read_tensors(
    items: Mapping[str, Item], generation: Generation
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
        tensors[name] = ProgramTensor(place=owned, contents=_contents(item, spec, owned))
    return tensors, places


def _read_expectation(item: Item, places: Places) -> Expectation:
    spec: ExpectSpec = _EXPECT.load(item, places)
    contents = _contents(item, spec, spec.operand)
    if contents is None:
        raise item.bad("must have one of the fields file, values, bits and hex")
    operand = item.value["operand"].value
    name = spec.name or (operand if isinstance(operand, str) else item.path)
    return Expectation(name=name, place=spec.operand, contents=contents)


# --- contents ---------------------------------------------------------------------------------------------------------

_SOURCES = ("file", "values", "bits", "hex")


def _contents(item: Item, spec: ContentsSpec, place: AccessPattern) -> NDArray[Any] | None:
    """The containers that a spec gives, of the shape of ``place``."""
    given = [name for name in _SOURCES if getattr(spec, name) is not None]
    if len(given) > 1:
        raise item.bad(f"must have one of the fields {', '.join(_SOURCES)}, not {' and '.join(given)}")
    if spec.file is None:
        for name in ("part", "slice"):
            if getattr(spec, name) is not None:
                raise item.bad(f"must have the field file beside {name}")
    if not given:
        return None
    field = item.value[given[0]]
    if spec.file is not None:
        return _from_file(field, item.value.get("slice"), spec, place)
    if spec.hex is not None:
        return _from_hex(field, spec.hex, place)
    dtype = container_dtype(place.dtype)
    if spec.values is not None and dtype.kind not in "iu":
        numbers = _numbers(field, place.shape, integers=None)
        try:
            with np.errstate(all="ignore"):
                return MemoryObject.from_fp32(numbers.astype(np.float32), place.dtype).containers
        except ValueError as error:
            raise field.bad(f"{error}; bits can be given instead") from None
    wanted = dtype if spec.values is not None else np.dtype(f"u{dtype.itemsize}")
    numbers = _numbers(field, place.shape, integers=wanted)
    return numbers.astype(wanted).view(dtype)


def _numbers(item: Item, shape: tuple[int, ...], integers: np.dtype[Any] | None) -> NDArray[Any]:
    """Nested lists, a flat list, or one number for all, as an array of ``shape``."""
    found: list[Any] = []
    nesting = _collect(item, found, integers)
    if nesting not in ((), shape, (prod(shape),)):
        raise item.wanted(
            f"a number, {prod(shape)} numbers or nested lists of shape {list(shape)}", f"shape {list(nesting)}"
        )
    array = np.array(found, dtype=np.float64 if integers is None else integers)
    return np.broadcast_to(array, shape).copy() if nesting == () else array.reshape(shape)


def _collect(item: Item, found: list[Any], integers: np.dtype[Any] | None) -> tuple[int, ...]:
    if not isinstance(item.value, list):
        if integers is None:
            found.append(item.number())
        else:
            limits = np.iinfo(integers)
            found.append(item.integer(int(limits.min), int(limits.max)))
        return ()
    inner = [_collect(one, found, integers) for one in item.value]
    for one, nesting in zip(item.value, inner, strict=True):
        if nesting != inner[0]:
            raise one.wanted(f"of shape {list(inner[0])}, as the first of its list", f"shape {list(nesting)}")
    return (len(inner), *(inner[0] if inner else ()))


def _from_hex(item: Item, text: str, place: AccessPattern) -> NDArray[Any]:
    dtype = container_dtype(place.dtype)
    try:
        octets = bytes.fromhex(text)
    except ValueError:
        raise item.wanted("hexadecimal digits, two for each byte") from None
    wanted = prod(place.shape) * dtype.itemsize
    if len(octets) != wanted:
        raise item.wanted(f"{wanted} bytes for shape {list(place.shape)} of {place.dtype.name}", f"{len(octets)} bytes")
    return np.frombuffer(octets, dtype=dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(place.shape)


def _from_file(item: Item, cut: Item | None, spec: ContentsSpec, place: AccessPattern) -> NDArray[Any]:
    assert spec.file is not None
    file, separator, name = spec.file.partition("::")
    source = f"{item.file.parent / file}{separator}{name}"
    dtype = container_dtype(place.dtype)
    try:
        if spec.part is None:
            chosen = select_tensors(source)
            if len(chosen) != 1:
                raise BadInput(f"wanted one tensor, named as FILE::TENSOR, found {len(chosen)}")
            array = chosen[0].load()
        else:
            tensor = read_mx(source).tensor()
            array = tensor.scale if spec.part is MxPart.SCALES else pack_x4(tensor.codes, tensor.element)
            if spec.part is MxPart.CODES and place.dtype.element != tensor.element:
                raise BadInput(f"wanted codes for {place.dtype.name}, found {tensor.element.name}")
    except BadInput as error:
        raise item.bad(str(error)) from None
    if cut is not None:
        array = _cut(cut, array)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype != dtype:
        if native.dtype.kind not in "uV" or native.dtype.itemsize != dtype.itemsize:
            bits = np.dtype(f"u{dtype.itemsize}")
            raise item.wanted(f"a tensor of {dtype} or its bits as {bits} for {place.dtype.name}", f"{native.dtype}")
        native = np.ascontiguousarray(native).view(dtype)
    if native.shape != place.shape:
        raise item.wanted(f"a tensor of shape {list(place.shape)}", f"{list(native.shape)}")
    return np.asarray(native)


def _cut(item: Item, array: NDArray[Any]) -> NDArray[Any]:
    index = parsed_slices(item, item.text())
    if len(index) > array.ndim:
        raise item.wanted(f"at most {array.ndim} slices, as the file's array has dimensions")
    for one, length in zip(index, array.shape, strict=False):
        start, stop, _ = one.indices(length)
        if max(one.start or 0, one.stop or 0) > length or start >= stop:
            raise item.wanted(f"slices inside the file's array of shape {list(array.shape)}")
    return array[index]


# --- writing ----------------------------------------------------------------------------------------------------------


def program_text(program: Program) -> str:
    """``program`` as YAML, its contents inline: what ``read_program`` reads as the same program.

    Raises ValueError for a tensor whose place the format cannot say.
    """
    return _text(program, {})


def write_program(program: Program, path: Path) -> None:
    """``program`` as YAML at ``path``; contents of more than a few bytes in a .npz file of the same stem beside it."""
    large = {
        name: contents
        for name, contents in _all_contents(program).items()
        if contents is not None and contents.nbytes > _INLINE_BYTES
    }
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
    return contents | {f"expect.{i}": one.contents for i, one in enumerate(program.expectations)}


def _text(program: Program, files: Mapping[str, str]) -> str:
    contents = _all_contents(program)
    specs = {name: _plain_tensor(name, tensor.place) for name, tensor in program.tensors.items()}
    owned = {name: tensor.place for name, tensor in program.tensors.items()}
    named = {
        name: place if place.partition_pattern is None else scattered(place, place.partitions * MX_BLOCK.rows)[1]
        for name, place in owned.items()
    }
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
        key = f"expect.{i}"
        body = {"operand": operand_kind.plain(expectation.place, owned), "name": expectation.name}
        lines.append(f"  - {flow_text(body | _plain_contents(key, expectation.contents, files))}")
    return "\n".join(lines) + "\n"


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
