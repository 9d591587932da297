"""The exhaustive sweep skips nothing, sees any fault and can be cut anywhere; it expects what contract N says."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
from numpy.typing import NDArray

import mxmodel.narrow
from mxmodel.bad_input import BadInput
from mxmodel.chunks import CHUNK
from mxmodel.formats import ELEMENTS, FP4_E2M1, FP8_E4M3, FP8_E5M2, ElementFormat
from mxmodel.narrow import narrow
from mxmodel.rules import BIRSIM, OCP, NanCode, Overflow, RuleSet
from mxtb import cli
from mxtb.exhaustive import BATCH, PATTERNS, Sweep, expected, policies, sweep

each_element = pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)

TIE = {"fp4_e2m1": 7.0, "fp8_e4m3": 464.0, "fp8_e5m2": 61440.0}
"""The tie above max-normal: from here on everything saturates (N-2, N-3)."""

Words = NDArray[np.uint32]


def fp32_pattern(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Flip the lowest code bit of given fp32 patterns, deep in the golden ``narrow``."""
    real = mxmodel.narrow._narrow_chunk

    def at(*wrong: int) -> None:
        def faulty(bits: Words, scale: Any, policy: Any, source: Any, overflow: Any, codes: Any) -> None:
            real(bits, scale, policy, source, overflow, codes)
            codes[np.isin(bits, np.array(wrong, dtype=np.uint32))] ^= 1

        monkeypatch.setattr(mxmodel.narrow, "_narrow_chunk", faulty)

    return at


class Watcher:
    """The golden ``narrow``, writing down what E4M3 under BIRSIM is given; Ctrl-C comes on the way if asked."""

    def __init__(self, interrupt_at: int = PATTERNS) -> None:
        self.seen: list[Words] = []
        self.interrupt_at = interrupt_at

    def __call__(self, x: NDArray[np.float32], element: ElementFormat, *, rules: RuleSet) -> NDArray[np.uint8]:
        bits = x.view(np.uint32)
        if bits[-1] >= self.interrupt_at:
            raise KeyboardInterrupt
        if element == FP8_E4M3 and rules == BIRSIM:
            self.seen.append(bits.copy())
        return narrow(x, element, rules=rules)

    @property
    def patterns(self) -> list[int]:
        return [int(word) for words in self.seen for word in words]


# -- the expectation ---------------------------------------------------------------------------------------------------


@each_element
@pytest.mark.parametrize("rules", [BIRSIM, OCP], ids=["zero", "propagate"])
def test_n1_to_n4_the_expectation_is_the_contract(element: ElementFormat, rules: RuleSet) -> None:
    """Against exact rationals: beside every edge that matters, each exponent, and 20,000 patterns anywhere."""
    rng = np.random.default_rng(20)
    edges = [0, 0x00800000, fp32_pattern(TIE[element.name]), 0x7F800000, 0x7FC00000, 0x7FFFFFFF]
    edges += [exponent << 23 for exponent in range(256)]
    magnitudes = {min(max(edge + step, 0), 0x7FFFFFFF) for edge in edges for step in (-2, -1, 0, 1, 2)}
    directed = [sign | magnitude for magnitude in magnitudes for sign in (0, 0x80000000)]
    anywhere = rng.integers(0, PATTERNS, 10_000).tolist()
    near = [(word & 0x807FFFFF) | (rng.integers(100, 145).item() << 23) for word in anywhere]
    bits = np.array(sorted({*directed, *anywhere, *near}), dtype=np.uint32)
    wanted = [oracle.narrow(word, element.name, rules.name) for word in bits.tolist()]
    assert expected(bits, element, rules.narrow_policy(element, scaled=False).nan).tolist() == wanted
    assert len(wanted) > 20_000


@pytest.mark.parametrize(
    ("element", "largest", "nan"), [(FP4_E2M1, 0x7, 0), (FP8_E4M3, 0x7E, 0x7F), (FP8_E5M2, 0x7B, 0x7E)]
)
def test_n2_n4_the_closed_form(element: ElementFormat, largest: int, nan: int) -> None:
    tie = fp32_pattern(TIE[element.name])
    sign = element.sign_bit
    bits = [tie, tie + 1, 0x7F800000, 0x7F800001, 0x7FFFFFFF]
    bits += [0x80000000 | word for word in bits]
    for policy, code in ((NanCode.PROPAGATE, nan), (NanCode.ZERO, 0)):
        codes = [largest, largest, largest, code, code]
        wanted = codes + [sign | one for one in codes]
        assert expected(np.array(bits, dtype=np.uint32), element, policy).tolist() == wanted


