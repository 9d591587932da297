"""Pictures of the golden twin's rounding as inline SVG: the staircase, and the error relative to the value.

Drawn from ``narrow`` and ``ldexp`` themselves, so that a page shows what was compared. Colours are put in as CSS
variables, so that a picture follows the page's light or dark dress.
"""

import io
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxmodel.formats import E8M0, ELEMENTS, ElementFormat
from mxmodel.ldexp import ldexp
from mxmodel.narrow import narrow

__all__ = ["Plot", "plots"]

_INK, _QUIET, _LINE, _MARK, _FILL = "#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04", "#0a0a05"
_VARIABLES = {_INK: "--ink", _QUIET: "--rule", _LINE: "--accent", _MARK: "--warn", _FILL: "--accent-soft"}

_STYLE: Any = {
    "font.size": 9,
    "font.family": "sans-serif",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _QUIET,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": _QUIET,
    "grid.linewidth": 0.4,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "mxtwin",
    "path.simplify_threshold": 0.4,
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One picture: a short title, what it shows in a sentence, and the SVG."""

    key: str
    title: str
    caption: str
    svg: str


def plots() -> list[Plot]:
    """Two pictures of every element. ImportError if matplotlib is not installed."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        return [plot for element in ELEMENTS for plot in (_staircase(element), _relative_error(element))]


def _through(values: Any, element: ElementFormat) -> Any:
    """``values`` narrowed and widened again under the unit scale."""
    unit = np.uint8(E8M0.bias)
    return ldexp(narrow(values.astype(np.float32), element), unit, element).astype(np.float64)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.1), layout="constrained")
    return figure, figure.subplots()


def _staircase(element: ElementFormat) -> Plot:
    """About zero: all subnormals and the first normal binade, of both signs."""
    reach = 2.0 ** (element.min_exponent + 1)
    if element.trailing_bits == 1:
        reach = 7.5  # FP4: everything, saturation included
    values = np.linspace(-reach, reach, 1601)
    figure, axes = _figure()
    axes.plot(values, values, color=_MARK, linewidth=0.9, linestyle=(0, (4, 3)), label="x itself")
    axes.plot(values, _through(values, element), color=_LINE, linewidth=1.5, label="value of its code")
    axes.set_xlabel("x")
    axes.legend(frameon=False, loc="upper left", fontsize=8)
    part = "the whole of it, saturation included" if element.trailing_bits == 1 else "all subnormals and one binade"
    return Plot(
        key=f"staircase-{element.name}",
        title=f"{element.name}: value of the code",
        caption=f"The golden encoder's code of x, as a value: {part}. Ties go to the even code.",
        svg=_svg(figure, f"staircase-{element.name}"),
    )


def _relative_error(element: ElementFormat) -> Plot:
    low, high = element.min_exponent - element.trailing_bits - 2, element.emax + 2
    values = 2.0 ** np.linspace(low, high, 3001)
    error = np.abs(_through(values, element) - values) / values
    figure, axes = _figure()
    axes.axvspan(2.0**low, 2.0**element.min_exponent, color=_FILL, linewidth=0)
    bound = 2.0 ** -(element.trailing_bits + 1)
    axes.axhline(
        bound,
        color=_MARK,
        linewidth=0.9,
        linestyle=(0, (4, 3)),
        label=f"half an ulp: {_power(-element.trailing_bits - 1)}",
    )
    axes.plot(values, error, color=_LINE, linewidth=0.9, label="error / x")
    axes.set_xscale("log", base=2)
    axes.set_xlim(2.0**low, 2.0**high)
    axes.set_ylim(0, min(1.05, 4 * bound))
    axes.set_xlabel("x")
    axes.legend(frameon=False, loc="upper right", fontsize=8)
    return Plot(
        key=f"error-{element.name}",
        title=f"{element.name}: relative error",
        caption=(
            f"Shaded: subnormals, where the spacing no longer shrinks and the error grows to all of x. From "
            f"{_power(element.min_exponent)} to max-normal it is at most half an ulp; beyond, the code saturates."
        ),
        svg=_svg(figure, f"error-{element.name}"),
    )


def _power(exponent: int) -> str:
    """2 to the ``exponent``, as people write it."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _svg(figure: Any, key: str) -> str:
    """The figure as an element to put into a page: ids of its own, colours as variables, scaled to its frame."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r'\bid="', f'id="{key}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{key}-", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # speaks of all elements: of a whole page, here
    return re.sub(r'(<svg [^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
