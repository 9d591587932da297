"""Bench of the narrowing encoder: its stimulus, what the golden twin says of it, and the cocotb test."""

from collections.abc import Mapping, Sequence
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Entry
from mxmodel.formats import MX_BLOCK
from mxmodel.narrow import narrow_bits
from mxmodel.rules import NarrowPolicy
from mxmodel.shared_exponent import block_exponent, scale_from_exponent
from mxmodel.widen import widen_bits
from mxtb.scoreboard import check_lanes
from mxtb.stimulus import random_scales, random_values, scaled_values, values

__all__ = ["golden", "of_tensor", "stimulus"]


def stimulus(entries: Sequence[Entry], count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The directed cases of every entry's element, then ``count`` random ones; ``entries`` share source and inputs."""
    source = entries[0].source
    assert source is not None, "an encoder has a source"
    elements = dict.fromkeys(_policy(entry).element for entry in entries)
    drawn = random_values(source, count, rng)
    if not entries[0].scaled:
        return {"x": np.concatenate([values(source, elements), drawn])}
    x, scale = scaled_values(source, elements)
    return {
        "x": np.concatenate([x, drawn]),
        "scale": np.concatenate([scale, random_scales(drawn, source, rng)]),
    }


def of_tensor(entries: Sequence[Entry], blocks: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """A user's blocks [n, 32] of fp32 bits; with a scale, each block under every scale that a rule set gives it."""
    x = blocks.reshape(-1)
    if not entries[0].scaled:
        return {"x": x}
    exponents = block_exponent(blocks.reshape(-1, MX_BLOCK.columns))[:, 0]
    policies = dict.fromkeys(rules.exponent_policy(element) for entry in entries for element, rules in entry.serves())
    scales = dict.fromkeys(scale_from_exponent(exponents, policy).tobytes() for policy in policies)
    grids = [np.frombuffer(scale, dtype=np.uint8).repeat(MX_BLOCK.size) for scale in scales]
    return {"x": np.tile(x, len(grids)), "scale": np.concatenate(grids)}


def golden(entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """What the golden twin gives for each case."""
    assert entry.source is not None, "an encoder has a source"
    bits = widen_bits(inputs["x"], entry.source)
    if entry.scaled:
        return narrow_bits(bits, _policy(entry), scale=inputs["scale"])
    return narrow_bits(bits, _policy(entry))


def _policy(entry: Entry) -> NarrowPolicy:
    assert isinstance(entry.policy, NarrowPolicy)
    return entry.policy


@cocotb.test()
async def narrow_lanes(dut: Any) -> None:
    """Every lane of every entry gives the golden code (N-1..N-6)."""
    await check_lanes(dut)
