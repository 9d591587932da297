"""Makes the worked programs beside this file, and the tensors they read and must give.

    python examples/programs/make_worked.py [DIRECTORY]

What a program must give is worked out here by the array functions (``pe_array``, ``quantize``, ``layout``), which know
nothing of instructions or memories.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxmodel.files.arrangement import Arrangement, Layout
from mxmodel.files.mx_file import mx_output
from mxmodel.files.mx_record import MxRecord
from mxmodel.files.tensor_output import PlannedTensor, tensor_output
from mxmodel.formats import FP4_E2M1, FP8_E4M3
from mxmodel.layout import scatter_scales, swizzle
from mxmodel.pe_array import matmul_mx
from mxmodel.quantize import MxTensor, quantize_mx
from mxmodel.rules import BIRSIM

POISON = 0xA5
ALPHA, LIMIT = np.float32(1.702), np.float32(7.0)


def bf16(x: NDArray[Any]) -> NDArray[Any]:
    return x.astype(ml_dtypes.bfloat16)


def save(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    with tensor_output(
        path, {name: PlannedTensor(dtype=x.dtype, shape=x.shape) for name, x in tensors.items()}
    ) as file:
        for x in tensors.values():
            file.append(x)


def save_mx(path: Path, tensors: dict[str, MxTensor]) -> None:
    """As ``mxtwin quantize`` writes them, in tiles."""
    records = {
        name: MxRecord(
            element=one.element,
            rules=one.rules,
            arrangement=Arrangement(layout=Layout.TILE, axis=0, shape=one.codes.shape),
        )
        for name, one in tensors.items()
    }
    with mx_output(path, records) as file:
        for one in tensors.values():
            file.append(one)


# --- worked, four_scales ----------------------------------------------------------------------------------------------

K, M, N = 1024, 16, 8
"""The product of a [K, M] stationary and a [K, N] moving matrix: two instructions of 512 each."""


def rows_of(tensor: MxTensor, first: int, stop: int) -> MxTensor:
    return MxTensor(
        codes=tensor.codes[first:stop],
        scale=tensor.scale[first // 8 : stop // 8],
        element=tensor.element,
        rules=tensor.rules,
    )


@dataclass(frozen=True)
class Worked:
    """Inputs, and what comes of them."""

    activation: NDArray[Any]
    weights: MxTensor
    moving: MxTensor
    product: NDArray[Any]


def worked() -> Worked:
    """A bf16 activation [K, N], swizzled and quantised to E4M3, times MXFP4 weights [K/4, 4 M]."""
    rng = np.random.default_rng(1)
    activation = bf16(rng.normal(size=(K, N)) * np.exp2(rng.integers(-12, 12, size=(K, 1))))
    weights = quantize_mx(swizzle(rng.normal(size=(K, M)).astype(np.float32) / 32), FP4_E2M1, BIRSIM)
    moving = quantize_mx(swizzle(activation), FP8_E4M3, BIRSIM)
    return Worked(activation, weights, moving, matmul_mx(weights, moving))


def packed_scales(case: Worked) -> NDArray[np.uint8]:
    """The four scale tensors in one tile [128, 16] of poison, at offsets 0 (x0), 4 (x1), 8 (w0) and 12 (w1)."""
    tile = np.full((128, M), POISON, dtype=np.uint8)
    for offset, tensor in zip((0, 4, 8, 12), (case.moving, case.moving, case.weights, case.weights), strict=True):
        half = slice(0, 16) if offset % 8 == 0 else slice(16, 32)
        tile = scatter_scales(np.ascontiguousarray(tensor.scale[half]), offset=offset, into=tile)
    return tile


# --- moe --------------------------------------------------------------------------------------------------------------

TOKENS, HIDDEN, INNER, EXPERTS = 4, 128, 128, 2


@dataclass(frozen=True)
class Moe:
    """A mixture of experts: inputs, and what comes of them."""

    normed: NDArray[Any]
    affinities: NDArray[np.float32]
    gate: list[MxTensor]
    up: list[MxTensor]
    down: list[MxTensor]
    out: NDArray[np.float32]


def moe() -> Moe:
    """swizzle, quantise, gate and up, swiglu, swizzle, quantise, down, weighted sum (S1 §1); gpt-oss's swiglu."""
    rng = np.random.default_rng(2)
    normed = bf16(rng.normal(size=(TOKENS, HIDDEN)))
    drawn = rng.random(size=(TOKENS, EXPERTS))
    affinities = (drawn / drawn.sum(axis=1, keepdims=True)).astype(np.float32)

    def expert_weights(rows: int, columns: int) -> list[MxTensor]:
        drawn = rng.normal(size=(EXPERTS, rows, columns)).astype(np.float32) / 4
        return [quantize_mx(swizzle(one), FP4_E2M1, BIRSIM) for one in drawn]

    gate, up, down = expert_weights(HIDDEN, INNER), expert_weights(HIDDEN, INNER), expert_weights(INNER, HIDDEN)
    x = quantize_mx(swizzle(np.ascontiguousarray(normed.T)), FP8_E4M3, BIRSIM)
    out = np.zeros((HIDDEN, TOKENS), dtype=np.float32)
    for expert in range(EXPERTS):
        g, u = matmul_mx(gate[expert], x), matmul_mx(up[expert], x)
        g = np.minimum(g, LIMIT)
        u = np.minimum(np.maximum(u, -LIMIT), LIMIT)
        wide = (g * ALPHA).astype(np.float64)
        sigmoid = (1 / (1 + np.exp(-wide))).astype(np.float32)
        act = bf16((u + np.float32(1)) * (g * sigmoid))
        y = matmul_mx(down[expert], quantize_mx(swizzle(act), FP8_E4M3, BIRSIM))
        out = out + y * affinities[:, expert]
    return Moe(normed, affinities, gate, up, down, np.ascontiguousarray(out.T))


def main(directory: Path) -> None:
    case = worked()
    save_mx(directory / "weights.mx.safetensors", {"w": case.weights})
    save(
        directory / "worked.safetensors",
        {
            "x": case.activation,
            "scale": case.moving.scale,
            "product": case.product,
            "packed": packed_scales(case),
        },
    )
    mixture = moe()
    save_mx(
        directory / "moe.mx.safetensors",
        {
            f"{name}{expert}": tensors[expert]
            for name, tensors in (("gate", mixture.gate), ("up", mixture.up), ("down", mixture.down))
            for expert in range(EXPERTS)
        },
    )
    save(
        directory / "moe.safetensors",
        {"normed": mixture.normed, "affinities": mixture.affinities, "out": mixture.out},
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
