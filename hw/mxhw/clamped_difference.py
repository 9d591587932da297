"""The difference of two bit fields, as far as it is near zero: smaller than a subtractor, and shallower."""

from amaranth.hdl import Module, Signal, Value

from mxhw.mux_table import mux_table

__all__ = ["clamped_difference", "difference_of"]

_WIDTH = 3
_FARTHEST = 2


def clamped_difference(m: Module, name: str, minuend: Value, subtrahend: Value) -> Signal:
    """``minuend - subtrahend`` clamped to -2 .. 2, as three two's-complement bits; combinational.

    Worked through two bits at a time from the top. A difference so far counts four times in the next step, where the
    next pair's own difference of -3 .. 3 cannot bring a clamped one back.
    """
    at = len(minuend) - (2 - len(minuend) % 2)
    difference = mux_table(m, f"{name}_from_{at}", [minuend[at:], subtrahend[at:]], _first, width=_WIDTH)
    while at:
        at -= 2
        pair = [minuend[at : at + 2], subtrahend[at : at + 2]]
        here = mux_table(m, f"{name}_at_{at}", pair, lambda a, b: _field(a - b), width=_WIDTH)
        difference = mux_table(m, f"{name}_from_{at}", [here, difference], _joined, width=_WIDTH)
    return difference


def difference_of(field: int) -> int | None:
    """The integer that three bits of a clamped difference stand for, None for those that do not occur."""
    value = _signed(field)
    return value if abs(value) <= _FARTHEST else None


def _field(value: int) -> int:
    return value % (1 << _WIDTH)


def _signed(field: int) -> int:
    return field - (1 << _WIDTH) if field >> (_WIDTH - 1) else field


def _clamped(value: int) -> int:
    return _field(max(-_FARTHEST, min(_FARTHEST, value)))


def _first(a: int, b: int) -> int:
    return _clamped(a - b)


def _joined(here: int, above: int) -> int | None:
    difference = difference_of(above)
    return None if difference is None or abs(_signed(here)) > 3 else _clamped(4 * difference + _signed(here))
