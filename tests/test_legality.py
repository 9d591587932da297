"""Legality: every rule broken alone, its legal neighbour, and an oracle that shares nothing with the rules (V)."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
from instruction_variants import MATMUL, QUANTIZE, Changes, operand, variant

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.formats import BIR_DTYPES, BirDtype, bir_dtype
from mxmodel.isa import INSTRUCTIONS, Engine, Instruction, MatmultMx, MatmultSparse, Memset, QuantizeMx
from mxmodel.legality import (
    RULE_TABLES,
    Profile,
    Violation,
    check,
    check_instruction,
    check_matmul_mx,
    check_public,
    check_quantize_mx,
)
from mxmodel.legality_rules.page import legality_page
from mxmodel.machine_options import MachineOptions, PublicMovingLimit, QuantizeTargets
from mxmodel.memory import Generation
from mxmodel.neuron_core import ExecutionFault, IllegalProgram, NeuronCore, Verification
from mxmodel.program import Program

NO_SUCH_DTYPE = BirDtype(code=20, name="float128", size=4, wire=0x20, wire_before_v4=0x20)
"""Only a record made by hand can have it: ``bir_dtype(20)`` is an error."""


def names(violations: list[Violation]) -> list[str]:
    return [violation.name for violation in violations]


# --- The MX matmul: each rule alone -----------------------------------------------------------------------------------

TILE = ("row_tile_positions", "column_tile_positions", "row_tile_sizes", "column_tile_sizes")


def tiles(*tile: tuple[int, int, int, int]) -> Changes:
    return dict(zip(TILE, zip(*tile, strict=True), strict=True))


def moving(containers: int) -> Changes:
    """Of so many x4 containers, and all that follows it."""
    return {"moving.containers": containers, "moving_scale.containers": containers, "dst.containers": containers}


def stationary(containers: int) -> Changes:
    return {
        "stationary.containers": containers,
        "stationary_scale.containers": containers,
        "dst.partitions": containers,
    }


def partitions(count: int) -> Changes:
    return {"moving.partitions": count, "stationary.partitions": count}


MATMUL_CASES: list[tuple[int | None, int | None, str, Changes, Changes]] = [
    (3067, 228, "moving_scale_count", {"moving_scale.containers": 511}, moving(511)),
    (3069, 229, "stationary_scale_count", {"stationary_scale.containers": 32}, stationary(32)),
    (3072, 230, "moving_scale_half", {"moving_scale.start_partition": 16}, {"moving_scale.start_partition": 12}),
    (
        3073,
        231,
        "stationary_scale_half",
        {"stationary_scale.start_partition": 28},
        {"stationary_scale.start_partition": 8},
    ),
    (3079, 232, "moving_count", moving(4097), moving(4096)),
    (3079, 232, "moving_count", {**moving(8193), "dst.dtype": 12}, {**moving(8192), "dst.dtype": 12}),
    (3083, 233, "stationary_count", stationary(130), stationary(128)),
    (3084, 289, "stationary_even", stationary(127), stationary(126)),
    (3091, 234, "moving_partitions", partitions(96), partitions(64)),
    (3091, 234, "moving_partitions", partitions(16), partitions(32)),
    (3096, 235, "equal_partitions", {"stationary.partitions": 64}, partitions(64)),
    (3099, 236, "dst_partitions", {"dst.partitions": 126}, stationary(126)),
    (3102, 237, "dst_count", {"dst.containers": 256}, moving(256)),
    (2994, 205, "engine", {"engine": Engine.DVE}, {"engine": Engine.PE}),
    (
        *(3012, 212, "moving_quadrant"),
        {**partitions(64), "moving.start_partition": 32},
        {**partitions(64), "moving.start_partition": 32, "moving_scale.start_partition": 36},
    ),
    (
        *(3014, 213, "stationary_quadrant"),
        {"stationary_scale.start_partition": 64},
        {"stationary_scale.start_partition": 64, "stationary.start_partition": 95},
    ),
    (3017, 214, "scale_alignment", {"moving_scale.start_partition": 2}, {"moving_scale.start_partition": 4}),
    (3017, 214, "scale_alignment", {"stationary_scale.start_partition": 15}, {"stationary_scale.start_partition": 12}),
    (3031, 241, "column_tile", tiles((0, 64, 128, 128)), tiles((0, 0, 128, 128))),
    (3031, 241, "column_tile", tiles((-1, -1, -1, 64)), tiles((-1, -1, -1, -1))),
    (3028, 240, "row_tile", tiles((0, 0, 64, 128)), {**partitions(64), **tiles((64, 0, 64, 128))}),
    (3037, 204, "weight_replication", {"weight_replication_shift": 1}, {"weight_replication_shift": 0}),
    (None, None, "moving_dtype", {"moving.dtype": 0, "moving.containers": 2048}, {"moving.dtype": 9}),
    (None, None, "stationary_dtype", {"stationary.dtype": 5, "stationary.containers": 512}, {"stationary.dtype": 8}),
    (None, None, "moving_scale_dtype", {"moving_scale.dtype": 0}, {"moving_scale.dtype": 6}),
    (None, None, "stationary_scale_dtype", {"stationary_scale.dtype": 1}, {"stationary_scale.dtype": 6}),
    (None, None, "dst_dtype", {"dst.dtype": NO_SUCH_DTYPE}, {"dst.dtype": 19, **moving(256)}),
    (None, None, "tile_vectors", {"row_tile_sizes": (-1,)}, dict.fromkeys(TILE, (-1, -1))),
    (None, None, "flags", {"flags": 5}, {"flags": 6}),
    (None, None, "flags", {"flags": 7}, {"flags": 3}),
]
"""Line, code, name; a change that breaks this rule and no other; a legal one next to it."""


@pytest.mark.parametrize(("line", "code", "name", "change", "neighbour"), MATMUL_CASES)
def test_a_matmul_rule_broken_alone(
    line: int | None, code: int | None, name: str, change: Changes, neighbour: Changes
) -> None:
    found = check_matmul_mx(variant(MATMUL, change))
    assert [(v.line, v.code, v.name) for v in found] == [(line, code, name)]
    assert check_matmul_mx(variant(MATMUL, neighbour)) == []


def test_every_matmul_rule_has_a_case() -> None:
    rules = [rule for title, table in RULE_TABLES.items() if title.startswith("matmul_mx") for rule in table]
    cased = {case[2] for case in MATMUL_CASES}
    assert {rule.name for rule in rules} == cased | {"generation"}
    with_code = [(rule.line, rule.code) for rule in rules if rule.code is not None]
    assert len(set(with_code)) == 18
    assert {(case[0], case[1]) for case in MATMUL_CASES} - {(None, None)} == set(with_code)


def test_the_base_instructions_are_legal_in_both_profiles() -> None:
    for instruction in (MATMUL, QUANTIZE):
        for profile in Profile:
            assert check_instruction(instruction, profile) == []


def test_there_is_no_dtype_over_19() -> None:
    """So that the rule of the output's dtype is for records made by hand only."""
    assert bir_dtype(19).name == "int64"
    with pytest.raises(ValueError, match="unknown dtype"):
        bir_dtype(20)


