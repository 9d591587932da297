"""Statistics of tensors as text for people (rich) and as plain data for machines (JSON)."""

from collections.abc import Mapping
from math import isfinite

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mxmodel.files.arrangement import Arrangement
from mxmodel.files.windowed import RulesCompared
from mxmodel.formats import E8M0
from mxmodel.statistics.error_sums import ErrorSums
from mxmodel.statistics.tensor_statistics import SourceStatistics, TensorStatistics, WorstBlock

__all__ = [
    "comparison_table",
    "decibels",
    "plain_comparison",
    "plain_errors",
    "plain_statistics",
    "statistics_report",
    "statistics_table",
    "table",
]

_HISTOGRAM_ROWS = 16
_BAR = 40


def table(title: str, *headings: str) -> Table:
    """An empty table in the house style; the first column is left-aligned text, the others are numbers."""
    result = Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        result.add_column(Text(heading), justify="left" if index == 0 else "right", overflow="fold", no_wrap=index > 0)
    return result


def decibels(snr_db: float) -> str:
    """``12.34 dB``, or ``exact`` where there is no error at all."""
    return f"{snr_db:.2f} dB" if isfinite(snr_db) else ("exact" if snr_db > 0 else "no signal")


def statistics_report(
    statistics: TensorStatistics, arrangement: Arrangement, *, hint: str | None = None
) -> RenderableType:
    """Everything about one tensor: shapes, counts, errors, the scale histogram and the worst block."""
    parts: list[RenderableType] = [_facts(statistics, arrangement), _scale_histogram(statistics)]
    if statistics.source is not None and statistics.source.worst is not None:
        parts.append(_worst_block(statistics.source.worst, statistics, arrangement))
    if hint:
        parts.append(Text(hint))
    return Group(*parts)


def _facts(statistics: TensorStatistics, arrangement: Arrangement) -> Table:
    rows = table(f"{statistics.element.name} under rules {statistics.rules.name}", "", "", "")
    rows.show_header = False
    low, high = statistics.scale_range
    source = statistics.source
    rows.add_row("shape", _dimensions(arrangement.shape), f"layout {arrangement.layout.value}, axis {arrangement.axis}")
    padding = f"{arrangement.padding:,} of them padding" if arrangement.padding else "no padding"
    rows.add_row("codes [P, F]", _dimensions(arrangement.codes_shape), padding)
    rows.add_row("scales [P/8, F/4]", _dimensions(arrangement.scale_shape), f"bytes {low}..{high}")
    if source is None:
        rows.add_row("at max-normal", *_count(statistics.at_max_normal, statistics))
        rows.add_row("zeros", *_count(statistics.zero_codes, statistics))
        rows.add_row("NaN codes", *_count(statistics.nan_codes, statistics))
        return rows
    rows.add_row("saturated", *_count(source.saturated, statistics))
    rows.add_row("flushed to zero", *_count(source.flushed, statistics))
    rows.add_row("NaN codes", *_count(statistics.nan_codes, statistics))
    if source.nan or source.infinite:
        rows.add_row("NaN in the source", *_count(source.nan, statistics))
        rows.add_row("Inf in the source", *_count(source.infinite, statistics))
    rows.add_row("exact", *_count(source.exact, statistics))
    rows.add_row("SNR", decibels(source.snr_db), "")
    rows.add_row("largest |error|", f"{source.largest_error:.6g}", "")
    rows.add_row("mean |error|", f"{source.mean_error:.6g}", "")
    return rows


def _count(number: int, statistics: TensorStatistics) -> tuple[str, str]:
    return f"{number:,}", f"{_percent(number, statistics.elements)} of {statistics.elements:,} elements"


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.3f} %" if share >= 0.001 or part == 0 else "<0.001 %"


def _dimensions(shape: tuple[int, ...]) -> str:
    return " x ".join(str(length) for length in shape)


