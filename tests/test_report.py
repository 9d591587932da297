"""The report of a regression, opened in a real browser: what it says, that it works, that it hides nothing."""

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxhw.catalog import CATALOG
from mxtb.report import write
from mxtb.report.records import read_records

ODD = "<script>document.title='broken'<b>&.npy"
"""A tensor file's name that would be markup where it is not escaped."""

MUTANT = "mx_narrow_fp32_fp4_e2m1_scaled_exact_nan255"
SOUND = "mx_ldexp_fp4_e2m1_power255"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def _needed(*programs: str) -> dict[str, str]:
    """Where each program is. In CI all must be there; elsewhere the test is skipped, with the reason."""
    found = {name: shutil.which(name) for name in programs}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        text = f"optional here, required in CI: {', '.join(missing)} not on PATH"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return {name: path for name, path in found.items() if path is not None}


class Browser:
    """A headless Chromium behind chromedriver, spoken to in the WebDriver protocol."""

    def __init__(self, driver: str, chromium: str, profile: Path) -> None:
        self._process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        port = None
        while port is None:
            line = self._process.stdout.readline()
            assert line, "chromedriver ended"
            match = re.search(r"successfully on port (\d+)", line)
            port = match and int(match[1])
        self._port = port
        self._profile = profile
        self._chromium = chromium
        self._session = ""

    def start(self) -> None:
        options = {"binary": self._chromium, "args": [*FLAGS, f"--user-data-dir={self._profile}"]}
        value = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}})
        self._session = f"/session/{value['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, self._session + path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise RuntimeError(value["message"])
        return value

    def open(self, page: Path, width: int = 1280, height: int = 900) -> None:
        self._ask("POST", "/window/rect", {"width": width, "height": height})
        self._ask("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def close(self) -> None:
        try:
            if self._session:
                self._ask("DELETE", "")
        finally:
            self._process.terminate()
            self._process.wait(20)
            assert self._process.stdout is not None
            self._process.stdout.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    programs = _needed("chromium", "chromedriver")
    browser = Browser(programs["chromedriver"], programs["chromium"], tmp_path_factory.mktemp("profile"))
    try:
        browser.start()
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report folder of a regression with a planted fault in one of two entries, and a file of an odd name."""
    _needed("iverilog")
    root = Path(__file__).resolve().parent.parent
    here = tmp_path_factory.mktemp("failing")
    shutil.copytree(root / "hw", here / "hw", ignore=shutil.ignore_patterns("__pycache__"))
    file = here / "hw/mxhw/narrow.py"
    old = "if policy.scale_255 is Scale255.NAN:"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, "if policy.scale_255 is Scale255.NAN and False:"))
    np.save(here / ODD, np.arange(64, dtype=np.float32))
    words = ["regress", "--sim", "icarus", "--entry", MUTANT, "--entry", SOUND, "--vectors", "100", "--jobs", "2"]
    words += ["--data", ODD, "--waves", "--report", "the report"]
    done = subprocess.run(
        [sys.executable, "-m", "mxtb.cli", *words],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(part) for part in (here / "hw", root / "model", root / "tb")),
        },
    )
    assert done.returncode == 1, done.stderr
    assert "the report/report.html" in done.stdout
    return here / "the report"


def test_the_page_stands_alone_and_nothing_half_written(failing: Path) -> None:
    assert sorted(file.name for file in failing.iterdir()) == ["junit.xml", "report.html", "report.json"]
    text = (failing / "report.html").read_text()
    assert not re.search(r"<link|\bsrc=|@import|url\((?!#)|https?://(?!www\.w3\.org)", text)
    assert ODD not in text
    assert text.count("<script>") == 1


def test_json_and_junit_agree_with_each_other(failing: Path) -> None:
    whole = json.loads((failing / "report.json").read_text())
    root = ElementTree.parse(failing / "junit.xml").getroot()
    cases = list(root.iter("testcase"))
    assert {case.get("name") for case in cases} == {row["entry"] for row in whole["rows"]} == {MUTANT, SOUND}
    assert int(root.get("tests") or 0) == len(cases) == len(whole["rows"]) == 2
    broken = [case.get("name") for case in cases if case.find("failure") is not None]
    assert broken == [row["entry"] for row in whole["rows"] if row["mismatches"]] == [MUTANT]
    assert int(root.get("failures") or 0) == 1
    (failure,) = root.iter("failure")
    (told,) = whole["failures"]
    assert told["reproduce"] in (failure.text or "")
    assert "scale 255 makes every code 0" in (failure.text or "")
    mismatches = next(row["mismatches"] for row in whole["rows"] if row["entry"] == MUTANT)
    assert (failure.get("message") or "").startswith(f"{mismatches} of ")
    assert whole["passed"] is False
    assert whole["data"] == ODD
    properties = {one.get("name"): one.get("value") for one in root.iter("property")}
    assert properties["data"] == ODD
    assert properties["command"] == whole["command"]
    assert whole["recorded"][MUTANT]["area"]["luts"] > 10


def test_the_failing_page_tells_its_story(failing: Path, browser: Browser) -> None:
    browser.open(failing / "report.html")
    text = browser.run("return document.body.innerText")
    whole = json.loads((failing / "report.json").read_text())
    for words in (
        "FAILED", ODD, "scale 255 makes every code 0", "<- differs", whole["failures"][0]["reproduce"],
        whole["command"], f"{whole['comparisons']:,}", f"{whole['mismatches']:,}", "dump.fst",
    ):  # fmt: skip
        assert words in text, words
    assert browser.run("return document.title") == "mxtwin regression: FAILED"
    waves = browser.run("return document.querySelector('#failures a[href$=fst]').href")
    assert Path(waves.removeprefix("file://").replace("%20", " ")).stat().st_size > 1000
    assert browser.run("return document.querySelectorAll('#table tr.problem').length") == 1


@pytest.mark.parametrize("width", [1280, 500], ids=["desktop", "phone"])
def test_links_lead_somewhere_and_pictures_are_seen(failing: Path, browser: Browser, width: int) -> None:
    browser.open(failing / "report.html", width)
    dead = browser.run(
        "return [...document.querySelectorAll('a[href^=\"#\"]')].map(a => a.getAttribute('href').slice(1))"
        ".filter(id => !document.getElementById(id))"
    )
    assert dead == []
    assert browser.run("return document.querySelectorAll('nav a').length") == 9
    ids = browser.run("return [...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
    sizes = browser.run(
        "return [...document.querySelectorAll('#plots svg')].map(svg => {"
        "const box = svg.getBoundingClientRect(), line = [...svg.querySelectorAll('path')]"
        ".map(path => path.getBoundingClientRect().width); return [box.width, box.height, Math.max(...line)]})"
    )
    assert len(sizes) == 6
    for wide, high, line in sizes:
        assert wide > 250
        assert high > 140
        assert line > 200
    overflow = browser.run("return document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, "the page must not scroll sideways"


def test_the_table_is_filtered_and_sorted(failing: Path, browser: Browser) -> None:
    browser.open(failing / "report.html")
    names = "return [...document.querySelectorAll('#table tbody tr:not([hidden]) th')].map(cell => cell.title)"
    assert browser.run(names) == [MUTANT, SOUND]
    typed = "const f = document.getElementById('filter'); f.value = arguments[0]; f.dispatchEvent(new Event('input'))"
    browser.run(typed, "ldexp birsim")
    assert browser.run(names) == [SOUND]
    assert browser.run("return document.getElementById('shown').textContent") == "1 of 2"
    browser.run(typed, "")
    browser.run("document.getElementById('problems').click()")
    assert browser.run(names) == [MUTANT]
    browser.run("document.getElementById('problems').click()")
    column = "const h = [...document.querySelectorAll('#table thead button')].find(b => b.textContent == arguments[0]);"
    browser.run(column + "h.click()", "LUT6")
    assert browser.run(names) == [SOUND, MUTANT]
    assert browser.run(column + "return h.parentNode.getAttribute('aria-sort')", "LUT6") == "ascending"
    browser.run(column + "h.click()", "LUT6")
    assert browser.run(names) == [MUTANT, SOUND]


def test_a_passing_regression_with_records(
    mxtwin, monkeypatch: pytest.MonkeyPatch, browser: Browser, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    """Proofs and mutation scores are shown where they are recorded, and said to be absent where not."""
    _needed("iverilog")
    (tmp_path / "proofs.json").write_text(
        json.dumps({"tools": {"z3": "4.13"}, "entries": {SOUND: {"result": "proved", "cpu_seconds": 2.5}}})
    )
    one = {"part": "all", "mutants": 40, "killed": 36, "equivalent": 3, "survivors": [{"mutant": "m<1>", "place": "a"}]}
    (tmp_path / "mutation.json").write_text(json.dumps({"seed": 5, "entries": {SOUND: one, "other": "nonsense"}}))
    records = read_records(proofs=tmp_path / "proofs.json", mutation=tmp_path / "mutation.json")
    monkeypatch.setattr(write, "read_records", lambda: records)
    start = time.perf_counter()
    code, out, _ = mxtwin("regress", "--sim", "icarus", "--entry", SOUND, "--vectors", "100", "--report", "r")
    assert code == 0
    assert "r/report.html" in out
    browser.open(tmp_path / "r/report.html")
    text = browser.run("return document.body.innerText")
    for words in ("PASSED", "1 / 1", "97.3 %", "proved", "z3 4.13", "40 faults were planted", "1 survived"):
        assert words in text, words
    assert "Failures" not in browser.run("return document.querySelector('nav').innerText")
    assert ElementTree.parse(tmp_path / "r/junit.xml").getroot().get("failures") == "0"
    assert time.perf_counter() - start < 600


def test_the_committed_records_are_read() -> None:
    """Every entry's area, proof and mutation score: a report that says "not recorded" of them would be wrong."""
    records = read_records()
    names = {entry.name for entry in CATALOG}
    assert records.area.keys() == records.proofs.keys() == records.mutation.keys() == names
    assert all(proof.holds and proof.seconds is not None for proof in records.proofs.values())
    assert all(mutation.score >= 95 for mutation in records.mutation.values())
    assert records.proof_tools
    assert records.mutation_seed is not None


def test_records_that_are_absent_or_odd(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text('{"entries": {"a": {"mutants": "many"}}, "seed": "x"}')
    for file in (tmp_path / "nowhere.json", tmp_path / "odd.json"):
        records = read_records(area=file, proofs=file, mutation=file)
        assert (records.area, records.proofs, records.mutation, records.mutation_seed) == ({}, {}, {}, None)
        assert records.as_json("a") == {"area": None, "proof": None, "mutation": None}


def test_a_missing_extra_is_one_line_before_anything_runs(mxtwin, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(write, "_installed", lambda name: False)
    for name in ("jinja2", "matplotlib"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    code, out, err = mxtwin("regress", "--report", "r")
    assert (code, out) == (2, "")
    assert err == (
        "mxtwin: error: --report DIR needs jinja2 and matplotlib, which are not installed: "
        "pip install 'mxtwin[report]' (or give a file that ends in .json)\n"
    )


def test_a_report_that_cannot_be_put_there(mxtwin, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "taken").write_text("a file")
    code, _, err = mxtwin("regress", "--report", "taken")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "taken: wanted a folder for the report" in err
