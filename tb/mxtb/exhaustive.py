"""Every fp32 pattern through the golden ``narrow``, bit for bit against an expectation that shares no code with it.

The expectation is ml_dtypes where that is an oracle: finite values below the tie above max-normal, rounded from fp32
(N-1). Elsewhere it is the closed form: from that tie on, and for Inf, max-normal with the sign (N-2, N-3); for NaN the
sign with the canonical NaN code, or alone, by policy (N-3, N-4). Even the formats' edges come from ml_dtypes, not from
``mxmodel.formats``. Each pattern is expected by itself, under each NaN policy: no half stands in for the other.
"""

import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.bad_input import BadInput
from mxmodel.chunks import CHUNK
from mxmodel.formats import ELEMENTS, FP32, ElementFormat
from mxmodel.narrow import narrow
from mxmodel.rules import RULE_SETS, NanCode, NarrowPolicy, RuleSet
from mxtb import __version__

__all__ = [
    "BATCH",
    "PATTERNS",
    "Count",
    "Difference",
    "Result",
    "Sweep",
    "expected",
    "policies",
    "sweep",
]

PATTERNS = 1 << FP32.width
"""All of fp32."""

BATCH = 1 << 22
"""Patterns that a process takes at a time: what is lost of an interrupted sweep, a second's work at most."""

LISTED = 5
"""Differences that are shown for each element and rule set; all are counted."""

