"""Clocked entries side by side: the top that is simulated, their beats, and the plan of what must come out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxhw.catalog import Block, Entry
from mxhw.emit import emit
from mxmodel.formats import E8M0, MX_BLOCK
from mxtb.blocks import golden, stimulus
from mxtb.comparison import Outcome, compare_as_planned
from mxtb.simulators import Simulator
from mxtb.stimulus import random_scales

__all__ = ["Beats", "StreamTop", "beats_of", "compare_streams", "draw_beats", "regression_beats"]

TOPLEVEL = "mx_streams"

_ZERO_BLOCKS = 8
"""In a stream that gathers a maximum, a block of zeros goes before every so many others."""

_SHARE_OF_RANDOM = 4
"""However many cases are directed, one block in so many of those asked for is random."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Beats:
    """What goes into one entry and what must come out.

    Attributes
    ----------
    inputs : port-like name -> array, as the block's combinational bench takes it: [cases] or, for
        ``shared_exponent``, [blocks, 32]
    beats : uint8 [beats, bytes], input payloads, little-endian
    expected : uint8 [beats, bytes], output payloads, little-endian
    """

    inputs: Mapping[str, NDArray[Any]]
    beats: NDArray[np.uint8]
    expected: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class StreamTop:
    """Any clocked entries, each with ports of its own on two shared buses."""

    entries: tuple[Entry, ...]

    name = "streams"

    def sources(self) -> dict[str, str]:
        """File name -> text: every entry's Verilog, the wrapper, and the control file for Verilator."""
        files = {f"{entry.name}.v": emit(entry).text for entry in self.entries}
        files[f"{TOPLEVEL}.v"] = self._wrapper()
        names = ("clk", "rst", "inputs", "outputs")
        public = [f'public_flat_rw -module "{TOPLEVEL}" -var "{name}"' for name in names]
        files[f"{TOPLEVEL}.vlt"] = "\n".join(["`verilator_config", *public]) + "\n"
        return files

    def _wrapper(self) -> str:
        instances, into, out = [], 0, 0
        for index, entry in enumerate(self.entries):
            in_bits, out_bits = payload_bits(entry)
            wires = {
                "clk": "clk",
                "rst": "rst",
                "i__payload": f"inputs[{into} +: {in_bits}]",
                "i__valid": f"inputs[{into + in_bits}]",
                "o__ready": f"inputs[{into + in_bits + 1}]",
                "o__payload": f"outputs[{out} +: {out_bits}]",
                "i__ready": f"outputs[{out + out_bits}]",
                "o__valid": f"outputs[{out + out_bits + 1}]",
            }
            connections = ", ".join(f".{port.name}({wires[port.name]})" for port in emit(entry).ports)
            instances.append(f"  {entry.name} entry{index} ({connections});")
            into, out = into + in_bits + 2, out + out_bits + 2
        heading = (
            f"module {TOPLEVEL} (input clk, input rst, input [{into - 1}:0] inputs, output [{out - 1}:0] outputs);"
        )
        return "\n".join([heading, *instances, "endmodule", ""])


def payload_bits(entry: Entry) -> tuple[int, int]:
    """Bits of an input and of an output payload."""
    widths = {port.name: port.width for port in emit(entry).ports}
    return widths["i__payload"], widths["o__payload"]


def draw_beats(entry: Entry, blocks: int, seed: int) -> Beats:
    """At least ``blocks`` blocks of 32 elements for ``entry``: from its block's stimulus, shuffled, scales per beat."""
    rng = np.random.default_rng([seed, blocks, entry.lanes])
    drawn = stimulus((entry,), blocks * MX_BLOCK.size, seed)
    if entry.block is Block.SHARED_EXPONENT:
        x = drawn["x"][rng.permutation(len(drawn["x"]))[:blocks]]
        x[::_ZERO_BLOCKS] = 0  # as in ``_with_zero_blocks``, but no block more
        return beats_of(entry, {"x": x})
    word = "code" if entry.source is None else "x"
    order = rng.permutation(len(drawn[word]))[: blocks * MX_BLOCK.size]
    words = drawn[word][order].reshape(-1, entry.lanes)
    if entry.source is None:
        scale = drawn["scale"][order].reshape(-1, entry.lanes)[:, 0]
    else:
        scale = random_scales(words[:, 0], entry.source, rng)
    return beats_of(entry, {word: words.reshape(-1), "scale": scale.repeat(entry.lanes)})


