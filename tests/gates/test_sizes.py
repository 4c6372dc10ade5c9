"""Nothing outgrows a screen, and nothing is silenced."""

from __future__ import annotations

from pathlib import Path

import pytest
from sizes import commands, oversized, sources, suppressions

from cupola.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
CODE = ("src", "scripts", "examples", "benchmarks", "tests")


@pytest.mark.parametrize("part", CODE)
def test_functions_and_files_fit_a_screen(part: str) -> None:
    assert oversized(ROOT / part) == []


@pytest.mark.parametrize("part", CODE)
def test_no_comment_silences_a_gate(part: str) -> None:
    assert suppressions(ROOT / part) == []


@pytest.mark.parametrize("part", CODE)
def test_the_code_is_where_it_is_looked_for(part: str) -> None:
    assert sources(ROOT / part) != []


def test_every_command_is_known_to_the_gate() -> None:
    listed = {name for names in commands(ROOT / "src").values() for name in names}
    assert listed == {command.__name__ for command in COMMANDS}


def body(lines: int) -> str:
    return "\n".join(["    pass"] * lines)


LENGTHS = {"fits": 25, "long": 26, "helper": 26}


def test_the_limits_are_exact(tmp_path: Path) -> None:
    (tmp_path / "fits.py").write_text(f'def f(a, b, c, d, e, g, *, h):\n    """Not\n    counted."""\n{body(59)}\n')
    (tmp_path / "long.py").write_text(f"def f():\n{body(60)}\n")
    (tmp_path / "wide.py").write_text("class C:\n    def f(self, a, b, c, d, e, g, *, h, i): ...\n")
    (tmp_path / "tall.py").write_text("x = 1\n" * 401)
    assert oversized(tmp_path) == [
        "long.py:1: f has 61 lines, at most 60",
        "tall.py:1: 401 lines in the file, at most 400",
        "wide.py:2: f has 8 parameters, at most 7",
    ]


def test_a_command_may_have_many_options_but_no_long_body(tmp_path: Path) -> None:
    cli = tmp_path / "cupola" / "cli"
    cli.mkdir(parents=True)
    (cli / "app.py").write_text("COMMANDS = (work.fits, work.long)\n")
    options = "a, b, c, d, e, f,\n    g, h"
    functions = [f'def {name}({options}):\n    """Not counted."""\n{body(n)}\n' for name, n in LENGTHS.items()]
    (cli / "work.py").write_text("".join(functions))
    assert oversized(tmp_path) == [
        "cupola/cli/work.py:29: command long has a body of 26 lines, at most 25",
        "cupola/cli/work.py:58: helper has 8 parameters, at most 7",
    ]


def test_a_silencing_comment_is_found_and_a_text_that_only_speaks_of_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text('x = "# noqa"\n')
    (tmp_path / "quiet.py").write_text("import os  # noqa: F401\ny: int = ''  # type: ignore[assignment]\n")
    assert suppressions(tmp_path) == ["quiet.py:1: # noqa: F401", "quiet.py:2: # type: ignore[assignment]"]
