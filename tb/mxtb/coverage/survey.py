"""Functional coverage without a simulator: what a regression's stimulus shows, as the golden twin answers."""

from collections.abc import Callable, Sequence

from mxhw.catalog import Entry
from mxtb.blocks import golden, stimulus
from mxtb.coverage.bins import Coverage
from mxtb.coverage.entries import cover
from mxtb.regress import DEFAULT_VECTORS, THOROUGH, blocks_of, tops
from mxtb.streams import StreamTop, regression_beats

__all__ = ["survey"]


def survey(
    entries: Sequence[Entry], simulator: str, *, seed: int = 0, progress: Callable[[str], None] = lambda top: None
) -> list[Coverage]:
    """Coverage of ``entries`` under the stimulus that a regression on ``simulator`` gives them by default."""
    found: list[Coverage] = []
    count = DEFAULT_VECTORS[simulator]
    for top in tops(entries):
        if isinstance(top, StreamTop):
            for entry in top.entries:
                beats = regression_beats(entry, blocks_of(count), seed)
                found += cover((entry,), beats.inputs, [golden(entry, beats.inputs)])
        else:
            inputs = stimulus(top.entries, count, seed, thorough=simulator in THOROUGH)
            found += cover(top.entries, inputs, [golden(entry, inputs) for entry in top.entries])
        progress(top.name)
    return found
