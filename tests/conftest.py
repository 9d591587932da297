"""Fixtures that several tests share."""

import os
from pathlib import Path

import pytest

from mxmodel.bad_input import BadInput
from mxtb import cli, simulators
from mxtb.simulators import Simulator

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def bench() -> Path:
    """The build cache: the project's own, so that tests and ``make regress`` build a top once."""
    return ROOT / "build" / "tops"


@pytest.fixture(params=simulators.NAMES)
def simulator(request: pytest.FixtureRequest) -> Simulator:
    """Each simulator of this machine in turn. In CI both must be there; elsewhere Icarus may be missing."""
    try:
        return simulators.find(request.param)
    except BadInput as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"optional here, required in CI: {missing}")


@pytest.fixture
def clean_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty directory as the whole PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def mxtwin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):  # type: ignore[no-untyped-def]
    """Run a command line in an empty directory: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["mxtwin", *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return stop.value.code, output.out, output.err

    return run
