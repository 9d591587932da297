"""Other people's MX quantisers on the CPU, where they are installed, for ``mxmodel.bench``.

They block along the last axis, 32 elements at a time, not 8 by 4; the work for an element is the same.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxmodel.formats import MX_BLOCK, ElementFormat

__all__ = ["Peer", "installed_peers"]

Work = Callable[[], object]

_TORCH_DTYPES = {"fp4_e2m1": "float4_e2m1fn_x2", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


class Peer:
    """A library that quantises to MX; ``quantize`` and ``dequantize`` return what is to be timed, or None."""

    name: str

    def quantize(self, x: NDArray[np.float32], element: ElementFormat) -> Work | None:
        raise NotImplementedError

    def dequantize(self, x: NDArray[np.float32], element: ElementFormat) -> Work | None:
        raise NotImplementedError


class _Torchao(Peer):
    name = "torchao eager"

    def __init__(self) -> None:
        self._torch: Any = import_module("torch")
        self._torch.set_num_threads(1)
        self._mx: Any = import_module("torchao.prototype.mx_formats.mx_tensor")

    def quantize(self, x: NDArray[np.float32], element: ElementFormat) -> Work | None:
        source, dtype = self._torch.from_numpy(x), getattr(self._torch, _TORCH_DTYPES[element.name])
        return lambda: self._mx.to_mx(source, dtype, MX_BLOCK.size)

    def dequantize(self, x: NDArray[np.float32], element: ElementFormat) -> Work | None:
        dtype = getattr(self._torch, _TORCH_DTYPES[element.name])
        scale, data = self._mx.to_mx(self._torch.from_numpy(x), dtype, MX_BLOCK.size)
        return lambda: self._mx.to_dtype(data, scale, dtype, MX_BLOCK.size, self._torch.float32)


class _Microxcaling(Peer):
    """Quantises and gives back the values in one step; it has no codes, so nothing to dequantise."""

    name = "microxcaling"

    def __init__(self) -> None:
        self._torch: Any = import_module("torch")
        self._torch.set_num_threads(1)
        self._ops: Any = import_module("mx.mx_ops")

    def quantize(self, x: NDArray[np.float32], element: ElementFormat) -> Work | None:
        source = self._torch.from_numpy(x)
        return lambda: self._ops._quantize_mx(
            source, 8, element.name, shared_exp_method="max", axes=[-1], block_size=MX_BLOCK.size, round="even"
        )

    def dequantize(self, x: NDArray[np.float32], element: ElementFormat) -> Work | None:
        return None


def installed_peers() -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be imported, and for every other one why not."""
    peers: list[Peer] = []
    missing: dict[str, str] = {}
    for kind, package in ((_Torchao, "torchao"), (_Microxcaling, "mx")):
        if find_spec(package) is None:
            missing[kind.name] = f"package {package!r} is not installed"
            continue
        try:
            peers.append(kind())
        except Exception as error:  # a peer that cannot be loaded here is no fault of ours, but is not passed over
            missing[kind.name] = f"{type(error).__name__}: {error}"
    return peers, missing
