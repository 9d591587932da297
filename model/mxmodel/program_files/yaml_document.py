"""A YAML file as a tree that remembers where each value stands, so that an error names file, line and field.

Nothing of YAML that could surprise is taken: no tags, no anchors or aliases, no duplicate keys.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from mxmodel.bad_input import BadInput

__all__ = ["Item", "flow_text", "read_yaml"]

_SHOWN = 60
_WANTED = "a YAML file"


class Item:
    """One value of a YAML file.

    Attributes
    ----------
    value : a dict of Items by key, a list of Items, or a str, int, float, bool or None
    file, line : where it stands
    path : the field, as in ``instructions[3].matmul_mx.dst``
    """

    __slots__ = ("file", "line", "path", "value")

    def __init__(self, value: Any, file: Path, line: int, path: str) -> None:
        self.value, self.file, self.line, self.path = value, file, line, path

    def wanted(self, wanted: str, found: object = None) -> BadInput:
        """The error that says what must stand here; ``found`` is shown in place of the value."""
        shown = self.shown() if found is None else str(found)
        return self.bad(f"must be {wanted}, not {shown}")

    def bad(self, text: str) -> BadInput:
        """The error that says ``text`` of this field."""
        where = f"{self.file}:{self.line}: "
        return BadInput(f"{where}{self.path}: {text}" if self.path else f"{where}{text}")

    def shown(self) -> str:
        """The value in few words."""
        if isinstance(self.value, dict):
            return f"a mapping of {', '.join(self.value) or 'nothing'}"
        if isinstance(self.value, list):
            return f"a list of {len(self.value)}"
        if self.value is None:
            return "nothing"
        text = repr(self.value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

    def mapping(self, allowed: Iterable[str] | None, required: Iterable[str] = ()) -> dict[str, "Item"]:
        """The value as a mapping with the keys ``required`` and no other than ``allowed``; None allows any."""
        names = None if allowed is None else list(allowed)
        if not isinstance(self.value, dict):
            raise self.wanted("a mapping" if names is None else f"a mapping of {', '.join(names)}")
        if names is not None:
            for key, item in self.value.items():
                if key not in names:
                    close = get_close_matches(key, names, n=1)
                    hint = f"; perhaps {close[0]}" if close else ""
                    where = f"{self.path}: " if self.path else ""
                    raise BadInput(
                        f"{item.file}:{item.line}: {where}the field must be one of {', '.join(names)}, not {key}{hint}"
                    )
        for key in required:
            if key not in self.value:
                raise self.bad(f"must have the field {key}, which is missing")
        return dict(self.value)

    def items(self) -> list["Item"]:
        """The value as a list."""
        if not isinstance(self.value, list):
            raise self.wanted("a list")
        return list(self.value)

    def text(self) -> str:
        """The value as text."""
        if not isinstance(self.value, str):
            raise self.wanted("text")
        return self.value

    def integer(self, least: int | None = None, most: int | None = None) -> int:
        """The value as an integer within the limits."""
        value = self.value
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or (least is not None and value < least) or (most is not None and value > most):
            limits = {
                (False, False): "an integer",
                (True, False): f"an integer of {least} or more",
                (False, True): f"an integer of {most} or less",
                (True, True): f"an integer in {least}..{most}",
            }
            raise self.wanted(limits[least is not None, most is not None])
        return int(value)

    def number(self) -> float:
        """The value as a number."""
        try:
            return float(self.exact_number())
        except OverflowError:
            raise self.wanted("a number that a double holds") from None

    def exact_number(self) -> int | float:
        """The value as a number, an integer of any size as itself."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self.wanted("a number")
        return self.value


class _Loader(yaml.SafeLoader):
    """Composes nodes only; constructs scalars of the plain types; reads 1e-3 as a number."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.composer.ComposerError(None, None, "anchors and aliases are not taken", event.start_mark)
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Quotes what ``_Loader`` would otherwise read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))

_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null")}


def read_yaml(path: Path) -> Item:
    """The one document of a YAML file.

    Raises BadInput in one line, with the line's number where there is one: unreadable, not UTF-8, not YAML, several
    documents, nothing in it, a duplicate key, an anchor, an alias, a tag.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
        raise BadInput(f"{path}: wanted {_WANTED}, found {why}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: wanted {_WANTED} in UTF-8, found other bytes") from None
    try:
        loader = _Loader(text)
        try:
            node: Any = loader.get_single_node()
            if node is None:
                raise BadInput(f"{path}: wanted {_WANTED}, found an empty file")
            return _item(node, loader, path, "")
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"{mark.line + 1}:"
        raise BadInput(f"{path}:{line} wanted {_WANTED}, found a mistake in its syntax: {_problem(error)}") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: wanted {_WANTED}, found {' '.join(str(error).split())}") from None
    except RecursionError:
        raise BadInput(f"{path}: wanted {_WANTED} of few levels, found too many") from None


_END = "the end of the file"
_TOKENS = {
    "'<stream end>'": _END,
    "<stream end>": _END,
    "'<document start>'": "another document",
    "'<block mapping start>'": "a line indented further",
    "'<block sequence start>'": "a list",
    "'<block end>'": "the end of the block",
    "<block end>": "the end of the block",
    "'<scalar>'": "a word",
    "the node content": "a value",
    "unexpected end of stream": _END,
    "found another document": "there is another document",
}


def _problem(error: yaml.MarkedYAMLError) -> str:
    """What the parser says, in words instead of its names of tokens, and of what was begun on an earlier line."""
    text = " ".join(str(error.problem or error.context).split()).removeprefix("but ")
    for token, words in _TOKENS.items():
        text = text.replace(token, words)
    text = text.replace(", but got ", ", found ").replace(", but found ", ", found ")
    began, at = error.context_mark, error.problem_mark
    if error.problem and error.context and began is not None and at is not None and began.line != at.line:
        text += f" ({error.context}, begun on line {began.line + 1})"
    return text


def _item(node: Any, loader: _Loader, path: Path, field: str) -> Item:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        _check_tag(node, {"tag:yaml.org,2002:map"}, path, field)
        values: dict[str, Item] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            where = Item(key, path, key_node.start_mark.line + 1, field)
            if key is None or key_node.tag == "tag:yaml.org,2002:merge":
                raise where.bad("every key must be a word")
            if key in values:
                raise where.bad(f"the key {key} must stand once, not again")
            values[key] = _item(value_node, loader, path, f"{field}.{key}" if field else key)
        return Item(values, path, line, field)
    if isinstance(node, yaml.SequenceNode):
        _check_tag(node, {"tag:yaml.org,2002:seq"}, path, field)
        return Item([_item(n, loader, path, f"{field}[{i}]") for i, n in enumerate(node.value)], path, line, field)
    _check_tag(node, _SCALARS, path, field)
    try:
        value = loader.construct_object(node)
    except (ValueError, OverflowError):
        raise Item(node.value, path, line, field).wanted("a plain value") from None
    return Item(value, path, line, field)


def _check_tag(node: Any, tags: set[str], path: Path, field: str) -> None:
    if node.tag not in tags:
        item = Item(node.value, path, node.start_mark.line + 1, field)
        raise item.bad(f"must be a plain value, not one tagged {node.tag.rsplit(':', 1)[-1]}")


def flow_text(value: dict[str, Any] | list[Any]) -> str:
    """Plain data as YAML on one line, which ``read_yaml`` reads as the same."""
    return yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=float("inf"), allow_unicode=True
    ).strip()
