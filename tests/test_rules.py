"""Contract R: rule sets as data, their projections to policies, and what the projections leave out."""

import dataclasses
import inspect
import re
from typing import Any

import pytest

from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow
from mxmodel.rules import (
    BIRSIM,
    BIRSIM_ALT,
    DEVICE,
    NKI_SIM,
    OCP,
    RULE_SETS,
    BelowZero,
    NanCode,
    NonFiniteBlock,
    PreScale,
    QuantizeToFp4,
    RuleSet,
    Scale255,
    rule_set,
)
from mxmodel.shared_exponent import shared_exponent

PERMITTED = [
    (element, rules)
    for rules in RULE_SETS
    for element in ELEMENTS
    if not (element == FP4_E2M1 and rules.name in {"nki_sim", "device"})
]
"""Every element × rule set that a whole-block quantise may write: table R, "quantise to FP4"."""

R_TABLE = [
    # rules, EMAX less, result below zero, Inf/NaN block, pre-scale, NaN out, 255 in, 255 out, quantise to FP4
    ("birsim", 0, "clamp_to_one", "no_special_case", "fp32_product", "zero", "power", "power", True),
    ("birsim_alt", 1, "clamp_to_one", "no_special_case", "fp32_product", "zero", "power", "power", True),
    ("nki_sim", 0, "wrap", "no_special_case", "exact", "propagate", "power", "power", False),
    ("device", 1, "clamp_to_zero", "no_special_case", "exact", "propagate", "power", "nan", False),
    ("ocp", 0, "clamp_to_zero", "scale_255", "exact", "propagate", "nan", "nan", True),
]


@pytest.mark.parametrize("row", R_TABLE, ids=lambda row: row[0])
def test_r_table(row: tuple[Any, ...]) -> None:
    name, less, below_zero, non_finite, pre_scale, nan, scale_255_in, scale_255_out, fp4 = row
    rules = rule_set(name)
    assert rules.name == name
    assert (rules.emax_reduction, rules.fp4_emax_reduction) == (less, less)
    assert rules.below_zero is BelowZero(below_zero)
    assert rules.non_finite is NonFiniteBlock(non_finite)
    assert rules.pre_scale is PreScale(pre_scale)
    assert rules.nan is NanCode(nan)
    assert rules.narrow_scale_255 is Scale255(scale_255_in)
    assert rules.dequant_scale_255 is Scale255(scale_255_out)
    assert rules.quantize_to_fp4 is (QuantizeToFp4.ALLOWED if fp4 else QuantizeToFp4.REFUSED)


def test_r_names_and_objects() -> None:
    assert RULE_SETS == (BIRSIM, BIRSIM_ALT, NKI_SIM, DEVICE, OCP)
    assert [rules.name for rules in RULE_SETS] == [row[0] for row in R_TABLE]
    assert all(rule_set(rules.name) is rules for rules in RULE_SETS)


def test_n7_permitted_pairs_are_those_that_quantise_may_write() -> None:
    assert len(PERMITTED) == 13
    assert [(e, r) for r in RULE_SETS for e in ELEMENTS if r.writes(e)] == PERMITTED


@pytest.mark.parametrize(
    ("element", "amounts"), [(FP4_E2M1, (2, 1, 2, 1, 2)), (FP8_E4M3, (8, 7, 8, 7, 8)), (FP8_E5M2, (15, 14, 15, 14, 15))]
)
def test_e3_amount_taken_off(element: ElementFormat, amounts: tuple[int, ...]) -> None:
    assert tuple(rules.exponent_policy(element).amount for rules in RULE_SETS) == amounts


def policies(block: str) -> list[tuple[ElementFormat, RuleSet, Any]]:
    """(element, rules, policy) of every permitted pair, for one block."""
    project = {
        "exponent": lambda rules, element: rules.exponent_policy(element),
        "narrow": lambda rules, element: rules.narrow_policy(element, scaled=False),
        "scaled narrow": lambda rules, element: rules.narrow_policy(element, scaled=True),
        "dequant": lambda rules, element: rules.dequant_policy(element),
    }[block]
    return [(element, rules, project(rules, element)) for element, rules in PERMITTED]


@pytest.mark.parametrize(("block", "count"), [("exponent", 13), ("narrow", 5), ("scaled narrow", 8), ("dequant", 6)])
def test_r_number_of_distinct_policies(block: str, count: int) -> None:
    found = policies(block)
    assert len(found) == 13
    distinct = {policy for _, _, policy in found}
    assert len(distinct) == count
    names = {policy.name for policy in distinct}
    assert len(names) == count
    for name in names:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name), name


