"""Versions of the emitted Verilog: bits or ports do not change without a new hash and a line in CHANGELOG.md."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from mxhw import __version__, emit, verilog_hashes
from mxhw.catalog import CATALOG, find
from mxhw.verilog_hashes import COMMITTED, VerilogHashes, noted

RENEW = "run `mxtwin verilog --update-hashes`, and say in CHANGELOG.md what changed (CONTRIBUTING.md)"


def test_no_module_changed_unnoticed() -> None:
    """Where another version of the tools prints the Verilog, hashes say nothing; in CI the tools are pinned."""
    committed = VerilogHashes.read(COMMITTED)
    assert set(committed.entries) == {entry.name for entry in CATALOG}, RENEW
    if committed.converter != verilog_hashes.converter() and not os.environ.get("CI"):
        pytest.skip(f"the hashes are of {committed.converter}, not of {verilog_hashes.converter()}")
    now = VerilogHashes.of_catalog()
    assert now.changed_from(committed) == [], RENEW
    assert now == committed
    assert len(now.entries) == len(CATALOG)


def test_the_changelog_names_the_digest(root: Path) -> None:
    """In its newest section, which is of this version."""
    text = (root / "CHANGELOG.md").read_text()
    newest = re.split(r"^## ", text, flags=re.MULTILINE)[1]
    assert newest.startswith(__version__)
    digest = VerilogHashes.read(COMMITTED).digest
    assert re.search(rf"^- Emitted Verilog `{digest}`: \S", newest, flags=re.MULTILINE), RENEW
    assert "say here which modules changed" not in text


def test_the_hash_is_of_bits_and_ports_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = find("mx_narrow_fp16_fp4_e2m1")
    module = emit.emit(entry)
    assert VerilogHashes.read(COMMITTED).entries.keys() >= {entry.name}
    monkeypatch.setattr(emit, "__version__", "9.9.9")
    renumbered = emit.emit.__wrapped__(entry)
    assert renumbered.text != module.text
    assert "9.9.9" in renumbered.text
    assert renumbered.body_sha256 == module.body_sha256
    for old, new in (("input [15:0] x", "input [16:0] x"), ("~", ""), ("assign", "assign ")):
        assert old in module.text
        assert replace(module, text=module.text.replace(old, new)).body_sha256 != module.body_sha256


def test_the_digest_is_of_every_entry(tmp_path: Path) -> None:
    hashes = VerilogHashes(converter="a tool", entries={"b": "22", "a": "11"})
    hashes.write(tmp_path / "hashes.json")
    assert VerilogHashes.read(tmp_path / "hashes.json") == hashes
    assert (tmp_path / "hashes.json").read_text().splitlines()[3:5] == ['    "a": "11",', '    "b": "22"']
    others = [{"b": "22", "a": "12"}, {"b": "22"}, {"b": "22", "a": "11", "c": "33"}]
    assert len({hashes.digest, *(replace(hashes, entries=other).digest for other in others)}) == 4
    assert [replace(hashes, entries=other).changed_from(hashes) for other in others] == [["a"], ["a"], ["c"]]
    assert replace(hashes, converter="another").digest == hashes.digest


def test_the_note_in_the_changelog() -> None:
    """A digest in the newest section is renewed and its words stay; where there is none, a line is added."""
    first, second = "0123456789ab", "ba9876543210"
    text = "# Changelog\n\n## 0.2.0\n- Something.\n\n## 0.1.0\n- Emitted Verilog `aaaaaaaaaaaa`: all of it.\n"
    added = noted(text, first)
    newest, oldest = added.split("## 0.1.0")
    assert f"- Something.\n- Emitted Verilog `{first}`: say here which" in newest
    assert oldest == text.split("## 0.1.0")[1]
    told = re.sub("say here.*", "narrow rounds otherwise.", added)
    assert noted(told, second) == told.replace(first, second)
    alone = noted("## 0.1.0\n- Something.\n", first)
    assert alone.startswith("## 0.1.0\n- Something.\n- Emitted Verilog `0123456789ab`: ")
    with pytest.raises(ValueError, match="a changelog must have a section"):
        noted("nothing\n", first)