Golden: TypeAlias = Callable[..., NDArray[np.uint8]]
Check: TypeAlias = tuple[ElementFormat, RuleSet]
Batch: TypeAlias = tuple[int, int]
"""First visit and number of visits."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Which patterns are visited, in ascending order: of every ``stride`` consecutive ones, one that the seed picks.

    Attributes
    ----------
    elements : each takes every pattern that is visited
    first, stop : patterns ``first`` .. ``stop`` - 1; both a multiple of the stride, so that a sweep cut in two visits
        what the whole one does
    stride : a power of two; 1 skips none
    seed : picks inside a stride; without effect where that is 1
    """

    elements: tuple[ElementFormat, ...] = ELEMENTS
    first: int = 0
    stop: int = PATTERNS
    stride: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.stride not in (1 << exponent for exponent in range(FP32.width)):
            raise BadInput(f"stride must be a power of two below 2^{FP32.width}, not {self.stride}")
        if self.seed < 0:
            raise BadInput(f"seed must be at least 0, not {self.seed}")
        for name, pattern in (("--from", self.first), ("--to", self.stop)):
            if not 0 <= pattern <= PATTERNS or pattern % self.stride:
                wanted = f"0..{PATTERNS}" if self.stride == 1 else f"0..{PATTERNS} and a multiple of {self.stride}"
                raise BadInput(f"{name} must be in {wanted}, not {pattern}")
        if self.first >= self.stop:
            raise BadInput(f"--from must be below --to, {self.stop}, not {self.first}")
        if not self.elements or len(set(self.elements)) != len(self.elements):
            raise BadInput(f"elements must be at least one, each once, not {[e.name for e in self.elements]}")

    @property
    def visits(self) -> int:
        """Patterns that each element takes."""
        return (self.stop - self.first) // self.stride

    @property
    def checks(self) -> tuple[Check, ...]:
        """Each element with one rule set for each way that ``narrow`` has of treating it without a scale."""
        return tuple((element, rules) for element in self.elements for rules in policies(element).values())

    def batches(self, size: int = BATCH) -> Iterator[Batch]:
        """All visits in order, ``size`` at a time."""
        for visit in range(0, self.visits, size):
            yield visit, min(size, self.visits - visit)

    def patterns(self, visit: int, count: int) -> NDArray[np.uint32]:
        """The fp32 patterns of ``count`` visits from ``visit`` on."""
        place = np.arange(count, dtype=np.uint32)
        place += np.uint32(self.first // self.stride + visit)
        if self.stride == 1:
            return place
        offset = _mixed(place ^ _key(self.seed)) & np.uint32(self.stride - 1)
        return np.asarray(place * np.uint32(self.stride) + offset)

    def after(self, visits: int) -> int:
        """The pattern to go on from when ``visits`` are done."""
        return self.first + visits * self.stride

    def command(self, *, first: int) -> str:
        """The command line that runs this sweep from pattern ``first`` on."""
        words = ["mxtwin", "exhaustive"]
        if self.elements != ELEMENTS:
            words += [word for element in self.elements for word in ("--element", element.name)]
        if self.stride != 1:
            words += ["--stride", str(self.stride), "--seed", str(self.seed)]
        words += ["--from", str(first)]
        if self.stop != PATTERNS:
            words += ["--to", str(self.stop)]
        return shlex.join(words)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One pattern whose golden code is not the expected one."""

    element: str
    rules: str
    pattern: int
    expected: int
    got: int

    @property
    def command(self) -> str:
        """A command line that explains this case alone, and shows what the RTL makes of it."""
        return f"mxtwin explain --element {self.element} --rules {self.rules} {self.pattern:#010x}"

    def as_json(self) -> dict[str, str]:
        return {
            "element": self.element,
            "rules": self.rules,
            "pattern": f"{self.pattern:#010x}",
            "expected": f"{self.expected:#04x}",
            "got": f"{self.got:#04x}",
            "reproduce": self.command,
        }


@dataclass(frozen=True, kw_only=True)
class Count:
    """What became of one element: patterns it took, and rule set -> codes that differed."""

    element: str
    patterns: int
    mismatches: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A sweep, whole or as far as it came.

    Attributes
    ----------
    plan : what was asked
    visits : patterns that each element has taken, of ``plan.visits``
    counts : by element
    differences : the first of each element and rule set
    seconds : wall time
    """

    plan: Sweep
    visits: int
    counts: tuple[Count, ...]
    differences: tuple[Difference, ...]
    seconds: float

    @property
    def complete(self) -> bool:
        return self.visits == self.plan.visits

    @property
    def resume(self) -> str | None:
        """The command line that does what is left; None where nothing is."""
        return None if self.complete else self.plan.command(first=self.plan.after(self.visits))

    @property
    def comparisons(self) -> int:
        """Codes compared: a pattern counts once for each element and each of its NaN policies."""
        return self.visits * len(self.plan.checks)

    @property
    def mismatches(self) -> int:
        return sum(sum(count.mismatches.values()) for count in self.counts)

    def as_json(self) -> dict[str, Any]:
        return {
            "mxtwin": __version__,
            "from": self.plan.first,
            "to": self.plan.stop,
            "stride": self.plan.stride,
            "seed": self.plan.seed,
            "complete": self.complete,
            "resume": self.resume,
            "comparisons": self.comparisons,
            "mismatches": self.mismatches,
            "seconds": round(self.seconds, 2),
            "elements": [
                {"element": count.element, "patterns": count.patterns, "mismatches": count.mismatches}
                for count in self.counts
            ],
            "differences": [difference.as_json() for difference in self.differences],
        }


def sweep(
    plan: Sweep,
    *,
    jobs: int = 1,
    batch: int = BATCH,
    golden: Golden = narrow,
    progress: Callable[[int], None] = lambda visits: None,
) -> Result:
    """Run ``plan`` and count; ``progress`` hears after each batch how many visits it made.

    Ctrl-C ends it early, with the result of the batches that were done: all of them from the plan's first pattern on,
    without a gap.

    Parameters
    ----------
    jobs : processes; 1 stays in this one
    batch : patterns that a process takes at a time
    golden : called as ``narrow`` is: (x, element, rules=...)

    Raises RuntimeError where the golden gave another number of codes than it was given patterns.
    """
    start = time.perf_counter()
    mismatches = dict.fromkeys(plan.checks, 0)
    listed: dict[Check, list[Difference]] = {check: [] for check in plan.checks}
    visits = 0
    work = partial(_compare, plan, golden)
    try:
        with closing(_in_order(work, plan.batches(batch), jobs)) as tallies:
            for count, tally in tallies:
                for check, (differing, found) in tally.items():
                    mismatches[check] += differing
                    listed[check] += found[: LISTED - len(listed[check])]
                visits += count  # last: what Ctrl-C cuts off here is visited again, not skipped
                progress(count)
    except KeyboardInterrupt:
        pass  # what was counted stands; the result tells how to go on
    else:
        if visits != plan.visits:
            raise RuntimeError(f"{plan.visits} patterns were to be visited, but {visits} were")
    return Result(
        plan=plan,
        visits=visits,
        counts=tuple(
            Count(
                element=element.name,
                patterns=visits,
                mismatches={rules.name: mismatches[element, rules] for rules in policies(element).values()},
            )
            for element in plan.elements
        ),
        differences=tuple(one for found in listed.values() for one in found),
        seconds=time.perf_counter() - start,
    )


def policies(element: ElementFormat) -> dict[NarrowPolicy, RuleSet]:
    """The first rule set of each policy that ``element`` has without a scale: what NaN becomes (N-3, N-4)."""
    first: dict[NarrowPolicy, RuleSet] = {}
    for rules in RULE_SETS:
        first.setdefault(rules.narrow_policy(element, scaled=False), rules)
    return first


# --- the expectation --------------------------------------------------------------------------------------------------

_ML_DTYPES: dict[str, Any] = {
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}

_SIGN = np.uint32(0x80000000)
_INFINITY = 0x7F800000


@dataclass(frozen=True, kw_only=True)
class _Edges:
    """Where ml_dtypes stops being an oracle, and the codes of sign 0 from there on.

    Attributes
    ----------
    dtype : of ml_dtypes
    tie : fp32 pattern of the tie above max-normal; from here on everything saturates (N-2, N-3)
    max_normal, nan, sign_bit : codes; ``nan`` is 0 where the format has none (N-3)
    """

    dtype: Any
    tie: int
    max_normal: int
    nan: int
    sign_bit: int


@cache
def _edges(name: str) -> _Edges:
    dtype = _ML_DTYPES[name]
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    largest = np.array([limits.max], dtype=dtype)
    max_normal = int(largest.view(np.uint8)[0])
    below = float(np.array([max_normal - 1], dtype=np.uint8).view(dtype)[0])
    tie = np.float32(float(largest[0]) + (float(largest[0]) - below) / 2)
    nan = np.array([np.nan], dtype=np.float32).astype(dtype)
    sign_bit = 1 << (limits.bits - 1)
    has_nan = bool(np.isnan(nan.astype(np.float32))[0])
    return _Edges(
        dtype=dtype,
        tie=int(tie.view(np.uint32)),
        max_normal=max_normal,
        nan=int(nan.view(np.uint8)[0]) & (sign_bit - 1) if has_nan else 0,
        sign_bit=sign_bit,
    )


def expected(bits: NDArray[np.uint32], element: ElementFormat, nan: NanCode) -> NDArray[np.uint8]:
    """Codes that fp32 patterns, given in ascending order, narrow to without a scale (N-1 to N-4)."""
    edges = _edges(element.name)
    nan_code = edges.nan if nan is NanCode.PROPAGATE else 0
    codes = np.empty(bits.shape, dtype=np.uint8)
    negative = int(np.searchsorted(bits, _SIGN))
    for half, first, sign in ((slice(0, negative), 0, 0), (slice(negative, None), int(_SIGN), edges.sign_bit)):
        patterns, out = bits[half], codes[half]
        starts = np.array([first + edges.tie, first + _INFINITY + 1], dtype=np.uint32)
        saturated, not_a_number = np.searchsorted(patterns, starts).tolist()
        out[:saturated] = patterns[:saturated].view(np.float32).astype(edges.dtype).view(np.uint8)
        out[saturated:not_a_number] = sign | edges.max_normal
        out[not_a_number:] = sign | nan_code
    return codes


# --- the work ---------------------------------------------------------------------------------------------------------

_Tally: TypeAlias = dict[Check, tuple[int, list[Difference]]]
"""What differed, check by check: how many, and the first of them."""


def _compare(plan: Sweep, golden: Golden, batch: Batch) -> tuple[int, _Tally]:
    """Visits made, and what differed in them; in pieces whose temporaries stay in cache."""
    first_visit, count = batch
    compared = dict.fromkeys(plan.checks, 0)
    tally: _Tally = {}
    for visit in range(first_visit, first_visit + count, CHUNK):
        bits = plan.patterns(visit, min(CHUNK, first_visit + count - visit))
        for element, rules in plan.checks:
            check = (element, rules)
            got = golden(bits.view(np.float32), element, rules=rules)
            if got.shape != bits.shape:
                raise RuntimeError(f"narrow gave codes of shape {got.shape} for patterns of shape {bits.shape}")
            compared[check] += got.size
            wanted = expected(bits, element, rules.nan)
            if (differs := got != wanted).any():
                differing, found = tally.get(check, (0, []))
                for place in islice(np.flatnonzero(differs).tolist(), LISTED - len(found)):
                    where = {"pattern": int(bits[place]), "expected": int(wanted[place]), "got": int(got[place])}
                    found.append(Difference(element=element.name, rules=rules.name, **where))
                tally[check] = differing + int(np.count_nonzero(differs)), found
    if set(compared.values()) != {count}:
        raise RuntimeError(f"every check must compare {count} patterns, not {sorted(set(compared.values()))}")
    return count, tally


def _in_order(
    work: Callable[[Batch], tuple[int, _Tally]], batches: Iterable[Batch], jobs: int
) -> Generator[tuple[int, _Tally], None, None]:
    """Results in the order of the batches, so that what is done never has a gap."""
    if jobs == 1:
        yield from map(work, batches)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:  # threads are about: nothing is forked
        under_way: deque[Future[tuple[int, _Tally]]] = deque()
        try:
            for batch in batches:
                with _no_interrupt():
                    under_way.append(pool.submit(work, batch))
                if len(under_way) > 2 * jobs:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Ctrl-C waits; a process that is started meanwhile never hears it.

    It reaches every process of a terminal, and only the first may act on it: the others end when they are told.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- picking inside a stride ------------------------------------------------------------------------------------------


def _key(seed: int) -> np.uint32:
    return np.uint32(np.random.SeedSequence(seed).generate_state(1, np.uint32)[0])


def _mixed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Each word's bits spread over all its bits (the finalizer of MurmurHash3): the same pick wherever one starts."""
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return np.asarray(words ^ (words >> np.uint32(16)))
