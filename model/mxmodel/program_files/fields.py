"""The kinds of fields in a program file, taken from the records' own type hints: read, written and described as one.

A kind reads a YAML item, gives it back as plain YAML, and says what it takes as a JSON Schema and in words. So the
loader, the schema and the field table of the documentation cannot disagree about a record.
"""

import inspect
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from difflib import get_close_matches
from enum import Enum
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.bad_input import BadInput
from mxmodel.files.stored_tensor import name_list
from mxmodel.formats import BIR_DTYPES, BirDtype
from mxmodel.isa import PsumFlag
from mxmodel.memory_object import dtype_named
from mxmodel.program_files.placement import slice_text, sliced
from mxmodel.program_files.yaml_document import Item

__all__ = [
    "NAME",
    "NUMBERS",
    "OPERAND",
    "Kind",
    "Nested",
    "Places",
    "Record",
    "Schema",
    "kind_of",
    "parsed_slices",
    "word_of",
]

NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
"""Of a tensor."""

_OPERAND = re.compile(rf"\s*({NAME})\s*(?:\[([^\[\]]*)\])?\s*")

Places = Mapping[str, AccessPattern]
"""What instructions may name: each tensor's operand."""

Schema = dict[str, Any]


class Nested:
    """The hint of a field that holds numbers in nested lists: read as the YAML item, for whoever knows the shape."""


class Kind(Protocol):
    """One kind of field."""

    def load(self, item: Item, places: Places) -> Any:
        """The value that ``item`` stands for; BadInput naming its line and field."""
        ...

    def plain(self, value: Any, places: Places) -> Any:
        """``value`` as YAML: what ``load`` reads as the same value."""
        ...

    def schema(self) -> Schema:
        """A JSON Schema of what ``load`` takes."""
        ...

    def words(self) -> str:
        """What it takes, for a table."""
        ...


class _Integer:
    def load(self, item: Item, places: Places) -> int:
        return item.integer()

    def plain(self, value: Any, places: Places) -> Any:
        return int(value)

    def schema(self) -> Schema:
        return {"type": "integer"}

    def words(self) -> str:
        return "integer"


class _Number:
    def load(self, item: Item, places: Places) -> float:
        return item.number()

    def plain(self, value: Any, places: Places) -> Any:
        return value if type(value) is int else float(value)

    def schema(self) -> Schema:
        return {"type": "number"}

    def words(self) -> str:
        return "number"


class _ExactNumber(_Number):
    def load(self, item: Item, places: Places) -> float:
        return item.exact_number()


class _Text:
    def load(self, item: Item, places: Places) -> str:
        text = item.text()
        if not text.isprintable():
            raise item.wanted("text on one line")
        return text

    def plain(self, value: Any, places: Places) -> Any:
        return str(value)

    def schema(self) -> Schema:
        return {"type": "string"}

    def words(self) -> str:
        return "text"


class _NestedNumbers:
    def load(self, item: Item, places: Places) -> Item:
        return item

    def plain(self, value: Any, places: Places) -> Any:
        return value

    def schema(self) -> Schema:
        return {"$ref": "#/$defs/numbers"}

    def definition(self) -> Schema:
        """What ``schema`` refers to."""
        return {
            "description": "A number for all, a list, or lists in lists.",
            "anyOf": [{"type": "number"}, {"type": "array", "items": self.schema()}],
        }

    def words(self) -> str:
        return "a number, or nested lists of numbers"


class _Null:
    def load(self, item: Item, places: Places) -> None:
        if item.value is not None:
            raise item.wanted("nothing")

    def plain(self, value: Any, places: Places) -> Any:
        return None

    def schema(self) -> Schema:
        return {"type": "null"}

    def words(self) -> str:
        return "null"


def word_of(member: Enum) -> str:
    """The word for an enum's member: its value, or its name in small letters where the value is a number."""
    return member.value if isinstance(member.value, str) else member.name.lower()


class _Word:
    """A member of an enum. YAML reads true and false as truth values: they are taken as the words."""

    def __init__(self, kind: type[Enum]) -> None:
        self.members = {word_of(member): member for member in kind}

    def load(self, item: Item, places: Places) -> Enum:
        word = str(item.value).lower() if isinstance(item.value, bool) else item.value
        if not isinstance(word, str) or word not in self.members:
            raise item.wanted(_one_of(self.members))
        return self.members[word]

    def plain(self, value: Any, places: Places) -> Any:
        return word_of(value)

    def schema(self) -> Schema:
        truths = [word == "true" for word in self.members if word in ("true", "false")]
        return {"enum": [*self.members, *truths]}

    def words(self) -> str:
        return ", ".join(f"`{word}`" for word in self.members)


