"""The commands of the golden floor: whole tensors in files, quantised, dequantised, multiplied and inspected."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from math import prod
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from mxmodel.accumulation import DST_DTYPES, Accumulation
from mxmodel.bad_input import BadInput
from mxmodel.files.arrangement import Arrangement, Layout
from mxmodel.files.mx_file import StoredMx, mx_names, mx_output, pair_mx, read_mx, select_mx
from mxmodel.files.mx_record import MxRecord
from mxmodel.files.stored_tensor import STORED_FORMATS
from mxmodel.files.tensor_files import (
    NamedTensor,
    UntypedAs,
    float_tensor,
    is_glob,
    open_tensor_file,
    read_tensor,
    select_tensors,
    split_spec,
)
from mxmodel.files.tensor_output import PlannedTensor, check_output, tensor_output
from mxmodel.files.windowed import (
    Step,
    compare_rules,
    dequantized_pieces,
    measure,
    measure_quantized,
    quantized_windows,
)
from mxmodel.files.windowed_product import ProductSummary, WindowedProduct, float_product, mx_product
from mxmodel.formats import BF16, FP8_E4M3, FP32, ElementFormat, element_format
from mxmodel.rules import BIRSIM, RULE_SETS, RuleSet, rule_set
from mxmodel.statistics.error_sums import ErrorSums
from mxmodel.statistics.tensor_report import (
    comparison_table,
    decibels,
    plain_comparison,
    plain_errors,
    plain_statistics,
    statistics_report,
    statistics_table,
    table,
)
from mxmodel.statistics.tensor_statistics import TensorStatistics

__all__ = ["app"]

app = typer.Typer()

Named = TypeVar("Named", ElementFormat, RuleSet)

Tensors = Annotated[str, typer.Argument(metavar="FILE[::TENSOR]", help="One tensor, a glob, or all of the file.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write: .safetensors, .npz or .npy.")]
Element = Annotated[str, typer.Option("--element", "-e", help="fp4_e2m1, fp8_e4m3 or fp8_e5m2.")]
Rules = Annotated[str, typer.Option("--rules", "-r", help=f"{', '.join(rules.name for rules in RULE_SETS)}.")]
Axis = Annotated[
    int | None, typer.Option(help="Contraction axis K; default: the first, or the last for ocp and gpt_oss.")
]
Pad = Annotated[bool, typer.Option("--pad", help="Pad odd lengths with zeros; the true shape is recorded.")]
Untyped = Annotated[UntypedAs | None, typer.Option("--untyped-as", help="What a |V2 array of an .npy or .npz is.")]
LayoutOption = Annotated[
    Layout,
    typer.Option(
        "--layout",
        "-l",
        help="Where the 32 elements of a block lie (L-5): 1x32 for an ordinary matrix, tile for one swizzled already.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
FromRecord = Annotated[
    str | None, typer.Option("--rules", "-r", help=f"For files without a record of their own; default {BIRSIM.name}.")
]


@app.command(
    epilog="Example: mxtwin quantize 'model.safetensors::*.weight' --layout 1x32 --axis 1 -o model.mx.safetensors",
)
def quantize(
    tensors: Tensors,
    output: Output = None,
    element: Element = FP8_E4M3.name,
    rules: Rules = BIRSIM.name,
    layout: LayoutOption = Layout.TILE,
    axis: Axis = None,
    pad: Pad = False,
    untyped_as: Untyped = None,
    compare: Annotated[bool, typer.Option("--compare-rules", help="Show the five rule sets side by side.")] = False,
    as_json: Json = False,
) -> None:
    """Quantise float tensors to MX codes and scales, with a record of how it was done."""
    if output is None and not compare:
        raise BadInput("quantize must be given --output FILE, or --compare-rules to write nothing")
    target, chosen_rules = _element(element), _rules(rules)
    if output is not None:
        _check_writes(target, chosen_rules)
        check_output(output, 2, with_metadata=True)
    sources, skipped = _float_tensors(tensors, untyped_as)
    arranged = {one.name: _arrange(one, layout, axis, pad=pad) for one in sources}
    plain: dict[str, object] = {"element": target.name, "rules": chosen_rules.name, "skipped": skipped}
    shown: list[RenderableType] = []
    if compare:
        able = tuple(one for one in RULE_SETS if one.writes(target))
        refused = [one.name for one in RULE_SETS if not one.writes(target)]
        comparison: dict[str, object] = {}
        with _progress("comparing", sum(prod(one.codes_shape) for one in arranged.values())) as step:
            for source in sources:
                results = compare_rules(source.values, arranged[source.name], target, able, step)
                shown.append(comparison_table(f"{source.name} to {target.name}, rules compared", results, refused))
                comparison[source.name] = plain_comparison(results, refused, arranged[source.name])
        plain["comparison"] = comparison
    if output is not None:
        records = {
            name: MxRecord(element=target, rules=chosen_rules, arrangement=arrangement)
            for name, arrangement in arranged.items()
        }
        title = f"{output}: {target.name} under rules {chosen_rules.name}, layout {layout.value}"
        written = table(title, "tensor", "shape", "codes [P, F]", "scales", "padding")
        with (
            _progress("quantising", sum(prod(one.codes_shape) for one in arranged.values())) as step,
            mx_output(output, records) as file,
        ):
            for source in sources:
                arrangement = arranged[source.name]
                for _, _, chunk in quantized_windows(source.values, arrangement, target, chosen_rules, step):
                    file.append(chunk)
                cells = (arrangement.shape, arrangement.codes_shape, arrangement.scale_shape)
                written.add_row(Text(source.name), *map(_dimensions, cells), f"{arrangement.padding:,}")
        shown.append(written)
        plain["output"] = str(output)
        plain["tensors"] = {
            name: {
                "shape": one.shape,
                "codes_shape": one.codes_shape,
                "scale_shape": one.scale_shape,
                "layout": one.layout.value,
                "axis": one.axis,
                "padding": one.padding,
            }
            for name, one in arranged.items()
        }
    _show(shown, plain, as_json=as_json)
    _notes(sources, skipped)


@app.command(epilog="Example: mxtwin dequantize 'model.mx.safetensors::*query*' -o query.npz")
def dequantize(
    tensors: Tensors,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .safetensors, .npz or .npy.")],
    scales: Annotated[str | None, typer.Option(help="FILE::TENSOR of the scales, where no record names them.")] = None,
    element: Annotated[str | None, typer.Option("--element", "-e", help="Of codes given with --scales.")] = None,
    rules: FromRecord = None,
    as_json: Json = False,
) -> None:
    """Turn MX codes and scales back into float32, in the shape that the tensor had."""
    entries = _mx_tensors(tensors, scales, element, rules)
    plan = {one.name: PlannedTensor(dtype=np.dtype(np.float32), shape=one.record.arrangement.shape) for one in entries}
    names = ", ".join(sorted({one.record.rules.name for one in entries}))
    made = {"command": "dequantize", "rules": names}
    title = f"{output}: float32 by rules {names}"
    written = table(title, "tensor", "from", "rules", "shape")
    with (
        _progress("dequantising", sum(prod(one.shape) for one in plan.values())) as step,
        tensor_output(output, plan, _made(output, made)) as file,
    ):
        for entry in entries:
            for piece in dequantized_pieces(entry, step):
                file.append(piece)
            record = entry.record
            written.add_row(
                Text(entry.name), record.element.name, record.rules.name, _dimensions(record.arrangement.shape)
            )
    tensors_written = {
        one.name: {
            "element": one.record.element.name,
            "rules": one.record.rules.name,
            "shape": one.record.arrangement.shape,
        }
        for one in entries
    }
    _show([written], {"output": str(output), "tensors": tensors_written}, as_json=as_json)


class DstType(Enum):
    """What a PSUM cell holds (P-1)."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


