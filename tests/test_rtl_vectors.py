"""Every row of the vectors through every entry it concerns, on every simulator; expected values are the files' own.

All rows that a source can hold go through one top. An entry is held to the rows of its own element and rule sets; on
the rows of others it is held to the golden twin, and those are not counted.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxhw.catalog import CATALOG, Block, Entry, Form
from mxhw.multi_format import format_number
from mxmodel.formats import BF16, FP16, FP32, SourceFormat, element_format
from mxmodel.rules import NanCode, NarrowPolicy
from mxmodel.widen import widen_bits
from mxtb.blocks import golden, group
from mxtb.lanes import Top, compare
from mxtb.simulators import Simulator
from mxtb.stimulus import every_pattern
from mxtb.streams import StreamTop, beats_of, compare_streams

VECTORS = Path(__file__).parent / "vectors"
Row = dict[str, Any]


def _rows(name: str) -> list[Row]:
    return list(json.loads((VECTORS / f"{name}.json").read_text())["rows"])


def _column(rows: list[Row], key: str, dtype: str) -> NDArray[Any]:
    return np.array([int(row[key], 16) if isinstance(row[key], str) else row[key] for row in rows], dtype=dtype)


def _narrowed(words: NDArray[np.uint32], source: SourceFormat) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """``words`` as patterns of ``source``, and which of them it can hold exactly, payloads included."""
    if source is FP32:
        return words, np.ones(words.shape, dtype=bool)
    patterns = every_pattern(source)
    held = {int(wide): int(pattern) for wide, pattern in zip(widen_bits(patterns, source), patterns, strict=True)}
    fits = np.array([int(word) in held for word in words.reshape(-1)]).reshape(words.shape)
    return np.array([held.get(int(w), 0) for w in words.reshape(-1)], dtype=patterns.dtype).reshape(words.shape), fits


def _top(block: Block, source: SourceFormat | None, form: Form, *, scaled: bool) -> Top:
    combinational = (entry for entry in CATALOG if not entry.clocked)
    wanted = (block, source, form, scaled)
    (entries,) = [g for g in group(combinational) if (g[0].block, g[0].source, g[0].form, g[0].scaled) == wanted]
    return Top(entries=entries)


def _hold(
    simulator: Simulator,
    top: Top,
    inputs: dict[str, NDArray[Any]],
    rows: list[Row],
    says: Callable[[Entry, Row], int | None],
    bench: Path,
    tmp_path: Path,
) -> int:
    """Simulate; every output that ``says`` names a value for must be that value. Returns how many it named."""
    expected, held = [], 0
    for entry in top.entries:
        wanted = golden(entry, inputs).copy()
        for index, row in enumerate(rows):
            value = says(entry, row)
            if value is not None:
                wanted[index] = value
                held += 1
        expected.append(wanted)
    outcome = compare(simulator, top, inputs, expected, work=tmp_path / "run", cache=bench)
    assert not any(outcome.mismatches.values()), outcome.first[:5]
    assert sum(outcome.compared.values()) == len(rows) * len(top.entries)
    return held


def _serves(entry: Entry, row: Row) -> bool:
    return any((e.name, r.name) == (row["element"], row["rules"]) for e, r in entry.serves())


def _code(entry: Entry, row: Row) -> int | None:
    return int(row["code"], 16) if _serves(entry, row) else None


def _says_value(entry: Entry, row: Row) -> int | None:
    """The fp32 bits of an ``ldexp.json`` row, if one of the entry's policies is of its element."""
    for policy in entry.policies:
        if policy.element.name == row["element"]:  # type: ignore[union-attr]
            return int(row["nan_scale" if policy.name.endswith("nan255") else "ldexp"], 16)
    return None


@pytest.mark.parametrize(
    ("source", "count"), [(FP32, 61), (BF16, 38), (FP16, 40)], ids=lambda v: getattr(v, "name", "")
)
def test_narrow_rows(simulator: Simulator, bench: Path, tmp_path: Path, source: SourceFormat, count: int) -> None:
    """183 rows, FP8 under both NaN policies (N-1..N-4); a 16-bit source takes those that it can hold."""
    rows = _rows("narrow")
    words, fits = _narrowed(_column(rows, "x", "uint32"), source)
    kept = [row for row, fit in zip(rows, fits, strict=True) if fit]

    def says(entry: Entry, row: Row) -> int | None:
        assert isinstance(entry.policy, NarrowPolicy)
        if entry.policy.element.name != row["element"]:
            return None
        return int(row["propagate" if entry.policy.nan is NanCode.PROPAGATE else "zero"], 16)

    top = _top(Block.NARROW, source, Form.LANE, scaled=False)
    assert _hold(simulator, top, {"x": words[fits]}, kept, says, bench, tmp_path) == count * 5


