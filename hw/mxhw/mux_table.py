"""Truth tables as reduced decision diagrams of multiplexers: how small decision logic is written on this floor.

A table is a Python function of integers, so that it can be derived from a format descriptor and read beside it. A
logic mapper finds much smaller circuits from a reduced diagram than from comparisons or a flat table.
"""

from collections.abc import Callable, Sequence
from itertools import product

from amaranth.hdl import Const, Module, Mux, Signal, Value

__all__ = ["mux_table", "split_mux_table"]


def mux_table(
    m: Module, name: str, inputs: Sequence[Value], function: Callable[..., int | None], *, width: int = 1
) -> Signal:
    """A signal called ``name`` of ``width`` bits that is ``function(*inputs)``; combinational.

    ``function`` takes one unsigned integer for each of ``inputs`` and returns the entry, or None where the inputs
    cannot occur. The diagram tests the last input first, and of each input its highest bit first.
    """
    bits = [bit for value in inputs for bit in value]
    rows = _rows([len(value) for value in inputs], function)
    table = Signal(width, name=name)
    for place in range(width):
        column = tuple(None if row is None else row >> place & 1 for row in rows)
        m.d.comb += table[place].eq(_diagram(column, bits, {}))
    return table


def split_mux_table(
    m: Module,
    name: str,
    outer: Sequence[Value],
    inner: Sequence[Value],
    function: Callable[..., int | None],
    *,
    codes: Sequence[int] | None = None,
) -> Signal:
    """The same for one bit and many inputs, in two steps: ``function(*outer, *inner)``.

    The outer inputs only choose which function of the inner inputs applies. The functions that occur are numbered in
    order of appearance (functions that agree wherever both are defined are one), so the first step is a small table
    from the outer inputs to the number, called ``<name>_case``, and the second a table of it and the inner inputs.
    ``codes`` gives each number the bits that stand for it; by default they are the number.
    """
    inner_widths = [len(value) for value in inner]
    cases: list[tuple[int | None, ...]] = []

    def case_of(*outer_values: int) -> int | None:
        column = tuple(_rows(inner_widths, lambda *inner_values: function(*outer_values, *inner_values)))
        if all(entry is None for entry in column):
            return None
        for number, known in enumerate(cases):
            joined = _joined(known, column)
            if joined is not None:
                cases[number] = joined
                return number
        cases.append(column)
        return len(cases) - 1

    outer_rows = {values: case_of(*values) for values in product(*(range(1 << len(value)) for value in outer))}
    code_of = list(range(len(cases)) if codes is None else codes)
    width = max(1, max(code_of).bit_length())

    def outer_function(*values: int) -> int | None:
        number = outer_rows[values]
        return None if number is None else code_of[number]

    case = mux_table(m, f"{name}_case", outer, outer_function, width=width)
    row_of = {values: row for row, values in enumerate(_assignments(inner_widths))}
    column_of = dict(zip(code_of, cases, strict=False))

    def inner_function(code: int, *values: int) -> int | None:
        return column_of[code][row_of[values]] if code in column_of else None

    return mux_table(m, name, [case, *inner], inner_function)


def _assignments(widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Every tuple of input values, the first input counting fastest."""
    return [values[::-1] for values in product(*(range(1 << width) for width in reversed(widths)))]


def _rows(widths: Sequence[int], function: Callable[..., int | None]) -> list[int | None]:
    return [function(*values) for values in _assignments(widths)]


def _joined(one: Sequence[int | None], other: Sequence[int | None]) -> tuple[int | None, ...] | None:
    """One column that serves both, or None where they disagree."""
    joined = []
    for a, b in zip(one, other, strict=True):
        if a is not None and b is not None and a != b:
            return None
        joined.append(b if a is None else a)
    return tuple(joined)


def _diagram(
    column: tuple[int | None, ...], bits: Sequence[Value], known: dict[tuple[int | None, ...], Value]
) -> Value:
    """The reduced diagram of one output bit; equal sub-tables share their multiplexers."""
    entries = {entry for entry in column if entry is not None}
    if len(entries) < 2:
        return Const(max(entries, default=0), 1)
    if column not in known:
        half = len(column) // 2
        clear, set_ = column[:half], column[half:]
        either = _joined(clear, set_)
        if either is not None:
            known[column] = _diagram(either, bits[:-1], known)
        else:
            known[column] = Mux(bits[-1], _diagram(set_, bits[:-1], known), _diagram(clear, bits[:-1], known))
    return known[column]
