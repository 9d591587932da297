"""Programs as files: the worked ones meet expectations recomputed here, in golden and RTL alike; the format refuses in
one line; schema, page and loader agree; ``run``, ``check`` and ``lower`` do what they say."""

import json
import os
import random
import re
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jschon
import ml_dtypes
import numpy as np
import pytest
import yaml
from planted_faults import MUTANTS, FaultyCopy

from mxhw.catalog import Block
from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.bad_input import BadInput
from mxmodel.files.mx_file import read_mx
from mxmodel.files.tensor_files import open_tensor_file
from mxmodel.formats import FP4_E2M1, FP8_E4M3, FP8_E5M2
from mxmodel.isa import INSTRUCTIONS, Elementwise, Instruction, MatmultMx, PsumFlag, QuantizeMx
from mxmodel.layout import scale_partitions, swizzle, unpack_x4
from mxmodel.machine_options import AutoPsumAccumulate, MachineOptions
from mxmodel.memory import PARTITIONS, SBUF_PARTITION_BYTES, Generation, Uninitialised
from mxmodel.memory_object import MemoryObject, dtype_named
from mxmodel.neuron_core import ExecutionFault, IllegalProgram, NeuronCore, Verification
from mxmodel.pe_array import matmul_mx
from mxmodel.program import Program, ProgramTensor
from mxmodel.program_builder import Core
from mxmodel.program_files.placement import sliced, tensor_place
from mxmodel.program_files.program_file import RECORDS, program_text, read_program, write_program
from mxmodel.program_files.schema import SCHEMA_FILE, page_with_tables, program_schema, schema_text
from mxmodel.quantize import MxTensor, quantize_mx
from mxmodel.rules import BIRSIM, DEVICE, InvalidProduct
from mxmodel.trace import Trace
from mxtb.program_cli import run_with_rtl

Array = np.ndarray[Any, Any]
NAMES = ("worked", "four_scales", "moe")


@pytest.fixture
def programs(root: Path) -> Path:
    return root / "examples" / "programs"


def ran(program: Program) -> NeuronCore:
    core = NeuronCore(generation=program.generation, options=program.options)
    core.run(program)
    return core


def held(core: NeuronCore, program: Program, name: str) -> Array:
    place = program.tensors[name].place
    return core.memories[place.space].read(place).containers


def everything(core: NeuronCore, space: Space) -> Array:
    """Every byte of a memory; zero where nobody wrote."""
    size = SBUF_PARTITION_BYTES[core.generation] if space is Space.SBUF else 8 * 2048
    place = AccessPattern(space=space, dtype=dtype_named("uint8"), partitions=PARTITIONS, pattern=((1, size),))
    return core.memories[space].read(place, Uninitialised.ALLOWED).containers


def file_tensor(path: Path, name: str) -> Array:
    return open_tensor_file(path).tensor(name).load()


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


# --- the worked programs ----------------------------------------------------------------------------------------------


def halves(tensor: MxTensor) -> list[MxTensor]:
    """The two tiles of 128 partitions."""
    return [
        MxTensor(codes=tensor.codes[p : p + 128], scale=tensor.scale[p // 8 : p // 8 + 16], element=tensor.element,
                 rules=tensor.rules)
        for p in (0, 128)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["worked", "four_scales"])
def test_worked_programs_give_what_the_array_functions_give(name: str, programs: Path) -> None:
    program = read_program(programs / f"{name}.yaml")
    core = ran(program)
    assert core.failures(program) == []
    x = file_tensor(programs / "worked.safetensors", "x")
    assert (x.shape, x.dtype) == ((1024, 8), ml_dtypes.bfloat16)
    weights = read_mx(str(programs / "weights.mx.safetensors::w")).tensor()
    assert weights.element == FP4_E2M1
    moving = quantize_mx(swizzle(x), FP8_E4M3, BIRSIM)
    # K = 1024 in two instructions: the head's product written, the body's added in one fp32 add (P-1).
    head, body = (matmul_mx(w, m) for w, m in zip(halves(weights), halves(moving), strict=True))
    got = held(core, program, "y")
    assert np.array_equal(bits(got), bits(head + body))
    assert np.array_equal(bits(got), bits(matmul_mx(weights, moving)))
    assert (head != 0).all()
    compared = 0
    for tile, one in enumerate(halves(moving)):
        assert np.array_equal(unpack_x4(held(core, program, f"q{tile}"), FP8_E4M3), one.codes)
        assert np.array_equal(held(core, program, f"qs{tile}"), one.scale)
        compared += one.codes.size + one.scale.size
    assert compared == 2 * (128 * 32 + 16 * 8)


def test_four_scales_leave_the_poison_between_them(programs: Path) -> None:
    program = read_program(programs / "four_scales.yaml")
    tile = held(ran(program), program, "scales")
    owned = np.zeros(tile.shape, dtype=bool)
    for name, offset in (("qs0", 0), ("qs1", 4), ("ws0", 8), ("ws1", 12)):
        place = program.tensors[name].place
        owned[scale_partitions(16, offset=offset), : place.pattern[0][1]] = True
        assert place.start_partition == offset
    assert (tile[~owned] == 0xA5).all()
    assert owned.sum() == 2 * 16 * 8 + 2 * 16 * 16
    assert (tile[owned] != 0xA5).mean() > 0.9


def test_moe_gives_what_numpy_gives(programs: Path) -> None:
    program = read_program(programs / "moe.yaml")
    core = ran(program)
    assert core.failures(program) == []
    f32 = np.float32
    normed = file_tensor(programs / "moe.safetensors", "normed")
    affinities = file_tensor(programs / "moe.safetensors", "affinities")

    def weights(name: str, expert: int) -> MxTensor:
        return read_mx(str(programs / f"moe.mx.safetensors::{name}{expert}")).tensor()

    x = quantize_mx(swizzle(np.ascontiguousarray(normed.T)), FP8_E4M3)
    total = np.zeros((128, 4), dtype=f32)
    limited = 0
    for expert in range(2):
        gate, up = matmul_mx(weights("gate", expert), x), matmul_mx(weights("up", expert), x)
        limited += int((gate > 7).sum() + (abs(up) > 7).sum())
        gate, up = np.minimum(gate, f32(7)), np.clip(up, f32(-7), f32(7))
        sigmoid = (1 / (1 + np.exp(-(gate * f32(1.702)).astype(np.float64)))).astype(f32)
        inner = ((up + f32(1)) * (gate * sigmoid)).astype(ml_dtypes.bfloat16)
        down = matmul_mx(weights("down", expert), quantize_mx(swizzle(inner), FP8_E4M3))
        total = total + down * affinities[:, expert]
    out = held(core, program, "out")
    assert np.array_equal(bits(out), bits(np.ascontiguousarray(total.T)))
    assert out.shape == (4, 128)
    assert limited > 10, "the limits must matter"


def test_the_tensors_are_what_their_script_makes(root: Path, programs: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root / "model")}
    subprocess.run([sys.executable, programs / "make_worked.py", tmp_path], check=True, env=environment)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in programs.glob("*.safetensors"))
    for name in made:
        assert (tmp_path / name).read_bytes() == (programs / name).read_bytes(), name


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_schedule_changes_no_byte(seed: int | None, programs: Path) -> None:
    program = read_program(programs / "worked.yaml")
    core, plain = NeuronCore(options=program.options), ran(program)
    core.run(program, schedule=seed)
    for space in (Space.SBUF, Space.PSUM):
        assert np.array_equal(everything(core, space), everything(plain, space))