_DST = {DstType.FLOAT32: FP32, DstType.BFLOAT16: BF16}


@app.command(epilog="Example: mxtwin matmul 'model.mx.safetensors::*0*query.weight' x.mx.npz -o y.npy")
def matmul(
    stationary: Annotated[str, typer.Argument(metavar="STATIONARY[::TENSOR]", help="Gives the rows of the result.")],
    moving: Annotated[str, typer.Argument(metavar="MOVING[::TENSOR]", help="Gives its columns.")],
    output: Output = None,
    accumulation: Annotated[Accumulation, typer.Option(help="How one instruction sums (M-4).")] = (
        Accumulation.SEQUENTIAL
    ),
    dst: Annotated[DstType, typer.Option(help="Of the PSUM cells; bfloat16 needs a .safetensors output.")] = (
        DstType.FLOAT32
    ),
    rules: FromRecord = None,
    stationary_axis: Annotated[int, typer.Option(help="Contraction axis of a float stationary.")] = 0,
    moving_axis: Annotated[int, typer.Option(help="Contraction axis of a float moving tensor.")] = 0,
    untyped_as: Untyped = None,
    against: Annotated[str | None, typer.Option(help="FILE::TENSOR to compare the result with.")] = None,
    min_snr: Annotated[float | None, typer.Option(metavar="DB", help="Exit 1 if the SNR is lower.")] = None,
    as_json: Json = False,
) -> None:
    """Multiply on the PE array: two MX tensors, or two float tensors as a reference.

    Both are contracted over K; the result has a row for each stationary column and a column for each moving one. MX
    tensors of layout tile are contracted over partitions and the four lanes of each, as the array does.
    """
    if output is None and against is None:
        raise BadInput("matmul must be given --output FILE, or --against FILE::TENSOR to compare only")
    if min_snr is not None and against is None:
        raise BadInput("--min-snr must go with --against FILE::TENSOR")
    if _names_mx(stationary) != _names_mx(moving):
        raise BadInput(f"{stationary} and {moving} must be two MX tensors or two float tensors, not one of each")
    product: WindowedProduct
    if _names_mx(stationary):
        chosen_rules = None if rules is None else _rules(rules)
        product = mx_product(read_mx(stationary, chosen_rules), read_mx(moving, chosen_rules))
    else:
        product = float_product(
            read_tensor(stationary, untyped_as=untyped_as),
            read_tensor(moving, untyped_as=untyped_as),
            stationary_axis,
            moving_axis,
        )
    reference = None
    if against is not None:
        reference = read_tensor(against, untyped_as=untyped_as).values
        if reference.shape != product.shape:
            raise BadInput(f"{against}: wanted shape {product.shape} of the product, found {reference.shape}")
    errors, summary = ErrorSums(), ProductSummary()
    made = {"command": "matmul", "rules": product.rules, "accumulation": accumulation.value, "dst": dst.value}
    with ExitStack() as stack:
        file = None
        if output is not None:
            plan = {"product": PlannedTensor(dtype=DST_DTYPES[_DST[dst]], shape=product.shape)}
            file = stack.enter_context(tensor_output(output, plan, _made(output, made)))
        step = stack.enter_context(_progress("multiplying", prod(product.shape)))
        for rows, piece in product.pieces(accumulation, _DST[dst]):
            if file is not None:
                file.append(piece)
            wide = piece.astype(np.float32)
            summary.add(wide)
            if reference is not None:
                errors.compare(reference[rows.start : rows.stop], wide)
            step(piece.size)
    facts: dict[str, object] = {
        **made,
        "stationary": product.operands[0],
        "moving": product.operands[1],
        "contraction": product.contraction,
        "shape": product.shape,
        "output": None if output is None else str(output),
        **summary.plain(),
        "errors": None if reference is None else plain_errors(errors),
    }
    rows_shown = table(f"{product.operands[0]} x {product.operands[1]}", "", "")
    rows_shown.show_header = False
    rows_shown.add_row("rules", product.rules)
    rows_shown.add_row("accumulation, dst", f"{accumulation.value}, {dst.value}")
    rows_shown.add_row("shape", f"{_dimensions(product.shape)}, K = {product.contraction}")
    for label, text in summary.rows():
        rows_shown.add_row(label, text)
    if reference is not None:
        rows_shown.add_row("SNR", f"{decibels(errors.snr_db)} against {against}")
        rows_shown.add_row("largest, mean |error|", f"{errors.largest_error:.6g}, {errors.mean_error:.6g}")
    if output is not None:
        rows_shown.add_row("written to", str(output))
    _show([rows_shown], facts, as_json=as_json)
    if min_snr is not None and errors.snr_db < min_snr:
        _say(f"the SNR is below {min_snr:g} dB")
        raise typer.Exit(1)


