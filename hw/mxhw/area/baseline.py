"""The committed area figures of every catalogue entry, and what counts as worse than them."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mxhw.qor import Qor

__all__ = ["COMMITTED", "LEVELS_TOO_MANY", "LUTS_TOO_MANY", "Baseline", "regressions"]

COMMITTED = Path(__file__).with_name("area_baseline.json")
"""The baseline that the continuous check compares with."""

LUTS_TOO_MANY = 3
LEVELS_TOO_MANY = 1
"""This much over the baseline is a regression; less is the mapper's noise."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Figures by entry name.

    Attributes
    ----------
    yosys : the version that measured all of them
    entries : one for every catalogue entry
    exact_counterparts : by the name of a ``PreScale.FP32_PRODUCT`` entry, the figures of the same lane with an exact
        scale (``mxhw.area.scale_rule_cost``)
    """

    yosys: str
    entries: dict[str, Qor] = field(default_factory=dict)
    exact_counterparts: dict[str, Qor] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Baseline":
        """Raises ValueError, in one line that names ``file``, if it is not there or holds anything else."""
        try:
            whole = json.loads(file.read_text(encoding="utf-8"))
            yosys = whole["yosys"]
            if not isinstance(yosys, str):
                raise TypeError("yosys must be a string")
            return cls(
                yosys=yosys,
                entries=_figures(whole["entries"]),
                exact_counterparts=_figures(whole["exact_counterparts"]),
            )
        except OSError as error:
            raise ValueError(f"{file}: wanted an area baseline, but it cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}: wanted an area baseline, found something else: {error!r}") from None

    def write(self, file: Path) -> None:
        """Sorted, one line an entry, so that a change is one line of a diff."""
        parts = [f'  "yosys": {json.dumps(self.yosys)}']
        for label, figures in (("entries", self.entries), ("exact_counterparts", self.exact_counterparts)):
            lines = [f"    {json.dumps(name)}: {json.dumps(asdict(qor))}" for name, qor in sorted(figures.items())]
            parts.append(f'  "{label}": {{\n' + ",\n".join(lines) + "\n  }" if lines else f'  "{label}": {{}}')
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
        beside.replace(file)


def _figures(fields: dict[str, dict[str, int]]) -> dict[str, Qor]:
    figures = {name: Qor(**counts) for name, counts in fields.items()}
    for name, qor in figures.items():
        if not all(isinstance(count, int) and count >= 0 for count in asdict(qor).values()):
            raise TypeError(f"the figures of {name} must be counts")
    return figures


def regressions(baseline: Baseline, figures: Mapping[str, Qor]) -> list[str]:
    """One line for each of ``figures`` (by entry name) that is too much over its baseline, or has none."""
    lines = []
    for name, now in figures.items():
        then = baseline.entries.get(name)
        if then is None:
            lines.append(f"{name}: {now} (LUT6 / levels), but the baseline has no figures for it")
            continue
        over = []
        if now.luts - then.luts >= LUTS_TOO_MANY:
            over.append(f"{now.luts - then.luts} LUT6")
        if now.levels - then.levels >= LEVELS_TOO_MANY:
            over.append(f"{now.levels - then.levels} level{'s' if now.levels - then.levels > 1 else ''}")
        if over:
            lines.append(f"{name}: {now} (LUT6 / levels), {' and '.join(over)} over its baseline of {then}")
    return lines