# --- RTL in the loop --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "elements"), [("worked", 8192), ("moe", 1536)])
def test_every_block_from_rtl_leaves_the_same_bytes(name: str, elements: int, programs: Path) -> None:
    program = read_program(programs / f"{name}.yaml")
    golden = ran(program)
    core, compared = run_with_rtl(program, tuple(Block))
    assert core.failures(program) == []
    for space in (Space.SBUF, Space.PSUM):
        assert np.array_equal(everything(core, space), everything(golden, space)), space
        assert everything(core, space).any()
    assert compared["narrow"] == elements
    assert compared["shared_exponent"] == elements // 32
    assert compared["ldexp"] > elements


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("rules", [BIRSIM, DEVICE], ids=lambda rules: rules.name)
def test_rtl_takes_every_source_at_its_own_entry_or_widened(source: str, rules: Any, programs: Path) -> None:
    """The catalogue has no fp16 encoder under DEVICE: the fp32 one, of the widened values, stands for it."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(32, 8)).astype(np.float32).astype(source)
    place = {"memory": "sbuf", "dtype": source, "shape": [32, 8], "bits": bits(x).tolist()}
    text = yaml.safe_dump(
        {
            "mxtwin": 1,
            "rules": rules.name,
            "tensors": {
                "x": place,
                "q": {"memory": "sbuf", "dtype": "float8_e5m2_x4", "shape": [32, 2]},
                "s": {"memory": "sbuf", "dtype": "uint8", "shape": [4, 2]},
            },
            "instructions": [{"quantize_mx": {"src": "x", "dst": "q", "dst_scale": "s"}}],
        }
    )
    program = parsed(text, programs)
    core, compared = run_with_rtl(program, (Block.SHARED_EXPONENT, Block.NARROW), verification=Verification.SKIPPED)
    assert compared == {"narrow": 256, "shared_exponent": 8}
    wanted = quantize_mx(x, FP8_E5M2, rules)
    assert np.array_equal(held(core, program, "s"), wanted.scale)
    assert np.array_equal(unpack_x4(held(core, program, "q"), FP8_E5M2), wanted.codes)


def test_rtl_that_the_catalogue_does_not_have_is_one_line(programs: Path) -> None:
    program = read_program(programs / "worked.yaml")
    own = replace(BIRSIM, name="mine", invalid_product=InvalidProduct.POSITIVE)
    with pytest.raises(BadInput, match="--rtl narrow must be of the catalogue for fp8_e4m3 under rules mine"):
        run_with_rtl(replace(program, options=replace(program.options, rules=own)), (Block.NARROW,))


@pytest.mark.parametrize(
    ("mutant", "block", "instruction"),
    [
        ("narrow_half_up_instead_of_even", "narrow", r"instruction [23] \(quantize_mx\)"),
        ("exponent_undecided_bits_anded", "shared_exponent", r"instruction 2 \(quantize_mx\)"),
        ("ldexp_zero_gets_an_exponent", "ldexp", r"instruction 4 \(matmul_mx 'head'\)"),
    ],
)
def test_a_fault_in_the_rtl_stops_at_the_first_difference(
    mutant: str, block: str, instruction: str, root: Path, programs: Path, tmp_path: Path
) -> None:
    copied = FaultyCopy(root, tmp_path)
    copied.plant(next(one for one in MUTANTS if one["name"] == mutant))
    done = copied.mxtwin("run", str(programs / "worked.yaml"), "--rtl", block)
    assert done.returncode == 1, done.stderr
    pattern = (
        rf"mxtwin: worked: {instruction}: {block} in RTL \(mx_{block}_\w+\) gives 0x[0-9a-f]+ at element "
        r"\[\d+, \d+\].*, where the golden twin gives 0x[0-9a-f]+; \d+ of \d+ differ\n"
    )
    assert re.fullmatch(pattern, done.stderr), done.stderr


# --- the file ---------------------------------------------------------------------------------------------------------

HEAD = """\
mxtwin: 1
tensors:
  x: {memory: sbuf, dtype: bfloat16, shape: [32, 8], values: 1.5}
  q: {memory: sbuf, dtype: float8_e4m3fn_x4, shape: [32, 2]}
  s: {memory: sbuf, dtype: float8_e8m0fnu, shape: [4, 2]}
