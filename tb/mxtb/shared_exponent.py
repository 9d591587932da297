"""Bench of the shared-exponent unit: its stimulus, what the golden twin says of it, and the cocotb test."""

from collections.abc import Mapping, Sequence
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Entry
from mxmodel.formats import MX_BLOCK
from mxmodel.rules import ExponentPolicy
from mxmodel.shared_exponent import block_exponent, scale_from_exponent
from mxmodel.widen import widen_bits
from mxtb.scoreboard import check_lanes
from mxtb.stimulus import blocks

__all__ = ["golden", "of_tensor", "stimulus"]

_ELEMENTS_PER_CASE = 4
"""A random block costs the simulator about as much as this many single values, so so many fewer are drawn."""

_LANE_STRIDE = 8
"""One lane in so many takes an exponent alone in a run that is not thorough."""


def stimulus(
    entries: Sequence[Entry], count: int, rng: np.random.Generator, *, thorough: bool = False
) -> dict[str, NDArray[Any]]:
    """Every exponent alone in every lane and in several, specials, then ``count`` / 4 random blocks.

    Unless ``thorough``, an exponent is put into four of the lanes, other ones for each.
    """
    source = entries[0].source
    assert source is not None, "the unit has a source"
    return {"x": blocks(source, count // _ELEMENTS_PER_CASE, rng, lane_stride=1 if thorough else _LANE_STRIDE)}


def of_tensor(entries: Sequence[Entry], blocks: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """A user's blocks [n, 32] as fp32 bits, as they are."""
    return {"x": blocks}


def golden(entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """What the golden twin gives for each block."""
    assert entry.source is not None
    assert isinstance(entry.policy, ExponentPolicy)
    bits = widen_bits(inputs["x"], entry.source)
    # Element i of a block is partition i // 4, column i % 4; blocks stand above each other.
    tall = bits.reshape(-1, MX_BLOCK.columns)
    return scale_from_exponent(block_exponent(tall)[:, 0], entry.policy)


@cocotb.test()
async def shared_exponent_lanes(dut: Any) -> None:
    """Every block of every entry gives the golden scale byte (E-1..E-6)."""
    await check_lanes(dut)
