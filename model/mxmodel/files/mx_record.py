"""What a file says about the MX tensors in it: element, rule set, layout, axis, true shape, version.

The record is one JSON text: in a .safetensors file the metadata entry ``mxtwin``, in an .npz archive the text member of
that name.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from mxmodel import __version__
from mxmodel.files.arrangement import Arrangement, Layout
from mxmodel.files.stored_tensor import unusable
from mxmodel.formats import ElementFormat, element_format
from mxmodel.rules import RuleSet

__all__ = ["RECORD", "RECORD_VERSION", "MxRecord", "read_records", "record_text"]

RECORD = "mxtwin"
RECORD_VERSION = 1
"""Of the record's form; a reader refuses any other."""

_WANTED = f"an mxtwin record of version {RECORD_VERSION}"


@dataclass(frozen=True, kw_only=True)
class MxRecord:
    """Everything about an MX tensor but its codes and scales.

    Attributes
    ----------
    element : the format of the codes
    rules : the rule set that made them
    arrangement : layout, contraction axis and true shape
    """

    element: ElementFormat
    rules: RuleSet
    arrangement: Arrangement


def record_text(records: Mapping[str, MxRecord]) -> str:
    """The JSON text for the MX tensors of one file, by name; the rule set goes in whole, for users build their own."""
    tensors = {
        name: {
            "element": record.element.name,
            "rules": _plain_rules(record.rules),
            "layout": record.arrangement.layout.value,
            "axis": record.arrangement.axis,
            "shape": list(record.arrangement.shape),
        }
        for name, record in records.items()
    }
    record = {"version": RECORD_VERSION, "writer": f"mxtwin {__version__}", "tensors": tensors}
    return json.dumps(record, separators=(",", ":"))


def read_records(path: Path, text: str) -> dict[str, MxRecord]:
    """The inverse of ``record_text``; ``BadInput`` naming ``path`` if the text is not such a record."""
    try:
        record = json.loads(text)
        version, tensors = record["version"], dict(record["tensors"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise unusable(path, RECORD, _WANTED, "damaged text") from None
    if version != RECORD_VERSION:
        raise unusable(path, RECORD, _WANTED, f"version {version!r}")
    return {name: _read_record(path, name, entry) for name, entry in tensors.items()}


def _read_record(path: Path, name: str, entry: Any) -> MxRecord:
    try:
        shape, axis = tuple(entry["shape"]), entry["axis"]
        if not all(type(number) is int for number in (*shape, axis)):
            raise ValueError("shape and axis must be integers")
        return MxRecord(
            element=element_format(entry["element"]),
            rules=_rules_of(entry["rules"]),
            arrangement=Arrangement(layout=Layout(entry["layout"]), axis=axis, shape=shape),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise unusable(path, name, _WANTED, f"a damaged one ({error})") from None


def _plain_rules(rules: RuleSet) -> dict[str, str | int]:
    values = {field.name: getattr(rules, field.name) for field in fields(rules)}
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def _rules_of(plain: Mapping[str, Any]) -> RuleSet:
    """A rule set; a field that older records do not have yet keeps its default, which is what they were made under."""
    values: dict[str, Any] = {}
    for field in fields(RuleSet):
        if field.name not in plain and field.default is not MISSING:
            continue
        value, kind = plain[field.name], field.type
        if isinstance(kind, type) and issubclass(kind, Enum):
            values[field.name] = kind(value)
        elif type(value) is kind:
            values[field.name] = value
        else:
            raise ValueError(f"{field.name} must be {kind}, not {value!r}")
    return RuleSet(**values)