class _Flags:
    """The flag byte of a matmul: a byte, or the names of its flags."""

    names = tuple(word_of(flag) for flag in PsumFlag if flag)

    def load(self, item: Item, places: Places) -> int:
        if isinstance(item.value, int) and not isinstance(item.value, bool):
            return item.integer(0, 255)
        total = 0
        for one in item.items() if isinstance(item.value, list) else [item]:
            if one.value not in self.names:
                raise one.wanted(f"a flag byte in 0..255, or {_one_of(self.names)}, or a list of them")
            total |= PsumFlag[one.text().upper()]
        return int(total)

    def plain(self, value: Any, places: Places) -> Any:
        known = sum(PsumFlag[name.upper()] for name in self.names)
        if value & ~known:
            return int(value)
        return [name for name in self.names if value & PsumFlag[name.upper()]]

    def schema(self) -> Schema:
        word = {"enum": list(self.names)}
        return {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 255}, word, {"type": "array", "items": word}]}

    def words(self) -> str:
        return f"a byte, or a list of {', '.join(f'`{name}`' for name in self.names)}"


class _Dtype:
    names = tuple(dtype.name for dtype in BIR_DTYPES)

    def load(self, item: Item, places: Places) -> BirDtype:
        if item.value not in self.names:
            raise item.wanted(_one_of(self.names))
        return dtype_named(item.value)

    def plain(self, value: Any, places: Places) -> Any:
        return value.name

    def schema(self) -> Schema:
        return {"enum": list(self.names)}

    def words(self) -> str:
        return "a dtype's name (F-4)"


class _ListOf:
    def __init__(self, kind: Kind, length: int | None = None) -> None:
        self.kind, self.length = kind, length

    def load(self, item: Item, places: Places) -> tuple[Any, ...]:
        items = item.items()
        if self.length is not None and len(items) != self.length:
            raise item.wanted(f"a list of {self.length}")
        return tuple(self.kind.load(one, places) for one in items)

    def plain(self, value: Any, places: Places) -> Any:
        return [self.kind.plain(one, places) for one in value]

    def schema(self) -> Schema:
        limits = {} if self.length is None else {"minItems": self.length, "maxItems": self.length}
        return {"type": "array", "items": self.kind.schema(), **limits}

    def words(self) -> str:
        return f"list of: {self.kind.words()}"


