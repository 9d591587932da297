"""From a catalogue entry to the bench of its block: the one place that knows all three."""

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Block, Entry, Form
from mxtb import ldexp, narrow, shared_exponent

__all__ = ["golden", "group", "of_tensor", "stimulus"]

_BENCH: dict[Block, ModuleType] = {
    Block.SHARED_EXPONENT: shared_exponent,
    Block.NARROW: narrow,
    Block.LDEXP: ldexp,
}


def group(entries: Iterable[Entry]) -> list[tuple[Entry, ...]]:
    """Entries that can share one stimulus, together: same block, source and form, all or none with a scale."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.block, entry.source, entry.scaled, entry.form), []).append(entry)
    return [tuple(group) for group in groups.values()]


def stimulus(entries: Sequence[Entry], count: int, seed: int, *, thorough: bool = False) -> dict[str, NDArray[Any]]:
    """The directed cases of one group of combinational entries, then ``count`` random ones: port name -> array.

    ``thorough`` adds what only a fast simulator can afford.
    """
    first = entries[0]
    rng = np.random.default_rng([seed, list(Block).index(first.block), int(first.scaled), list(Form).index(first.form)])
    return dict(_BENCH[first.block].stimulus(entries, count, rng, thorough=thorough))


def of_tensor(entries: Sequence[Entry], blocks: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """A user's tensor as stimulus of one group of entries; ``blocks`` is fp32 bit patterns [blocks, 32]."""
    return dict(_BENCH[entries[0].block].of_tensor(entries, blocks))


def golden(entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """What the golden twin gives for each case of ``inputs``."""
    return np.asarray(_BENCH[entry.block].golden(entry, inputs))
