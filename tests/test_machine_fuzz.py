"""Random programs: nothing but documented errors, and legal ones do what the array-level functions say.

A program is made legal, then, half of the time, a few of its fields are changed at random. The legality rules decide
which it is; ``tests/machine_reference.py`` says what a legal one leaves.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine_reference import Reference
from numpy.typing import NDArray
from places import in_psum, in_sbuf

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.formats import BIR_DTYPES
from mxmodel.isa import (
    AccumulationKind,
    Activate,
    Engine,
    FirstWrite,
    Instruction,
    Matmult,
    MatmultBase,
    MatmultMx,
    MatmultSparse,
    Operator,
    QuantizeMx,
    ReadActivationAccumulator,
    StationaryLoad,
)
from mxmodel.legality import RULE_TABLES, check
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.memory_object import container_dtype
from mxmodel.neuron_core import ExecutionFault, IllegalProgram, NeuronCore, Verification
from mxmodel.pe_array import PerfMode
from mxmodel.program import Program, ProgramTensor
from mxmodel.rules import BIRSIM, BIRSIM_ALT, OCP, RuleSet

PROGRAMS = 10_000
X4 = ("float4_e2m1fn_x4", "float8_e4m3fn_x4", "float8_e5m2_x4")
SCALES_AT, PSUM_CONTAINERS = 4096, 512


class Maker:
    """Draws programs."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: dict[str, ProgramTensor] = {}

    def pick(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def hold(self, name: str, pattern: AccessPattern, contents: NDArray[Any]) -> None:
        """Contents over whole tiles, so that changed operands usually find something written."""
        self.tensors[name] = ProgramTensor(
            place=pattern, contents=contents.reshape(pattern.shape).astype(container_dtype(pattern.dtype), copy=False)
        )

    def background(self) -> None:
        """Every byte that programs read is random but written; exponents stay moderate."""
        self.tensors = {}
        values = self.rng.standard_normal((128, 512)) * np.exp2(self.rng.integers(-8, 9, (128, 512)))
        self.hold("values", in_sbuf("float16", 128, 512), values.astype(np.float16))
        scales = self.rng.integers(110, 140, (128, 1024)).astype(np.uint8)
        self.hold("scales", in_sbuf("uint8", 128, 1024, at=SCALES_AT), scales)
        if self.chance(0.8):  # the first cells of four banks, so that there is something to add onto
            cells = replace(in_psum("float32", 128, 4, 8), pattern=((512, 4), (1, 8)))
            self.hold("cells", cells, self.rng.standard_normal((128, 4, 8)).astype(np.float32))

    def operand(self, dtype: str, partitions: int, count: int) -> AccessPattern:
        """Data in the lower half of a partition, contiguous or in steps of two, from any quadrant that has room."""
        step = self.pick((1, 1, 1, 2))
        start = 32 * int(self.rng.integers(0, (128 - partitions) // 32 + 1))
        pattern = in_sbuf(dtype, partitions, count, start=start, at=4 * int(self.rng.integers(0, 64)))
        return replace(pattern, pattern=((step, count),))

    def scale(self, data: AccessPattern, count: int) -> AccessPattern:
        reach = 32 * (data.partitions // 32 - 1) + 4
        start = data.start_partition + self.pick((0, 4, 8, 12))
        at = SCALES_AT + int(self.rng.integers(0, 900))
        return in_sbuf("float8_e8m0fnu", reach, count, start=start, at=at)

    def destination(self, partitions: int, count: int) -> AccessPattern:
        dtype = self.pick(("float32", "bfloat16"))
        start = int(self.rng.integers(0, 128 - partitions + 1))
        return in_psum(dtype, partitions, count, start=start, at=2048 * int(self.rng.integers(0, 4)))

    def quantize(self) -> QuantizeMx:
        partitions, words = self.pick((32, 32, 32, 64, 96, 128)), int(self.rng.integers(1, 5))
        src = self.operand(self.pick(("float16", "bfloat16")), partitions, 4 * words)
        dst = replace(in_sbuf(self.pick(X4[1:]), partitions, words, start=src.start_partition), offset=2048)
        return QuantizeMx(src=src, dst=dst, dst_scale=self.scale(dst, words))

    def matmul_mx(self) -> MatmultMx:
        partitions, columns, words = self.pick((32, 32, 32, 64, 128)), 2 * int(self.rng.integers(1, 5)), 4
        stationary = self.operand(self.pick(X4), partitions, columns)
        moving = self.operand(self.pick(X4), partitions, words)
        return MatmultMx(
            stationary=stationary,
            moving=moving,
            stationary_scale=self.scale(stationary, columns),
            moving_scale=self.scale(moving, words),
            dst=self.destination(columns, words),
            flags=self.pick((0, 1, 1, 2, 3, 4, 6)),
            **self.psum_options(),
        )

    def psum_options(self) -> dict[str, Any]:
        first = FirstWrite.OVERWRITES if self.chance(0.2) else FirstWrite.BY_FLAGS
        return {"first_write": first, "zero_banks_log2": self.pick((0, 0, 0, 1, 2))}

    def matmul(self) -> Matmult:
        mode = self.pick((PerfMode.NONE, PerfMode.NONE, PerfMode.DOUBLE_ROW, PerfMode.DOUBLE_ROW_SW_INTERLEAVE))
        double = 1 if mode is PerfMode.NONE else 2
        dtype, partitions = self.pick(("float16", "uint8", "bfloat16", "float8e5")), int(self.rng.integers(1, 9))
        columns, count = int(self.rng.integers(1, 6)), int(self.rng.integers(1, 6))
        stationary = in_sbuf(dtype, partitions, double * columns)
        moving = in_sbuf(dtype, partitions, double * count, at=64)
        load = StationaryLoad.PLAIN
        if mode is PerfMode.NONE and self.chance(0.3):
            load = StationaryLoad.TRANSPOSED
            stationary, moving = in_sbuf(dtype, columns, partitions), in_sbuf(dtype, count, partitions, at=64)
        zero = int(self.rng.integers(0, 256)) if self.chance(0.5) else None
        return Matmult(
            stationary=stationary,
            moving=moving,
            dst=self.destination(columns, count),
            flags=int(self.rng.integers(0, 8)),
            stationary_zero_point=zero,
            moving_zero_point=None if self.chance(0.5) else 7,
            perf_mode=mode,
            stationary_load=load,
            **self.psum_options(),
        )

    def matmul_sparse(self) -> MatmultSparse:
        slots, count = 4, int(self.rng.integers(1, 4))  # any tag is below 4 x 4
        return MatmultSparse(
            stationary=in_sbuf("float16", 128, 4),
            moving=in_sbuf("float16", 128, slots, count, at=64),
            tags=in_sbuf("uint16", 128, 1, at=SCALES_AT),
            dst=self.destination(4, count),
            flags=int(self.rng.integers(0, 8)),
            **self.psum_options(),
        )

    def activate(self) -> Activate:
        kind = self.pick(tuple(AccumulationKind))
        return Activate(
            src=in_sbuf("float16", 8, int(self.rng.integers(1, 5)), at=4 * int(self.rng.integers(0, 64))),
            kind=kind,
            operator=self.pick((Operator.ADD, Operator.MAX, Operator.MIN, Operator.MULTIPLY)),
            immediate=1.5 if kind is AccumulationKind.LOAD_ACCUMULATE else None,
        )

    def read_accumulator(self) -> ReadActivationAccumulator:
        return ReadActivationAccumulator(dst=in_sbuf("float32", 8, 1, at=3072))

    def program(self) -> tuple[Instruction, ...]:
        """One to four instructions, the accumulator filled before it is read."""
        mx = (self.quantize, self.quantize, self.matmul_mx, self.matmul_mx, self.matmul_mx)
        kinds = (*mx, self.matmul, self.matmul, self.matmul_sparse, self.activate)
        instructions: list[Instruction] = [self.pick(kinds)() for _ in range(int(self.rng.integers(1, 4)))]
        if isinstance(instructions[-1], Activate):
            filled = any(isinstance(one, Activate) and one.kind for one in instructions)
            instructions += [self.read_accumulator()] if filled else []
        if self.chance(0.5):
            for _ in range(int(self.rng.integers(1, 4))):
                index = int(self.rng.integers(len(instructions)))
                instructions[index] = self.changed(instructions[index])
        return tuple(instructions)

    # --- changes ------------------------------------------------------------------------------------------------------

    def changed(self, instruction: Instruction) -> Instruction:
        """The same with one field drawn anew, likely illegal or impossible."""
        if self.chance(0.08):
            return replace(instruction, engine=self.pick(tuple(Engine)))
        if isinstance(instruction, MatmultMx) and self.chance(0.35):
            return replace(instruction, **self.pick(_MX_CHANGES)(self, instruction))
        if isinstance(instruction, MatmultBase) and self.chance(0.15):
            return replace(instruction, zero_banks_log2=int(self.rng.integers(0, 5)))
        name, pattern = self.pick(instruction.operands())
        return replace(instruction, **{name: self.changed_pattern(pattern)})

    def changed_pattern(self, pattern: AccessPattern) -> AccessPattern:
        def partitions() -> dict[str, Any]:
            return {"partitions": self.pick((1, 8, 16, 40, 64, 96, 100, 128))}

        def start() -> dict[str, Any]:
            return {"start_partition": int(self.rng.integers(0, 128))}

        def aligned_start() -> dict[str, Any]:
            return {"start_partition": 4 * int(self.rng.integers(0, 32))}

        def count() -> dict[str, Any]:
            many = 20_000 if self.chance(0.3) else 9
            return {"pattern": ((self.pick((0, 1, 1, 1)), int(self.rng.integers(1, many))),)}

        def dtype() -> dict[str, Any]:
            return {"dtype": self.pick(BIR_DTYPES)}

        def space() -> dict[str, Any]:
            return {"space": self.pick((Space.SBUF, Space.PSUM))}

        def offset() -> dict[str, Any]:
            return {"offset": int(self.rng.integers(0, 20_000))}

        change = self.pick(
            (partitions, partitions, start, aligned_start, count, count, dtype, dtype, dtype, space, offset)
        )
        return replace(pattern, **change())


_MX_CHANGES: tuple[Any, ...] = (
    lambda m, one: {"flags": m.pick((5, 7, 8, 9))},
    lambda m, one: {"weight_replication_shift": int(m.rng.integers(0, 3))},
    lambda m, one: {name: (m.pick((-1, 0, 32, 64, 128)),) for name in _TILE_VECTORS},
    lambda m, one: {name: (m.pick((-1, 0, 32, 64, 128)),) for name in _TILE_VECTORS},
    lambda m, one: {m.pick(_TILE_VECTORS): (-1, -1)},
    lambda m, one: {"moving": replace(one.moving, pattern=((1, int(m.rng.integers(4000, 9000))),))},
    lambda m, one: {"stationary": replace(one.stationary, pattern=((1, int(m.rng.integers(120, 140))),))},
    lambda m, one: {name: replace(getattr(one, name), partitions=m.pick((8, 40, 96))) for name in _DATA},
    lambda m, one: {"moving_scale": _elsewhere(m, one.moving_scale)},
    lambda m, one: {"stationary_scale": _elsewhere(m, one.stationary_scale)},
)


def _elsewhere(maker: Maker, scale: AccessPattern) -> AccessPattern:
    """The scales of the same quadrant, from any partition of it."""
    return replace(scale, start_partition=32 * scale.quadrant + int(maker.rng.integers(0, 32)))


_DATA = ("moving", "stationary")
_TILE_VECTORS = ("row_tile_positions", "column_tile_positions", "row_tile_sizes", "column_tile_sizes")


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    """All programs, drawn and run once."""
    maker = Maker(5)
    legal = faults = 0
    compared = 0
    cores: dict[tuple[Generation, str], NeuronCore] = {}
    broken: Counter[str] = Counter()
    executed: Counter[tuple[int | None, object]] = Counter()
    for number in range(PROGRAMS):
        if number % 50 == 0:
            maker.background()
        rules: RuleSet = (BIRSIM, BIRSIM_ALT, OCP)[number % 3]
        options = MachineOptions(rules=rules)
        generation = Generation.V4 if number % 20 else maker.pick(tuple(Generation))
        program = Program(
            instructions=maker.program(),
            tensors=maker.tensors,
            options=options,
            generation=generation,
            name=f"{number}",
        )
        if (generation, rules.name) not in cores:
            cores[generation, rules.name] = NeuronCore(generation=generation, options=options, dram_bytes=4096)
        core = cores[generation, rules.name]
        core.reset()
        violations = check(program)
        broken.update({violation.name for _, violation in violations})
        if violations:
            with pytest.raises(IllegalProgram) as caught:
                core.run(program)
            assert caught.value.violations == tuple(violations), program.name
        try:
            core.run(program, verification=Verification.SKIPPED if violations else Verification.FIRST)
        except ExecutionFault:
            faults += 1
            continue
        if violations:
            continue
        legal += 1
        executed.update((one.opcode, _flags(one)) for one in program.instructions)
        compared += _compare(core, program, rules)
    return {"legal": legal, "faults": faults, "compared": compared, "broken": broken, "executed": executed}


def _flags(instruction: Instruction) -> object:
    if isinstance(instruction, MatmultBase):
        return instruction.first_write if instruction.first_write is FirstWrite.OVERWRITES else instruction.flags
    return instruction.kind if isinstance(instruction, Activate) else None


def _compare(core: NeuronCore, program: Program, rules: RuleSet) -> int:
    """Every byte of PSUM and of what SBUF holds below 8192, against the reference."""
    held = {
        space: [np.frombuffer(part, np.uint8).reshape(128, -1) for part in core.memories[space].contents()]
        for space in (Space.SBUF, Space.PSUM)
    }
    reference = Reference(rules, sbuf=np.zeros_like(held[Space.SBUF][0]))
    for tensor in program.tensors.values():
        reference.put(tensor.place, tensor.contents)
    for instruction in program.instructions:
        reference.run(instruction)
    compared = 0
    for space, wanted in ((Space.SBUF, reference.sbuf), (Space.PSUM, reference.psum)):
        octets, written = held[space]
        reach = octets.shape[1]
        assert np.array_equal(octets, wanted[:, :reach]), (program.name, space)
        if space is Space.PSUM:
            assert np.array_equal(written, reference.written[:, :reach]), program.name
            assert not reference.written[:, reach:].any(), program.name
        compared += octets.size
    return compared


def test_legal_programs_match_the_array_level_functions(outcome: dict[str, Any]) -> None:
    assert outcome["legal"] >= 4_000
    assert outcome["compared"] >= 4_000 * 128 * 5_000


def test_illegal_and_impossible_programs_end_in_documented_errors(outcome: dict[str, Any]) -> None:
    """Anything else has already come out of the fixture as itself."""
    assert outcome["faults"] >= 500


def test_every_rule_was_broken_often(outcome: dict[str, Any]) -> None:
    names = {rule.name for table, rules in RULE_TABLES.items() if "public" not in table for rule in rules}
    assert len(names) >= 30
    assert not {name: outcome["broken"][name] for name in names if outcome["broken"][name] < 50}


def test_every_opcode_ran_with_every_flag(outcome: dict[str, Any]) -> None:
    wanted: list[tuple[int | None, object]] = [(95, flags) for flags in (0, 1, 2, 3, 4, 6)]
    wanted += [(opcode, flags) for opcode in (8, 9) for flags in range(8)]
    wanted += [(opcode, FirstWrite.OVERWRITES) for opcode in (8, 9, 95)]
    wanted += [(96, None), (5, None), *((None, kind) for kind in AccumulationKind)]
    rare = {case: outcome["executed"][case] for case in wanted if outcome["executed"][case] < 20}
    assert not rare