class _Either:
    """One of several kinds, told apart by the shape of the YAML."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self.kinds = tuple(kinds)

    def _kind(self, value: object) -> Kind:
        for kind in self.kinds:
            if isinstance(kind, _Null) and value is None:
                return kind
            if isinstance(kind, (_Number, _Integer)) and type(value) in (int, float):
                return kind
        return next(kind for kind in self.kinds if not isinstance(kind, _Null))

    def load(self, item: Item, places: Places) -> Any:
        return self._kind(item.value).load(item, places)

    def plain(self, value: Any, places: Places) -> Any:
        return self._kind(value).plain(value, places)

    def schema(self) -> Schema:
        return {"anyOf": [kind.schema() for kind in self.kinds]}

    def words(self) -> str:
        return " or ".join(kind.words() for kind in self.kinds if not isinstance(kind, _Null))


def parsed_slices(item: Item, text: str) -> tuple[slice, ...]:
    """``0:64, :, 3`` as slices; BadInput at ``item`` for anything else."""
    index = []
    for word in text.split(","):
        found = re.fullmatch(r"\s*(?:(\d{1,18})|(\d{0,18})\s*:\s*(\d{0,18})\s*(?::\s*(\d{0,18}))?)\s*", word)
        if found is None:
            raise item.wanted("slices such as 0:64, ::2, 3")
        one, *three = found.groups()
        if one is not None:
            index.append(slice(int(one), int(one) + 1))
        else:
            start, stop, step = (int(digits) if digits else None for digits in three)
            if step == 0:
                raise item.wanted("slices with steps of 1 or more")
            index.append(slice(start, stop, step))
    return tuple(index)


class _Operand:
    """A tensor's name, a slice of one, or a mapping that says where."""

    keys = ("tensor", "memory", "dtype", "start_partition", "partitions", "offset", "pattern", "partition_step", "rows")

    def load(self, item: Item, places: Places) -> AccessPattern:
        try:
            if isinstance(item.value, str):
                return self._named(item, places)
            if not isinstance(item.value, dict):
                raise item.wanted("a tensor's name, a slice of one such as x[0:64, 4:8], or a mapping that says where")
            given = item.mapping(self.keys)
            if ("tensor" in given) is ("memory" in given):
                raise item.bad("must have one of the fields tensor and memory")
            return self._mapped(item, given, places)
        except BadInput:
            raise
        except (TypeError, ValueError) as error:
            raise item.bad(str(error)) from None

    def _named(self, item: Item, places: Places) -> AccessPattern:
        found = _OPERAND.fullmatch(item.text())
        if found is None:
            raise item.wanted("a tensor's name, or a slice of one such as x[0:64, 4:8]")
        name, slices = found.groups()
        place = self._place(item, name, places)
        return place if slices is None else sliced(place, parsed_slices(item, slices))

    @staticmethod
    def _place(item: Item, name: str, places: Places) -> AccessPattern:
        if name not in places:
            close = get_close_matches(name, places, n=1)
            hint = f"; perhaps {close[0]}" if close else ""
            raise item.wanted(f"a tensor of the program: {name_list(places)}", f"{name}{hint}")
        return places[name]

    def _mapped(self, item: Item, given: Mapping[str, Item], places: Places) -> AccessPattern:
        integers: dict[str, Any] = {
            name: given[name].integer(0)
            for name in ("start_partition", "partitions", "offset", "partition_step")
            if name in given
        }
        found: dict[str, Any] = {}
        if "dtype" in given:
            found["dtype"] = DTYPE.load(given["dtype"], places)
        if "pattern" in given:
            found["pattern"] = _PATTERN.load(given["pattern"], places)
        if "rows" in given:
            found["rows"] = self.load(given["rows"], places)
        if "memory" in given:
            for name in ("dtype", "partitions", "pattern"):
                if name not in given:
                    raise item.bad(f"must have the field {name} beside memory")
            return AccessPattern(space=Space(_SPACE.load(given["memory"], places)), **integers, **found)
        place = self._place(given["tensor"], given["tensor"].text(), places)
        if "dtype" in found and found["dtype"] != place.dtype and "pattern" not in found:
            raise item.bad("must have the field pattern where dtype is another than the tensor's")
        first, offset = integers.pop("start_partition", 0), integers.pop("offset", 0)
        integers.setdefault("partitions", place.partitions - first)
        if place.partition_step is None:
            integers["start_partition"] = place.start_partition + first
        else:
            offset += first * place.partition_step
        return replace(place, offset=place.offset + offset, **integers, **found)

    def plain(self, value: Any, places: Places) -> Any:
        for name, place in places.items():
            text = slice_text(place, value)
            if text is not None:
                return f"{name}{text}"
        covering = sorted(
            (place.nbytes, i, name) for i, (name, place) in enumerate(places.items()) if place.covers(value)
        )
        for _, _, name in covering:
            view = self._view(name, places[name], value, places)
            if view is not None:
                return view
        if value.partition_pattern is not None:
            raise ValueError(f"an operand with a partition pattern must be a scattered tensor, not {value}")
        plain: dict[str, Any] = {
            "memory": value.space.value,
            "dtype": value.dtype.name,
            "start_partition": value.start_partition,
            "partitions": value.partitions,
            "offset": value.offset,
            "pattern": [list(dimension) for dimension in value.pattern],
        }
        if value.partition_step is not None:
            del plain["start_partition"]
            plain["partition_step"] = value.partition_step
        if value.rows is not None:
            plain["rows"] = self.plain(value.rows, places)
        return plain

    def _view(self, name: str, place: AccessPattern, value: AccessPattern, places: Places) -> dict[str, Any] | None:
        """``value`` as a mapping of ``tensor`` and of what is not that tensor's own; None where none says it."""
        view: dict[str, Any] = {"tensor": name}
        first = value.start_partition - place.start_partition
        if first:
            view["start_partition"] = first
        if value.partitions != place.partitions - first:
            view["partitions"] = value.partitions
        if value.offset != place.offset:
            view["offset"] = value.offset - place.offset
        if value.partition_step != place.partition_step:
            view["partition_step"] = value.partition_step
        if value.dtype != place.dtype:
            view["dtype"] = value.dtype.name
        if value.pattern != place.pattern or value.dtype != place.dtype:
            view["pattern"] = [list(dimension) for dimension in value.pattern]
        if value.rows is not None:
            view["rows"] = self.plain(value.rows, places)
        again = replace(
            place,
            start_partition=value.start_partition,
            partitions=value.partitions,
            offset=value.offset,
            partition_step=value.partition_step,
            dtype=value.dtype,
            pattern=value.pattern,
            rows=value.rows,
        )
        return view if again == value else None

    def schema(self) -> Schema:
        return {"$ref": "#/$defs/operand"}

    def definition(self) -> Schema:
        """What ``schema`` refers to."""
        count = {"type": "integer", "minimum": 0}
        return {
            "description": "A tensor's name, a slice of one, or a mapping that says where.",
            "anyOf": [
                {"type": "string", "pattern": f"^{_OPERAND.pattern}$"},
                {
                    "type": "object",
                    "properties": {
                        "tensor": {"type": "string", "pattern": f"^{NAME}$"},
                        "memory": _SPACE.schema(),
                        "dtype": DTYPE.schema(),
                        "start_partition": count,
                        "partitions": count,
                        "offset": count,
                        "pattern": _PATTERN.schema(),
                        "partition_step": count,
                        "rows": self.schema(),
                    },
                    "oneOf": [
                        {"required": ["tensor"]},
                        {"required": ["memory", "dtype", "partitions", "pattern"]},
                    ],
                    "additionalProperties": False,
                },
            ],
        }

    def words(self) -> str:
        return "operand"


