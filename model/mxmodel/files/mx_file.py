"""MX tensors in files: our own recorded ones, gpt-oss blocks and scales, and FP8/FP4 tensors with E8M0 scales."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxmodel.files.arrangement import Arrangement, Layout, Window
from mxmodel.files.mapped_pages import release_pages
from mxmodel.files.mx_record import RECORD, MxRecord, read_records, record_text
from mxmodel.files.stored_tensor import STORED_FORMATS, StoredTensor, TensorFile, name_list, unusable
from mxmodel.files.tensor_files import is_glob, open_tensor_file, split_spec
from mxmodel.files.tensor_output import PlannedTensor, check_output, tensor_output
from mxmodel.formats import E8M0, FP4_E2M1, MX_BLOCK, ElementFormat
from mxmodel.layout import axis_blocks_of_mx, gpt_oss_blocks, gpt_oss_codes, mx_of_axis_blocks
from mxmodel.quantize import MxTensor
from mxmodel.rules import BIRSIM, RuleSet

__all__ = ["MxOutput", "StoredMx", "mx_names", "mx_output", "pair_mx", "read_mx", "select_mx"]

_CODES, _SCALES = ".codes", ".scales"
_BLOCKS, _BLOCK_SCALES = "_blocks", "_scales"
_SCALE_SUFFIXES = ("_scale", "_scales", ".scale", ".scales", "_scale_inv")
_DEEPSEEK_TILE = 128
_BYTES = np.dtype(np.uint8)


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredMx:
    """One MX tensor of a file, not read yet.

    Attributes
    ----------
    name : of the tensor; its codes and scales have names of their own in the file
    record : element, rule set, arrangement
    codes, scale : where they are
    """

    name: str
    record: MxRecord
    codes: StoredTensor
    scale: StoredTensor

    _codes: NDArray[np.uint8] = field(init=False, repr=False)
    _scale: NDArray[np.uint8] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Mapped now, so that what cannot be used is told before any output is begun.
        object.__setattr__(self, "_codes", _code_bytes(self.codes))
        object.__setattr__(self, "_scale", _scale_bytes(self.scale))

    @property
    def file(self) -> Path:
        return self.codes.file

    def window(self, window: Window) -> MxTensor:
        """The part of the [P, F] tensor that ``window`` names; only that part of the file is touched."""
        layout = self.record.arrangement.layout
        blocks = slice(window.partitions.start // MX_BLOCK.rows, window.partitions.stop // MX_BLOCK.rows)
        if layout.in_tensor_order:
            codes, scale = self._of_axis_blocks(slice(window.columns.start, window.columns.stop), blocks)
        else:
            free = slice(*(self.record.arrangement.free(edge) for edge in (window.columns.start, window.columns.stop)))
            codes = self._codes[window.partitions.start : window.partitions.stop, free]
            scale = self._scale[blocks, free.start // MX_BLOCK.columns : free.stop // MX_BLOCK.columns]
        element = self.record.element
        if element.width < _BYTES.itemsize * 8 and (largest := int(codes.max())) >= element.code_count:
            raise self.codes.unusable(f"{element.name} codes 0..{element.code_count - 1}", f"code {largest}")
        return MxTensor(codes=codes, scale=scale, element=element, rules=self.record.rules)

    def release_pages(self) -> None:
        """Let go of what ``window`` has read of the file; for a caller that walks through it once."""
        release_pages(self._codes)
        release_pages(self._scale)

    def tensor(self) -> MxTensor:
        """The whole [P, F] tensor."""
        return self.window(self.record.arrangement.everything())

    def _of_axis_blocks(self, rows: slice, blocks: slice) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Codes [P, F] and scales of the rows [N] and the blocks of a tensor stored in its own order [..., K]."""
        count = self._scale.shape[-1]
        scale = self._scale.reshape(-1, count)[rows, blocks]
        stored = self._codes.reshape(self._scale.size // count, count, -1)[rows, blocks]
        if self.codes.type == "F4" or self.record.arrangement.layout is Layout.GPT_OSS:
            codes = gpt_oss_codes(np.ascontiguousarray(stored))
        else:
            codes = stored.reshape(stored.shape[0], -1)
        return mx_of_axis_blocks(codes, scale)


def mx_names(file: TensorFile) -> list[str]:
    """Names of the MX tensors in ``file``, in its order: recorded ones, gpt-oss pairs, FP8/FP4 tensors with scales."""
    if RECORD in file.metadata:
        return list(read_records(file.path, file.metadata[RECORD]))
    names = []
    for name, stored in file.tensors.items():
        root = name.removesuffix(_BLOCKS)
        pair = root != name and stored.type == "uint8" and root + _BLOCK_SCALES in file.tensors
        if pair or (_is_element(stored) and _scale_of(file, name)):
            names.append(root)
    return names


def select_mx(spec: str, rules: RuleSet | None = None) -> list[StoredMx]:
    """The MX tensors that ``spec`` names: all of ``FILE``, or those of ``FILE::TENSOR`` / ``FILE::GLOB``.

    Parameters
    ----------
    rules : for tensors without a record; None: BIRSIM. A record's own rule set stands, and no other may be asked for

    Raises
    ------
    BadInput in one line: as ``open_tensor_file``; no MX tensor of that name; codes and scales that do not fit (both
    shapes are named); scales that are not E8M0 bytes; scales of 128 x 128 tiles (DeepSeek), which are not MX
    """
    path, pattern = split_spec(spec)
    file = open_tensor_file(path)
    names = mx_names(file)
    if pattern in names:
        names = [pattern]
    elif pattern is not None:
        if not is_glob(pattern):
            _refuse_lone_codes(file, pattern)
        names = [name for name in names if fnmatchcase(name, pattern)]
    if not names:
        found = f"only {name_list(dict.fromkeys(mx_names(file)))}" if mx_names(file) else "none (quantize makes one)"
        raise unusable(path, pattern, "an MX tensor", found)
    return [_open(file, name, rules) for name in names]


def read_mx(spec: str, rules: RuleSet | None = None) -> StoredMx:
    """The one MX tensor that ``spec`` names; ``BadInput`` as ``select_mx``, and listing the names if there are more."""
    chosen = select_mx(spec, rules)
    if len(chosen) > 1:
        path, pattern = split_spec(spec)
        names = name_list(dict.fromkeys(entry.name for entry in chosen))
        raise unusable(path, pattern, "one MX tensor, named as FILE::TENSOR", f"{len(chosen)}: {names}")
    return chosen[0]


def pair_mx(codes: StoredTensor, scale: StoredTensor, element: ElementFormat, rules: RuleSet = BIRSIM) -> StoredMx:
    """Codes and scales that no record ties together.

    Scales of shape [..., K/32] make blocks of 32 along the last axis (OCP); of shape [P/8, F/4], blocks of 8 x 4.
    ``BadInput`` as ``select_mx``.
    """
    codes.require_elements()
    shape = codes.shape
    for layout in (Layout.OCP, Layout.TILE):
        if len(shape) < 2 or (layout is Layout.TILE and (len(shape) > 2 or codes.type == "F4")):
            continue
        arrangement = Arrangement(layout=layout, axis=0 if layout is Layout.TILE else len(shape) - 1, shape=shape)
        record = MxRecord(element=element, rules=rules, arrangement=arrangement)
        if arrangement.padding == 0 and _planned(record)[1].shape == scale.shape:
            return StoredMx(name=codes.name, record=record, codes=codes, scale=scale)
    raise _misfit(codes, scale, f"[..., K/{MX_BLOCK.size}] or [P/{MX_BLOCK.rows}, F/{MX_BLOCK.columns}]")


def _open(file: TensorFile, name: str, rules: RuleSet | None) -> StoredMx:
    if RECORD in file.metadata:
        record = read_records(file.path, file.metadata[RECORD])[name]
        if rules is not None and rules != record.rules:
            raise unusable(file.path, name, f"rules {rules.name}, as asked", f"a tensor made with {record.rules.name}")
        codes, scale = (file.tensor(part) for part in _part_names(name, record))
        for part, planned in zip((codes, scale), _planned(record), strict=True):
            if part.shape != planned.shape:
                raise _misfit(codes, scale, f"{planned.shape} for {part.name}, as recorded")
        return StoredMx(name=name, record=record, codes=codes, scale=scale)
    rules = BIRSIM if rules is None else rules
    if name + _BLOCKS in file.tensors:
        return _gpt_oss(file, name, rules)
    codes = file.tensor(name)
    element = STORED_FORMATS[codes.type]
    assert isinstance(element, ElementFormat)
    return pair_mx(codes, file.tensor(_scale_of(file, name)), element, rules)


def _gpt_oss(file: TensorFile, name: str, rules: RuleSet) -> StoredMx:
    codes, scale = file.tensor(name + _BLOCKS), file.tensor(name + _BLOCK_SCALES)
    codes.require_elements()
    if len(codes.shape) < 3 or codes.shape[-1] != MX_BLOCK.size // 2 or scale.shape != codes.shape[:-1]:
        raise _misfit(
            codes, scale, f"[..., K/{MX_BLOCK.size}] for blocks [..., K/{MX_BLOCK.size}, {MX_BLOCK.size // 2}]"
        )
    shape = (*scale.shape[:-1], scale.shape[-1] * MX_BLOCK.size)
    arrangement = Arrangement(layout=Layout.GPT_OSS, axis=len(shape) - 1, shape=shape)
    record = MxRecord(element=FP4_E2M1, rules=rules, arrangement=arrangement)
    return StoredMx(name=name, record=record, codes=codes, scale=scale)


def _code_bytes(stored: StoredTensor) -> NDArray[np.uint8]:
    if stored.type not in ("uint8", "V1") and not _is_element(stored):
        raise stored.unusable("element codes (uint8)", stored.type)
    return stored.load().view(np.uint8)


def _scale_bytes(stored: StoredTensor) -> NDArray[np.uint8]:
    """E8M0 bytes; scales of another type only when every value is an integer 0..255."""
    values = stored.load()
    if stored.type in ("uint8", "V1") or STORED_FORMATS.get(stored.type) is E8M0:
        return values.view(np.uint8)
    wanted = f"E8M0 scale bytes (uint8, or integers 0..{E8M0.max_byte})"
    if values.dtype.kind in "iu" or stored.type in ("float16", "bfloat16", "float32", "float64"):
        numbers = values.astype(np.float64)
        good = (numbers >= 0) & (numbers <= E8M0.max_byte) & (numbers == np.floor(numbers))
        if not good.all():
            raise stored.unusable(wanted, f"{stored.type} with the value {numbers[~good].flat[0]:g}")
        return numbers.astype(np.uint8)
    raise stored.unusable(wanted, stored.type)


def _misfit(codes: StoredTensor, scale: StoredTensor, wanted: str) -> Exception:
    tiles = tuple(-(-length // _DEEPSEEK_TILE) for length in codes.shape[-2:])
    if len(codes.shape) >= 2 and scale.shape == (*codes.shape[:-2], *tiles):
        return scale.unusable(
            f"a scale for every {MX_BLOCK.size} elements",
            f"{scale.type} {scale.shape} for {codes.name} {codes.shape}: "
            f"DeepSeek's {_DEEPSEEK_TILE}x{_DEEPSEEK_TILE} scales, which are not MX",
        )
    return scale.unusable(f"scales that fit, {wanted}", f"scales {scale.shape} for {codes.name} {codes.shape}")


def _is_element(stored: StoredTensor) -> bool:
    return isinstance(STORED_FORMATS.get(stored.type), ElementFormat)


def _scale_of(file: TensorFile, name: str) -> str:
    """The name of the scale tensor that goes with ``name``; empty if there is none."""
    return next((name + suffix for suffix in _SCALE_SUFFIXES if name + suffix in file.tensors), "")


def _refuse_lone_codes(file: TensorFile, name: str) -> None:
    """``BadInput`` that says what is missing, if ``name`` is half of an MX tensor."""
    if name in file.tensors and _is_element(file.tensors[name]):
        wanted = f"scales beside it ({', '.join(name + suffix for suffix in _SCALE_SUFFIXES[:2])})"
        raise file.tensors[name].unusable(wanted, f"{file.tensors[name].type} alone")


def _part_names(name: str, record: MxRecord) -> tuple[str, str]:
    if record.arrangement.layout is Layout.GPT_OSS:
        return name + _BLOCKS, name + _BLOCK_SCALES
    return name + _CODES, name + _SCALES


def _planned(record: MxRecord) -> tuple[PlannedTensor, PlannedTensor]:
    """Codes and scales as they lie in a file."""
    arrangement = record.arrangement
    codes, scale = arrangement.codes_shape, arrangement.scale_shape
    if not arrangement.layout.in_tensor_order:
        return PlannedTensor(dtype=_BYTES, shape=codes), PlannedTensor(dtype=_BYTES, shape=scale)
    leading, blocks = arrangement.shape[:-1], scale[0]
    last = (blocks, MX_BLOCK.size // 2) if arrangement.layout is Layout.GPT_OSS else (blocks * MX_BLOCK.size,)
    return PlannedTensor(dtype=_BYTES, shape=(*leading, *last)), PlannedTensor(dtype=_BYTES, shape=(*leading, blocks))


class MxOutput:
    """MX tensors of one file, filled in the order of the records by ``append``."""

    def __init__(self, records: Mapping[str, MxRecord], append: Callable[[NDArray[np.uint8]], None]) -> None:
        self._append_to_file = append
        self._waiting = iter(records.values())
        self._next()

    def append(self, chunk: MxTensor) -> None:
        """The next window, in the order of ``Arrangement.storage_windows``, of the tensor whose turn it is."""
        codes, scale = chunk.codes, chunk.scale
        if self._layout.in_tensor_order:
            codes, scale = axis_blocks_of_mx(codes, scale)
        if self._layout is Layout.GPT_OSS:
            codes = gpt_oss_blocks(codes)
        self._append_to_file(codes)
        self._left -= codes.size
        self._scales.append(scale)
        if self._left == 0:
            # Scales follow the codes in the file, and are a thirty-second of them.
            for scale in self._scales:
                self._append_to_file(scale)
            self._next()

    def _next(self) -> None:
        record = next(self._waiting, None)
        if record is not None:
            self._layout = record.arrangement.layout
            self._left = prod(_planned(record)[0].shape)
            self._scales: list[NDArray[np.uint8]] = []


@contextmanager
def mx_output(path: Path, records: Mapping[str, MxRecord]) -> Iterator[MxOutput]:
    """A .safetensors or .npz file of MX tensors with their record; it appears when all of them are written.

    Names: codes and scales are NAME.codes and NAME.scales; in the gpt_oss layout NAME_blocks and NAME_scales.
    ``BadInput`` as ``tensor_output``, or if an element cannot be stored in the layout asked for.
    """
    plan: dict[str, PlannedTensor] = {}
    for name, record in records.items():
        if record.arrangement.layout is Layout.GPT_OSS and record.element != FP4_E2M1:
            raise unusable(path, name, f"{FP4_E2M1.name} for layout {Layout.GPT_OSS.value}", record.element.name)
        plan.update(zip(_part_names(name, record), _planned(record), strict=True))
    check_output(path, len(plan), with_metadata=True)
    with tensor_output(path, plan, {RECORD: record_text(records)}) as output:
        yield MxOutput(records, output.append)
