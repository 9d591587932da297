"""Imports go down only: model <- hw <- tb, and hw sees of the model only its descriptors (design, Floors)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = {"mxmodel": "model", "mxhw": "hw", "mxtb": "tb"}
DESCRIPTORS = {"mxmodel.formats", "mxmodel.rules"}


def _imports(file: Path) -> set[str]:
    """Dotted names that ``file`` imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _files(root: Path, package: str) -> list[Path]:
    files = sorted((root / PACKAGES[package] / package).glob("**/*.py"))
    assert files, package
    return files


def test_model_imports_no_hardware_and_no_bench(root: Path) -> None:
    files = _files(root, "mxmodel")
    for file in files:
        tops = {name.split(".")[0] for name in _imports(file)}
        assert not tops & {"mxhw", "mxtb", "amaranth", "cocotb", "cocotb_tools", "z3"}, file
    assert len(files) >= 8


def test_hardware_sees_only_descriptors_of_the_model(root: Path) -> None:
    files = _files(root, "mxhw")
    for file in files:
        names = _imports(file)
        assert not {name.split(".")[0] for name in names} & {"mxtb", "cocotb", "cocotb_tools", "numpy", "z3"}, file
        modules = {".".join(name.split(".")[:2]) for name in names if name.startswith("mxmodel.")}
        assert modules <= DESCRIPTORS | {"mxmodel.__version__"}, file
    assert len(files) >= 7


def test_hardware_bans_postponed_annotations(root: Path) -> None:
    for file in _files(root, "mxhw"):
        assert "__future__" not in _imports(file), file


def test_importing_all_hardware_loads_only_descriptors() -> None:
    """The same at run time, in a clean interpreter."""
    program = (
        "import importlib, pkgutil, sys, mxhw\n"
        "for module in pkgutil.walk_packages(mxhw.__path__, 'mxhw.'): importlib.import_module(module.name)\n"
        "print('\\n'.join(sorted(n for n in sys.modules if n.startswith(('mxmodel', 'mxtb', 'numpy.', 'cocotb')))))\n"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert set(done.stdout.split()) == {"mxmodel", *DESCRIPTORS}


@pytest.mark.parametrize("package", PACKAGES)
def test_package_exports_its_version_and_nothing_else(package: str) -> None:
    """So that ``mxmodel.narrow`` is always the module."""
    program = (
        f"import {package}\n"
        f"names = [name for name in vars({package}) if not name.startswith('__')]\n"
        f"print(names, {package}.__version__)"
    )
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    names, version = done.stdout.rsplit(maxsplit=1)
    assert names == "[]"
    assert version[0].isdigit()