def _scale_histogram(statistics: TensorStatistics) -> Table:
    low, high = statistics.scale_range
    step = -(-(high - low + 1) // _HISTOGRAM_ROWS)
    rows = table("Scale histogram", "byte", "value", "blocks", "share")
    rows.columns[0].justify = "right"
    rows.add_column("", justify="left", no_wrap=True)
    bins = [(first, min(first + step - 1, high)) for first in range(low, high + 1, step)]
    counts = [int(statistics.scale_counts[first : last + 1].sum()) for first, last in bins]
    for (first, last), count in zip(bins, counts, strict=True):
        ends = dict.fromkeys((first, last))
        rows.add_row(
            "..".join(str(byte) for byte in ends),
            "..".join(f"2^{byte - E8M0.bias}" for byte in ends),
            f"{count:,}",
            _percent(count, statistics.blocks),
            "█" * -(-_BAR * count // max(counts)),
        )
    return rows


def _worst_block(worst: WorstBlock, statistics: TensorStatistics, arrangement: Arrangement) -> Table:
    place = arrangement.block_place(worst.row, worst.column)
    title = f"Worst block, by squared error ({worst.squared_error:.6g}): {place}; scale byte {worst.scale}"
    rows = table(title, "", "", *(f"[{column}]" for column in range(worst.source.shape[1])))
    digits = -(-statistics.element.width // 4)
    for row in range(worst.source.shape[0]):
        rows.add_row(f"[{row}]", "source", *(f"{source:.6g}" for source in worst.source[row]))
        coded = zip(worst.codes[row], worst.values[row], strict=True)
        rows.add_row("", "code, value", *(f"{code:0{digits}X} {value:.6g}" for code, value in coded))
    return rows


def statistics_table(title: str, statistics: Mapping[str, TensorStatistics]) -> Table:
    """One line for each of several tensors of the same file."""
    rows = table(title, "tensor", "scales", "saturated", "flushed", "NaN", "SNR", "max |error|")
    for name, one in statistics.items():
        low, high = one.scale_range
        source = one.source
        rows.add_row(
            Text(name),
            f"{low}..{high}",
            *(("-", "-") if source is None else (f"{source.saturated:,}", f"{source.flushed:,}")),
            f"{one.nan_codes:,}",
            *(("-", "-") if source is None else (decibels(source.snr_db), f"{source.largest_error:.4g}")),
        )
    return rows


def comparison_table(title: str, results: list[RulesCompared], refused: list[str]) -> Table:
    """The same tensor under several rule sets, a column each; those that refuse the element come last, empty."""
    names = [result.statistics.rules.name for result in results]
    rows = table(title, "", *names, *refused)

    def add(label: str, cells: list[str]) -> None:
        rows.add_row(label, *cells, *("refused (N-7)" if label == "scale bytes" else "-" for _ in refused))

    add("scale bytes", ["{}..{}".format(*result.statistics.scale_range) for result in results])
    sources = [source for result in results if (source := result.statistics.source) is not None]
    add("saturated", [f"{source.saturated:,}" for source in sources])
    add("flushed to zero", [f"{source.flushed:,}" for source in sources])
    add("NaN codes", [f"{result.statistics.nan_codes:,}" for result in results])
    add("exact", [f"{source.exact:,}" for source in sources])
    add("SNR", [decibels(source.snr_db) for source in sources])
    add("largest |error|", [f"{source.largest_error:.5g}" for source in sources])
    add("mean |error|", [f"{source.mean_error:.5g}" for source in sources])
    add(f"codes unlike {names[0]}", [f"{result.codes_changed:,}" for result in results])
    add(f"values unlike {names[0]}", [f"{result.values_changed:,}" for result in results])
    return rows


def plain_statistics(statistics: TensorStatistics, arrangement: Arrangement) -> dict[str, object]:
    """Everything that ``statistics_report`` shows, for JSON."""
    present = {str(byte): int(count) for byte, count in enumerate(statistics.scale_counts) if count}
    source = statistics.source
    return {
        "element": statistics.element.name,
        "rules": statistics.rules.name,
        "layout": arrangement.layout.value,
        "axis": arrangement.axis,
        "shape": list(arrangement.shape),
        "codes_shape": list(arrangement.codes_shape),
        "scale_shape": list(arrangement.scale_shape),
        "padding": arrangement.padding,
        "elements": statistics.elements,
        "scale_counts": present,
        "at_max_normal": statistics.at_max_normal,
        "zeros": statistics.zero_codes,
        "nan_codes": statistics.nan_codes,
        "errors": None if source is None else _plain_source(source, arrangement),
    }


def plain_errors(errors: ErrorSums) -> dict[str, object]:
    """For JSON; ``snr_db`` is null where there is no error, or no signal."""
    return {
        "compared": errors.compared,
        "exact": errors.exact,
        "snr_db": errors.snr_db if isfinite(errors.snr_db) else None,
        "largest_error": errors.largest_error,
        "mean_error": errors.mean_error,
    }


def _plain_source(source: SourceStatistics, arrangement: Arrangement) -> dict[str, object]:
    worst = source.worst
    return {
        "nan_in_source": source.nan,
        "inf_in_source": source.infinite,
        "saturated": source.saturated,
        "flushed": source.flushed,
        **plain_errors(source),
        "worst_block": None
        if worst is None
        else {
            "row": worst.row,
            "column": worst.column,
            "place": arrangement.block_place(worst.row, worst.column),
            "scale": worst.scale,
            "squared_error": worst.squared_error,
            "source": [str(value) for value in worst.source.reshape(-1)],
            "values": [str(value) for value in worst.values.reshape(-1)],
            "codes": worst.codes.reshape(-1).tolist(),
        },
    }


def plain_comparison(results: list[RulesCompared], refused: list[str], arrangement: Arrangement) -> dict[str, object]:
    """``comparison_table`` for JSON: by rule set, null where the rules refuse the element."""
    compared: dict[str, object] = {
        result.statistics.rules.name: {
            **plain_statistics(result.statistics, arrangement),
            "codes_changed": result.codes_changed,
            "values_changed": result.values_changed,
        }
        for result in results
    }
    return {**compared, **dict.fromkeys(refused)}
