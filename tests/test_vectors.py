"""The exact vectors of contract N, E, Q and D: model and oracle must both give every row.

The rows were computed apart from either, so oracle, vectors and model form a triangle. Every test that walks rows
asserts how many there were.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import oracle
import pytest

from mxmodel.formats import element_format
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import RULE_SETS, RuleSet, rule_set
from mxmodel.shared_exponent import shared_exponent

FOLDER = Path(__file__).parent / "vectors"

NAN_COLUMN = {
    "birsim": "zero",
    "birsim_alt": "zero",
    "nki_sim": "propagate",
    "device": "propagate",
    "ocp": "propagate",
}
"""Table R, "FP8 NaN out": the column of narrow.json that a rule set must give."""

DEQUANT_COLUMN = {
    "birsim": "ldexp",
    "birsim_alt": "ldexp",
    "nki_sim": "ldexp",
    "device": "nan_scale",
    "ocp": "nan_scale",
}
"""Table R, "scale 255 on dequant": the column of ldexp.json that a rule set must give."""

each_rule_set = pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)


def rows_of(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((FOLDER / name).read_text())["rows"]
    return rows


def by_element(rows: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    def element(row: dict[str, Any]) -> str:
        return str(row["element"])

    for name, group in groupby(sorted(rows, key=element), key=element):
        yield name, list(group)


def numbers(rows: list[dict[str, Any]], column: str) -> list[int]:
    """A column as whole numbers, whether written 5 or "0x5"."""
    return [int(str(row[column]), 0) for row in rows]


def fp32(bits: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(bits, dtype=np.uint32).view(np.float32)


def test_the_manifest_names_every_vector_file_and_its_digest() -> None:
    lines = [line.split() for line in (FOLDER / "SHA256SUMS").read_text().splitlines()]
    manifest = {name: digest for digest, name in lines}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FOLDER.glob("*.json")}
    assert found == manifest
    assert len(found) == 4


def test_every_rule_set_has_its_column() -> None:
    names = {rules.name for rules in RULE_SETS}
    assert len(names) == 5
    assert names == set(NAN_COLUMN) == set(DEQUANT_COLUMN) == set(oracle.RULES)


@each_rule_set
def test_n1_to_n4_narrow_rows_in_the_model(rules: RuleSet) -> None:
    compared = 0
    for element, rows in by_element(rows_of("narrow.json")):
        x = numbers(rows, "x")
        wanted = numbers(rows, NAN_COLUMN[rules.name])
        assert narrow(fp32(x), element_format(element), rules=rules).tolist() == wanted
        compared += len(rows)
    assert compared == 183


@each_rule_set
def test_n1_to_n4_narrow_rows_that_bf16_holds_in_the_model(rules: RuleSet) -> None:
    compared = 0
    for element, rows in by_element(rows_of("narrow.json")):
        rows = [row for row in rows if int(row["x"], 0) % (1 << 16) == 0]
        x = np.array(numbers(rows, "x"), dtype=np.uint32)
        bf16 = (x >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)
        wanted = numbers(rows, NAN_COLUMN[rules.name])
        assert narrow(bf16, element_format(element), rules=rules).tolist() == wanted
        compared += len(rows)
    assert compared == 114


@each_rule_set
def test_n1_to_n4_narrow_rows_in_the_oracle(rules: RuleSet) -> None:
    compared = 0
    for row in rows_of("narrow.json"):
        wanted = int(row[NAN_COLUMN[rules.name]], 0)
        assert oracle.narrow(int(row["x"], 0), row["element"], rules.name) == wanted, row
        compared += 1
    assert compared == 183


@each_rule_set
def test_n5_n6_scaled_rows_in_the_model(rules: RuleSet) -> None:
    compared = 0
    for element, rows in by_element([row for row in rows_of("narrow_scaled.json") if row["rules"] == rules.name]):
        scale = np.array(numbers(rows, "scale"), dtype=np.uint8)
        codes = narrow(fp32(numbers(rows, "x")), element_format(element), scale=scale, rules=rules)
        assert codes.tolist() == numbers(rows, "code")
        compared += len(rows)
    assert compared == 3120 // 5


def test_n5_n6_scaled_rows_in_the_oracle() -> None:
    compared = 0
    for row in rows_of("narrow_scaled.json"):
        code = oracle.narrow(int(row["x"], 0), row["element"], row["rules"], scale=row["scale"])
        assert code == int(row["code"], 0), row
        compared += 1
    assert compared == 3120


@each_rule_set
def test_d_ldexp_rows_in_the_model(rules: RuleSet) -> None:
    compared = 0
    for element, rows in by_element(rows_of("ldexp.json")):
        codes = np.array(numbers(rows, "code"), dtype=np.uint8)
        scale = np.array(numbers(rows, "scale"), dtype=np.uint8)
        values = ldexp(codes, scale, element_format(element), rules)
        assert values.view(np.uint32).tolist() == numbers(rows, DEQUANT_COLUMN[rules.name])
        compared += len(rows)
    assert compared == 840


@each_rule_set
def test_d_ldexp_rows_in_the_oracle(rules: RuleSet) -> None:
    compared = 0
    for row in rows_of("ldexp.json"):
        bits = oracle.ldexp(int(row["code"], 0), row["scale"], row["element"], rules.name)
        assert bits == int(row[DEQUANT_COLUMN[rules.name]], 0), row
        compared += 1
    assert compared == 840


def test_e_q_quantize_rows_in_the_model() -> None:
    compared = 0
    for row in rows_of("quantize.json"):
        element, rules = element_format(row["element"]), rule_set(row["rules"])
        x = fp32([int(word, 0) for word in row["x"]]).reshape(8, 4)
        scale = shared_exponent(x, element, rules)
        assert scale.tolist() == [[row["scale"]]], row
        codes = narrow(x, element, scale=scale, rules=rules)
        assert codes.ravel().tolist() == [int(word, 0) for word in row["codes"]], row
        compared += codes.size
    assert compared == 195 * 32


def test_e2_q_quantize_rows_side_by_side_in_the_model() -> None:
    """All blocks of one element and rule set as one tensor [8, 4·n]: a block must not see its neighbours."""
    compared = 0
    rows = rows_of("quantize.json")
    for element_name, rules_name in sorted({(row["element"], row["rules"]) for row in rows}):
        group = [row for row in rows if (row["element"], row["rules"]) == (element_name, rules_name)]
        element, rules = element_format(element_name), rule_set(rules_name)
        x = np.hstack([fp32([int(word, 0) for word in row["x"]]).reshape(8, 4) for row in group])
        wanted = np.hstack([np.array([int(word, 0) for word in row["codes"]]).reshape(8, 4) for row in group])
        scale = shared_exponent(x, element, rules)
        assert scale.tolist() == [[row["scale"] for row in group]]
        codes = narrow(x, element, scale=scale.repeat(8, axis=0).repeat(4, axis=1), rules=rules)
        assert codes.tolist() == wanted.tolist()
        compared += len(group)
    assert compared == 195


def test_e_q_quantize_rows_in_the_oracle() -> None:
    compared = 0
    for row in rows_of("quantize.json"):
        scale, codes = oracle.quantize([int(word, 0) for word in row["x"]], row["element"], row["rules"])
        assert scale == row["scale"], row
        assert codes == [int(word, 0) for word in row["codes"]], row
        compared += 1
    assert compared == 195
