"""The catalogue: complete, without doubles, every block a trio."""

from collections import Counter
from pathlib import Path

import pytest

from mxhw.catalog import CATALOG, Block, Form, find, select
from mxmodel.formats import ELEMENTS, FP4_E2M1, FP32
from mxmodel.rules import DEVICE, NKI_SIM, RULE_SETS

FP32_LANES = [entry for entry in CATALOG if entry.form is Form.LANE and entry.source in (FP32, None)]


@pytest.mark.parametrize("block", Block)
def test_every_block_is_a_trio(block: Block, root: Path) -> None:
    for file in (f"model/mxmodel/{block.value}.py", f"hw/mxhw/{block.value}.py", f"tb/mxtb/{block.value}.py"):
        assert (root / file).is_file(), file


def test_names_are_unique_and_found() -> None:
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)
    for entry in CATALOG:
        assert find(entry.name) is entry
        assert entry.name.isidentifier()
        assert entry.name.startswith(f"mx_{entry.block.value}_")
    with pytest.raises(ValueError, match=r"entry must be a name in the catalogue, not 'mx_nothing'"):
        find("mx_nothing")
    with pytest.raises(ValueError, match=r"; perhaps mx_ldexp_fp8_e4m3_nan255 \(mxtwin coverage lists them\)$"):
        find("mx_ldexp_fp8_e4m3_nan25")


@pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_every_element_under_every_rule_set_is_covered_or_refused(rules, element) -> None:  # type: ignore[no-untyped-def]
    """fp32 source: one entry of each kind serves the pair, or the rule set refuses to write it (N-7)."""
    serving = [entry for entry in FP32_LANES if (element, rules) in entry.serves()]
    kinds = sorted((entry.block.value, entry.scaled) for entry in serving)
    if element == FP4_E2M1 and rules in (NKI_SIM, DEVICE):
        assert not kinds
    else:
        assert kinds == [("ldexp", True), ("narrow", False), ("narrow", True), ("shared_exponent", False)]


def test_equal_behaviour_is_one_entry() -> None:
    """13 exponent policies, 5 unscaled and 8 scaled narrowing policies, 6 dequantising ones, from an fp32 source."""
    counts = Counter((entry.block, entry.scaled) for entry in FP32_LANES)
    assert counts == {
        (Block.SHARED_EXPONENT, False): 13,
        (Block.NARROW, False): 5,
        (Block.NARROW, True): 8,
        (Block.LDEXP, True): 6,
    }


def test_the_catalogue_is_complete() -> None:
    """67 entries: every policy from fp32, the 16-bit sources, multi-format lanes and streams."""
    kinds = Counter(
        (entry.block.value, entry.form.value, entry.source.name if entry.source else "") for entry in CATALOG
    )
    assert kinds == {
        ("shared_exponent", "lane", "fp32"): 13,
        ("shared_exponent", "lane", "bf16"): 1,
        ("shared_exponent", "lane", "fp16"): 1,
        ("shared_exponent", "stream", "bf16"): 3,
        ("shared_exponent", "stream", "fp16"): 1,
        ("narrow", "lane", "fp32"): 5 + 8,
        ("narrow", "lane", "bf16"): 5 + 8,
        ("narrow", "lane", "fp16"): 5 + 3,
        ("narrow", "multi", "fp32"): 3,
        ("narrow", "stream", "fp32"): 1,
        ("narrow", "stream", "bf16"): 1,
        ("ldexp", "lane", ""): 6,
        ("ldexp", "multi", ""): 1,
        ("ldexp", "stream", ""): 2,
    }
    assert len(CATALOG) == 67


def test_every_entry_serves_somebody() -> None:
    for entry in CATALOG:
        assert list(entry.serves()), entry.name


def test_select_narrows() -> None:
    chosen = select(blocks=(Block.NARROW,), elements=(FP4_E2M1,))
    assert {entry.block for entry in chosen} == {Block.NARROW}
    assert all(FP4_E2M1 in {element for element, _ in entry.serves()} for entry in chosen)
    assert select() == CATALOG
    assert select(elements=(FP4_E2M1,), rules=(NKI_SIM,)) == ()