# --- Its boundaries ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("containers", "expected"),
    [(126, []), (127, [289]), (128, []), (129, [233, 289]), (130, [233])],
    ids=lambda value: str(value),
)
def test_stationary_elements_up_to_512(containers: int, expected: list[int]) -> None:
    """508 is odd as a count of containers; 516 is odd and too many; 520 too many alone."""
    assert [v.code for v in check_matmul_mx(variant(MATMUL, stationary(containers)))] == expected


@pytest.mark.parametrize(
    ("code", "most"), [(16, 16384), (12, 32768), (0, 65536), (19, 8192)], ids=["fp32", "bf16", "uint8", "int64"]
)
def test_moving_elements_up_to_32_bankfuls(code: int, most: int) -> None:
    for count, expected in ((most - 4, []), (most, []), (most + 4, [232])):
        instruction = variant(MATMUL, {**moving(count // 4), "dst.dtype": code})
        assert [v.code for v in check_matmul_mx(instruction)] == expected, count


def test_counts_are_logical_over_every_dimension_and_every_x4_dtype() -> None:
    for code in (2, 8, 9):
        pattern = ((600, 2), (40, 16), (2, 16))
        instruction = replace(MATMUL, moving=replace(operand(code, 128, 1), pattern=pattern))
        assert check_matmul_mx(instruction) == []
        shorter = replace(MATMUL, moving=replace(operand(code, 128, 1), pattern=pattern[1:]))
        assert [v.code for v in check_matmul_mx(shorter)] == [228, 237]


def test_scales_in_x4_containers_count_four_each() -> None:
    """The verifier expands the scales too (S4 §2)."""
    found = check_matmul_mx(variant(MATMUL, {"moving_scale.dtype": 8, "moving_scale.containers": 128}))
    assert names(found) == ["moving_scale_dtype"]


def test_every_start_partition_of_a_scale() -> None:
    legal = []
    for start in range(128):
        change = {**partitions(32), "moving.start_partition": start // 32 * 32, "moving_scale.start_partition": start}
        codes = [v.code for v in check_matmul_mx(variant(MATMUL, change))]
        assert codes == [230] * (start % 32 >= 16) + [214] * (start % 4 != 0), start
        legal += [start] * (not codes)
    assert legal == [q + offset for q in (0, 32, 64, 96) for offset in (0, 4, 8, 12)]


def test_96_partitions_are_for_quantise_and_for_the_public_call_only() -> None:
    matmul = variant(MATMUL, partitions(96))
    quantize = variant(QUANTIZE, {"src.partitions": 96, "dst.partitions": 96})
    assert check_quantize_mx(quantize) == []
    assert check_public(quantize) == []
    assert check_public(matmul) == []
    (violation,) = check_matmul_mx(matmul)
    assert (violation.line, violation.code, violation.values) == (3091, 234, "96")


def test_a_clear_of_some_partitions_is_no_business_of_the_verifiers() -> None:
    """Destination memory and its bounds are the machine's (P-4)."""
    assert check_matmul_mx(variant(MATMUL, {"dst": replace(MATMUL.dst, space=Space.SBUF, offset=1 << 30)})) == []


# --- All together, in order -------------------------------------------------------------------------------------------

ALL_OF_THEM = {
    "moving.dtype": 0,
    "moving.partitions": 96,
    "moving.start_partition": 32,
    "moving.containers": 16388,
    "stationary.dtype": 0,
    "stationary.start_partition": 64,
    "stationary.containers": 516,
    "moving_scale.dtype": 0,
    "moving_scale.start_partition": 18,
    "stationary_scale.dtype": 0,
    "stationary_scale.start_partition": 19,
    "stationary_scale.containers": 3,
    "dst.dtype": NO_SUCH_DTYPE,
    "engine": Engine.ACT,
    "weight_replication_shift": 2,
    "flags": 5,
    "row_tile_positions": (0, 0, 0),
    "column_tile_positions": (1, 0, -2),
    "row_tile_sizes": (32, 64, 96),
    "column_tile_sizes": (128, 128),
}


def test_every_violation_at_once_in_the_order_of_the_throw_sites() -> None:
    found = check_matmul_mx(variant(MATMUL, ALL_OF_THEM), Generation.V3)
    first = [3067, 3069, 3072, 3073, 3079, 3083, 3084, 3091, 3096, 3099, 3102]
    tiles_in_order = [3031, 3028, 3028, 3031]
    assert [v.line for v in found if v.line] == [*first, 2994, 3012, 3014, 3017, *tiles_in_order, 3037]
    assert len({v.code for v in found if v.code}) == 18
    assumed = ["generation", "moving_dtype", "stationary_dtype", "moving_scale_dtype", "stationary_scale_dtype"]
    assert names(found)[:6] == [*assumed, "dst_dtype"]
    assert names(found).index("tile_vectors") == names(found).index("scale_alignment") + 1
    assert found[-1].name == "flags"
    assert len(found) == 6 + 11 + 4 + 1 + 4 + 2


def test_a_violation_is_one_line_and_a_json_object() -> None:
    for violation in check_matmul_mx(variant(MATMUL, ALL_OF_THEM), Generation.V3):
        assert "\n" not in str(violation)
        assert f"{violation.rule}, not {violation.values}" in str(violation)
        assert json.loads(json.dumps(violation.as_json())) == {
            key: getattr(violation, key) for key in ("name", "code", "line", "rule", "values", "remedy")
        }
    (violation,) = check_matmul_mx(variant(MATMUL, {"moving_scale.containers": 500}))
    assert str(violation) == (
        "moving elements per partition must be 4 x moving_scale elements per partition, not 2048 and 4 x 500 = 2000 "
        "[code 228, line 3067]; give moving_scale one scale for every 4 elements of moving"
    )
    (violation,) = check_matmul_mx(variant(MATMUL, {"moving_scale.start_partition": 2}))
    assert violation.values == "2 and 0"
    (violation,) = check_matmul_mx(variant(MATMUL, {"flags": 5}))
    assert str(violation).startswith("flag byte must be 0, 1, 2, 3, 4 or 6, not 5; ")


# --- The quantise verifier --------------------------------------------------------------------------------------------

QUANTIZE_CASES: list[tuple[int | None, str, Changes, Changes]] = [
    (None, "src_dtype", {"src.dtype": 16}, {"src.dtype": 13}),
    (None, "dst_dtype", {"dst.dtype": 2}, {"dst.dtype": 9}),
    (None, "dst_dtype", {"dst.dtype": 14}, {"dst.dtype": 8}),
    (None, "dst_scale_dtype", {"dst_scale.dtype": 1}, {"dst_scale.dtype": 0}),
    (None, "partitions", {"src.partitions": 120, "dst.partitions": 120}, {"src.partitions": 96, "dst.partitions": 96}),
    (None, "partitions", {"src.partitions": 8, "dst.partitions": 8}, {"src.partitions": 32, "dst.partitions": 32}),
    (None, "equal_partitions", {"dst.partitions": 64}, {"src.partitions": 64, "dst.partitions": 64}),
    (
        *(None, "dst_count", {"dst.containers": 127}),
        {"src.containers": 508, "dst.containers": 127, "dst_scale.containers": 127},
    ),
    (219, "scale_start", {"dst_scale.start_partition": 16}, {"dst_scale.start_partition": 12}),
    (219, "scale_start", {"dst_scale.start_partition": 2}, {"dst_scale.start_partition": 4}),
    (225, "scale_count", {"dst_scale.containers": 32}, {"dst_scale.pattern": ((32, 4), (1, 32))}),
    (
        *(None, "quadrant", {"dst_scale.start_partition": 32}),
        {"dst_scale.start_partition": 36, "dst.start_partition": 32},
    ),
    (None, "engine", {"engine": Engine.POOL}, {"engine": Engine.DVE}),
]


@pytest.mark.parametrize(("code", "name", "change", "neighbour"), QUANTIZE_CASES)
def test_a_quantise_rule_broken_alone(code: int | None, name: str, change: Changes, neighbour: Changes) -> None:
    found = check_quantize_mx(variant(QUANTIZE, change))
    assert [(v.line, v.code, v.name) for v in found] == [(None, code, name)]
    assert check_quantize_mx(variant(QUANTIZE, neighbour)) == []


def test_every_quantise_rule_has_a_case() -> None:
    assert {rule.name for rule in RULE_TABLES["quantize_mx"]} == {case[1] for case in QUANTIZE_CASES} | {"generation"}


def test_the_class_table_and_the_geometry_check_differ_in_fp4() -> None:
    to_fp4 = variant(QUANTIZE, {"dst.dtype": 2})
    assert MachineOptions().quantize_targets is QuantizeTargets.CLASS_TABLE
    assert names(check_quantize_mx(to_fp4)) == ["dst_dtype"]
    geometry = MachineOptions(quantize_targets=QuantizeTargets.GEOMETRY)
    assert check_quantize_mx(to_fp4, options=geometry) == []
    for options, wanted in ((None, [8, 9]), (geometry, [2, 8, 9])):
        accepted = [
            dtype.code
            for dtype in BIR_DTYPES
            if not check_quantize_mx(variant(QUANTIZE, {"dst.dtype": dtype}), options=options or MachineOptions())
        ]
        assert accepted == wanted
    assert names(check_public(to_fp4, options=geometry)) == ["dst_dtype"], "the public call never makes MXFP4"


def test_a_free_dimension_that_four_does_not_divide_cannot_be_packed() -> None:
    """Q-2's F % 4 == 0 cannot be broken alone: no count of containers is F / 4, none of scales either."""
    found = check_quantize_mx(variant(QUANTIZE, {"src.containers": 510}))
    assert names(found) == ["dst_count", "scale_count"]
    assert [v.code for v in found] == [None, 225]


def test_quantise_violations_all_at_once() -> None:
    change = {
        "src.dtype": 16,
        "src.partitions": 100,
        "dst.dtype": 2,
        "dst.start_partition": 64,
        "dst.containers": 3,
        "dst_scale.dtype": 1,
        "dst_scale.start_partition": 33,
        "dst_scale.containers": 3,
        "engine": Engine.PE,
    }
    found = check_quantize_mx(variant(QUANTIZE, change), Generation.V2)
    assert names(found) == [rule.name for rule in RULE_TABLES["quantize_mx"]]


# --- The public profile -----------------------------------------------------------------------------------------------

PUBLIC_MATMUL_CASES: list[tuple[str, Changes, Changes]] = [
    ("moving_space", {"moving.space": Space.PSUM}, {"moving.space": Space.SBUF}),
    ("stationary_space", {"stationary.space": Space.PSUM}, {"stationary.space": Space.SBUF}),
    ("moving_scale_space", {"moving_scale.space": Space.PSUM}, {"moving_scale.space": Space.SBUF}),
    ("stationary_scale_space", {"stationary_scale.space": Space.PSUM}, {"stationary_scale.space": Space.SBUF}),
    ("dst_space", {"dst.space": Space.SBUF}, {"dst.space": Space.PSUM}),
    ("moving_dtype", {"moving.dtype": 14}, {"moving.dtype": 2}),
    ("stationary_dtype", {"stationary.dtype": 10}, {"stationary.dtype": 9}),
    ("moving_scale_dtype", {"moving_scale.dtype": 1}, {"moving_scale.dtype": 0}),
    ("stationary_scale_dtype", {"stationary_scale.dtype": 5}, {"stationary_scale.dtype": 0}),
    ("dst_dtype", {"dst.dtype": 13}, {"dst.dtype": 12}),
    ("partitions", partitions(48), partitions(96)),
    ("partitions", partitions(160), partitions(128)),
    ("equal_partitions", {"moving.partitions": 64}, partitions(64)),
    ("stationary_even", stationary(63), stationary(64)),
    ("stationary_free", stationary(130), stationary(128)),
    ("moving_free", moving(4097), moving(4096)),
    ("moving_free", {**moving(8193), "dst.dtype": 12}, {**moving(8192), "dst.dtype": 12}),
    ("dst_partitions", {"dst.partitions": 64}, stationary(64)),
    ("dst_free", {"dst.containers": 511}, moving(511)),
    ("tile_pair", {"row_tile_positions": (0,), "column_tile_positions": (0,)}, tiles((0, 0, 128, 128))),
    ("tile_pair", {"row_tile_sizes": (64,), "column_tile_sizes": (128,)}, tiles((-1, -1, -1, -1))),
    ("tile_size", tiles((0, 0, 96, 128)), tiles((0, 0, 64, 128))),
    ("tile_size", tiles((0, 0, 32, 64)), tiles((0, 0, 32, 128))),
    ("tile_position", tiles((32, 0, 64, 128)), tiles((64, 0, 64, 128))),
    ("tile_position", tiles((128, 0, 32, 128)), tiles((96, 0, 32, 128))),
    ("tile_position", tiles((32, 32, 32, 128)), tiles((32, 0, 32, 128))),
]

PUBLIC_QUANTIZE_CASES: list[tuple[str, Changes, Changes]] = [
    ("src_space", {"src.space": Space.PSUM}, {"src.space": Space.SBUF}),
    ("dst_space", {"dst.space": Space.PSUM}, {"dst.space": Space.SBUF}),
    ("dst_scale_space", {"dst_scale.space": Space.PSUM}, {"dst_scale.space": Space.SBUF}),
    ("src_dtype", {"src.dtype": 16}, {"src.dtype": 13}),
    ("dst_dtype", {"dst.dtype": 2}, {"dst.dtype": 9}),
    ("dst_scale_dtype", {"dst_scale.dtype": 12}, {"dst_scale.dtype": 0}),
    ("partitions", {"src.partitions": 16, "dst.partitions": 16}, {"src.partitions": 96, "dst.partitions": 96}),
    ("equal_partitions", {"dst.partitions": 96}, {"src.partitions": 32, "dst.partitions": 32}),
    ("dst_count", {"src.containers": 510}, {"src.containers": 508, "dst.containers": 127}),
]


@pytest.mark.parametrize(("name", "change", "neighbour"), PUBLIC_MATMUL_CASES)
def test_a_public_matmul_rule_broken_alone(name: str, change: Changes, neighbour: Changes) -> None:
    assert names(check_public(variant(MATMUL, change))) == [name]
    assert check_public(variant(MATMUL, neighbour)) == []


@pytest.mark.parametrize(("name", "change", "neighbour"), PUBLIC_QUANTIZE_CASES)
def test_a_public_quantise_rule_broken_alone(name: str, change: Changes, neighbour: Changes) -> None:
    assert names(check_public(variant(QUANTIZE, change))) == [name]
    assert check_public(variant(QUANTIZE, neighbour)) == []


@pytest.mark.parametrize(
    ("title", "cases"),
    [("nki.isa.nc_matmul_mx (public)", PUBLIC_MATMUL_CASES), ("nki.isa.quantize_mx (public)", PUBLIC_QUANTIZE_CASES)],
)
def test_every_public_rule_has_a_case(title: str, cases: list[tuple[str, Changes, Changes]]) -> None:
    assert {rule.name for rule in RULE_TABLES[title]} == {case[0] for case in cases} | {"generation"}


def test_the_older_public_limit_of_moving() -> None:
    older = MachineOptions(public_moving_limit=PublicMovingLimit.ONE_BANK)
    assert MachineOptions().public_moving_limit is PublicMovingLimit.CURRENT
    for code, most in ((16, 512), (12, 1024)):
        for free, expected in ((most, []), (most + 1, ["moving_free"])):
            instruction = variant(MATMUL, {**moving(free), "dst.dtype": code})
            assert names(check_public(instruction, options=older)) == expected
            assert check_public(instruction) == []


def test_public_counts_are_containers() -> None:
    """Neither FP4's 16-bit words nor FP8's 32-bit words count four (V-1, the exception to F-5)."""
    for code in (2, 8, 9):
        instruction = variant(MATMUL, {"stationary.dtype": code, "moving.dtype": code})
        assert check_public(instruction) == []


def test_what_the_public_calls_do_not_check() -> None:
    """Starts, quadrants, engines, flags and scale counts are the compiler's business."""
    change = {
        "moving_scale.start_partition": 18,
        "stationary_scale.start_partition": 64,
        "moving_scale.containers": 7,
        "engine": Engine.SP,
        "flags": 5,
        "weight_replication_shift": 1,
    }
    assert check_public(variant(MATMUL, change)) == []
    assert [v.code for v in check_matmul_mx(variant(MATMUL, change))] == [228, 230, 205, 213, 214, 204, None]


# --- Generations and programs -----------------------------------------------------------------------------------------

SPARSE = MatmultSparse(
    moving=replace(operand(12, 128, 1), pattern=((8, 4), (1, 8))),
    stationary=operand(12, 128, 128),
    tags=operand(10, 128, 32),
    dst=operand(16, 128, 8, Space.PSUM),
)
FILL = Memset(dst=operand(16, 128, 8), value=1.0)


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize(("instruction", "floor"), [(MATMUL, 4), (QUANTIZE, 4), (SPARSE, 3), (FILL, 2)])
def test_the_generation_must_have_the_instruction(instruction: Instruction, floor: int, profile: Profile) -> None:
    for generation in Generation:
        found = check_instruction(instruction, profile, generation)
        assert names(found) == ([] if generation >= floor else ["generation"])
        assert [(v.code, v.line, v.values) for v in found] == [
            (None, None, f"{generation.name}: {instruction.mnemonic} begins with V{floor}") for _ in found
        ]


def test_only_three_instructions_have_a_floor() -> None:
    floors = {kind.mnemonic: int(kind.floor) for kind in INSTRUCTIONS.values() if kind.floor > Generation.V2}
    assert floors == {"quantize_mx": 4, "matmul_mx": 4, "matmul_sparse": 3}


def test_a_program_is_judged_whole_by_its_own_generation_and_options() -> None:
    fp4 = variant(QUANTIZE, {"dst.dtype": 2})
    odd = variant(MATMUL, {**partitions(96), "flags": 7})
    program = Program(instructions=(FILL, fp4, MATMUL, odd))
    assert [(index, v.name) for index, v in check(program)] == [
        (1, "dst_dtype"),
        (3, "moving_partitions"),
        (3, "flags"),
    ]
    assert [(index, v.name) for index, v in check(program, Profile.PUBLIC)] == [(1, "dst_dtype")]
    relaxed = replace(program, options=MachineOptions(quantize_targets=QuantizeTargets.GEOMETRY))
    assert [index for index, _ in check(relaxed)] == [3, 3]
    early = replace(program, generation=Generation.V3)
    assert [index for index, v in check(early) if v.name == "generation"] == [1, 2, 3]


def test_a_core_refuses_an_illegal_program_before_it_runs() -> None:
    program = Program(name="odd", instructions=(FILL, variant(MATMUL, {**partitions(96), "label": "up"})))
    core = NeuronCore()
    with pytest.raises(
        IllegalProgram, match=r"^odd: instruction 1 \(matmul_mx 'up'\): partitions of moving must"
    ) as bad:
        core.run(program)
    assert [(index, v.code) for index, v in bad.value.violations] == [(1, 234)]
    assert "\n" not in str(bad.value)
    with pytest.raises(ValueError, match="written before it is read"):
        core.memories[Space.SBUF].read(FILL.dst)
    with pytest.raises(ExecutionFault, match="instruction 1"):
        core.run(program, verification=Verification.SKIPPED)
    assert core.memories[Space.SBUF].read(FILL.dst).containers.min() == 1.0


# --- An oracle: the predicates as the sources print them --------------------------------------------------------------

BYTES = (1, 1, 2, 1, 1, 1, 1, 1, 4, 4, 2, 2, 2, 2, 4, 4, 4, 4, 8, 8)
"""S4 §4's table, by dtype code."""


def _elements(pattern: AccessPattern) -> int:
    count = 1
    for _, num in pattern.pattern:
        count *= num
    dt = pattern.dtype.code
    return 4 * count if dt == 2 or (dt - 8) & 0xFFFFFFFF <= 1 else count


def _start(pattern: AccessPattern) -> int:
    """Base byte offset / first stride, of an SBUF whose partitions lie 256 KiB apart."""
    stride = 262144
    base = pattern.start_partition * stride + pattern.offset
    return base // stride


def throw_sites(i: MatmultMx) -> list[tuple[int, int]]:
    """(line, code) of every assert that fires, by S4 §2 and §3 alone."""
    k_ifmap, k_weights = _elements(i.moving), _elements(i.stationary)
    s_ifmap, s_weights = _elements(i.moving_scale), _elements(i.stationary_scale)
    p_ifmap, p_weights = _start(i.moving_scale), _start(i.stationary_scale)
    parts = i.moving.partitions
    fired = []

    def need(holds: bool, line: int, code: int) -> None:
        if not holds:
            fired.append((line, code))

    need(k_ifmap == s_ifmap * 4, 3067, 228)
    need(k_weights == s_weights * 4, 3069, 229)
    need(p_ifmap & 31 <= 15, 3072, 230)
    need(p_weights & 31 <= 15, 3073, 231)
    need(k_ifmap <= 32 * (2048 // BYTES[i.dst.dtype.code]), 3079, 232)
    need(k_weights <= 0x200, 3083, 233)
    need((k_weights >> 2) & 1 == 0, 3084, 289)
    need((parts - 32) & 0xFFFFFFDF == 0 or parts == 128, 3091, 234)
    need(parts == i.stationary.partitions, 3096, 235)
    need(i.dst.partitions << 2 == k_weights, 3099, 236)
    need(_elements(i.dst) << 2 == k_ifmap, 3102, 237)
    need(int(i.engine) == 3, 2994, 205)
    need(_start(i.moving) >> 5 == p_ifmap >> 5, 3012, 212)
    need(_start(i.stationary) >> 5 == p_weights >> 5, 3014, 213)
    need((p_ifmap | p_weights) & 3 == 0, 3017, 214)
    for n in range(len(i.column_tile_positions)):
        position, size = i.column_tile_positions[n], i.column_tile_sizes[n]
        need(not ((position + 1) & 0xFFFFFFFF > 1 or (size != 128 and size != -1)), 3031, 241)
        need(i.row_tile_sizes[n] in (-1, parts), 3028, 240)
    need(i.weight_replication_shift == 0, 3037, 204)
    return fired


def _random_matmul(dice: random.Random) -> MatmultMx:
    """A legal instruction of random shape and place, then none to five random faults."""
    parts = dice.choice((32, 64, 128))
    rows = 2 * dice.randint(1, 64)
    columns = dice.choice((dice.randint(1, 64), dice.choice((512, 4094, 4096))))
    starts = [32 * dice.randrange(4) for _ in range(2)]
    count = dice.randrange(3)
    instruction = MatmultMx(
        moving=operand(dice.choice((2, 8, 9)), parts, columns),
        stationary=operand(dice.choice((2, 8, 9)), parts, rows),
        moving_scale=operand(6, 128, columns),
        stationary_scale=operand(6, 128, rows),
        dst=operand(dice.choice((12, 16)), rows, columns, Space.PSUM),
        row_tile_positions=tuple(dice.choice((-1, 0, 32)) for _ in range(count)),
        column_tile_positions=tuple(dice.choice((-1, 0)) for _ in range(count)),
        row_tile_sizes=tuple(dice.choice((-1, parts)) for _ in range(count)),
        column_tile_sizes=tuple(dice.choice((-1, 128)) for _ in range(count)),
    )
    for name, start in zip(("moving", "stationary"), starts, strict=True):
        scale = {f"{name}_scale.start_partition": start + 4 * dice.randrange(4)}
        instruction = variant(instruction, {f"{name}.start_partition": start + dice.randrange(32), **scale})
    for _ in range(dice.choice((0, 0, 1, 1, 1, 2, 3, 5))):
        instruction = variant(instruction, _random_fault(dice, instruction))
    return instruction


def _random_fault(dice: random.Random, instruction: MatmultMx) -> Changes:
    name = dice.choice(("moving", "stationary", "moving_scale", "stationary_scale", "dst"))
    kind = dice.randrange(11)
    if kind == 0:
        return {f"{name}.partitions": dice.choice((1, 31, 32, 64, 96, 128, dice.randint(1, 160)))}
    if kind == 1:
        return {f"{name}.start_partition": dice.randrange(128)}
    if kind == 2:
        pattern: Any = tuple((dice.randint(0, 9), dice.randint(1, 12)) for _ in range(dice.randint(1, 3)))
        return {f"{name}.pattern": pattern}
    if kind == 3:
        return {f"{name}.dtype": dice.randrange(20)}
    if kind == 4:
        return moving(dice.choice((4096, 4097, 8192, 8193)))
    if kind == 5:
        return stationary(dice.choice((127, 128, 129, 130)))
    if kind == 6:
        return {"engine": dice.choice(list(Engine))}
    if kind == 7:
        return {"weight_replication_shift": dice.randrange(3)}
    if kind == 8:
        return partitions(dice.choice((16, 96)))
    if kind == 9:
        side = dice.choice(("moving", "stationary"))
        start = getattr(instruction, side).start_partition
        return {f"{side}_scale.start_partition": start // 32 * 32 + dice.choice((2, 7, 16, 20, 28))}
    length = len(instruction.row_tile_sizes)
    values = (-1, 0, 1, 32, 64, 128)
    return {name: tuple(dice.choice(values) for _ in range(length)) for name in TILE}


def test_the_rules_agree_with_the_sources_on_random_instructions() -> None:
    """Every line that fires, as often and in the order that it does."""
    dice = random.Random(228)
    lines: Counter[int] = Counter()
    alone: Counter[int] = Counter()
    legal = 0
    for _ in range(24_000):
        instruction = _random_matmul(dice)
        expected = throw_sites(instruction)
        found = check_matmul_mx(instruction)
        assert [(v.line, v.code) for v in found if v.code is not None] == expected, instruction
        lines.update(line for line, _ in expected)
        alone.update(line for line, _ in expected if len(expected) == 1)
        legal += not found
    assert legal > 4_000
    assert len(lines) == 18
    assert min(lines.values()) >= 200, lines
    assert len(alone) == 18
    assert min(alone.values()) >= 20, alone


def quantise_faults(i: QuantizeMx) -> list[str]:
    """The quantise table, literally."""
    free, packed = _containers(i.src), _containers(i.dst)
    start = _start(i.dst_scale)
    fired = {
        "src_dtype": i.src.dtype.code not in {12, 13},
        "dst_dtype": i.dst.dtype.code not in {8, 9},
        "dst_scale_dtype": i.dst_scale.dtype.code not in {0, 6},
        "partitions": i.src.partitions not in {32, 64, 96, 128},
        "equal_partitions": i.dst.partitions != i.src.partitions,
        "dst_count": packed * 4 != free,
        "scale_start": start not in {32 * q + place for q in range(4) for place in (0, 4, 8, 12)},
        "scale_count": _elements(i.src) != 4 * _elements(i.dst_scale),
        "quadrant": _start(i.dst) >> 5 != start >> 5,
        "engine": int(i.engine) != 5,
    }
    return [name for name, is_broken in fired.items() if is_broken]


def public_quantise_faults(i: QuantizeMx) -> list[str]:
    fired = {
        "src_space": i.src.space is not Space.SBUF,
        "dst_space": i.dst.space is not Space.SBUF,
        "dst_scale_space": i.dst_scale.space is not Space.SBUF,
    }
    spaces = [name for name, is_broken in fired.items() if is_broken]
    shared = {"src_dtype", "dst_dtype", "dst_scale_dtype", "partitions", "equal_partitions", "dst_count"}
    return spaces + [name for name in quantise_faults(i) if name in shared]


def _containers(pattern: AccessPattern) -> int:
    return prod(num for _, num in pattern.pattern)


def _random_quantise(dice: random.Random) -> QuantizeMx:
    parts, columns, quadrant = dice.choice((32, 64, 96, 128)), dice.randint(1, 128), 32 * dice.randrange(4)
    instruction = QuantizeMx(
        src=operand(dice.choice((12, 13)), parts, 4 * columns),
        dst=operand(dice.choice((8, 9)), parts, columns),
        dst_scale=operand(dice.choice((0, 6)), parts, columns),
    )
    places = {"dst": quadrant + dice.randrange(32), "dst_scale": quadrant + 4 * dice.randrange(4)}
    instruction = variant(instruction, {f"{name}.start_partition": start for name, start in places.items()})
    for _ in range(dice.choice((0, 1, 1, 2, 4))):
        name = dice.choice(("src", "dst", "dst_scale"))
        changes: list[Changes] = [
            {f"{name}.partitions": dice.choice((16, 32, 48, 64, 96, 128))},
            {"src.partitions": 80, "dst.partitions": 80},
            {f"{name}.start_partition": dice.randrange(128)},
            {f"{name}.pattern": tuple((1, dice.randint(1, 9)) for _ in range(dice.randint(1, 3)))},
            {f"{name}.dtype": dice.randrange(20)},
            {f"{name}.space": dice.choice((Space.SBUF, Space.PSUM))},
            {"engine": dice.choice(list(Engine))},
        ]
        instruction = variant(instruction, dice.choice(changes))
    return instruction


def test_the_quantise_rules_agree_with_the_table_on_random_instructions() -> None:
    dice = random.Random(219)
    alone: Counter[str] = Counter()
    legal = 0
    for _ in range(10_000):
        instruction = _random_quantise(dice)
        expected = quantise_faults(instruction)
        assert names(check_quantize_mx(instruction)) == expected, instruction
        assert names(check_public(instruction)) == public_quantise_faults(instruction), instruction
        alone.update(expected if len(expected) == 1 else ())
        legal += not expected
    assert legal > 2_000
    assert len(alone) == 10
    assert min(alone.values()) >= 20, alone


def public_matmul_faults(i: MatmultMx) -> list[str]:
    """V-1's sentence, piece by piece, and the shape of the result by S1 §3.2."""
    s, m = _containers(i.stationary), _containers(i.moving)
    most = {16: 4096, 12: 8192}.get(i.dst.dtype.code, m)
    fired = {
        **{f"{name}_space": getattr(i, name).space is not Space.SBUF for name in MatmultMx.inputs},
        "dst_space": i.dst.space is not Space.PSUM,
        **{f"{name}_dtype": getattr(i, name).dtype.code not in {2, 8, 9} for name in ("moving", "stationary")},
        **{
            f"{name}_scale_dtype": getattr(i, f"{name}_scale").dtype.code not in {0, 6}
            for name in ("moving", "stationary")
        },
        "dst_dtype": i.dst.dtype.code not in {12, 16},
        "partitions": i.stationary.partitions not in {32, 64, 96, 128},
        "equal_partitions": i.stationary.partitions != i.moving.partitions,
        "stationary_even": s % 2 == 1,
        "stationary_free": s > 128,
        "moving_free": m > most,
        "dst_partitions": i.dst.partitions != s,
        "dst_free": _containers(i.dst) != m,
    }
    return [name for name, is_broken in fired.items() if is_broken]


def test_the_public_matmul_rules_agree_with_the_sentence_on_random_instructions() -> None:
    dice = random.Random(4096)
    found: Counter[str] = Counter()
    for _ in range(10_000):
        instruction = variant(_random_matmul(dice), dict.fromkeys(TILE, ()))
        for name in (*MatmultMx.inputs, "dst"):
            if dice.random() < 0.03:
                instruction = variant(instruction, {f"{name}.space": dice.choice((Space.SBUF, Space.PSUM))})
        expected = public_matmul_faults(instruction)
        assert names(check_public(instruction)) == expected, instruction
        found.update(expected)
    assert len(found) == 17
    assert min(found.values()) >= 50, found


def test_public_tiles_agree_with_the_sentence() -> None:
    """Every tile of some rows and columns: legal are 1 + 2 + 4 of them, and none at all."""
    legal = set()
    compared = 0
    for tile in product((-1, 0, 32, 64, 96, 128), (-1, 0, 32), (-1, 32, 64, 96, 128), (-1, 64, 128)):
        found = names(check_public(variant(MATMUL, tiles(tile))))
        legal |= {tile} - ({tile} if found else set())
        compared += 1
    assert compared == 270
    rows = [(row, 0, size, 128) for size in (32, 64, 128) for row in range(0, 128, size)]
    assert len(rows) == 7
    assert legal == {*rows, (-1, -1, -1, -1)}


def test_the_codeless_rules_agree_on_every_dtype() -> None:
    compared = 0
    for dtype in BIR_DTYPES:
        for name, accepted in (
            *((name, (2, 8, 9)) for name in ("moving", "stationary")),
            *((f"{name}_scale", (6,)) for name in ("moving", "stationary")),
            ("dst", tuple(range(20))),
        ):
            found = names(check_matmul_mx(variant(MATMUL, {f"{name}.dtype": dtype})))
            assert (f"{name}_dtype" in found) is (dtype.code not in accepted)
            compared += 1
        for name, accepted in (("src", (12, 13)), ("dst", (8, 9)), ("dst_scale", (0, 6))):
            found = names(check_quantize_mx(variant(QUANTIZE, {f"{name}.dtype": dtype})))
            assert (f"{name}_dtype" in found) is (dtype.code not in accepted)
            compared += 1
    assert compared == 160


def test_every_flag_byte() -> None:
    legal = [flags for flags in range(256) if not check_matmul_mx(variant(MATMUL, {"flags": flags}))]
    assert legal == [0, 1, 2, 3, 4, 6]


# --- The page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_current(root: Path) -> None:
    assert (root / "docs" / "legality.md").read_text(encoding="utf-8") == legality_page()


def test_rule_names_are_unique_and_every_rule_says_must() -> None:
    for table in RULE_TABLES.values():
        assert len({rule.name for rule in table}) == len(table)
        for rule in table:
            assert " must " in rule.must
            assert rule.remedy
    matmul = [
        name for title, table in RULE_TABLES.items() if title.startswith("matmul") for name in (r.name for r in table)
    ]
    assert len(set(matmul)) == len(matmul) == 26