@app.command(
    epilog="Example: mxtwin inspect model.safetensors::encoder.0.weight --layout 1x32 --axis 1 --plot weight.png",
)
def inspect(
    tensors: Tensors,
    element: Annotated[
        str | None, typer.Option("--element", "-e", help=f"To quantise to, default {FP8_E4M3.name}; or of the codes.")
    ] = None,
    rules: FromRecord = None,
    layout: LayoutOption = Layout.TILE,
    axis: Axis = None,
    pad: Pad = False,
    untyped_as: Untyped = None,
    scales: Annotated[str | None, typer.Option(help="FILE::TENSOR of the scales, where no record names them.")] = None,
    against: Annotated[
        str | None, typer.Option(help="The source of MX tensors, to show errors: FILE::TENSOR, or FILE by same names.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw one tensor: .png, .pdf or .svg.")] = None,
    min_snr: Annotated[float | None, typer.Option(metavar="DB", help="Exit 1 if a tensor's SNR is lower.")] = None,
    as_json: Json = False,
) -> None:
    """Show what MX does to a tensor: scales, saturated and flushed elements, errors, the worst block.

    A float tensor is quantised in passing and nothing is kept; an MX tensor is shown as it is.
    """
    measured: list[_Measured]
    skipped: dict[str, str] = {}
    floats: list[NamedTensor] = []
    if scales is not None or _names_mx(tensors):
        measured = _inspect_mx(_mx_tensors(tensors, scales, element, rules), against, untyped_as)
    else:
        if against is not None:
            raise BadInput(f"--against must go with an MX tensor, not with the float tensors of {tensors}")
        target, chosen_rules = _element(element or FP8_E4M3.name), _rules(rules or BIRSIM.name)
        _check_writes(target, chosen_rules)
        floats, skipped = _float_tensors(tensors, untyped_as)
        measured = _inspect_floats(floats, target, chosen_rules, layout, axis, pad=pad)
    if plot is not None:
        if len(measured) != 1:
            raise BadInput(f"--plot must be given one tensor, not the {len(measured)} of {tensors}")
        from mxmodel.statistics.statistics_picture import draw_statistics

        draw_statistics(measured[0].statistics, measured[0].title, plot)
    low = [one for one in measured if min_snr is not None and not one.snr_reaches(min_snr)]
    plain: dict[str, object] = {
        "rules": sorted({one.statistics.rules.name for one in measured}),
        "skipped": skipped,
        "plot": None if plot is None else str(plot),
        "min_snr_db": min_snr,
        "below_min_snr": [one.name for one in low],
        "tensors": {one.name: plain_statistics(one.statistics, one.arrangement) for one in measured},
    }
    _show(_inspection(measured, tensors), plain, as_json=as_json)
    _notes(floats, skipped)
    for one in low:
        _say(f"{one.name}: the SNR is below {min_snr:g} dB")
    if low:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Measured:
    """One inspected tensor."""

    name: str
    arrangement: Arrangement
    statistics: TensorStatistics

    @property
    def title(self) -> str:
        statistics = self.statistics
        return f"{self.name}: {statistics.element.name} under rules {statistics.rules.name}"

    def snr_reaches(self, decibels: float) -> bool:
        source = self.statistics.source
        if source is None:
            raise BadInput(f"--min-snr must be given the source of {self.name} with --against")
        return source.snr_db >= decibels


