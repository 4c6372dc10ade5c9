"""The first second: help, version, and what a command imports before it has work to do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cupola_process import Cupola

from cupola import __version__

COMMANDS = ["init", "train", "resume", "sft", "groups", "diagnose", "ledger", "watch", "eval", "doctor"]
HEAVY = {"torch", "transformers", "numpy", "scipy", "statsmodels", "pyarrow", "pandas", "pydantic", "jinja2"}


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['cupola', '--help']\nfrom cupola.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    print('IMPORTED', end.code, *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    help_text, _, imported = done.stdout.partition("IMPORTED ")
    code, *modules = imported.split()
    assert code == "0"
    assert HEAVY.isdisjoint(modules)
    assert re.findall(r"^│ ([a-z]+)  ", help_text, re.M) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(cupola: Cupola, tmp_path: Path, command: str) -> None:
    done = cupola(tmp_path, command, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"Usage: cupola {command}" in done.out


@pytest.mark.parametrize("start", [[sys.executable, "-m", "cupola"], [str(Path(sys.executable).with_name("cupola"))]])
def test_console_script_and_module_are_the_same_program(start: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*start, "--version"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")
    wrong = subprocess.run([*start, "train", "none.toml"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (2, "", "error: none.toml: no such recipe\n")


def test_a_slip_in_the_recipe_shows_before_torch_is_loaded(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['cupola', 'train', 'x.toml', 'run.stepz=1']\nfrom cupola.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    )
    (tmp_path / "x.toml").write_text('[data]\ntask = "arithmetic"\n[[reward]]\nname = "a"\nkind = "exact"\n')
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "2 False\n"
    assert done.stderr == "error: command line: run.stepz: unknown key; did you mean steps?\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["train"], ["groups", "x", "--split", "test"], ["ledger"]])
def test_wrong_usage_exits_2(cupola: Cupola, tmp_path: Path, arguments: list[str]) -> None:
    done = cupola(tmp_path, *arguments)
    assert done.code == 2
    assert "Usage: cupola" in done.out + done.err


def test_a_terminal_without_the_characters_gets_their_escapes(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("x = 1\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "cupola", "train", "a.toml", "run.name=漢\x1b[31m\n\u202e"],
        capture_output=True, check=False, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.isascii()
    assert done.stderr.count(b"\n") == 1
    assert b"\x1b" not in done.stderr
