"""The difference of two bit fields, as far as it is near zero: cheaper than a subtractor, and shallower."""

from amaranth.hdl import Module, Signal, Value

from mxhw.mux_table import mux_table

__all__ = ["FARTHEST", "clamped_difference", "difference_of"]

FARTHEST = 2
"""Differences are clamped to -FARTHEST .. FARTHEST."""

_WIDTH = 3


def difference_of(field: int) -> int:
    """The signed integer that a three-bit difference stands for."""
    return field - (1 << _WIDTH) if field >> (_WIDTH - 1) else field


def clamped_difference(m: Module, name: str, minuend: Value, subtrahend: Value) -> Signal:
    """``minuend - subtrahend`` clamped to -2 .. 2, as three two's-complement bits; combinational.

    Worked through two bits at a time from the top: a difference so far, clamped, is worth four of the next pair's, and
    the pair's own difference of -3 .. 3 cannot bring a clamped one back.
    """
    width = len(minuend)
    difference = None
    at = width
    while at > 0:
        step = 1 if difference is None and width % 2 else 2
        at -= step
        last = at == 0

        def pair(a: int, b: int) -> int:
            return (a - b) % (1 << _WIDTH)

        def clamped(lower: int, upper: int) -> int | None:
            if abs(difference_of(upper)) > FARTHEST or difference_of(lower) == -4:
                return None
            both = 4 * difference_of(upper) + difference_of(lower)
            return max(-FARTHEST, min(FARTHEST, both)) % (1 << _WIDTH)

        def narrowed(a: int, b: int) -> int:
            return max(-FARTHEST, min(FARTHEST, a - b)) % (1 << _WIDTH)

        fields = [minuend[at : at + step], subtrahend[at : at + step]]
        if difference is None:
            difference = mux_table(m, f"{name}_{at}", fields, narrowed, width=_WIDTH)
        else:
            here = mux_table(m, f"{name}_pair_{at}", fields, pair, width=_WIDTH)
            difference = mux_table(m, name if last else f"{name}_{at}", [here, difference], clamped, width=_WIDTH)
    assert difference is not None
    return difference