def _inspect_mx(entries: list[StoredMx], against: str | None, untyped_as: UntypedAs | None) -> list[_Measured]:
    sources = [None if against is None else _source_of(entry, against, untyped_as) for entry in entries]
    measured = []
    with _progress("reading", sum(prod(one.record.arrangement.codes_shape) for one in entries)) as step:
        for entry, source in zip(entries, sources, strict=True):
            statistics = measure(entry, source, step)
            measured.append(_Measured(name=entry.name, arrangement=entry.record.arrangement, statistics=statistics))
    return measured


def _inspect_floats(
    sources: list[NamedTensor], element: ElementFormat, rules: RuleSet, layout: Layout, axis: int | None, *, pad: bool
) -> list[_Measured]:
    arranged = [_arrange(one, layout, axis, pad=pad) for one in sources]
    measured = []
    with _progress("quantising", sum(prod(one.codes_shape) for one in arranged)) as step:
        for source, arrangement in zip(sources, arranged, strict=True):
            statistics = measure_quantized(source.values, arrangement, element, rules, step)
            measured.append(_Measured(name=source.name, arrangement=arrangement, statistics=statistics))
    return measured


def _inspection(measured: list[_Measured], spec: str) -> list[RenderableType]:
    if len(measured) == 1:
        one = measured[0]
        hint = None
        if one.statistics.source is None:
            hint = "For errors and the worst block, name the source: --against FILE::TENSOR"
        return [Text(one.name, style="bold"), statistics_report(one.statistics, one.arrangement, hint=hint)]
    kinds = sorted({f"{one.statistics.element.name} under rules {one.statistics.rules.name}" for one in measured})
    by_name = {one.name: one.statistics for one in measured}
    return [statistics_table(f"{spec}: {', '.join(kinds)}", by_name)]


def _source_of(entry: StoredMx, against: str, untyped_as: UntypedAs | None) -> NDArray[Any]:
    path, name = split_spec(against)
    if name is None and len(open_tensor_file(path).tensors) > 1:
        against = f"{path}::{entry.name}"
    source = read_tensor(against, untyped_as=untyped_as)
    shape = entry.record.arrangement.shape
    if source.values.shape != shape:
        raise BadInput(
            f"{source.file}::{source.name}: wanted shape {shape} of {entry.name}, found {source.values.shape}"
        )
    return source.values