class Record:
    """A mapping of the fields of a dataclass.

    Parameters
    ----------
    kind : the dataclass
    omit : fields that stand elsewhere
    """

    def __init__(self, kind: type[Any], omit: Sequence[str] = ()) -> None:
        assert is_dataclass(kind)
        hints = get_type_hints(kind)
        self.record = kind
        self.fields: dict[str, Field[Any]] = {field.name: field for field in fields(kind) if field.name not in omit}
        self.kinds: dict[str, Kind] = {name: kind_of(hints[name], name) for name in self.fields}
        self.meanings = _meanings(kind)

    @property
    def required(self) -> list[str]:
        """Fields without a default."""
        return [
            name for name, field in self.fields.items() if field.default is MISSING and field.default_factory is MISSING
        ]

    def values(self, item: Item, places: Places, required: Sequence[str] | None = None) -> dict[str, Any]:
        """The fields that ``item`` gives."""
        names = sorted(self.fields, key=lambda name: name not in self.required)
        given = item.mapping(names, self.required if required is None else required)
        return {name: self.kinds[name].load(one, places) for name, one in given.items()}

    def load(self, item: Item, places: Places) -> Any:
        values = self.values(item, places)
        try:
            return self.record(**values)
        except (TypeError, ValueError) as error:
            raise item.bad(str(error)) from None

    def plain(self, value: Any, places: Places) -> Any:
        return {
            name: self.kinds[name].plain(getattr(value, name), places)
            for name, field in self.fields.items()
            if field.default is MISSING or getattr(value, name) != field.default
        }

    def schema(self) -> Schema:
        properties = {}
        for name, field in self.fields.items():
            properties[name] = dict(self.kinds[name].schema())
            if name in self.meanings:
                properties[name]["description"] = self.meanings[name]
            if field.default is not MISSING and field.default is not None and field.default != ():
                properties[name]["default"] = self.kinds[name].plain(field.default, {})
        return {
            "type": "object",
            "description": (self.record.__doc__ or "").strip().partition("\n")[0],
            "properties": properties,
            "required": self.required,
            "additionalProperties": False,
        }

    def words(self) -> str:
        return "mapping of " + ", ".join(f"`{name}`" for name in self.fields)


def _meanings(kind: type[Any]) -> dict[str, str]:
    """What the docstrings of a dataclass and its bases say of each attribute."""
    meanings: dict[str, str] = {}
    for base in kind.__mro__:
        section = inspect.cleandoc(base.__doc__ or "").partition("Attributes\n----------\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?=\S)", section):
            names, separator, text = entry.partition(" : ")
            for name in names.split(", ") if separator else ():
                meanings.setdefault(name, " ".join(text.split()))
    return meanings


def kind_of(hint: Any, name: str = "") -> Kind:
    """The kind of a field with that type hint; TypeError for one that no file can hold."""
    if hint == int | float:
        return _ExactNumber()
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _Either([kind_of(one) for one in get_args(hint)])
    if origin is tuple:
        inner = get_args(hint)
        return _ListOf(kind_of(inner[0]), None if inner[-1] is Ellipsis else len(inner))
    if name == "flags":  # an integer by its hint, but one that has words
        return _Flags()
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _Word(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return Record(hint)
    raise TypeError(f"hint must be of a kind that a file can hold, not {hint!r}")


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"


OPERAND = _Operand()
NUMBERS = _NestedNumbers()
DTYPE = _Dtype()
_PLAIN: dict[Any, Kind] = {
    int: _Integer(),
    float: _Number(),
    str: _Text(),
    type(None): _Null(),
    AccessPattern: OPERAND,
    BirDtype: DTYPE,
    Nested: NUMBERS,
}
_SPACE = _Word(Space)
_PATTERN = _ListOf(_ListOf(_Integer(), 2))