"""


def parsed(text: str, directory: Path) -> Program:
    """``text`` as a program whose files lie in ``directory``."""
    file = directory / f".test_{os.getpid()}.yaml"
    file.write_text(text)
    try:
        return read_program(file)
    finally:
        file.unlink()


def copying(src: str) -> str:
    return f"{HEAD}instructions:\n  - copy: {{src: {src}, dst: x}}\n"


def holding(tensor: str) -> str:
    return f"mxtwin: 1\ntensors:\n  x: {{{tensor}}}\ninstructions: []\n"


WRONG = [
    ("mxtwin: 2\ninstructions: []\n", 1, "mxtwin: must be 1, the version of the format, not 2"),
    ("mxtwin: 1\n", 1, "must have the field instructions, which is missing"),
    ("- 1\n", 1, "must be a mapping of mxtwin, name, generation, rules, .*, not a list of 1"),
    ("mxtwin: 1\nintructions: []\n", 2, "the field must be one of .*, not intructions; perhaps instructions"),
    ("mxtwin: 1\nmxtwin: 1\n", 2, "the key mxtwin must stand once, not again"),
    (
        "mxtwin: 1\ninstructions: [\n",
        3,
        "wanted a YAML file, found a mistake in its syntax: expected a value, found the end of .*",
    ),
    ("mxtwin: 1\na: &a [1]\nb: *a\n", 2, "wanted a YAML file, found .*: anchors and aliases are not taken"),
    ("mxtwin: 1\nname: !!python/object:os.system x\n", 2, "name: must be a plain value, not one tagged .*"),
    ("mxtwin: 1\n<<: {name: x}\ninstructions: []\n", 2, "every key must be a word"),
    ("mxtwin: 1\nname: 3\ninstructions: []\n", 2, "name: must be text, not 3"),
    ("mxtwin: 1\ngeneration: v9\ninstructions: []\n", 2, "generation: must be one of v2, v3, v4, v5, not 'v9'"),
    ("mxtwin: 1\nrules: fast\ninstructions: []\n", 2, "rules: must be one of birsim, .*, not 'fast'"),
    (
        "mxtwin: 1\nrules: {like: birsim, name: x, emax_reduction: 2}\ninstructions: []\n",
        2,
        "rules: emax_reduction must be 0 or 1, not 2",
    ),
    (
        "mxtwin: 1\noptions:\n  accumulation: fast\ninstructions: []\n",
        3,
        "options.accumulation: must be one of sequential, exact, blas, not 'fast'",
    ),
    (HEAD + "instructions:\n  - quantise: {}\n", 7, r"instructions\[0\]: the field must be one of quantize_mx, .*"),
    (HEAD + "instructions:\n  - copy\n", 7, r"instructions\[0\]: must be a mapping of one key, .*, not 'copy'"),
    (HEAD + "instructions:\n  - copy: {src: x}\n", 7, r"instructions\[0\].copy: must have the field dst, .*"),
    (
        HEAD + "instructions:\n  - copy:\n      src: x\n      dst: y\n",
        9,
        r"instructions\[0\].copy.dst: must be a tensor of the program: x, q, s, not y",
    ),
    (copying("xz"), 7, r"instructions\[0\].copy.src: must be a tensor of the program: x, q, s, not xz; perhaps x"),
    (copying("3"), 7, r"instructions\[0\].copy.src: must be a tensor's name, a slice .*, not 3"),
    (
        copying("'x[0:64]'"),
        7,
        r"instructions\[0\].copy.src: slice 0 must name something in 0..32, not 0:64:1",
    ),
    (copying("'x[a]'"), 7, r".*src: must be slices such as .*, not 'x\[a\]'"),
    (
        copying("'x[::2]'"),
        7,
        ".*src: partitions must be consecutive in sbuf, .*",
    ),
    (
        copying("{tensor: x, pattern: [[1, 0]]}"),
        7,
        r"instructions\[0\].copy.src: pattern num must be 1 or more, not 0",
    ),
    (
        copying("{dtype: uint8}"),
        7,
        ".*must have one of the fields tensor and memory",
    ),
    (
        copying("{tensor: x, dtype: uint8}"),
        7,
        ".*must have the field pattern .*",
    ),
    (HEAD + "instructions:\n  - memset: {dst: x, value: true}\n", 7, ".*memset.value: must be a number, not True"),
    (
        HEAD + "instructions:\n  - elementwise: {src: x, operand: [1], operator: add, dst: x}\n",
        7,
        ".*operand: must be .*",
    ),
    (
        HEAD + "instructions:\n  - activate: {src: x, kind: zero}\n",
        7,
        r".*activate.kind: must be one of idle, zero_accumulate, add_accumulate, load_accumulate, not 'zero'",
    ),
    (
        HEAD + "instructions:\n  - matmul_mx: {moving: q, stationary: q, moving_scale: s, stationary_scale: s, dst: x, "
        "flags: [begin]}\n",
        7,
        r"instructions\[0\].matmul_mx.flags\[0\]: must be a flag byte in 0..255, or one of start, stop, accumulate, .*",
    ),
    ("mxtwin: 1\ntensors:\n  1x: {}\ninstructions: []\n", 3, "tensors.1x: a tensor's name must be .*, not '1x'"),
    (holding("memory: sbuf"), 3, "tensors.x: must have the field dtype, .*"),
    (
        holding("memory: sbuf, dtype: float8, shape: [1, 1]"),
        3,
        "tensors.x.dtype: must be one of uint8, .*, not 'float8'",
    ),
    (
        holding("memory: sbuf, dtype: uint8, shape: [4]"),
        3,
        r"tensors.x: shape must be \[partitions, free ...\], .*, not \[4\]",
    ),
    (
        holding("memory: psum, dtype: float32, shape: [1, 8192]"),
        3,
        "tensors.x: psum must have room up to byte 32768, and has 16384; give an offset",
    ),
    (
        holding("memory: sbuf, dtype: uint8, shape: [17, 4], layout: scattered"),
        3,
        "tensors.x: scattered scales must be of data on 32, 64, 96 or 128 partitions, not 136 .*",
    ),
    (
        holding("memory: sbuf, dtype: uint8, shape: [2, 2], values: [1, 2, 256, 4]"),
        3,
        r"tensors.x.values\[2\]: must be an integer in 0..255, not 256",
    ),
    (
        holding("memory: sbuf, dtype: uint8, shape: [2, 2], values: [[1, 2], [3]]"),
        3,
        r"tensors.x.values\[1\]: must be of shape \[2\], as the first of its list, not shape \[1\]",
    ),
    (
        holding("memory: sbuf, dtype: uint8, shape: [2, 2], hex: 01 02 03"),
        3,
        r"tensors.x.hex: must be 4 bytes for shape \[2, 2\] of uint8, not 3 bytes",
    ),
    (
        holding("memory: sbuf, dtype: uint8, shape: [2, 2], hex: '00', bits: 0"),
        3,
        "tensors.x: must have one of the fields file, values, bits, hex, not bits and hex",
    ),
    (
        holding("memory: sbuf, dtype: float8e4, shape: [1, 1], values: 1"),
        3,
        "tensors.x.values: dtype must be a float dtype to be cast to, .*; bits can be given instead",
    ),
    (
        holding("memory: dram, dtype: bfloat16, shape: [8, 8], file: worked.safetensors"),
        3,
        "tensors.x.file: wanted one tensor, named as FILE::TENSOR, found 4",
    ),
    (
        holding("memory: dram, dtype: bfloat16, shape: [8, 8], file: 'worked.safetensors::x'"),
        3,
        r"tensors.x.file: must be a tensor of shape \[8, 8\], not \[1024, 8\]",
    ),
    (
        holding("memory: dram, dtype: float32, shape: [8, 8], file: 'worked.safetensors::x'"),
        3,
        "tensors.x.file: must be a tensor of float32 or its bits as uint32 for float32, not bfloat16",
    ),
    (
        holding("memory: dram, dtype: float32, shape: [8, 8], file: none.npy"),
        3,
        "tensors.x.file: .*none.npy: wanted a .npy file, found no such file or directory",
    ),
    (
        holding("memory: sbuf, dtype: float8_e4m3fn_x4, shape: [8, 8], file: 'weights.mx.safetensors::w', part: codes"),
        3,
        "tensors.x.file: wanted codes for float8_e4m3fn_x4, found fp4_e2m1",
    ),
    (HEAD + "instructions: []\nexpect:\n  - {operand: x}\n", 8, r"expect\[0\]: must have one of the fields file, .*"),
    (HEAD + "instructions: []\nexpect:\n  - {operand: y, bits: 0}\n", 8, r"expect\[0\].operand: must be a tensor .*"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG, ids=range(len(WRONG)))
def test_a_mistake_names_file_line_and_field(text: str, line: int, message: str, programs: Path) -> None:
    with pytest.raises(BadInput) as stop:
        parsed(text, programs)
    found = str(stop.value)
    assert "\n" not in found
    assert re.fullmatch(rf".*\.test_\d+\.yaml:{line}: {message}", found), found


@pytest.mark.parametrize(
    ("octets", "message"),
    [
        (b"", "found an empty file"),
        (b"\xff\xfe\x00", "in UTF-8, found other bytes"),
        (b"a: 1\n---\nb: 2\n", "there is another document"),
        (b"[" * 5000, "(of few levels, found too many|found a mistake .*)"),
        (b"a: \x07\n", "found .*"),
    ],
    ids=["empty", "bytes", "documents", "deep", "control"],
)
def test_what_is_no_yaml_is_one_line(octets: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(octets)
    with pytest.raises(BadInput, match=f"p.yaml:.*wanted a YAML file.*{message}") as stop:
        read_program(file)
    assert "\n" not in str(stop.value)


FIELDS = ("dtype", "rows", "pattern", "offset", "values", "bits", "hex", "zz", "tensor", "memory", "engine", "label")
TOKENS = (
    *(
        "0",
        "-1",
        "1e9",
        "9" * 20,
        ".nan",
        "null",
        "true",
        "[]",
        "{}",
        "[1]",
        "{tensor: x}",
        "x",
        "'x[0:1]'",
        "'x[::0]'",
    ),
    *("[[0, 1]]", f"[[1, {'9' * 11}]]", "128", "uint8", "float32", "dram", "psum", "2001-01-01", "!!binary aa"),
    *('"\\0"', "'0:5:0'", "':'", "scattered", "float8e3", "17"),
)


def test_a_damaged_program_is_told_in_one_line_or_runs(programs: Path) -> None:
    """Values, keys and single characters of the worked programs replaced at random: BadInput, or a run, and no else."""
    rng = random.Random(4)
    texts = [(programs / f"{name}.yaml").read_text() for name in NAMES]
    outcomes: Counter[bool] = Counter()
    messages: list[str] = []
    for _ in range(150):
        text = rng.choice(texts)
        pattern, words = rng.choice(
            [
                (r"(?<=: )[^,{}\n]+(?=[,}\n])", TOKENS),
                (r"\w+(?=: )", FIELDS),
                (r"[^ ]", tuple("{}[]:,#&*!|>'\"%@`\t\n- x0")),
            ]
        )
        place = rng.choice(list(re.finditer(pattern, text)))
        try:
            program = parsed(text[: place.start()] + rng.choice(words) + text[place.end() :], programs)
            ran(program).failures(program)
            outcomes[True] += 1
        except BadInput as error:
            messages.append(str(error))
            outcomes[False] += 1
    assert not any("\n" in message for message in messages)
    assert outcomes[False] > 100
    assert outcomes[True] > 3


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    file.write_text("\n".join(lines))
    with pytest.raises(BadInput, match=r"p.yaml:1: .*anchors and aliases are not taken"):
        read_program(file)


def test_contents_in_every_form_are_the_same_bits(tmp_path: Path) -> None:
    x = np.array([[1.5, -0.0, np.inf, 1e-3], [2, 3, 448, 1000]], dtype=np.float32).astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", bits(x))
    np.savez(tmp_path / "x.npz", x=bits(x), two=np.stack([bits(x), bits(x) * 0]))
    forms = {
        "values": "values: [[1.5, -0.0, .inf, 1e-3], [2, 3, 448, 1000]]",
        "flat": "values: [1.5, -0.0, .inf, 1e-3, 2, 3, 448, 1000]",
        "bits": f"bits: {bits(x).tolist()}",
        "hex": f"hex: '{x.tobytes().hex()}'",
        "npy": "file: x.npy",
        "npz": "file: 'x.npz::x'",
        "cut": "file: 'x.npz::x', slice: '0:2, :'",
    }
    tensors = "".join(
        f"  {name}: {{memory: sbuf, dtype: bfloat16, shape: [2, 4], {form}}}\n" for name, form in forms.items()
    )
    program = parsed(f"mxtwin: 1\ntensors:\n{tensors}instructions: []\n", tmp_path)
    for name in forms:
        contents = program.tensors[name].contents
        assert contents is not None
        assert np.array_equal(bits(contents), bits(x)), name
    offsets = [tensor.place.offset for tensor in program.tensors.values()]
    assert offsets == [64 * i for i in range(len(forms))], "each has a place of its own"


def test_operands_in_every_form(tmp_path: Path) -> None:
    text = """\