@pytest.mark.parametrize(
    ("block", "groups"),
    [
        ("exponent", [["birsim"], ["birsim_alt"], ["nki_sim"], ["device"], ["ocp"]]),
        ("narrow", [["birsim", "birsim_alt"], ["nki_sim", "device", "ocp"]]),
        ("scaled narrow", [["birsim", "birsim_alt"], ["nki_sim", "device"], ["ocp"]]),
        ("dequant", [["birsim", "birsim_alt", "nki_sim"], ["device", "ocp"]]),
    ],
)
@pytest.mark.parametrize("element", [FP8_E4M3, FP8_E5M2], ids=lambda element: element.name)
def test_r_fp8_rule_sets_that_ask_the_same_are_one_policy(
    block: str, groups: list[list[str]], element: ElementFormat
) -> None:
    by_policy: dict[Any, list[str]] = {}
    for found, rules, policy in policies(block):
        if found == element:
            by_policy.setdefault(policy, []).append(rules.name)
    assert list(by_policy.values()) == groups


def test_r_fp4_has_no_nan_so_its_unscaled_policy_is_one() -> None:
    found = [rules.narrow_policy(FP4_E2M1, scaled=False) for rules in RULE_SETS]
    assert len(found) == 5
    assert len(set(found)) == 1
    assert found[0].nan is NanCode.ZERO


@pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
def test_r_unscaled_policy_has_no_scale_behaviour(rules: RuleSet) -> None:
    for element in ELEMENTS:
        policy = rules.narrow_policy(element, scaled=False)
        assert policy.pre_scale is PreScale.NONE
        assert policy.scale_255 is Scale255.POWER
        assert rules.narrow_policy(element, scaled=True).pre_scale is rules.pre_scale


def test_r1_alternative_emax_changes_the_exponent_only() -> None:
    compared = 0
    for element in ELEMENTS:
        assert BIRSIM_ALT.exponent_policy(element).amount == BIRSIM.exponent_policy(element).amount - 1
        for scaled in (False, True):
            assert BIRSIM.narrow_policy(element, scaled=scaled) == BIRSIM_ALT.narrow_policy(element, scaled=scaled)
            compared += 1
        assert BIRSIM.dequant_policy(element) == BIRSIM_ALT.dequant_policy(element)
    assert compared == 6


def test_r1_fp4_alternative_emax_is_an_option() -> None:
    public = dataclasses.replace(BIRSIM_ALT, name="birsim_alt_fp4_2", fp4_emax_reduction=0)
    assert public.exponent_policy(FP4_E2M1).amount == 2
    assert public.exponent_policy(FP8_E4M3).amount == 7
    assert public.exponent_policy(FP4_E2M1) == BIRSIM.exponent_policy(FP4_E2M1)


def test_r1_a_users_own_rule_set_keeps_its_name() -> None:
    mine = dataclasses.replace(OCP, name="mine", nan=NanCode.ZERO)
    assert mine.name == "mine"
    assert mine.narrow_policy(FP8_E4M3, scaled=False) == BIRSIM.narrow_policy(FP8_E4M3, scaled=False)
    assert mine.exponent_policy(FP8_E4M3) == OCP.exponent_policy(FP8_E4M3)


@pytest.mark.parametrize("function", [shared_exponent, narrow, ldexp], ids=lambda function: function.__name__)
def test_r_default_rule_set_is_birsim(function: Any) -> None:
    assert inspect.signature(function).parameters["rules"].default is BIRSIM


def test_r_impossible_rule_sets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^pre_scale must be EXACT or FP32_PRODUCT in a rule set, not NONE$"):
        dataclasses.replace(BIRSIM, pre_scale=PreScale.NONE)
    with pytest.raises(ValueError, match=r"^narrow_scale_255 must be POWER where pre_scale is FP32_PRODUCT, not NAN$"):
        dataclasses.replace(BIRSIM, narrow_scale_255=Scale255.NAN)
    with pytest.raises(ValueError, match=r"^emax_reduction must be 0 or 1, not 2$"):
        dataclasses.replace(BIRSIM, emax_reduction=2)
    with pytest.raises(ValueError, match=r"^fp4_emax_reduction must be 0 or 1, not -1$"):
        dataclasses.replace(BIRSIM, fp4_emax_reduction=-1)


def test_r_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^rules must be one of birsim, birsim_alt, nki_sim, device, ocp, not 'mx'$"):
        rule_set("mx")


def test_r_rule_sets_and_policies_are_frozen_and_hash_by_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        BIRSIM.name = "other"  # type: ignore[misc]
    copy = dataclasses.replace(BIRSIM)
    assert copy == BIRSIM
    assert copy is not BIRSIM
    assert hash(copy) == hash(BIRSIM)
    assert BIRSIM.exponent_policy(FP8_E4M3) == copy.exponent_policy(FP8_E4M3)
