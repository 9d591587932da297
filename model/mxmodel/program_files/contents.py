"""What a tensor of a program holds, or must hold: from a file, from numbers, bits or hexadecimal digits in the YAML."""

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.access_pattern import AccessPattern
from mxmodel.bad_input import BadInput
from mxmodel.files.mx_file import read_mx
from mxmodel.files.tensor_files import select_tensors
from mxmodel.layout import pack_x4
from mxmodel.memory_object import MemoryObject, container_dtype
from mxmodel.program_files.fields import Nested, parsed_slices
from mxmodel.program_files.yaml_document import Item
from mxmodel.rules import RuleSet

__all__ = ["ContentsSpec", "MxPart", "contents_of"]


class MxPart(Enum):
    """What of an MX tensor in a file: its codes as x4 words, or its scale bytes."""

    CODES = "codes"
    SCALES = "scales"


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


_SOURCES = ("file", "values", "bits", "hex")


def contents_of(item: Item, spec: ContentsSpec, place: AccessPattern, rules: RuleSet) -> NDArray[Any] | None:
    """The containers that a spec gives, of the shape of ``place``.

    An MX tensor must be one that ``rules`` dequantise as those do that made it (M-3).
    """
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
        return _from_file(field, item.value.get("slice"), spec, place, rules)
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


def _from_file(item: Item, cut: Item | None, spec: ContentsSpec, place: AccessPattern, rules: RuleSet) -> NDArray[Any]:
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
            if tensor.rules.dequant_policy(tensor.element) != rules.dequant_policy(tensor.element):
                raise BadInput(
                    f"wanted a tensor that rules {rules.name} read as it was made, found one of "
                    f"{tensor.rules.name} (D-3)"
                )
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