def _names_mx(spec: str) -> bool:
    """Whether ``spec`` names MX tensors, rather than float ones."""
    path, pattern = split_spec(spec)
    file = open_tensor_file(path)
    names = mx_names(file)
    if pattern is None or is_glob(pattern):
        return bool(names)
    return pattern in names


def _mx_tensors(spec: str, scales: str | None, element: str | None, rules: str | None) -> list[StoredMx]:
    chosen_rules = None if rules is None else _rules(rules)
    if scales is None:
        return select_mx(spec, chosen_rules)
    pair = []
    for each in (spec, scales):
        found = select_tensors(each)
        if len(found) != 1:
            raise BadInput(f"{each}: wanted one tensor where --scales is given, found {len(found)}")
        pair.append(found[0])
    own = STORED_FORMATS.get(pair[0].type)
    if element is None and not isinstance(own, ElementFormat):
        raise BadInput(f"{spec}: wanted --element for codes of type {pair[0].type}, found none")
    target = own if isinstance(own, ElementFormat) else _element(str(element))
    return [pair_mx(pair[0], pair[1], target, chosen_rules or BIRSIM)]


def _float_tensors(spec: str, untyped_as: UntypedAs | None) -> tuple[list[NamedTensor], dict[str, str]]:
    """The float tensors that ``spec`` names, and why others were passed over: a tensor named alone never is."""
    chosen = select_tensors(spec)
    _, pattern = split_spec(spec)
    if len(chosen) == 1 and (pattern is None or pattern == chosen[0].name):
        return [float_tensor(chosen[0], untyped_as=untyped_as)], {}
    good, skipped = [], {}
    for stored in chosen:
        if len(stored.shape) < 2:
            skipped[stored.name] = f"shape {stored.shape} has no two axes"
            continue
        try:
            good.append(float_tensor(stored, untyped_as=untyped_as))
        except BadInput as error:
            skipped[stored.name] = str(error)
    if not good:
        raise BadInput(f"{spec}: wanted float tensors of two axes or more, found none among {len(chosen)}")
    return good, skipped


def _arrange(source: NamedTensor, layout: Layout, axis: int | None, *, pad: bool) -> Arrangement:
    shape = source.values.shape
    where = f"{source.file}::{source.name}"
    if len(shape) < 2:
        raise BadInput(f"{where}: wanted two axes or more, found shape {shape}")
    chosen = (len(shape) - 1 if layout.in_tensor_order else 0) if axis is None else axis
    if not -len(shape) <= chosen < len(shape):
        raise BadInput(f"{where}: wanted --axis in {-len(shape)}..{len(shape) - 1} for shape {shape}, found {axis}")
    try:
        arrangement = Arrangement(layout=layout, axis=chosen % len(shape), shape=shape)
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from None
    if arrangement.padding and not pad:
        wanted = arrangement.block_multiples
        raise BadInput(f"{where}: wanted {wanted} in layout {layout.value}, found shape {shape}; --pad pads with zeros")
    return arrangement


def _element(name: str) -> ElementFormat:
    return _named(element_format, name)


def _rules(name: str) -> RuleSet:
    return _named(rule_set, name)


def _named(find: Callable[[str], Named], name: str) -> Named:
    try:
        return find(name)
    except ValueError as error:
        raise BadInput(f"--{error}") from None


def _check_writes(element: ElementFormat, rules: RuleSet) -> None:
    if not rules.writes(element):
        able = ", ".join(one.name for one in RULE_SETS if one.writes(element))
        raise BadInput(f"--rules must quantise to {element.name} (N-7): {able}, not {rules.name}")


def _made(output: Path, facts: dict[str, str]) -> dict[str, str]:
    """How a float result came about, as metadata where the format can hold it."""
    return {} if output.suffix == ".npy" else {"mxtwin.made": json.dumps(facts)}


def _dimensions(shape: Sequence[int]) -> str:
    return " x ".join(str(length) for length in shape)


@contextmanager
def _progress(doing: str, elements: int) -> Iterator[Step]:
    """A bar on the terminal's error stream; none where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=elements)
        yield lambda done: bar.advance(task, done)


def _show(shown: list[RenderableType], plain: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
        return
    console = Console(highlight=False)
    for one in shown:
        console.print(one)


def _notes(sources: list[NamedTensor], skipped: dict[str, str]) -> None:
    for source in sources:
        if source.values.dtype.newbyteorder("=") == np.float64:
            _say(f"{source.name} is float64 and was rounded to fp32 first (N-7)")
    if skipped:
        _say(f"passed over {len(skipped)}: {', '.join(list(skipped)[:4])}{' …' if len(skipped) > 4 else ''}")


def _say(text: str) -> None:
    typer.echo(f"mxtwin: {text}", err=True)
