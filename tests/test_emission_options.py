"""``mxtwin verilog`` beside the catalogue: what its options select, what they spell out, and what they refuse."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mxhw.catalog import CATALOG, Block, Entry, Form, select
from mxhw.emit import description, emit
from mxhw.qor import rtlil_of
from mxhw.selection import Request, refused_pairs, selected
from mxmodel.formats import BF16, ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, FP16, FP32, SOURCES
from mxmodel.narrow import narrow
from mxmodel.rules import BIRSIM, DEVICE, NKI_SIM, OCP, RULE_SETS
from mxmodel.shared_exponent import shared_exponent
from mxtb import rtl_blocks, simulators

NOT_VERIFIED = "// NOT in the verified catalogue"


def _names(entries: tuple[Entry, ...]) -> tuple[list[str], list[str]]:
    """(in the catalogue, beside it)."""
    return [e.name for e in entries if e in CATALOG], [e.name for e in entries if e not in CATALOG]


def test_without_options_it_is_the_catalogue() -> None:
    assert selected(Request()) == CATALOG


def test_one_side_alone_only_narrows() -> None:
    """An element, a rule set, a source, a scale or a stream by itself never adds to the catalogue."""
    requests = [
        *(Request(elements=(element,)) for element in ELEMENTS),
        *(Request(rules=(rules,)) for rules in RULE_SETS),
        *(Request(sources=(source,)) for source in SOURCES),
        *(Request(blocks=(block,)) for block in Block),
        Request(scaled=True),
        Request(scaled=False),
        Request(lanes=8),
        Request(elements=(FP8_E4M3,), sources=(FP16,)),
        Request(rules=(OCP,), sources=(BF16,), scaled=True),
    ]
    for request in requests:
        chosen = selected(request)
        assert chosen
        assert set(chosen) < set(CATALOG)
    assert {e.block for e in selected(Request(scaled=True))} == {Block.NARROW}
    assert all(e.scaled for e in selected(Request(scaled=True)))
    assert not any(e.scaled for e in selected(Request(scaled=False)))
    assert {e.source for e in selected(Request(sources=(BF16,)))} == {BF16}
    assert {(e.form, e.lanes) for e in selected(Request(lanes=8))} == {(Form.STREAM, 8)}
    assert selected(Request(lanes=5)) == ()


@pytest.mark.parametrize("rules", RULE_SETS, ids=lambda rules: rules.name)
@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
def test_a_pair_that_the_catalogue_serves_is_the_catalogue(element, rules) -> None:  # type: ignore[no-untyped-def]
    chosen = selected(Request(elements=(element,), rules=(rules,)))
    if rules.writes(element):
        assert chosen == select(elements=(element,), rules=(rules,))
        return
    _, beside = _names(chosen)
    assert len(chosen) == 4
    assert len(beside) == 2


def test_fp4_where_the_rule_set_refuses_it() -> None:
    """The lanes that the catalogue has for other rule sets are its entries; the others are beside it (N-7)."""
    device = Request(elements=(FP4_E2M1,), rules=(DEVICE,))
    assert _names(selected(device)) == (
        ["mx_narrow_fp32_fp4_e2m1", "mx_ldexp_fp4_e2m1_nan255"],
        ["mx_shared_exponent_fp32_minus1_clamp_to_zero", "mx_narrow_fp32_fp4_e2m1_scaled_exact"],
    )
    assert refused_pairs(device) == [(FP4_E2M1, DEVICE)]
    nki_sim = Request(elements=(FP4_E2M1,), rules=(NKI_SIM,))
    assert _names(selected(nki_sim)) == (
        ["mx_narrow_fp32_fp4_e2m1", "mx_ldexp_fp4_e2m1_power255"],
        ["mx_shared_exponent_fp32_minus2_wrap", "mx_narrow_fp32_fp4_e2m1_scaled_exact"],
    )
    both = selected(Request(elements=(FP4_E2M1,), rules=(BIRSIM, DEVICE)))
    assert set(both) == set(selected(Request(elements=(FP4_E2M1,), rules=(BIRSIM,)))) | set(selected(device))
    assert refused_pairs(Request(elements=ELEMENTS, rules=(BIRSIM,))) == []


def test_a_source_that_the_catalogue_lacks() -> None:
    request = Request(elements=(FP8_E4M3,), rules=(DEVICE,), sources=(FP16,))
    assert _names(selected(request)) == (
        ["mx_narrow_fp16_fp8_e4m3_propagate"],
        ["mx_shared_exponent_fp16_minus7_clamp_to_zero", "mx_narrow_fp16_fp8_e4m3_propagate_scaled_exact"],
    )
    one = Request(blocks=(Block.NARROW,), elements=(FP8_E5M2,), rules=(OCP,), sources=(FP16,), scaled=True, lanes=4)
    assert _names(selected(one)) == ([], ["mx_narrow_fp16_fp8_e5m2_propagate_scaled_exact_nan255_x4_stream"])
    # Everything there: nothing is added, and the catalogue's streams are not lost.
    served = selected(Request(elements=(FP8_E4M3,), rules=(BIRSIM,), sources=(BF16,)))
    assert set(served) <= set(CATALOG)
    assert any(entry.clocked for entry in served)
    stream = selected(Request(blocks=(Block.LDEXP,), elements=(FP8_E4M3,), rules=(BIRSIM, OCP), lanes=8))
    assert _names(stream) == (["mx_ldexp_fp8_e4m3_power255_x8_stream"], ["mx_ldexp_fp8_e4m3_nan255_x8_stream"])


def test_every_configuration_can_be_built() -> None:
    """Every block, element, rule set and source, with and without a scale: all but the slowest elaborated."""
    everything = selected(Request(elements=ELEMENTS, rules=RULE_SETS, sources=SOURCES))
    everything += tuple(e for e in selected(Request(blocks=(Block.LDEXP,), elements=ELEMENTS, rules=RULE_SETS)))
    lanes = [entry for entry in dict.fromkeys(everything) if entry.form is Form.LANE]
    # 15 exponent policies, 5 unscaled and 9 scaled narrowing ones from each source; 6 of ldexp.
    assert len(lanes) == 3 * (15 + 5 + 9) + 6
    assert len({entry.name for entry in lanes}) == len(lanes)
    for entry in lanes:
        # A block of 32 takes half a second, and differs from the catalogue's in its tail alone.
        if entry not in CATALOG and (entry.block is not Block.SHARED_EXPONENT or entry.source == FP32):
            assert entry.name in rtlil_of(entry.component(), entry.name)


@pytest.mark.parametrize(
    ("lanes", "blocks"), [(1, (Block.NARROW, Block.LDEXP)), (3, (Block.NARROW,)), (32, (Block.LDEXP,))]
)
def test_streams_of_any_width_can_be_built(lanes: int, blocks: tuple[Block, ...]) -> None:
    chosen = selected(Request(blocks=blocks, elements=(FP4_E2M1,), rules=(OCP,), lanes=lanes))
    assert {(entry.form, entry.lanes) for entry in chosen} == {(Form.STREAM, lanes)}
    assert len(chosen) == 2 * (Block.NARROW in blocks) + (Block.LDEXP in blocks)
    for entry in chosen:
        assert entry.name in rtlil_of(entry.component(), entry.name)


def test_beside_the_catalogue_the_twins_agree() -> None:
    """Two lanes that no regression simulates: fp16 and a live scale to E4M3, and the fp16 block under DEVICE."""
    exponent, lane = (
        entry
        for entry in selected(Request(elements=(FP8_E4M3,), rules=(DEVICE,), sources=(FP16,)))
        if entry not in CATALOG
    )
    rng = np.random.default_rng(11)
    words = rng.integers(0, 1 << 16, 300, dtype=np.uint16)
    words[:6] = [0, 0x8000, 0x7C00, 0xFE00, 0x0001, 0x83FF]
    scales = rng.integers(100, 150, 300, dtype=np.uint8)
    scales[-6:] = [0, 1, 253, 254, 255, 127]
    values = words.view(np.float16).astype(np.float32)
    golden = narrow(values, FP8_E4M3, scale=scales, rules=DEVICE)
    got = rtl_blocks.evaluate(lane, [{"x": int(x), "scale": int(s)} for x, s in zip(words, scales, strict=True)])
    assert got == golden.tolist()
    assert len(set(got)) > 100

    blocks = rng.integers(0, 1 << 16, (20, 32), dtype=np.uint16)
    blocks[:10] &= 0x83FF  # subnormals and zeros alone
    tiles = blocks.view(np.float16).astype(np.float32).reshape(20 * 8, 4)
    wanted = shared_exponent(tiles, FP8_E4M3, rules=DEVICE).reshape(-1).tolist()
    assert rtl_blocks.evaluate(exponent, [{"x": [int(x) for x in block]} for block in blocks]) == wanted
    assert len(set(wanted)) > 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--source", "fp64"), "source must be one of fp32, bf16, fp16, not 'fp64'"),
        (("--element", "fp6"), "element must be one of"),
        (("--rules", "mx"), "rules must be one of"),
        (("--source", "bf16", "--block", "ldexp"), "ldexp, which takes codes"),
        (("--scaled", "--block", "ldexp"), "--scaled must go with narrow, not with --block ldexp"),
        (("--unscaled", "--block", "narrow", "--block", "shared_exponent"), "--unscaled must go with narrow"),
        (("--stream", "0"), "--stream must be 1 to 32 elements a beat, not 0"),
        (("--stream", "33", "--block", "narrow"), "not 33"),
        (("--stream", "3", "--element", "fp8_e4m3", "--rules", "ocp"), "divide it for shared_exponent, not 3"),
        (("--stream", "32", "--block", "shared_exponent"), "less than 32 and divide it for shared_exponent, not 32"),
        (("--stream", "5"), "matches none; with both --element and --rules any configuration is written"),
        (("--stream", "x"), "--stream"),
        (("--update-hashes", "--element", "fp8_e4m3"), "--update-hashes must stand alone"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_the_impossible_is_refused_in_one_line(mxtwin, tmp_path: Path, arguments: tuple[str, ...], wanted: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = mxtwin("verilog", "--out", "rtl", *arguments)
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1
    assert wanted in err
    assert not (tmp_path / "rtl").exists()


def test_what_is_beside_the_catalogue_says_so(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """In the heading, in the JSON and on standard error; the catalogue's own files do not."""
    command = ("verilog", "--element", "fp4_e2m1", "--rules", "device", "--out", "rtl")
    code, out, err = mxtwin(*command)
    assert code == 0
    assert out == "2 of 67 catalogue entries, and 2 not in the verified catalogue, written to rtl\n"
    first, second = err.strip().splitlines()
    beside = ["mx_shared_exponent_fp32_minus1_clamp_to_zero", "mx_narrow_fp32_fp4_e2m1_scaled_exact"]
    assert first == f"mxtwin: NOT in the verified catalogue, so no regression has simulated it: {', '.join(beside)}"
    assert second.startswith("mxtwin: device refuses to quantise to fp4_e2m1 (N-7)")
    files = sorted((tmp_path / "rtl").glob("*.v"))
    assert len(files) == 4
    for file in files:
        described = json.loads(file.with_suffix(".json").read_text())
        verified = file.stem not in beside
        assert described["verified_catalogue"] is verified
        assert (NOT_VERIFIED in file.read_text().splitlines()[:3]) is not verified
        assert {"element": "fp4_e2m1", "rules": "device"} in described["lane_only_rule_sets"]
        assert {"element": "fp4_e2m1", "rules": "device"} not in described["rule_sets"]
    code, out, _ = mxtwin(*command, "--json")
    assert code == 0
    assert [one["name"] for one in json.loads(out) if not one["verified_catalogue"]] == beside


