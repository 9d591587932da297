"""The RTL twin in Amaranth's own simulator: one case at a time, nothing to build."""

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.sim import Simulator

from mxhw.catalog import Entry

__all__ = ["evaluate"]


def evaluate(entry: Entry, cases: Sequence[Mapping[str, int | Sequence[int]]]) -> list[int]:
    """Output bits of ``entry`` for every case; a case maps a port to its bits, or to one integer for each element."""
    component: Any = entry.component()
    outputs: list[int] = []

    async def bench(context: Any) -> None:
        for case in cases:
            for name, value in case.items():
                context.set(getattr(component, name), value)
            outputs.append(int(context.get(getattr(component, entry.output_port))))

    simulator: Any = Simulator(component)
    simulator.add_testbench(bench)
    simulator.run()
    return outputs
