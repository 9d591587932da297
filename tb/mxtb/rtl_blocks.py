"""The RTL twin in Amaranth's own simulator: one case at a time, nothing to build; and as the blocks of a machine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from amaranth.sim import Simulator
from numpy.typing import NDArray

from mxhw.catalog import CATALOG, Block, Entry, policy_of
from mxmodel.bad_input import BadInput
from mxmodel.block_functions import GoldenBlocks
from mxmodel.formats import BF16, E8M0, FP16, FP32, MX_BLOCK, ElementFormat, SourceFormat
from mxmodel.rules import RuleSet
from mxmodel.widen import fp32_bits

__all__ = ["RtlBlocks", "TwinDifference", "evaluate"]

_SOURCES: dict[str, SourceFormat] = {"float32": FP32, "bfloat16": BF16, "float16": FP16}
_CASES_AT_ONCE = 256


def evaluate(entry: Entry, cases: Sequence[Mapping[str, int | Sequence[int]]]) -> list[int]:
    """Output bits of ``entry`` for every case; a case maps a port to its bits, or to one integer for each element."""
    return _evaluate(entry, cases, lambda done: None)


def _evaluate(
    entry: Entry, cases: Sequence[Mapping[str, int | Sequence[int]]], progress: Callable[[int], None]
) -> list[int]:
    component: Any = entry.component()
    outputs: list[int] = []

    async def bench(context: Any) -> None:
        for case in cases:
            for name, value in case.items():
                context.set(getattr(component, name), value)
            outputs.append(int(context.get(getattr(component, entry.output_port))))
            if len(outputs) % _CASES_AT_ONCE == 0:
                progress(_CASES_AT_ONCE)

    simulator: Any = Simulator(component)
    simulator.add_testbench(bench)
    simulator.run()
    progress(len(cases) % _CASES_AT_ONCE)
    return outputs


class TwinDifference(Exception):
    """RTL and golden twin differ; one line that names block, instruction, element and bits.

    Attributes
    ----------
    block : which
    index : (row, column) of the first element that differs
    """

    def __init__(self, message: str, block: Block, index: tuple[int, int]) -> None:
        super().__init__(message)
        self.block, self.index = block, index


class RtlBlocks:
    """``mxmodel.block_functions.Blocks``, some of them from the RTL and each of those compared with the golden one.

    Every distinct case is simulated once. The entry is the catalogue's for the policy: of the source format that comes,
    or of fp32, to which that widens exactly (F-3).

    Parameters
    ----------
    blocks : those that come from the RTL; the others are golden
    where : says what is under way, for messages: the machine's ``NeuronCore.current``
    progress : is told (what, distinct cases in all, cases just done)

    Attributes
    ----------
    compared : elements compared so far, by block

    Raises, when called: BadInput where the catalogue has no such RTL; TwinDifference at the first element that differs
    """

    def __init__(
        self,
        blocks: Iterable[Block],
        *,
        where: Callable[[], str] = lambda: "",
        progress: Callable[[str, int, int], None] = lambda what, total, done: None,
    ) -> None:
        self.blocks = frozenset(blocks)
        self.where = where
        self.compared: dict[Block, int] = dict.fromkeys(sorted(self.blocks, key=lambda block: block.value), 0)
        self._progress = progress
        self._golden = GoldenBlocks()

    def shared_exponent(self, x: NDArray[Any], element: ElementFormat, rules: RuleSet) -> NDArray[np.uint8]:
        golden = self._golden.shared_exponent(x, element, rules)
        if Block.SHARED_EXPONENT not in self.blocks:
            return golden
        bits, entry = self._entry_and_bits(Block.SHARED_EXPONENT, x, element, rules)
        rows, columns = golden.shape
        # Element i of a block is partition i // 4, column i % 4.
        grid = bits.reshape(rows, MX_BLOCK.rows, columns, MX_BLOCK.columns).transpose(0, 2, 1, 3)
        blocks, back = np.unique(grid.reshape(-1, MX_BLOCK.size), axis=0, return_inverse=True)
        outputs = self._run(entry, [{"x": row} for row in blocks.tolist()])
        got = np.array(outputs, dtype=np.uint8)[back.reshape(-1)].reshape(golden.shape)
        self._compare(Block.SHARED_EXPONENT, entry, got, golden, E8M0.width, lambda index: "")
        return got

    def narrow(
        self, x: NDArray[Any], element: ElementFormat, scale: NDArray[np.uint8], rules: RuleSet
    ) -> NDArray[np.uint8]:
        golden = self._golden.narrow(x, element, scale, rules)
        if Block.NARROW not in self.blocks:
            return golden
        bits, entry = self._entry_and_bits(Block.NARROW, x, element, rules)
        got, wide = self._lanes(entry, "x", bits, scale, golden.shape)
        codes = got.astype(np.uint8)
        digits = -(-entry.word_width // 4)
        self._compare(
            Block.NARROW,
            entry,
            codes,
            golden,
            element.width,
            lambda index: f" for x 0x{int(wide[0][index]):0{digits}x} under scale {int(wide[1][index])}",
        )
        return codes

    def ldexp(
        self, codes: NDArray[np.uint8], scale: NDArray[np.uint8], element: ElementFormat, rules: RuleSet
    ) -> NDArray[np.float32]:
        golden = self._golden.ldexp(codes, scale, element, rules)
        if Block.LDEXP not in self.blocks:
            return golden
        entry = self._entry(Block.LDEXP, None, element, rules)
        got, wide = self._lanes(entry, "code", codes, scale, golden.shape)
        bits = got.astype(np.uint32)
        self._compare(
            Block.LDEXP,
            entry,
            bits,
            golden.view(np.uint32),
            FP32.width,
            lambda index: f" for code 0x{int(wide[0][index]):02x} under scale {int(wide[1][index])}",
        )
        return bits.view(np.float32)

    def _entry_and_bits(
        self, block: Block, x: NDArray[Any], element: ElementFormat, rules: RuleSet
    ) -> tuple[NDArray[Any], Entry]:
        source = _SOURCES[x.dtype.name]
        own = Entry(policies=(policy_of(block, element, rules, scaled=True),), source=source)
        if own in CATALOG:
            return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}"), own
        return fp32_bits(x), self._entry(block, FP32, element, rules)

    @staticmethod
    def _entry(block: Block, source: SourceFormat | None, element: ElementFormat, rules: RuleSet) -> Entry:
        entry = Entry(policies=(policy_of(block, element, rules, scaled=True),), source=source)
        if entry not in CATALOG:
            raise BadInput(
                f"--rtl {block.value} must be of the catalogue for {element.name} under rules {rules.name}, which has "
                f"no {entry.name}"
            )
        return entry

    def _lanes(
        self, entry: Entry, port: str, words: NDArray[Any], scale: NDArray[np.uint8], shape: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], tuple[NDArray[Any], NDArray[Any]]]:
        """The lane's output for every element, and the (words, scales) that entered, broadcast."""
        wide = (np.broadcast_to(words, shape), np.broadcast_to(scale, shape))
        both = wide[0].astype(np.uint64) << np.uint64(E8M0.width) | wide[1]
        cases, back = np.unique(both, return_inverse=True)
        outputs = self._run(
            entry, [{port: int(case) >> E8M0.width, "scale": int(case) & E8M0.max_byte} for case in cases]
        )
        return np.array(outputs, dtype=np.int64)[back.reshape(-1)].reshape(shape), wide

    def _run(self, entry: Entry, cases: list[dict[str, Any]]) -> list[int]:
        self._progress(entry.name, len(cases), 0)
        return _evaluate(entry, cases, lambda done: self._progress(entry.name, len(cases), done))

    def _compare(
        self,
        block: Block,
        entry: Entry,
        got: NDArray[Any],
        golden: NDArray[Any],
        width: int,
        case: Callable[[tuple[int, ...]], str],
    ) -> None:
        self.compared[block] += golden.size
        wrong = got != golden
        if not wrong.any():
            return
        index = tuple(int(place) for place in np.argwhere(wrong)[0])
        # Blocks of rows stand above each other: [P/8, 8, F] is told as [P, F].
        element = [int(np.ravel_multi_index(index[:-1], golden.shape[:-1])), index[-1]]
        digits = -(-width // 4)
        where = self.where()
        raise TwinDifference(
            f"{f'{where}: ' if where else ''}{block.value} in RTL ({entry.name}) gives "
            f"0x{int(got[index]):0{digits}x} at element {element}{case(index)}, where the golden twin gives "
            f"0x{int(golden[index]):0{digits}x}; {int(wrong.sum())} of {wrong.size} differ",
            block,
            (element[0], element[1]),
        )
