"""Whether an instruction is legal: the verifiers' rules, every violation at once (contract V; S4 §2, §3).

The rules are data, in ``matmul_mx_rules``, ``quantize_mx_rules`` and ``public_rules``. Violations come in the order of
the verifiers' throw sites; what a verifier takes for granted comes before them, since wrong dtypes make wrong counts.

What is no rule here is the machine's own error when it runs: an operand outside its memory, a destination that is not
PSUM, a clear of several banks where there is none, a transposed stationary before v4 (P-2, P-4, M-7).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from mxmodel.isa import Instruction, MatmultMx, QuantizeMx
from mxmodel.legality_rules.matmul_mx import INPUT_RULES, INSTRUCTION_RULES, LAST_RULES, PRECONDITIONS, TILE_RULES
from mxmodel.legality_rules.public import PUBLIC_MATMUL_MX_RULES, PUBLIC_QUANTIZE_MX_RULES, PUBLIC_TILE_RULES
from mxmodel.legality_rules.quantize_mx import QUANTIZE_MX_RULES
from mxmodel.legality_rules.rule import GENERATION_FLOOR, Case, Rule, Violation, judged, tiles_of
from mxmodel.machine_options import MachineOptions
from mxmodel.memory import Generation
from mxmodel.program import Program

__all__ = [
    "RULE_TABLES",
    "Profile",
    "Violation",
    "check",
    "check_instruction",
    "check_matmul_mx",
    "check_public",
    "check_quantize_mx",
]


class Profile(Enum):
    """Whose rules."""

    BIR = "bir"
    """The compiler's verifiers, of the BIR."""
    PUBLIC = "public"
    """The checks of the public NKI calls (V-1)."""


_AS_THE_SOURCES = MachineOptions()
_BEFORE_TILES = (*PRECONDITIONS, *INPUT_RULES, *INSTRUCTION_RULES)


def check_matmul_mx(
    instruction: MatmultMx, generation: Generation = Generation.V4, options: MachineOptions = _AS_THE_SOURCES
) -> list[Violation]:
    """Every rule of the two MX verifiers that the instruction breaks; a tile rule once for each tile."""
    case = Case(instruction, generation, options)
    found = [*judged(_BEFORE_TILES, case)]
    for tile in tiles_of(instruction):
        found += judged(TILE_RULES, replace(case, tile=tile))
    return [*found, *judged(LAST_RULES, case)]


def check_quantize_mx(
    instruction: QuantizeMx, generation: Generation = Generation.V4, options: MachineOptions = _AS_THE_SOURCES
) -> list[Violation]:
    """Every rule of the quantise verifier that the instruction breaks."""
    return list(judged(QUANTIZE_MX_RULES, Case(instruction, generation, options)))


def check_public(
    instruction: Instruction, generation: Generation = Generation.V4, options: MachineOptions = _AS_THE_SOURCES
) -> list[Violation]:
    """Every rule of the public calls that the instruction breaks (V-1); others than the two MX calls have none."""
    if isinstance(instruction, MatmultMx):
        case = Case(instruction, generation, options)
        found = [*judged(PUBLIC_MATMUL_MX_RULES, case)]
        for tile in tiles_of(instruction):
            found += judged(PUBLIC_TILE_RULES, replace(case, tile=tile))
        return found
    if isinstance(instruction, QuantizeMx):
        return list(judged(PUBLIC_QUANTIZE_MX_RULES, Case(instruction, generation, options)))
    return list(judged((GENERATION_FLOOR,), Case(instruction, generation, options)))


_BIR_CHECKS: Mapping[type[Instruction], Callable[[Any, Generation, MachineOptions], list[Violation]]] = {
    MatmultMx: check_matmul_mx,
    QuantizeMx: check_quantize_mx,
}


def check_instruction(
    instruction: Instruction,
    profile: Profile = Profile.BIR,
    generation: Generation = Generation.V4,
    options: MachineOptions = _AS_THE_SOURCES,
) -> list[Violation]:
    """Every violation of one instruction. Opcodes without a verifier of their own must be there at all (I)."""
    if profile is Profile.PUBLIC:
        return check_public(instruction, generation, options)
    judge = _BIR_CHECKS.get(type(instruction))
    if judge is not None:
        return judge(instruction, generation, options)
    return list(judged((GENERATION_FLOOR,), Case(instruction, generation, options)))


def check(program: Program, profile: Profile = Profile.BIR) -> list[tuple[int, Violation]]:
    """Every violation of a program under its own generation and options, with the index of its instruction."""
    return [
        (index, violation)
        for index, instruction in enumerate(program.instructions)
        for violation in check_instruction(instruction, profile, program.generation, program.options)
    ]


RULE_TABLES: Mapping[str, tuple[Rule[Any], ...]] = {
    "matmul_mx, taken for granted": PRECONDITIONS,
    "matmul_mx, first verifier: inputs": INPUT_RULES,
    "matmul_mx, second verifier: instruction": (*INSTRUCTION_RULES, *TILE_RULES, *LAST_RULES),
    "quantize_mx": QUANTIZE_MX_RULES,
    "nki.isa.nc_matmul_mx (public)": (*PUBLIC_MATMUL_MX_RULES, *PUBLIC_TILE_RULES),
    "nki.isa.quantize_mx (public)": PUBLIC_QUANTIZE_MX_RULES,
}
"""Every rule there is, by the check that has it, in the order of its reports."""
