"""Bench of the ldexp lane: its stimulus, what the golden twin says of it, and the cocotb test."""

from collections.abc import Mapping, Sequence
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Entry
from mxmodel.formats import MX_BLOCK
from mxmodel.ldexp import ldexp_table
from mxmodel.narrow import narrow_bits
from mxmodel.rules import BIRSIM, DequantPolicy
from mxmodel.shared_exponent import block_exponent, scale_from_exponent
from mxtb.scoreboard import check_lanes
from mxtb.stimulus import all_codes, codes_and_scales

__all__ = ["golden", "of_tensor", "stimulus"]


def stimulus(entries: Sequence[Entry], count: int, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Every code at every scale, then ``count`` random pairs, so that each output also follows any other."""
    width = max(_policy(entry).element.width for entry in entries)
    codes, scales = all_codes(width)
    more_codes, more_scales = codes_and_scales(width, count, rng)
    return {"code": np.concatenate([codes, more_codes]), "scale": np.concatenate([scales, more_scales])}


def of_tensor(entries: Sequence[Entry], blocks: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """A user's blocks [n, 32] of fp32 bits, quantised to every element under BIRSIM: the codes and scales."""
    exponents = block_exponent(blocks.reshape(-1, MX_BLOCK.columns))[:, 0]
    codes, scales = [], []
    for element in dict.fromkeys(_policy(entry).element for entry in entries):
        scale = scale_from_exponent(exponents, BIRSIM.exponent_policy(element)).repeat(MX_BLOCK.size)
        codes.append(narrow_bits(blocks.reshape(-1), BIRSIM.narrow_policy(element, scaled=True), scale=scale))
        scales.append(scale)
    return {"code": np.concatenate(codes), "scale": np.concatenate(scales)}


def golden(entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.uint32]:
    """What the golden twin gives for each case; a narrower element takes the low bits of the shared code bus."""
    policy = _policy(entry)
    codes = inputs["code"] & np.uint8(policy.element.code_count - 1)
    return np.asarray(ldexp_table(policy)[codes, inputs["scale"]])


def _policy(entry: Entry) -> DequantPolicy:
    assert isinstance(entry.policy, DequantPolicy)
    return entry.policy


@cocotb.test()
async def ldexp_lanes(dut: Any) -> None:
    """Every lane of every entry gives the golden fp32 bits (D-1..D-4)."""
    await check_lanes(dut)
