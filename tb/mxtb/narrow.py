"""Bench of the narrowing encoder: its stimulus, what the golden twin says of it, and the cocotb test."""

from collections.abc import Mapping, Sequence
from typing import Any

import cocotb
import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Entry, Form
from mxhw.multi_format import FORMAT_BITS, format_number
from mxmodel.formats import MX_BLOCK
from mxmodel.narrow import narrow_bits
from mxmodel.rules import BIRSIM, NarrowPolicy
from mxmodel.shared_exponent import block_exponent, scale_from_exponent
from mxmodel.widen import widen_bits
from mxtb.scoreboard import check_lanes
from mxtb.stimulus import (
    every_pattern,
    exponents_and_scales,
    random_scales,
    random_values,
    scaled_values,
    values,
)

__all__ = ["golden", "of_tensor", "stimulus"]

_SHORT = 16
"""Sources up to this width are exhausted."""


_EXHAUSTED_SCALES = (0, 1, 2, 119, 126, 127, 128, 253, 254, 255)
"""Scales at which a thorough run sees every pattern of a 16-bit source."""


def stimulus(
    entries: Sequence[Entry], count: int, rng: np.random.Generator, *, thorough: bool = False
) -> dict[str, NDArray[Any]]:
    """The directed cases of every entry's elements, then ``count`` random ones; ``entries`` share source and inputs.

    An unscaled 16-bit source is exhausted always, a scaled one at ten scales if ``thorough``; then every exponent also
    meets every scale.
    """
    source = entries[0].source
    assert source is not None, "an encoder has a source"
    elements = dict.fromkeys(element for entry in entries for element in entry.elements)
    drawn = random_values(source, count, rng)
    short = source.width <= _SHORT
    if not entries[0].scaled:
        return {"x": np.concatenate([every_pattern(source) if short else values(source, elements), drawn])}
    directed = []
    if entries[0].form is Form.MULTI_FORMAT:
        for element in elements:
            x, scale = scaled_values(source, [element])
            directed.append((x, scale, np.full(x.size, format_number(element), dtype=np.uint8)))
    else:
        x, scale = scaled_values(source, elements)
        directed.append((x, scale, np.zeros(x.size, dtype=np.uint8)))
    if short and thorough:
        for scale_byte in _EXHAUSTED_SCALES:
            x = every_pattern(source)
            scale = np.full(x.size, scale_byte, dtype=np.uint8)
            directed.append((x, scale, np.zeros(x.size, dtype=np.uint8)))
    if thorough:
        x, scale = exponents_and_scales(source, rng)
        directed.append((x, scale, rng.integers(0, 1 << FORMAT_BITS, size=x.size, dtype=np.uint8)))
    formats = rng.integers(0, 1 << FORMAT_BITS, size=count, dtype=np.uint8)
    directed.append((drawn, random_scales(drawn, source, rng), formats))
    x, scale, selected = (np.concatenate(column) for column in zip(*directed, strict=True))
    inputs = {"x": x, "scale": scale}
    return {**inputs, "format": selected} if entries[0].form is Form.MULTI_FORMAT else inputs


def of_tensor(entries: Sequence[Entry], blocks: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """A user's blocks [n, 32] of fp32 bits; with a scale, each block under every scale that a rule set gives it."""
    x = blocks.reshape(-1)
    if not entries[0].scaled:
        return {"x": x}
    if entries[0].form is Form.MULTI_FORMAT:
        return _of_tensor_by_format(entries, blocks)
    exponents = block_exponent(blocks.reshape(-1, MX_BLOCK.columns))[:, 0]
    policies = dict.fromkeys(rules.exponent_policy(element) for entry in entries for element, rules in entry.serves())
    scales = dict.fromkeys(scale_from_exponent(exponents, policy).tobytes() for policy in policies)
    grids = [np.frombuffer(scale, dtype=np.uint8).repeat(MX_BLOCK.size) for scale in scales]
    return {"x": np.tile(x, len(grids)), "scale": np.concatenate(grids)}


def _of_tensor_by_format(entries: Sequence[Entry], blocks: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """The same for a multi-format lane: each block in each format, under that format's own scale."""
    exponents = block_exponent(blocks.reshape(-1, MX_BLOCK.columns))[:, 0]
    columns = []
    for element in dict.fromkeys(element for entry in entries for element in entry.elements):
        scale = scale_from_exponent(exponents, BIRSIM.exponent_policy(element)).repeat(MX_BLOCK.size)
        columns.append((blocks.reshape(-1), scale, np.full(scale.size, format_number(element), dtype=np.uint8)))
    x, scale, selected = (np.concatenate(column) for column in zip(*columns, strict=True))
    return {"x": x, "scale": scale, "format": selected}


def golden(entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """What the golden twin gives for each case."""
    assert entry.source is not None, "an encoder has a source"
    bits = widen_bits(inputs["x"], entry.source)
    codes = np.zeros(bits.shape, dtype=np.uint8)
    for policy in entry.policies:
        assert isinstance(policy, NarrowPolicy)
        chosen: Any = ...
        if entry.form is Form.MULTI_FORMAT:
            chosen = inputs["format"] == format_number(policy.element)
        codes[chosen] = (
            narrow_bits(bits[chosen], policy, scale=inputs["scale"][chosen])
            if entry.scaled
            else narrow_bits(bits[chosen], policy)
        )
    return codes


@cocotb.test()
async def narrow_lanes(dut: Any) -> None:
    """Every lane of every entry gives the golden code (N-1..N-6)."""
    await check_lanes(dut)
