"""A regression as JUnit XML: one test case for each configuration on each simulator."""

import re
import xml.etree.ElementTree as ElementTree

from mxtb import __version__
from mxtb.regress import Failure, Regression

__all__ = ["junit"]

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def junit(regression: Regression, command: str) -> str:
    """The document. A mismatch is a failure that tells its story; a missed bin of a full run is one too."""
    stories = {(failure.simulator, failure.entry): failure for failure in regression.failures}
    root = ElementTree.Element("testsuites", name="mxtwin regress", time=f"{regression.seconds:.3f}")
    total, failed = 0, 0
    for simulator in regression.simulators:
        suite = ElementTree.SubElement(root, "testsuite", name=f"mxtwin.{simulator.name}")
        properties = ElementTree.SubElement(suite, "properties")
        for name, value in (
            ("mxtwin", __version__),
            ("seed", regression.seed),
            ("simulator", f"{simulator.name} {simulator.version} {simulator.executable}"),
            ("random vectors", regression.vectors[simulator.name]),
            ("data", regression.data or ""),
            ("command", command),
        ):
            ElementTree.SubElement(properties, "property", name=name, value=_clean(str(value)))
        runs = [run for run in regression.runs if run.simulator == simulator.name]
        cases, broken, seconds = 0, 0, 0.0
        for run in runs:
            # The entries of a top run together: each is given an equal part of the time.
            share = run.simulation_seconds / len(run.rows)
            coverage = {one.entry: one for one in run.coverage}
            for row in run.rows:
                case = ElementTree.SubElement(
                    suite, "testcase", classname=f"mxtwin.{row.block}", name=row.entry, time=f"{share:.3f}"
                )
                texts = []
                if row.mismatches:
                    texts.append(_story(stories.get((simulator.name, row.entry))))
                bins = coverage.get(row.entry)
                if bins is not None:
                    texts += [f"never hit: {name}" for name in bins.missed if regression.full]
                    texts += [f"hit, but impossible: {name}" for name in bins.violated]
                if texts:
                    message = f"{row.mismatches} of {row.comparisons} outputs differ"
                    if not row.mismatches:
                        message = f"{len(texts)} bins are not as they should be"
                    failure = ElementTree.SubElement(case, "failure", message=message, type="mismatch")
                    failure.text = _clean("\n".join(texts))
                cases, broken = cases + 1, broken + bool(texts)
            seconds += run.simulation_seconds
        suite.set("tests", str(cases))
        suite.set("failures", str(broken))
        suite.set("errors", "0")
        suite.set("skipped", "0")
        suite.set("time", f"{seconds:.3f}")
        total, failed = total + cases, failed + broken
    root.set("tests", str(total))
    root.set("failures", str(failed))
    root.set("errors", "0")
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _story(failure: Failure | None) -> str:
    if failure is None:
        return "no case was kept"
    width = max(len(label) for label, _ in failure.rows)
    lines = [f"{label:<{width}}  {text}" for label, text in failure.rows]
    return "\n".join([*lines, f"reproduce with: {failure.reproduce}"])


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