def test_n4_both_nan_policies_are_swept() -> None:
    kinds = {element: [policy.nan for policy in policies(element)] for element in ELEMENTS}
    assert kinds[FP4_E2M1] == [NanCode.ZERO]
    assert kinds[FP8_E4M3] == kinds[FP8_E5M2] == [NanCode.ZERO, NanCode.PROPAGATE]


# -- which patterns are visited ----------------------------------------------------------------------------------------


def test_the_whole_sweep_is_every_pattern_once() -> None:
    """2^32 for each element; batches meet without gap or overlap; the patterns of a visit are the visit's number."""
    whole = Sweep()
    assert whole.visits == 4294967296
    position = 0
    for visit, count in whole.batches():
        assert visit == position
        for edge in (visit, visit + count - 1):
            assert whole.patterns(edge, 1).tolist() == [edge]
        position += count
    assert position == PATTERNS
    assert np.array_equal(whole.patterns(PATTERNS - 5000, 5000), np.arange(PATTERNS - 5000, PATTERNS, dtype=np.uint32))


@pytest.mark.parametrize("batch", [1000, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_narrow_is_given_each_pattern_of_the_range_once(batch: int) -> None:
    first, stop = 0x7F800000 - CHUNK, 0x7F800000 + CHUNK + 77
    watcher = Watcher()
    result = sweep(Sweep(first=first, stop=stop), batch=batch, golden=watcher)
    assert watcher.patterns == list(range(first, stop))
    assert result.complete
    assert result.resume is None
    assert [count.patterns for count in result.counts] == [2 * CHUNK + 77] * 3
    assert result.comparisons == 5 * (2 * CHUNK + 77)
    assert result.mismatches == 0


@pytest.mark.parametrize("seed", [0, 1])
def test_a_stride_is_spread_over_the_entire_space(seed: int) -> None:
    """One pattern from each 2^14 consecutive ones, so 512 of every exponent and sign, trailing bits evenly."""
    plan = Sweep(stride=1 << 14, seed=seed)
    bits = plan.patterns(0, plan.visits)
    assert plan.visits == len(bits) == 1 << 18
    assert np.array_equal(bits >> 14, np.arange(1 << 18))
    assert np.bincount(bits >> 23, minlength=512).tolist() == [512] * 512
    for place in range(14):
        assert 0.49 < float(np.mean(bits >> place & 1)) < 0.51
    assert len(set((bits & 0x3FFF).tolist())) > 16_000


def test_the_stride_of_continuous_integration() -> None:
    """2^26 patterns; the seed picks which, and nothing else does."""
    plan = Sweep(stride=64, seed=3)
    assert plan.visits == 67108864 == 1 << 26
    bits = plan.patterns(1 << 25, 4096)
    assert np.array_equal(bits >> 6, np.arange(1 << 25, (1 << 25) + 4096))
    assert np.bincount(bits & 63, minlength=64).min() > 20
    assert np.array_equal(bits, Sweep(stride=64, seed=3).patterns(1 << 25, 4096))
    assert np.mean(bits == Sweep(stride=64, seed=4).patterns(1 << 25, 4096)) < 0.1
    assert plan.patterns(plan.visits - 1, 1)[0] >= PATTERNS - 64


# -- cutting and resuming ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 64])
def test_what_is_left_after_an_interrupt_is_exactly_the_rest(stride: int) -> None:
    first, stop = 0x3F000000, 0x3F000000 + 40_000 * stride
    whole, before, after = Watcher(), Watcher(interrupt_at=first + 25_500 * stride), Watcher()
    plan = Sweep(first=first, stop=stop, stride=stride, seed=9)
    sweep(plan, batch=1000, golden=whole)
    cut = sweep(plan, batch=1000, golden=before)
    assert not cut.complete
    assert [count.patterns for count in cut.counts] == [25_000] * 3
    assert cut.resume is not None
    words = shlex.split(cut.resume)
    assert words[words.index("--from") + 1] == str(first + 25_000 * stride)
    rest = sweep(Sweep(first=cut.plan.after(cut.visits), stop=stop, stride=stride, seed=9), batch=1000, golden=after)
    assert before.patterns + after.patterns == whole.patterns
    assert cut.visits + rest.visits == plan.visits == 40_000


def test_the_printed_command_resumes(mxtwin, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Ctrl-C, exit 130 and a command; run, it does the rest, and the counts add up."""
    span = 2 * BATCH + 1000
    asked = ("exhaustive", "--jobs", "1", "--element", "fp8_e5m2", "--to", str(span))
    monkeypatch.setattr(cli, "sweep", partial(sweep, golden=Watcher(interrupt_at=BATCH)))
    code, out, err = mxtwin(*asked)
    assert code == 130
    assert f" {BATCH} " in out
    command = err.strip().split("; the rest: ")[1]
    assert command == f"mxtwin exhaustive --element fp8_e5m2 --from {BATCH} --to {span}"
    monkeypatch.setattr(cli, "sweep", sweep)
    code, out, err = mxtwin(*shlex.split(command)[1:], "--jobs", "1", "--json")
    assert code == 0
    assert err == ""
    assert json.loads(out)["elements"][0]["patterns"] == span - BATCH


def test_interrupted_with_json(mxtwin, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(cli, "sweep", partial(sweep, golden=Watcher(interrupt_at=0)))
    code, out, _ = mxtwin("exhaustive", "--jobs", "1", "--stride", "64", "--seed", "2", "--json")
    story = json.loads(out)
    assert code == 130
    assert story["complete"] is False
    assert story["comparisons"] == 0
    assert story["resume"] == "mxtwin exhaustive --stride 64 --seed 2 --from 0"


def test_ctrl_c_on_a_terminal_with_two_processes(root: Path) -> None:
    """The bar is on the terminal's standard error; Ctrl-C reaches all processes; no traceback, and all of them end:
    only then is the end of standard output and of the terminal reached."""
    terminal, stderr = pty.openpty()
    paths = os.pathsep.join(str(root / floor) for floor in ("model", "hw", "tb"))
    process = subprocess.Popen(
        [sys.executable, "-m", "mxtb.cli", "exhaustive", "--jobs", "2", "--to", "0x20000000"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": paths, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests run in the background ignore it
        text=True,
    )
    os.close(stderr)
    seen = ""
    while not re.search(r"\b[1-9]\d?%", seen):
        more = _read(terminal)
        assert more, seen
        seen += more
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    while more := _read(terminal):
        seen += more
    os.close(terminal)
    assert process.returncode == 130, seen
    assert "Traceback" not in seen
    resume = re.search(r"the rest: mxtwin exhaustive --from (\d+) --to 536870912", seen)
    assert resume is not None, seen
    assert 0 < int(resume[1]) < 0x20000000
    assert int(resume[1]) % BATCH == 0
    assert out.split().count(resume[1]) == 3


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:  # how Linux says that the other side is closed
        return ""


# -- faults are found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 999, 1000, 1999, 2000, 2499], ids=lambda offset: f"at {offset}")
def test_one_wrong_pattern_is_found_wherever_it_lies(plant, offset: int) -> None:  # type: ignore[no-untyped-def]
    """First and last of the sweep, both sides of a cut between batches: each check sees it once."""
    first = 0x41C80000
    plant(first + offset)
    result = sweep(Sweep(first=first, stop=first + 2500), batch=1000)
    assert [count.mismatches for count in result.counts] == [
        {"birsim": 1},
        {"birsim": 1, "nki_sim": 1},
        {"birsim": 1, "nki_sim": 1},
    ]
    assert {one.pattern for one in result.differences} == {first + offset}
    assert all(one.expected ^ one.got == 1 for one in result.differences)
    assert len(result.differences) == 5


@pytest.mark.parametrize("pattern", [0, 0x7F800000, 0x7FFFFFFF, 0x80000000, 0xFF800001, 0xFFFFFFFF], ids=hex)
def test_a_wrong_special_is_found(plant, pattern: int) -> None:  # type: ignore[no-untyped-def]
    """Zero, Inf and NaN of both signs; the very last pattern too."""
    plant(pattern)
    first = max(pattern - 100, 0)
    result = sweep(Sweep(first=first, stop=min(first + 300, PATTERNS)))
    assert result.mismatches == 5
    assert {one.pattern for one in result.differences} == {pattern}


def test_all_are_counted_and_the_first_listed(plant) -> None:  # type: ignore[no-untyped-def]
    plant(*range(CHUNK - 30, CHUNK + 30))
    result = sweep(Sweep(elements=(FP4_E2M1,), stop=2 * CHUNK), batch=CHUNK)
    assert result.mismatches == 60
    assert [one.pattern for one in result.differences] == list(range(CHUNK - 30, CHUNK - 25))


def test_a_fault_is_found_across_processes() -> None:
    """A narrow that does not saturate (N-4b in place of N-2): wrong just above 464, in exact number, in order."""
    tie = fp32_pattern(464.0)
    plan = Sweep(elements=(FP8_E4M3,), first=tie - (1 << 16), stop=tie + (1 << 16))
    heard: list[int] = []
    wrong = partial(narrow, overflow=Overflow.SPECIAL)
    result = sweep(plan, jobs=2, batch=10_000, golden=wrong, progress=heard.append)
    above = (1 << 16) - 1
    assert result.counts[0].mismatches == {"birsim": above, "nki_sim": above}
    assert [one.pattern for one in result.differences] == [tie + 1 + step for step in range(5)] * 2
    assert sum(heard) == result.visits == 1 << 17
    assert result.complete


def test_the_command_fails_and_shows_how_to_reproduce(mxtwin, plant) -> None:  # type: ignore[no-untyped-def]
    """25 and a bit lies past the tie, so 26: exit 1, the pattern, both codes, and an ``explain`` that fails as well."""
    plant(0x41C80001)
    asked = ("exhaustive", "--jobs", "1", "--element", "fp8_e4m3", "--from", "0x41c80000", "--to", "0x41c81000")
    code, out, _ = mxtwin(*asked)
    assert code == 1
    line = next(line for line in out.splitlines() if line.startswith("fp8_e4m3 under nki_sim"))
    command = "mxtwin explain --element fp8_e4m3 --rules nki_sim 0x41c80001"
    assert line == f"fp8_e4m3 under nki_sim: 0x41c80001 expected 0x5d, got 0x5c; reproduce with: {command}"
    assert "8,192 comparisons, 2 mismatches" in out
    code, out, _ = mxtwin(*asked, "--json")
    story = json.loads(out)
    assert code == 1
    assert story["elements"] == [{"element": "fp8_e4m3", "patterns": 4096, "mismatches": {"birsim": 1, "nki_sim": 1}}]
    assert [one["pattern"] for one in story["differences"]] == ["0x41c80001"] * 2
    code, out, _ = mxtwin(*shlex.split(command)[1:])
    assert code == 1
    assert "differs" in out


def test_codes_that_go_missing_are_a_fault() -> None:
    def lossy(x: NDArray[np.float32], element: ElementFormat, *, rules: RuleSet) -> NDArray[np.uint8]:
        return narrow(x[:-1], element, rules=rules)

    with pytest.raises(RuntimeError, match="shape"):
        sweep(Sweep(stop=100), golden=lossy)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_counts(mxtwin) -> None:  # type: ignore[no-untyped-def]
    """The three elements, each with its patterns; no bar where standard error is no terminal."""
    code, out, err = mxtwin("exhaustive", "--jobs", "1", "--from", "0x7f7f0000", "--to", "0x7f810000")
    assert code == 0
    assert err == ""
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("fp")]
    assert rows == [
        ["fp4_e2m1", "birsim", "131072", "0"],
        ["fp8_e4m3", "birsim,", "nki_sim", "131072", "0"],
        ["fp8_e5m2", "birsim,", "nki_sim", "131072", "0"],
    ]
    assert "655,360 comparisons, 0 mismatches" in out


def test_help_has_an_example(mxtwin) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = mxtwin("exhaustive", "--help")
    assert code == 0
    assert "Example: mxtwin exhaustive --element fp8_e4m3 --stride 64 --seed 1" in out


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("--from", "banana"), "--from must be a pattern in 0..4294967296, decimal or 0x hex, not 'banana'"),
        (("--from", "-1"), "--from must be in 0..4294967296, not -1"),
        (("--to", "4294967297"), "--to must be in 0..4294967296, not 4294967297"),
        (("--from", "7", "--to", "7"), "--from must be below --to, 7, not 7"),
        (("--stride", "64", "--from", "5"), "--from must be in 0..4294967296 and a multiple of 64, not 5"),
        (("--stride", "48"), "stride must be a power of two below 2^32, not 48"),
        (("--element", "fp8"), "element must be one of fp4_e2m1, fp8_e4m3, fp8_e5m2, not 'fp8'"),
        (("--element", "fp8_e4m3", "--element", "fp8_e4m3"), "elements must be at least one, each once"),
        (("--jobs", "0"), "--jobs"),
        (("--seed", "-1"), "--seed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line(mxtwin, arguments: tuple[str, ...], wanted: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = mxtwin("exhaustive", *arguments)
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("mxtwin: error: ")
    assert wanted in line


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(BadInput, match="seed must be at least 0, not -1"):
        Sweep(seed=-1)
