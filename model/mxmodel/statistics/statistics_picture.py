"""A picture of a tensor's statistics: error histogram, scale histogram, scale heat map."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from mxmodel.bad_input import BadInput
from mxmodel.files.whole_file import whole_file
from mxmodel.formats import E8M0, MX_BLOCK
from mxmodel.statistics.tensor_statistics import RELATIVE_ERROR_EDGES, TensorStatistics

__all__ = ["draw_statistics"]

_INK = "#1f2933"
_QUIET = "#9aa5b1"
_BLUE = "#2f6f9f"
_RED = "#c0392b"


def draw_statistics(statistics: TensorStatistics, title: str, path: Path) -> None:
    """Write a .png (or .pdf, .svg) to ``path``.

    Raises
    ------
    BadInput if matplotlib is not installed, it has no such format, or the file cannot be written
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("--plot needs matplotlib, which is not installed: pip install 'mxtwin[report]'") from None
    kind = path.suffix.removeprefix(".").lower()
    if kind not in ("png", "pdf", "svg"):
        raise BadInput(f"{path}: wanted a picture that ends in .png, .pdf or .svg, found {path.suffix or 'no suffix'}")
    style: Any = {
        "font.size": 9,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _QUIET,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(13, 4.2), dpi=150, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        errors, scales, grid = figure.subplots(1, 3, width_ratios=(1.1, 1, 1.2))
        _draw_errors(errors, statistics)
        _draw_scales(scales, statistics)
        _draw_map(figure, grid, statistics, matplotlib.colormaps["viridis"])
        with whole_file(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a glyph that the font lacks, in a tensor's name
            figure.savefig(file, format=kind, metadata={"Software": None} if kind == "png" else None)


def _draw_errors(axes: Any, statistics: TensorStatistics) -> None:
    axes.set_title("Relative error of inexact elements")
    source = statistics.source
    if source is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no source to compare with\n(--against FILE::TENSOR)", ha="center", va="center")
        return
    edges = RELATIVE_ERROR_EDGES
    share = 100 * source.relative_errors / max(1, source.compared)
    lost = edges[:-1] >= 0
    axes.bar(edges[:-1], share, width=np.diff(edges), align="edge", color=np.where(lost, _RED, _BLUE), linewidth=0)
    half_ulp = -(statistics.element.trailing_bits + 1)
    axes.axvline(half_ulp, color=_INK, linewidth=0.9, linestyle=(0, (4, 3)))
    top = max(share.max() * 1.18, 1e-6)
    axes.set_ylim(0, top)
    axes.set_xlim(edges[0] - 0.5, 4)  # room for a word beside the last bar
    axes.text(half_ulp + 0.2, top * 0.985, "half an ulp\nof a normal", ha="left", va="top", fontsize=8)
    if share[lost].sum() > 0:
        axes.text(0.5, share[lost].max(), "flushed\nto zero", color=_RED, ha="left", va="top", fontsize=8)
    ticks = np.arange(edges[0], edges[-1], 4)
    axes.set_xticks(ticks, [f"$2^{{{int(tick)}}}$" for tick in ticks])
    axes.set_xlabel(f"|error| / |source|   (exact: {100 * source.exact / max(1, source.compared):.2f} %)")
    axes.set_ylabel("% of elements")


def _draw_scales(axes: Any, statistics: TensorStatistics) -> None:
    axes.set_title("Shared exponents")
    low, high = statistics.scale_range
    scales = np.arange(low, high + 1)
    axes.bar(scales, 100 * statistics.scale_counts[low : high + 1] / statistics.blocks, width=0.9, color=_BLUE)
    axes.set_xlim(min(low - 1, (low + high) / 2 - 4), max(high + 1, (low + high) / 2 + 4))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(f"scale byte $b$   (value $2^{{b - {E8M0.bias}}}$)")
    axes.set_ylabel("% of blocks")


def _draw_map(figure: Any, axes: Any, statistics: TensorStatistics, colors: Any) -> None:
    down, across = statistics.map_step
    axes.set_title("Scale grid" + ("" if down * across == 1 else f", largest of {down} × {across} blocks"))
    rows, columns = statistics.scale_map.shape
    low, high = int(statistics.scale_map.min()), int(statistics.scale_map.max())
    image = axes.imshow(
        statistics.scale_map,
        aspect="auto",
        interpolation="nearest",
        cmap=colors.resampled(high - low + 1),
        vmin=low - 0.5,
        vmax=high + 0.5,
        extent=(0, columns * across, rows * down, 0),
    )
    axes.set_xlabel(f"block column (free dimension / {MX_BLOCK.columns})")
    axes.set_ylabel(f"block row (partition / {MX_BLOCK.rows})")
    bar = figure.colorbar(image, ax=axes, label="scale byte", pad=0.02)
    bar.ax.yaxis.get_major_locator().set_params(integer=True)
    bar.outline.set_visible(False)
