"""Every row of the vectors through the RTL of the catalogue, on every simulator; expected values are the files' own.

All rows of a file go through one top. An entry is held to the rows of its own element and rule sets; on the rows of
others it is held to the golden twin, and those are not counted.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import CATALOG, Block, Entry
from mxmodel.formats import FP32
from mxmodel.rules import DequantPolicy, NanCode, NarrowPolicy, Scale255
from mxtb.blocks import golden, group
from mxtb.lanes import Top, compare
from mxtb.simulators import Simulator

VECTORS = Path(__file__).parent / "vectors"
Row = dict[str, Any]


def _rows(name: str) -> list[Row]:
    return list(json.loads((VECTORS / f"{name}.json").read_text())["rows"])


def _column(rows: list[Row], key: str, dtype: str) -> NDArray[Any]:
    return np.array([int(row[key], 16) if isinstance(row[key], str) else row[key] for row in rows], dtype=dtype)


def _top(block: Block, *, scaled: bool) -> Top:
    groups = [entries for entries in group(CATALOG) if entries[0].source in (FP32, None)]
    (entries,) = [g for g in groups if g[0].block is block and g[0].scaled == scaled]
    return Top(entries=entries)


def _hold(
    simulator: Simulator,
    top: Top,
    inputs: dict[str, NDArray[Any]],
    rows: list[Row],
    says: Callable[[Entry, Row], int | None],
    bench: Path,
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
    outcome = compare(simulator, top, inputs, expected, directory=bench)
    assert not any(outcome.mismatches.values()), outcome.first[:5]
    assert sum(outcome.compared.values()) == len(rows) * len(top.entries)
    return held


def _serves(entry: Entry, row: Row) -> bool:
    return any((e.name, r.name) == (row["element"], row["rules"]) for e, r in entry.serves())


def test_narrow_rows(simulator: Simulator, bench: Path) -> None:
    """183 rows, FP8 under both NaN policies (N-1..N-4)."""
    rows = _rows("narrow")

    def says(entry: Entry, row: Row) -> int | None:
        assert isinstance(entry.policy, NarrowPolicy)
        if entry.policy.element.name != row["element"]:
            return None
        return int(row["propagate" if entry.policy.nan is NanCode.PROPAGATE else "zero"], 16)

    top = _top(Block.NARROW, scaled=False)
    assert _hold(simulator, top, {"x": _column(rows, "x", "uint32")}, rows, says, bench) == 61 * 5


def test_narrow_scaled_rows(simulator: Simulator, bench: Path) -> None:
    """3120 rows less the 416 of FP4 under the two rule sets that refuse to write it (N-5, N-6)."""
    rows = _rows("narrow_scaled")

    def says(entry: Entry, row: Row) -> int | None:
        return int(row["code"], 16) if _serves(entry, row) else None

    inputs = {"x": _column(rows, "x", "uint32"), "scale": _column(rows, "scale", "uint8")}
    top = _top(Block.NARROW, scaled=True)
    assert _hold(simulator, top, inputs, rows, says, bench) == 3120 - 416


def test_ldexp_rows(simulator: Simulator, bench: Path) -> None:
    """840 rows under both meanings of scale 255 (D-1..D-4)."""
    rows = _rows("ldexp")

    def says(entry: Entry, row: Row) -> int | None:
        assert isinstance(entry.policy, DequantPolicy)
        if entry.policy.element.name != row["element"]:
            return None
        return int(row["nan_scale" if entry.policy.scale_255 is Scale255.NAN else "ldexp"], 16)

    inputs = {"code": _column(rows, "code", "uint8"), "scale": _column(rows, "scale", "uint8")}
    assert _hold(simulator, _top(Block.LDEXP, scaled=True), inputs, rows, says, bench) == 840 * 2


def test_quantize_rows(simulator: Simulator, bench: Path) -> None:
    """195 blocks: the RTL's shared exponent, then the RTL's encoder driven with that scale (E, N, Q-3)."""
    rows = _rows("quantize")
    words = np.array([[int(word, 16) for word in row["x"]] for row in rows], dtype="uint32")

    def scale_says(entry: Entry, row: Row) -> int | None:
        return int(row["scale"]) if _serves(entry, row) else None

    top = _top(Block.SHARED_EXPONENT, scaled=False)
    assert _hold(simulator, top, {"x": words}, rows, scale_says, bench) == 195

    elements = [
        {"element": row["element"], "rules": row["rules"], "code": code} for row in rows for code in row["codes"]
    ]

    def code_says(entry: Entry, row: Row) -> int | None:
        return int(row["code"], 16) if _serves(entry, row) else None

    inputs = {"x": words.reshape(-1), "scale": _column(rows, "scale", "uint8").repeat(32)}
    assert _hold(simulator, _top(Block.NARROW, scaled=True), inputs, elements, code_says, bench) == 195 * 32
