"""Each gate is run on a copy of the project with one violation planted, and must name it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sizes import oversized
from test_torch_free import loaded_by

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The configuration and the code that it names."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for part in ("src", "scripts", "examples", "benchmarks"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return tmp_path


def gate(copy: Path, *command: str) -> str:
    """What the gate prints on a copy that it must refuse."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


def plant(copy: Path, module: str, text: str) -> str:
    """Add `text` to the end of a module of the copy, which is made if need be."""
    path = copy / "src" / "cupola" / module
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    return path.name


BRANCHES = "def planted(x: int) -> int:\n" + "".join(f"    if x == {n}:\n        x += {n}\n" for n in range(10))


def test_ruff_names_a_function_of_complexity_11(copy: Path) -> None:
    plant(copy, "core/planted.py", f'"""Planted."""\n\n\n{BRANCHES}    return x\n')
    assert "`planted` is too complex (11 > 10)" in gate(copy, "ruff", "check", "--no-cache")


def test_ruff_names_a_function_of_8_parameters(copy: Path) -> None:
    plant(copy, "core/planted.py", "def planted(a, b, c, d, e, f, g, h):\n    return a\n")
    assert "PLR0913 Too many arguments in function definition (8 > 7)" in gate(copy, "ruff", "check", "--no-cache")


def test_ruff_names_a_file_it_would_format(copy: Path) -> None:
    plant(copy, "core/planted.py", "x = [1,\n2]\n")
    assert "planted.py" in gate(copy, "ruff", "format", "--check", "--no-cache")


@pytest.mark.slow
def test_mypy_names_a_function_without_types(copy: Path) -> None:
    plant(copy, "core/planted.py", "def planted(x):\n    return x\n")
    report = gate(copy, "mypy")
    assert "planted.py:1: error: Function is missing a type annotation  [no-untyped-def]" in report


ARROWS = {
    "wings: arrows point down": ("core/stats.py", "cupola.watch.diagnosis"),
    "wings: a new wing has no place": ("planted/__init__.py", "math"),
    "wings: watch and prove are strangers": ("prove/evaluation/text.py", "cupola.watch.diagnosis"),
    "rooms of core": ("core/records/errors.py", "cupola.core.runlog"),
    "stats and catalogue stand alone": ("core/config/load.py", "cupola.core.stats"),
    "rooms of train": ("train/tasks/files.py", "cupola.train.rollout"),
    "workflows": ("workflows/manifest.py", "cupola.workflows.evaluate"),
    "objectives are pure tensor code": ("train/objectives/terms.py", "numpy"),
    "judging a run needs no torch": ("watch/diagnosis/trend.py", "torch"),
    "dashboard reads run folders": ("dashboard/text.py", "cupola.prove.evaluation"),
}


@pytest.mark.parametrize("name", ARROWS)
def test_import_linter_names_the_contract_that_an_import_breaks(copy: Path, name: str) -> None:
    module, target = ARROWS[name]
    plant(copy, module, f"\n\ndef planted() -> None:\n    import {target}\n")
    report = gate(copy, "lint-imports", "--no-cache")
    broken = [line for line in report.splitlines() if line.endswith(" BROKEN")]
    assert any(line.startswith(name.partition(":")[0]) for line in broken), report


def test_the_size_gate_names_a_function_of_61_lines(copy: Path) -> None:
    plant(copy, "core/planted.py", "def planted() -> None:\n" + "    pass\n" * 60)
    assert oversized(copy / "src") == ["cupola/core/planted.py:1: planted has 61 lines, at most 60"]


def test_the_size_gate_names_a_command_with_a_body_of_26_lines(copy: Path) -> None:
    module = copy / "src" / "cupola" / "cli" / "reading.py"
    start = len(module.read_text(encoding="utf-8").splitlines()) + 1
    plant(copy, "cli/reading.py", "def planted() -> None:\n" + "    pass\n" * 26)
    table = module.with_name("app.py")
    table.write_text(table.read_text(encoding="utf-8").replace("COMMANDS = (", "COMMANDS = (reading.planted,", 1))
    fault = f"cupola/cli/reading.py:{start}: command planted has a body of 26 lines, at most 25"
    assert oversized(copy / "src") == [fault]


def test_the_torch_free_gate_names_torch(copy: Path) -> None:
    plant(copy, "watch/diagnosis/trend.py", "\nimport torch\n")
    assert "torch" in loaded_by(copy / "src", "cupola.watch")


PYTEST = {
    "a warning": ("import warnings\ndef test_it(): warnings.warn('planted', stacklevel=1)\n", "UserWarning: planted"),
    "an unknown marker": ("import pytest\n@pytest.mark.planted\ndef test_it(): pass\n", "'planted' not found"),
    "a passing xfail": ("import pytest\n@pytest.mark.xfail\ndef test_it(): pass\n", "[XPASS(strict)]"),
}


@pytest.mark.parametrize("name", PYTEST)
def test_pytest_fails_on(tmp_path: Path, name: str) -> None:
    text, named = PYTEST[name]
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_planted.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert named in done.stdout + done.stderr
