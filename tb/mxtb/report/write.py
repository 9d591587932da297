"""Write a regression's report into a folder: ``report.html``, ``report.json``, ``junit.xml``."""

import importlib.util
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from mxmodel.bad_input import BadInput
from mxmodel.files.whole_file import whole_file
from mxtb.doctor import examine
from mxtb.regress import Regression
from mxtb.report.junit import junit
from mxtb.report.records import Records, read_records

__all__ = ["JSON", "JUNIT", "PAGE", "check_report", "write_report_folder"]

PAGE, JSON, JUNIT = "report.html", "report.json", "junit.xml"


def check_report(directory: Path) -> None:
    """BadInput, in one line, if a report cannot be made there: better known before the regression than after."""
    missing = [name for name in ("jinja2", "matplotlib") if name not in sys.modules and not _installed(name)]
    if missing:
        raise BadInput(
            f"--report DIR needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed: "
            "pip install 'mxtwin[report]' (or give a file that ends in .json)"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadInput(f"{directory}: wanted a folder for the report, or a file that ends in .json: {why}") from None


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def write_report_folder(
    regression: Regression, directory: Path, *, command: str, records: Records | None = None
) -> None:
    """Write the three files into ``directory``, each whole or not at all; the page last, when the rest is there."""
    from mxtb.report.page import page

    records = read_records() if records is None else records
    tools = examine()
    when = datetime.now(UTC)
    entries = dict.fromkeys(row.entry for row in regression.rows)
    whole = {
        **regression.as_json(),
        "command": command,
        "written": when.isoformat(timespec="seconds"),
        "passed": regression.passed,
        "tools": [tool.as_json() for tool in tools],
        "recorded": {entry: records.as_json(entry) for entry in entries},
    }
    text = page(regression, records, command=command, tools=tools, directory=directory.resolve(), when=when)
    for name, content in (
        (JSON, json.dumps(whole, indent=2) + "\n"),
        (JUNIT, junit(regression, command)),
        (PAGE, text),
    ):
        with whole_file(directory / name) as file:
            file.write(content.encode("utf-8", errors="replace"))
