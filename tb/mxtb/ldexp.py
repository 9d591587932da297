"""Bench of the ldexp lane: its stimulus, what the golden twin says of it, and the cocotb test."""

from collections.abc import Mapping, Sequence
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Entry, Form
from mxhw.multi_format import FORMAT_BITS, format_number
from mxmodel.formats import MX_BLOCK
from mxmodel.ldexp import ldexp_table
from mxmodel.narrow import narrow_bits
from mxmodel.rules import BIRSIM, DequantPolicy
from mxmodel.shared_exponent import block_exponent, scale_from_exponent
from mxtb.scoreboard import check_lanes
from mxtb.stimulus import all_codes, codes_and_scales

__all__ = ["golden", "of_tensor", "stimulus"]


def stimulus(
    entries: Sequence[Entry], count: int, rng: np.random.Generator, *, thorough: bool = False
) -> dict[str, NDArray[Any]]:
    """Every code at every scale (and format), then ``count`` random ones, so that each output follows any other."""
    width = max(entry.word_width for entry in entries)
    codes, scales = all_codes(width)
    more_codes, more_scales = codes_and_scales(width, count, rng)
    if entries[0].form is not Form.MULTI_FORMAT:
        return {"code": np.concatenate([codes, more_codes]), "scale": np.concatenate([scales, more_scales])}
    formats = np.arange(1 << FORMAT_BITS, dtype=np.uint8)
    more_formats = rng.integers(0, formats.size, size=count, dtype=np.uint8)
    return {
        "code": np.concatenate([np.tile(codes, formats.size), more_codes]),
        "scale": np.concatenate([np.tile(scales, formats.size), more_scales]),
        "format": np.concatenate([formats.repeat(codes.size), more_formats]),
    }


def of_tensor(entries: Sequence[Entry], blocks: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """A user's blocks [n, 32] of fp32 bits, quantised to every element under BIRSIM: the codes and scales."""
    exponents = block_exponent(blocks.reshape(-1, MX_BLOCK.columns))[:, 0]
    columns = []
    for element in dict.fromkeys(element for entry in entries for element in entry.elements):
        scale = scale_from_exponent(exponents, BIRSIM.exponent_policy(element)).repeat(MX_BLOCK.size)
        codes = narrow_bits(blocks.reshape(-1), BIRSIM.narrow_policy(element, scaled=True), scale=scale)
        columns.append((codes, scale, np.full(scale.size, format_number(element), dtype=np.uint8)))
    code, scale, selected = (np.concatenate(column) for column in zip(*columns, strict=True))
    inputs = {"code": code, "scale": scale}
    return {**inputs, "format": selected} if entries[0].form is Form.MULTI_FORMAT else inputs


def golden(entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.uint32]:
    """What the golden twin gives for each case; a narrower element takes the low bits of the shared code bus."""
    values = np.zeros(inputs["code"].shape, dtype=np.uint32)
    for policy in entry.policies:
        assert isinstance(policy, DequantPolicy)
        codes = inputs["code"] & np.uint8(policy.element.code_count - 1)
        bits = ldexp_table(policy)[codes, inputs["scale"]]
        if entry.form is not Form.MULTI_FORMAT:
            return np.asarray(bits)
        values = np.where(inputs["format"] == format_number(policy.element), bits, values)
    return values


@cocotb.test()
async def ldexp_lanes(dut: Any) -> None:
    """Every lane of every entry gives the golden fp32 bits (D-1..D-4)."""
    await check_lanes(dut)
