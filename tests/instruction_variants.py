"""Legal MX instructions, and variants of them by dotted names: what the tests of legality and lowering begin with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mxmodel.access_pattern import AccessPattern, Space
from mxmodel.formats import bir_dtype
from mxmodel.isa import Instruction, MatmultMx, QuantizeMx

Changes = Mapping[str, Any]


def operand(code: int, partitions: int, containers: int, space: Space = Space.SBUF) -> AccessPattern:
    return AccessPattern(space=space, dtype=bir_dtype(code), partitions=partitions, pattern=((1, containers),))


MATMUL = MatmultMx(
    moving=operand(8, 128, 512),
    stationary=operand(2, 128, 128),
    moving_scale=operand(6, 128, 512),
    stationary_scale=operand(6, 128, 128),
    dst=operand(16, 128, 512, Space.PSUM),
)
"""MXFP4 x MXFP8, a whole PE array by one PSUM bank; legal in both profiles."""

QUANTIZE = QuantizeMx(src=operand(12, 128, 512), dst=operand(8, 128, 128), dst_scale=operand(6, 128, 128))
"""bf16 to MXFP8; legal in both profiles."""


def variant(instruction: Instruction, changes: Changes) -> Any:
    """With an attribute replaced (``engine``), or one of an operand (``moving.partitions``); ``containers`` is one
    dimension of so many, ``dtype`` takes a BIR code or a ``BirDtype``."""
    for path, value in changes.items():
        name, _, attribute = path.partition(".")
        if attribute == "containers":
            value, attribute = ((1, value),), "pattern"
        elif attribute == "dtype" and isinstance(value, int):
            value = bir_dtype(value)
        if attribute:
            value = replace(getattr(instruction, name), **{attribute: value})
        instruction = replace(instruction, **{name: value})
    return instruction