def test_the_catalogue_alone_is_written_without_a_word(mxtwin) -> None:  # type: ignore[no-untyped-def]
    kind = ("--block", "narrow", "--element", "fp4_e2m1", "--unscaled")
    code, out, err = mxtwin("verilog", *kind, "--rules", "ocp", "--source", "fp16")
    assert code == 0
    assert out == "1 of 67 catalogue entries written to build/verilog\n"
    assert err == ""


def test_verilator_reads_what_is_beside_the_catalogue(root: Path, tmp_path: Path) -> None:
    """-Wall with the catalogue's waivers; a lane, a block, a stream."""
    chosen = [
        *selected(Request(elements=(FP8_E4M3,), rules=(DEVICE,), sources=(FP16,))),
        *selected(Request(elements=(FP4_E2M1,), rules=(NKI_SIM,), sources=(FP32,), lanes=2)),
    ]
    beside = [entry for entry in chosen if entry not in CATALOG]
    assert len(beside) == 5
    verilator = simulators.find("verilator")
    for entry in beside:
        file = tmp_path / f"{entry.name}.v"
        file.write_text(emit(entry).text)
        done = subprocess.run(
            [
                str(verilator.executable),
                *("--lint-only", "-Wall", "--top-module", entry.name),
                str(root / "hw/mxhw/verilator_waivers.vlt"),
                str(file),
            ],
            capture_output=True,
            text=True,
            check=False,
            env={**verilator.environment},
        )
        assert done.returncode == 0, done.stderr
        assert not description(entry)["verified_catalogue"]