def regression_beats(entry: Entry, blocks: int, seed: int) -> Beats:
    """At least ``blocks`` blocks of 32 elements for ``entry``, in any order: its block's directed cases, then random.

    The directed pairs of a value and a scale stay together: a beat takes cases of one scale.
    """
    rng = np.random.default_rng([seed, blocks, entry.lanes])
    directed = stimulus((entry,), 0, seed)
    count = len(directed["x" if entry.source is not None else "code"])
    if entry.block is Block.SHARED_EXPONENT:
        more = stimulus((entry,), 4 * max(blocks - count, blocks // _SHARE_OF_RANDOM), seed)["x"][count:]
        x = rng.permutation(np.concatenate([directed["x"], more]))
        return beats_of(entry, {"x": _with_zero_blocks(x)})
    word = "code" if entry.source is None else "x"
    cases = max(blocks * MX_BLOCK.size - count, blocks * MX_BLOCK.size // _SHARE_OF_RANDOM)
    drawn = stimulus((entry,), cases, seed)
    words = rng.permutation(drawn[word])[: cases // entry.lanes * entry.lanes].reshape(-1, entry.lanes)
    if entry.source is None:
        scale = rng.integers(0, E8M0.max_byte + 1, size=len(words), dtype=np.uint8)
    else:
        scale = random_scales(words[:, 0], entry.source, rng)
    places = _beats_of_one_scale(directed["scale"], entry.lanes)
    words = np.concatenate([directed[word][places], words])
    scale = np.concatenate([directed["scale"][places[:, 0]], scale])
    order = rng.permutation(len(words))
    return beats_of(entry, {word: words[order].reshape(-1), "scale": scale[order].repeat(entry.lanes)})


def _with_zero_blocks(x: NDArray[Any]) -> NDArray[Any]:
    """``x`` and blocks of zeros between, one of them first: what a reset or the block before left would show."""
    return np.insert(x, np.arange(0, len(x), _ZERO_BLOCKS), 0, axis=0)


def _beats_of_one_scale(scale: NDArray[np.uint8], lanes: int) -> NDArray[np.intp]:
    """Places of all cases [beats, lanes], those of a beat having the same scale; some twice, to fill the last beats."""
    groups = (np.nonzero(scale == byte)[0] for byte in np.unique(scale))
    return np.concatenate([np.resize(group, -(-group.size // lanes) * lanes) for group in groups]).reshape(-1, lanes)


def beats_of(entry: Entry, inputs: Mapping[str, NDArray[Any]]) -> Beats:
    """The cases ``inputs`` as beats of ``entry``; the cases of a beat are neighbours and share their scale."""
    expected = golden(entry, inputs)
    if entry.block is Block.SHARED_EXPONENT:
        beats = _packed(inputs["x"].reshape(-1, entry.lanes), entry.word_width)
        return Beats(inputs=inputs, beats=beats, expected=_packed(expected.reshape(-1, 1), entry.result_width))
    word = "code" if entry.source is None else "x"
    words = _packed(inputs[word].reshape(-1, entry.lanes), entry.word_width)
    scale = inputs["scale"].reshape(-1, entry.lanes)
    if (scale != scale[:, :1]).any():
        raise ValueError("inputs must have one scale for each beat")
    return Beats(
        inputs=inputs,
        beats=np.concatenate([words, scale[:, :1]], axis=1),
        expected=_packed(expected.reshape(-1, entry.lanes), entry.result_width),
    )


def _packed(words: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """Rows of words of ``width`` bits as bytes, the first word lowest."""
    if width < 8:
        bits = np.unpackbits(words.astype(np.uint8)[:, :, None], axis=2, bitorder="little")[:, :, :width]
        return np.packbits(bits.reshape(len(words), -1), axis=1, bitorder="little")
    little = np.ascontiguousarray(words, dtype=f"<u{width // 8}")
    return little.view(np.uint8).reshape(len(words), -1)


def compare_streams(
    simulator: Simulator,
    top: StreamTop,
    beats: Mapping[str, Beats],
    *,
    seed: int,
    work: Path,
    cache: Path,
    waves: bool = False,
    keep_outputs: bool = False,
) -> Outcome:
    """Simulate ``top`` on ``beats`` (entry name -> its beats) under the stalls that ``seed`` draws; compare every beat.

    ``work`` takes the run's files and is this run's own; ``cache`` keeps builds. Raises ``SimulationFault`` if the tool
    broke, or if not exactly the planned comparisons were made; a beat that never comes is compared, and wrong.
    """
    work = work.resolve()  # the simulator runs in a folder of its own
    work.mkdir(parents=True, exist_ok=True)
    rows, planned = [], {}
    for entry in top.entries:
        own = beats[entry.name]
        np.savez(work / f"{entry.name}.npz", beats=own.beats, expected=own.expected)
        in_bits, out_bits = payload_bits(entry)
        lanes = 1 if entry.block is Block.SHARED_EXPONENT else entry.lanes
        widths = {"in_bits": in_bits, "out_bits": out_bits, "lanes": lanes}
        rows.append({"name": entry.name, **widths, "gathers": entry.beats})
        planned[entry.name] = len(own.expected) * lanes
    plan = {"streams": rows, "seed": seed, "keep_outputs": keep_outputs}
    (work / "plan.json").write_text(json.dumps(plan))
    return compare_as_planned(
        simulator,
        top.name,
        top.sources(),
        TOPLEVEL,
        "mxtb.stream_scoreboard",
        planned,
        work=work,
        cache=cache.resolve(),
        waves=waves,
    )