@pytest.mark.parametrize(
    ("source", "form", "count"),
    [
        (FP32, Form.LANE, 3120 - 416),  # FP4 under the two rule sets that refuse to write it
        (FP32, Form.MULTI_FORMAT, 3120 - 416),
        (BF16, Form.LANE, None),
        (FP16, Form.LANE, None),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_narrow_scaled_rows(
    simulator: Simulator, bench: Path, tmp_path: Path, source: SourceFormat, form: Form, count: int | None
) -> None:
    """Every row at its live scale (N-5, N-6)."""
    rows = _rows("narrow_scaled")
    words, fits = _narrowed(_column(rows, "x", "uint32"), source)
    kept = [row for row, fit in zip(rows, fits, strict=True) if fit]
    inputs = {"x": words[fits], "scale": _column(kept, "scale", "uint8")}
    if form is Form.MULTI_FORMAT:
        inputs["format"] = np.array([format_number(element_format(row["element"])) for row in kept], dtype=np.uint8)
    top = _top(Block.NARROW, source, form, scaled=True)
    held = _hold(simulator, top, inputs, kept, _code, bench, tmp_path)
    served = {pair for entry in top.entries for pair in ((e.name, r.name) for e, r in entry.serves())}
    assert held == sum((row["element"], row["rules"]) in served for row in kept)
    assert held == count if count is not None else held > 300


@pytest.mark.parametrize(("form", "count"), [(Form.LANE, 840 * 2), (Form.MULTI_FORMAT, 840)])
def test_ldexp_rows(simulator: Simulator, bench: Path, tmp_path: Path, form: Form, count: int) -> None:
    """840 rows under both meanings of scale 255 (D-1..D-4)."""
    rows = _rows("ldexp")
    inputs = {"code": _column(rows, "code", "uint8"), "scale": _column(rows, "scale", "uint8")}
    if form is Form.MULTI_FORMAT:
        inputs["format"] = np.array([format_number(element_format(row["element"])) for row in rows], dtype=np.uint8)
    top = _top(Block.LDEXP, None, form, scaled=True)
    assert _hold(simulator, top, inputs, rows, _says_value, bench, tmp_path) == count


def _blocks(rows: list[Row], source: SourceFormat) -> tuple[NDArray[Any], list[Row]]:
    words = np.array([[int(word, 16) for word in row["x"]] for row in rows], dtype="uint32")
    patterns, fits = _narrowed(words, source)
    whole = fits.all(axis=1)
    return patterns[whole], [row for row, fit in zip(rows, whole, strict=True) if fit]


def _scale(entry: Entry, row: Row) -> int | None:
    return int(row["scale"]) if _serves(entry, row) else None


def test_quantize_rows(simulator: Simulator, bench: Path, tmp_path: Path) -> None:
    """195 blocks: the RTL's shared exponent, then the RTL's encoder driven with that scale (E, N, Q-3)."""
    words, rows = _blocks(_rows("quantize"), FP32)
    exponent = _top(Block.SHARED_EXPONENT, FP32, Form.LANE, scaled=False)
    assert _hold(simulator, exponent, {"x": words}, rows, _scale, bench, tmp_path) == 195
    elements = [
        {"element": row["element"], "rules": row["rules"], "code": code} for row in rows for code in row["codes"]
    ]
    inputs = {"x": words.reshape(-1), "scale": _column(rows, "scale", "uint8").repeat(32)}
    encoder = _top(Block.NARROW, FP32, Form.LANE, scaled=True)
    assert _hold(simulator, encoder, inputs, elements, _code, bench, tmp_path) == 195 * 32


@pytest.mark.parametrize("source", [BF16, FP16], ids=lambda source: source.name)
def test_quantize_scales_from_short_sources(
    simulator: Simulator, bench: Path, tmp_path: Path, source: SourceFormat
) -> None:
    """The blocks that a 16-bit source can hold, through its own shared-exponent unit."""
    words, rows = _blocks(_rows("quantize"), source)
    top = _top(Block.SHARED_EXPONENT, source, Form.LANE, scaled=False)
    assert _hold(simulator, top, {"x": words}, rows, _scale, bench, tmp_path) >= 4


def test_rows_through_the_streams(simulator: Simulator, bench: Path, tmp_path: Path) -> None:
    """The same rows as beats: a row's value or code in all lanes of a beat, a block in several beats."""
    top = StreamTop(entries=tuple(entry for entry in CATALOG if entry.clocked))
    beats, held = {}, {}
    for entry in top.entries:
        if entry.block is Block.SHARED_EXPONENT:
            assert entry.source is not None
            words, rows = _blocks(_rows("quantize"), entry.source)
            own = [index for index, row in enumerate(rows) if _serves(entry, row)]
            inputs = {"x": words[own]}
            wanted = np.array([rows[index]["scale"] for index in own], dtype="<u1")[:, None]
        elif entry.block is Block.NARROW:
            rows = [row for row in _rows("narrow_scaled") if _serves(entry, row)]
            assert entry.source is not None
            words, fits = _narrowed(_column(rows, "x", "uint32"), entry.source)
            rows = [row for row, fit in zip(rows, fits, strict=True) if fit]
            inputs = {"x": words[fits].repeat(8), "scale": _column(rows, "scale", "uint8").repeat(8)}
            wanted = _column(rows, "code", "uint8").repeat(8).reshape(-1, 8)
        else:
            rows = [row for row in _rows("ldexp") if row["element"] == entry.elements[0].name]
            inputs = {
                "code": _column(rows, "code", "uint8").repeat(8),
                "scale": _column(rows, "scale", "uint8").repeat(8),
            }
            wanted = _column(rows, "ldexp", "<u4").repeat(8).reshape(-1, 8)
        expected = np.ascontiguousarray(wanted).view(np.uint8).reshape(len(wanted), -1)
        beats[entry.name] = replace(beats_of(entry, inputs), expected=expected)
        held[entry.name] = wanted.size
    outcome = compare_streams(simulator, top, beats, seed=5, work=tmp_path / "run", cache=bench)
    assert not any(outcome.mismatches.values()), outcome.first[:5]
    assert outcome.compared == held
    assert min(held.values()) >= 4
