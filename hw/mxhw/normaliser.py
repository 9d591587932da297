"""Normalising a source subnormal: its leading zeros counted and removed, in two steps."""

from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

__all__ = ["Normalised", "normalise"]

_STEP = 4
"""The first step removes zeros four at a time, the second the rest and the leading one itself."""


@dataclass(frozen=True, kw_only=True)
class Normalised:
    """A significand without its leading one.

    Attributes
    ----------
    top : the first bits below the leading one, as many as were asked for
    sticky : whether any bit below them is set
    any : whether any trailing bit of the source is set
    leading_zeros : zeros removed, where the source is subnormal
    """

    top: Signal
    sticky: Signal
    any: Signal
    leading_zeros: Signal


def normalise(m: Module, trailing: Value, is_subnormal: Value, *, keep: int, reach: int) -> Normalised:
    """Normalise ``trailing`` where ``is_subnormal``, pass it on where not; combinational.

    ``keep`` bits stay below the leading one. Up to ``reach`` leading zeros are counted and removed exactly; with more,
    or with no bit set at all, ``leading_zeros`` is more than ``reach``, or no less than the width of ``trailing``.
    """
    width = len(trailing)
    downwards = trailing[::-1]  # the bit next to the leading one is number 0
    windows = min(reach + 1, width - 1) // _STEP + 1
    span = keep + _STEP

    def bits(start: int, count: int) -> Value:
        inside = downwards[min(start, width) : min(start + count, width)]
        return Cat(inside, Const(0, count - len(inside)))

    # First step: the first window that starts with a set bit among its first four; the last one if none does.
    window = Signal(span)
    beyond = Signal()
    skipped = Signal(range(max(windows, 2)))
    chosen = [bits(_STEP * (windows - 1), span), bits(_STEP * (windows - 1) + span, width).any(), Const(windows - 1)]
    for number in reversed(range(windows - 1)):
        start = _STEP * number
        stays = Signal(name=f"stays_at_{start}")
        m.d.comb += stays.eq(bits(start, _STEP).any() | (~is_subnormal if number == 0 else 0))
        here = [bits(start, span), bits(start + span, width).any(), Const(number)]
        chosen = [Mux(stays, one, other) for one, other in zip(here, chosen, strict=True)]
    m.d.comb += window.eq(chosen[0])
    m.d.comb += beyond.eq(chosen[1])
    m.d.comb += skipped.eq(chosen[2])

    # Second step: up to and including the leading one.
    zeros = Signal(range(_STEP))
    m.d.comb += zeros.eq(Mux(window[0], 0, Mux(window[1], 1, Mux(window[2], 2, 3))))

    def moved(places: int) -> list[Value]:
        return [*window[places : places + keep], window[places + keep :].any() | beyond]

    shifted = moved(_STEP)
    for places in reversed(range(1, _STEP)):
        shifted = [Mux(window[places - 1], one, other) for one, other in zip(moved(places), shifted, strict=True)]
    result = [Mux(is_subnormal, one, other) for one, other in zip(shifted, moved(0), strict=True)]
    top = Signal(keep)
    sticky = Signal()
    any_set = Signal()
    leading_zeros = Signal(len(zeros) + (len(skipped) if windows > 1 else 0))
    m.d.comb += top.eq(Cat(*reversed(result[:keep])))
    m.d.comb += sticky.eq(result[keep])
    m.d.comb += any_set.eq(window.any() | beyond)
    m.d.comb += leading_zeros.eq(Cat(zeros, skipped) if windows > 1 else zeros)
    return Normalised(top=top, sticky=sticky, any=any_set, leading_zeros=leading_zeros)