mxtwin: 1
tensors:
  x: {memory: sbuf, dtype: bfloat16, shape: [64, 4, 8], start_partition: 32, offset: 128}
  d: {memory: dram, dtype: uint16, shape: [64, 8], offset: 256}
  r: {memory: sbuf, dtype: uint32, shape: [4, 1]}
  s: {memory: sbuf, dtype: uint8, shape: [16, 8], layout: scattered, start_partition: 8}
instructions:
  - copy: {src: x, dst: 'x[1:3, 2, ::2]'}
  - copy: {src: {tensor: x, start_partition: 2, offset: 4, pattern: [[0, 3], [2, 2]]}, dst: x}
  - copy: {src: {memory: psum, dtype: float32, partitions: 4, offset: 8, pattern: [[1, 2]], rows: r}, dst: x}
  - load: {src: 'd[8:64:4, 4:]', dst: x}
  - load: {src: {tensor: d, start_partition: 8, partitions: 2, partition_step: 4, pattern: [[1, 1]]}, dst: 's[:, 2:4]'}
"""
    program = parsed(text, tmp_path)
    found = [[pattern for _, pattern in one.operands()] for one in program.instructions]
    x = program.tensors["x"].place
    assert found[0] == [
        x,
        replace(x, start_partition=33, partitions=2, offset=128 + 2 * 16, pattern=((8, 1), (2, 4))),
    ]
    assert found[1][0] == replace(x, start_partition=34, partitions=62, offset=132, pattern=((0, 3), (2, 2)))
    assert found[2][0].rows == program.tensors["r"].place
    assert (found[2][0].space, found[2][0].offset) == (Space.PSUM, 8)
    d = program.tensors["d"].place
    assert found[3][0] == replace(d, offset=256 + 8 * 16 + 8, partitions=14, partition_step=64, pattern=((1, 4),))
    assert found[4][0] == replace(d, offset=256 + 8 * 16, partitions=2, partition_step=4, pattern=((1, 1),))
    s = found[4][1]
    assert (s.start_partition, s.partitions, s.pattern, s.partition_pattern) == (8, 120, ((1, 2),), None)
    assert program.tensors["s"].place.partition_pattern == ((32, 4), (1, 4))


def test_slices_are_numpys(tmp_path: Path) -> None:
    """Random views of a DRAM tensor, read back, are the slices of its array."""
    rng = np.random.default_rng(3)
    array = rng.integers(0, 1 << 16, size=(24, 5, 7), dtype=np.uint16)
    place = tensor_place(Space.DRAM, dtype_named("uint16"), array.shape, offset=64)
    core = NeuronCore()
    core.memories[Space.DRAM].write(place, MemoryObject(array, dtype_named("uint16")))
    for _ in range(200):
        index = []
        for length in array.shape[: rng.integers(1, 4)]:
            start = int(rng.integers(0, length))
            index.append(slice(start, int(rng.integers(start + 1, length + 1)), int(rng.integers(1, 4))))
        got = core.memories[Space.DRAM].read(sliced(place, tuple(index))).containers
        assert np.array_equal(got, array[tuple(index)]), index


# --- writing ----------------------------------------------------------------------------------------------------------


def same(left: Program, right: Program) -> None:
    assert left.instructions == right.instructions
    assert (left.generation, left.options, left.name) == (right.generation, right.options, right.name)
    assert list(left.tensors) == list(right.tensors)
    for name, tensor in left.tensors.items():
        assert tensor.place == right.tensors[name].place
        contents = right.tensors[name].contents
        assert (tensor.contents is None) is (contents is None)
        if tensor.contents is not None and contents is not None:
            assert np.array_equal(bits(tensor.contents), bits(contents))
    for mine, other in zip(left.expectations, right.expectations, strict=True):
        assert (mine.name, mine.place) == (other.name, other.place)
        assert np.array_equal(bits(mine.contents), bits(other.contents))


UNWRITTEN = """\
mxtwin: 1
tensors:
  b: {memory: dram, dtype: bfloat16, shape: [32, 8], values: 1}
  bt: {memory: sbuf, dtype: bfloat16, shape: [32, 8], offset: 128}
  q: {memory: sbuf, dtype: float8_e4m3fn_x4, shape: [32, 2]}
  s: {memory: sbuf, dtype: float8_e8m0fnu, shape: [4, 2]}
instructions:
  - load: {src: b, dst: bt}
  - quantize_mx: {src: bt, dst: q, dst_scale: s}
"""


def test_a_fault_names_file_line_operand_and_tensor(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(UNWRITTEN.replace("  - load: {src: b, dst: bt}\n", ""))
    with pytest.raises(ExecutionFault) as stop:
        ran(read_program(str(file)))
    assert str(stop.value) == (
        f"{file}:8: instructions[0] (quantize_mx): src (tensor bt): sbuf partition 0, byte 128 is read before anything "
        "wrote it; load it, or set uninitialised: allowed (P-4)"
    )
    file.write_text(UNWRITTEN.replace("shape: [32, 8], offset", "shape: [32, 16], offset"))
    program = read_program(file)
    program = replace(program, instructions=(program.instructions[1],))
    with pytest.raises(IllegalProgram, match=r"^p: instruction 0 \(quantize_mx\): .*elements"):
        ran(program)


def test_a_tensor_outside_its_memory_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(holding("memory: psum, dtype: float32, shape: [1, 1], offset: 16384, values: 1"))
    with pytest.raises(ExecutionFault) as stop:
        ran(read_program(file))
    assert str(stop.value).startswith(f"{file}:3: tensors.x: operand must lie in the 128 x 16384 bytes of psum")


def test_a_fault_names_the_tensor_of_scales_and_of_parts(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(UNWRITTEN)
    whole = read_program(file)
    ran(whole)
    for text, wanted in (
        ("  - copy: {src: 's[1:2, 1]', dst: 's[0:1, 1]'}\n", r"src \(tensor s\): sbuf partition 1, byte \d+ is read"),
        ("  - copy: {src: 'bt[3:4]', dst: 'bt[0:1]'}\n", r"src \(tensor bt\): sbuf partition 3, byte 128 is read"),
    ):
        file.write_text(UNWRITTEN.partition("  - load")[0] + text)
        with pytest.raises(ExecutionFault, match=wanted):
            ran(read_program(file))


@pytest.mark.parametrize(
    ("shape", "part", "words"),
    [
        ((16, 8), None, "dram byte 64, [16, 8] float32"),
        ((16, 4, 8), None, "dram byte 64, [16, 4, 8] float32"),
        ((16, 8), (slice(0, 16, 2),), "dram byte 64, [8, 8] float32, rows 64 bytes apart"),
        ((16, 8), (slice(None), slice(0, 8, 2)), "dram byte 64, [16, 4] float32 in steps of 2, rows 32 bytes apart"),
    ],
)
def test_a_place_reads_as_its_shape(shape: tuple[int, ...], part: Any, words: str) -> None:
    place = tensor_place(Space.DRAM, dtype_named("float32"), shape, offset=64)
    assert str(place if part is None else sliced(place, part)) == words


@pytest.mark.parametrize("name", NAMES)
def test_written_programs_are_read_as_the_same(name: str, programs: Path, tmp_path: Path) -> None:
    program = read_program(programs / f"{name}.yaml")
    text = program_text(program)
    same(parsed(text, tmp_path), program)
    assert "memory:" not in text.partition("instructions:")[2], "operands are named by their tensors"
    write_program(program, tmp_path / "again.yaml")
    same(read_program(tmp_path / "again.yaml"), program)
    assert len((tmp_path / "again.yaml").read_text()) < 12_000, "long contents stand in the file beside"
    assert ran(read_program(tmp_path / "again.yaml")).failures(program) == []


def test_operands_inside_a_tensor_are_written_by_its_name(tmp_path: Path) -> None:
    """Random steps, rows and dtypes inside a tensor of SBUF and one of DRAM: written as views, read as the same."""
    rng = np.random.default_rng(11)
    places = {
        space: tensor_place(space, dtype_named("uint16"), (24, 64), offset=256, start_partition=first)
        for space, first in ((Space.SBUF, 8), (Space.DRAM, 0))
    }
    instructions = []
    for _ in range(100):
        operands = []
        for space, place in places.items():
            step, num, first = (int(rng.integers(1, most)) for most in (4, 8, 12))
            changes: dict[str, Any] = {"offset": 256 + 2 * int(rng.integers(0, 16)), "partitions": 24 - first}
            changes["dtype"] = dtype_named(("uint16", "bfloat16", "uint8")[int(rng.integers(0, 3))])
            changes["pattern"] = ((int(rng.integers(0, 5)), 2), (step, num))
            if space is Space.SBUF:
                changes |= {"start_partition": 8 + first, "partitions": int(rng.integers(1, 25 - first))}
            else:
                changes |= {"partition_step": int(rng.integers(0, 128))}
            operands.append(replace(place, **changes))
        instructions.append(INSTRUCTIONS["copy"](src=operands[0], dst=operands[1]))  # type: ignore[call-arg]
    tensors = {space.value: ProgramTensor(place=place) for space, place in places.items()}
    program = Program(instructions=tuple(instructions), tensors=tensors)
    text = program_text(program)
    same(replace(parsed(text, tmp_path), name="program"), program)
    assert "memory:" not in text.partition("instructions:")[2]
    assert text.count("{tensor: ") > 190


def changed(instruction: Instruction) -> Instruction:
    """With every field of its own at something else than its default."""
    values: dict[str, Any] = {"label": "a: 'b' # 1e5", "uninitialised": Uninitialised.ALLOWED}
    for field in fields(instruction):
        default = field.default
        if field.name in ("label", "uninitialised", *instruction.inputs, *instruction.outputs):
            continue
        if field.name == "flags":
            values["flags"] = int(PsumFlag.STOP | PsumFlag.ACCUMULATE)
        elif isinstance(default, tuple):
            values[field.name] = (-1, 64)
        elif hasattr(type(default), "__members__"):
            values[field.name] = next(one for one in type(default) if one is not default)
        elif isinstance(default, float) or (field.name == "immediate"):
            values[field.name] = float("-inf")
        elif default is None or isinstance(default, int):
            values[field.name] = 3
    return replace(instruction, **values)


def test_every_field_of_every_record_survives(tmp_path: Path) -> None:
    operand = AccessPattern(
        space=Space.SBUF, dtype=dtype_named("uint8"), partitions=3, offset=5, pattern=((0, 2), (3, 4))
    )
    gathered = replace(operand, rows=replace(operand, dtype=dtype_named("int32")))
    dram = replace(operand, space=Space.DRAM, partition_step=7)
    instructions: list[Instruction] = []
    count = 0
    for mnemonic, kind in INSTRUCTIONS.items():
        named = dict(zip((*kind.inputs, *kind.outputs), (gathered, dram, operand, operand, operand), strict=False))
        extra: dict[str, Any] = {"value": 2.0} if mnemonic == "memset" else {}
        if mnemonic == "elementwise":
            from mxmodel.isa import Operator

            extra["operator"] = Operator.MAX
        plain = kind(**named, **extra)
        instructions += [plain, changed(plain)]
        count += sum(getattr(instructions[-1], field.name) != field.default for field in fields(kind))
        assert set(RECORDS[mnemonic].fields) == {field.name for field in fields(kind)}
    first = next(one for one in instructions if isinstance(one, Elementwise))
    instructions.append(replace(first, operand=0.1))
    options = MachineOptions(
        rules=replace(DEVICE, name="mine", emax_reduction=0),
        auto_psum_accumulate=AutoPsumAccumulate.TRUE,
        multi_bank_from=Generation.V5,
    )
    program = Program(instructions=tuple(instructions), generation=Generation.V5, options=options, name="x: 1")
    same(parsed(program_text(program), tmp_path), program)
    assert count >= 90
    assert len(instructions) == 2 * len(INSTRUCTIONS) + 1


# --- schema and page --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of rfc3986, in jschon
        jschon.create_catalog("2020-12")
        return jschon.JSONSchema(program_schema())


def accepts(schema: Any, value: Any) -> bool:
    return bool(schema.evaluate(jschon.JSON(value)).valid)


def test_schema_and_page_are_current(root: Path) -> None:
    """Otherwise: python -m mxmodel.program_files.schema docs/programs.md"""
    assert SCHEMA_FILE.read_text() == schema_text()
    page = (root / "docs" / "programs.md").read_text()
    assert page == page_with_tables(page)
    for mnemonic, record in RECORDS.items():
        section = page.partition(f"#### `{mnemonic}`")[2].partition("####")[0]
        for name in record.required:
            assert f"| `{name}` |" in section, (mnemonic, name)


@pytest.mark.parametrize("name", NAMES)
def test_schema_takes_the_worked_programs(name: str, schema: Any, programs: Path) -> None:
    plain = yaml.safe_load((programs / f"{name}.yaml").read_text())
    assert accepts(schema, plain)
    assert not accepts(schema, {**plain, "nmae": 1})


TENSOR = {"memory": "sbuf", "dtype": "uint8", "shape": [4, 4]}
SMALL = {"mxtwin": 1, "tensors": {"t": TENSOR, "dve": TENSOR}}


VALUES: tuple[Any, ...] = (
    *("t", "dve", "x y", 1, -1, 2.5, True, None, [], [1], ["start"]),
    *({"tensor": "t"}, {"memory": "sbuf"}, {"tensor": "t", "offset": 1}),
)


def test_schema_and_loader_agree_on_every_field(schema: Any, tmp_path: Path) -> None:
    """Each instruction with each of its fields given, missing, misspelt and of a wrong kind: both say the same."""
    verdicts: Counter[bool] = Counter()

    def judge(body: Any, mnemonic: str) -> None:
        plain = {**SMALL, "instructions": [{mnemonic: body}]}
        try:
            parsed(json.dumps(plain), tmp_path)
            loaded = True
        except BadInput:
            loaded = False
        assert accepts(schema, plain) is loaded, plain
        verdicts[loaded] += 1

    for mnemonic, record in RECORDS.items():
        good: dict[str, Any] = dict.fromkeys(record.required, "t")
        good |= {"value": 1} if "value" in good else {}
        good |= {"operator": "add"} if "operator" in record.required else {}
        judge(good, mnemonic)
        judge({**good, "lable": "x"}, mnemonic)
        for name in record.fields:
            judge({key: value for key, value in good.items() if key != name}, mnemonic)
            for value in VALUES:
                judge({**good, name: value}, mnemonic)
    assert verdicts[True] > 250
    assert verdicts[False] > 300


def test_a_mapping_of_two_instructions_is_refused_by_both(schema: Any, tmp_path: Path) -> None:
    both = {"copy": {"src": "t", "dst": "t"}, "memset": {"dst": "t", "value": 1}}
    plain = {**SMALL, "instructions": [both]}
    assert not accepts(schema, plain)
    with pytest.raises(BadInput, match="must be a mapping of one key"):
        parsed(json.dumps(plain), tmp_path)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_run_tells_what_holds(mxtwin: Any, programs: Path) -> None:
    status, out, err = mxtwin("run", str(programs / "worked.yaml"))
    assert (status, err) == (0, "")
    assert "worked: 7 instructions on v4 under rules birsim, accumulation sequential" in out
    assert out.count("128 equal") == 3
    status, out, _ = mxtwin("run", str(programs / "worked.yaml"), "--json", "--schedule", "4")
    plain = json.loads(out)
    assert status == 0
    assert [one["holds"] for one in plain["expectations"]] == [True] * 3


def test_run_under_other_rules_fails_its_expectations(mxtwin: Any, programs: Path) -> None:
    status, out, _ = mxtwin("run", str(programs / "worked.yaml"), "--rules", "device", "--json")
    plain = json.loads(out)
    assert status == 1
    assert plain["rules"] == "device"
    assert all(re.search(r"must be 0x\w+ .* not 0x\w+", one["difference"]) for one in plain["expectations"])
    status, out, _ = mxtwin("run", str(programs / "worked.yaml"), "--accumulation", "exact", "--json")
    holds = [one["holds"] for one in json.loads(out)["expectations"]]
    assert status == 1
    assert holds == [False, True, True]


def test_run_writes_tensors(mxtwin: Any, programs: Path, tmp_path: Path) -> None:
    status, _, _ = mxtwin("run", str(programs / "worked.yaml"), "y", "qs0", "x", "-o", "out.npz")
    assert status == 0
    wanted = {name: file_tensor(programs / "worked.safetensors", name) for name in ("product", "scale", "x")}
    with np.load(tmp_path / "out.npz") as out:
        assert sorted(out) == ["qs0", "x", "y"]
        assert np.array_equal(bits(out["y"]), bits(wanted["product"]))
        assert np.array_equal(out["qs0"], wanted["scale"][:16])
        assert np.array_equal(out["x"], bits(wanted["x"]))
    status, out, _ = mxtwin("run", str(programs / "worked.yaml"), "-o", "all.safetensors", "--json")
    assert status == 0
    assert len(json.loads(out)["written"]) == 13
    assert file_tensor(tmp_path / "all.safetensors", "x").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("schedule", [None, 5])
def test_traces_are_json_in_order_and_balanced(schedule: int | None, programs: Path, tmp_path: Path) -> None:
    program = read_program(programs / "worked.yaml")
    trace = Trace()
    NeuronCore(options=program.options, trace=trace).run(program, schedule=schedule)
    trace.write(tmp_path / "t.jsonl", program.name)
    trace.write(tmp_path / "t.json", program.name)
    events = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [event["order"] for event in events] == list(range(len(events)))
    open_index = None
    for event in events:
        if event["kind"] == "issue":
            assert open_index is None
            open_index = event["index"]
        elif event["kind"] == "retire":
            assert event["index"] == open_index
            open_index = None
        elif open_index is not None:
            assert event["index"] == open_index
    assert open_index is None
    counts = Counter(event["kind"] for event in events)
    assert counts["issue"] == counts["retire"] == 7
    spans = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(span["ph"] == "X" and span["cat"] == "retire" for span in spans) == 7
    assert all(span["dur"] >= 1 for span in spans if span["ph"] == "X")


def test_run_writes_a_trace(mxtwin: Any, programs: Path, tmp_path: Path) -> None:
    status, out, _ = mxtwin("run", str(programs / "moe.yaml"), "--trace", "t.jsonl")
    assert status == 0
    assert "trace: t.jsonl" in out
    events = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert sum(event["kind"] == "retire" for event in events) == 36


def illegal(programs: Path, tmp_path: Path) -> Path:
    """worked.yaml with a product on too few partitions, and DVE as the engine of one matmul."""
    program = read_program(programs / "worked.yaml")
    _, body = (one for one in program.instructions if isinstance(one, MatmultMx))
    wrong = replace(body, dst=replace(body.dst, partitions=8), engine=QuantizeMx.engine)
    instructions = tuple(wrong if one is body else one for one in program.instructions)
    write_program(replace(program, instructions=instructions), tmp_path / "illegal.yaml")
    return tmp_path / "illegal.yaml"


def test_check_lists_violations_and_run_refuses_them(mxtwin: Any, programs: Path, tmp_path: Path) -> None:
    file = str(illegal(programs, tmp_path))
    status, out, _ = mxtwin("check", file)
    assert status == 1
    assert "236" in out
    assert "205" in out
    assert re.search(r"illegal.yaml:\d+ +5 matmul_mx 'body' +236 ", out), out
    status, out, _ = mxtwin("check", file, "--json")
    plain = json.loads(out)
    assert status == 1
    assert {one["code"] for one in plain["violations"]} == {205, 236}
    assert {one["index"] for one in plain["violations"]} == {5}
    status, out, err = mxtwin("run", file)
    assert status == 1
    assert "236" in out
    assert "2 violations; --no-verify runs it all the same" in err
    status, _, err = mxtwin("run", file, "--no-verify")
    assert status == 2
    assert re.fullmatch(r"mxtwin: error: .*illegal\.yaml:\d+: instructions\[5\] \(matmul_mx 'body'\): .*\n", err)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 0),
        (["--generation", "v5"], 0),
        (["--profile", "public"], 0),
        (["--generation", "v3"], 1),
        (["--generation", "v3", "--profile", "public"], 1),
    ],
)
def test_check_asks_for_generation_and_profile(arguments: list[str], status: int, mxtwin: Any, programs: Path) -> None:
    found, out, _ = mxtwin("check", str(programs / "worked.yaml"), *arguments)
    assert found == status
    assert ("no violations" in out) is (status == 0)


def test_the_profiles_differ_on_96_partitions(mxtwin: Any, programs: Path, tmp_path: Path) -> None:
    program = read_program(programs / "worked.yaml")
    head = next(one for one in program.instructions if isinstance(one, MatmultMx))
    rows = {name: replace(getattr(head, name), partitions=96) for name in ("moving", "stationary")}
    write_program(replace(program, instructions=(replace(head, **rows),), expectations=()), tmp_path / "p.yaml")
    status, out, _ = mxtwin("check", "p.yaml", "--json")
    assert (status, [one["line"] for one in json.loads(out)["violations"]]) == (1, [3091])
    status, out, _ = mxtwin("check", "p.yaml")
    assert status == 1
    assert "p.yaml:" in out
    assert "1 instruction on v4, profile bir: 1 violation\nprofile public: legal; docs/legality.md has" in out
    status, out, _ = mxtwin("check", "p.yaml", "--profile", "public", "--json")
    assert (status, json.loads(out)["violations"]) == (0, [])


def test_a_program_of_nothing_runs(mxtwin: Any, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("mxtwin: 1\ninstructions: []\n")
    status, out, err = mxtwin("run", "p.yaml", "--rtl", "all", "--trace", "t.jsonl", "-o", "o.npz")
    assert (status, err) == (0, "")
    assert "p: 0 instructions on v4" in out
    assert (tmp_path / "t.jsonl").read_text() == ""


def test_lower_shows_device_operations(mxtwin: Any, programs: Path) -> None:
    status, out, _ = mxtwin("lower", str(programs / "worked.yaml"))
    assert status == 0
    assert out.count("LDWEIGHTS_MX") == out.count("MATMUL_MX") == 2
    assert out.count("0xE3*") == 2
    assert "* 0xE3 (QUANTIZE_MX) is inferred" in out
    assert "worked: 7 instructions on v4: 4 with a device form, 3 whose opcode is not known\n" in out
    assert out.count("opcode not known ") == 3
    status, out, _ = mxtwin("lower", str(programs / "worked.yaml"), "--generation", "v5", "--json")
    opcodes = [[o["opcode"] for o in one["operations"]] for one in json.loads(out)["instructions"]]
    assert opcodes == [[], [], [0xE3], [0xE3], [1, 2], [1, 2], []]
    status, out, _ = mxtwin("lower", str(programs / "worked.yaml"), "--generation", "v2")
    assert status == 1
    assert "0 with a device form, 3 whose opcode is not known, 4 that cannot be lowered" in out
    assert out.count("not on v2: the floor is v4") == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "none.yaml"], "none.yaml: wanted a YAML file, found no such file"),
        (["run", "{worked}", "z", "-o", "x.npz"], "tensor must be one of x, y, .*, not z"),
        (["run", "{worked}", "prodct", "-o", "x.npz"], "tensor must be one of x, y, .*, not prodct; perhaps product"),
        (["run", "{worked}", "--trace", "t.txt"], "--trace must be a name that ends in .json or .jsonl, not t.txt"),
        (["run", "{worked}", "y"], "--output FILE must be given to write y"),
        (["run", "{worked}", "y", "-o", "x.txt"], "x.txt: wanted an output that ends in .*"),
        (["run", "{worked}", "--rules", "fast"], "--rules must be one of .*, not 'fast'"),
        (["run", "{worked}", "--rtl", "adder"], "--rtl must name blocks among .*, not 'adder'"),
        (["check", "{worked}", "--generation", "v9"], ".*v9.*"),
    ],
)
def test_bad_command_lines_are_one_line(arguments: list[str], message: str, mxtwin: Any, programs: Path) -> None:
    status, out, err = mxtwin(*(argument.format(worked=programs / "worked.yaml") for argument in arguments))
    assert (status, out) == (2, "")
    assert re.fullmatch(f"mxtwin: error: (.*: )?{message}\n", err), err


def test_schema_command_prints_the_schema(mxtwin: Any) -> None:
    status, out, _ = mxtwin("schema")
    assert status == 0
    assert json.loads(out) == json.loads(SCHEMA_FILE.read_text())


@pytest.mark.parametrize("command", ["run", "check", "lower", "schema"])
def test_help_has_an_example(command: str, mxtwin: Any) -> None:
    status, out, _ = mxtwin(command, "--help")
    assert status == 0
    assert f"Example: mxtwin {command}" in " ".join(out.split())


def test_the_page_shows_a_real_run(root: Path, programs: Path, mxtwin: Any) -> None:
    page = (root / "docs" / "programs.md").read_text()
    _, out, _ = mxtwin("run", str(programs / "worked.yaml"), "--rtl", "all")
    lines = [line.rstrip() for line in out.splitlines() if line.strip()]
    assert len(lines) == 9
    assert all(f"\n    {line}\n" in page for line in lines)


def test_the_page_shows_a_real_lowering(root: Path, programs: Path, mxtwin: Any) -> None:
    page = (root / "docs" / "programs.md").read_text()
    _, out, _ = mxtwin("lower", str(programs / "worked.yaml"))
    shown = "".join(f"    {line.rstrip()}\n" for line in out.splitlines() if line.strip())
    assert f"`mxtwin lower` prints\n\n{shown}\n" in page


def test_the_pages_program_is_legal_and_meets_its_expectation(root: Path, mxtwin: Any, tmp_path: Path) -> None:
    page = (root / "docs" / "programs.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```\n", page, re.DOTALL)
    (tmp_path / "p.yaml").write_text(text)
    for profile in ("bir", "public"):
        assert mxtwin("check", "p.yaml", "--profile", profile)[0] == 0
    status, out, err = mxtwin("run", "p.yaml")
    assert (status, err) == (0, "")
    assert "128 equal" in out
    assert "p: 6 instructions on v4" in out


def test_every_instruction_tells_shapes_and_the_meaning_of_its_fields() -> None:
    for mnemonic, record in RECORDS.items():
        assert INSTRUCTIONS[mnemonic].shapes, mnemonic
        assert [name for name in record.fields if not record.meanings.get(name)] == [], mnemonic


# --- found by trying to break it --------------------------------------------------------------------------------------


def test_a_tensor_may_be_called_what_expectations_were(tmp_path: Path) -> None:
    """Both have their contents in the file beside the program, under names that cannot meet."""
    core = Core()
    tile = core.dram("expect.0", np.ones((2, 2), np.float32))
    core.expect(tile, np.zeros((2, 2), np.float32))
    write_program(core.program(), tmp_path / "p.yaml")
    again = read_program(tmp_path / "p.yaml")
    assert (again.tensors["expect.0"].contents == 1).all()
    assert (again.expectations[0].contents == 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: {like: device, name: birsim}", "rules with a name of their own, not 'birsim'"),
        ("rules: {like: device, name: ''}", "rules with a name of their own, not ''"),
        (f"instructions: [{{memset: {{dst: x, value: {'9' * 400}}}}}]", None),
        (f"instructions: [{{elementwise: {{src: x, operand: {'9' * 400}, dst: x, operator: add}}}}]", "a double holds"),
        (f"instructions: [{{copy: {{src: 'x[{'1' * 5000}]', dst: x}}}}]", "slices such as 0:64"),
        ("instructions: [{copy: {src: {tensor: x, pattern: [[0, 1000000000]]}, dst: x}}]", "name at most the"),
        ("instructions: [{memset: {dst: {tensor: x, pattern: [[0, 1000000000000]]}, value: 1}}]", "name at most the"),
        (
            f"instructions: [{{copy: {{src: {{tensor: x, pattern: {[[1, 1]] * 70}}}, dst: x}}}}]",
            "at most 16 dimensions",
        ),
        ("options: {most_banks_log2: 10000000000000}", "most_banks_log2 must be in 0..3"),
    ],
)
def test_numbers_and_names_that_are_too_much_are_one_line(text: str, message: str | None, mxtwin: Any) -> None:
    given = {line.split(":")[0] for line in (text,)}
    lines = ["mxtwin: 1", "tensors: {x: {memory: sbuf, dtype: float32, shape: [4, 4], values: 0}}", text]
    lines += [] if "instructions" in given else ["instructions: []"]
    Path("p.yaml").write_text("\n".join(lines) + "\n")
    status, _, err = mxtwin("run", "p.yaml")
    assert status == 2
    assert len(err.splitlines()) == 1
    assert message is None or message in err


def test_an_mx_file_of_other_rules_is_refused(mxtwin: Any) -> None:
    """Scale 255 would be read otherwise than it was meant (M-3, D-3)."""
    np.save("w.npy", np.ones((32, 8), np.float32))
    assert mxtwin("quantize", "w.npy", "--rules", "device", "-o", "w.mx.npz")[0] == 0
    Path("p.yaml").write_text(
        "mxtwin: 1\ntensors:\n"
        "  w: {memory: sbuf, dtype: float8_e4m3fn_x4, shape: [32, 2], file: w.mx.npz, part: codes}\n"
        "instructions: []\n"
    )
    with pytest.raises(BadInput, match="wanted a tensor that rules birsim read as it was made, found one of device"):
        read_program("p.yaml")
