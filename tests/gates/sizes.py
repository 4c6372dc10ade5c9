"""The size gate, as functions over folders: what `test_sizes` applies to the project and a planted violation to a copy.

Limits: a function has at most 60 lines without its docstring and 7 parameters, a file at most 400 lines. A command of
the cli may have more parameters, for Typer reads its options from its signature, but its body without the docstring has
at most 25 lines. Ruff cannot count lines.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

FUNCTION_LINES, COMMAND_LINES, PARAMETERS, FILE_LINES = 60, 25, 7, 400

#: The module that lists the cli's commands, below the source folder.
COMMAND_TABLE = Path("cupola", "cli", "app.py")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def oversized(folder: Path) -> list[str]:
    """Every breach below `folder`, each as `file:line: what`."""
    listed = commands(folder)
    return [
        f"{path.relative_to(folder)}:{fault}"
        for path in sources(folder)
        for fault in _faults(path, listed.get(path.relative_to(folder), set()))
    ]


def commands(folder: Path) -> dict[Path, set[str]]:
    """Names of the cli's commands by module, from its table `COMMANDS`; none where the folder has no cli."""
    table, found = folder / COMMAND_TABLE, dict[Path, set[str]]()
    if not table.exists():
        return found
    for node in ast.walk(ast.parse(table.read_text(encoding="utf-8"))):
        match node:
            case ast.Assign(targets=[ast.Name(id="COMMANDS")], value=ast.Tuple(elts=entries)):
                for entry in entries:
                    module, name = ast.unparse(entry).split(".")
                    found.setdefault(COMMAND_TABLE.with_name(f"{module}.py"), set()).add(name)
    return found


def suppressions(folder: Path) -> list[str]:
    """Every comment that silences the linter or the type checker, each as `file:line: comment`."""
    return [
        f"{path.relative_to(folder)}:{token.start[0]}: {token.string}"
        for path in sources(folder)
        for token in _comments(path)
        if re.search(r"noqa|type:\s*ignore|\b(ruff|mypy):", token.string)
    ]


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _comments(path: Path) -> Iterator[tokenize.TokenInfo]:
    with path.open("rb") as file:
        yield from (token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT)


def _faults(path: Path, commands: set[str]) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    if (lines := len(text.splitlines())) > FILE_LINES:
        yield f"1: {lines} lines in the file, at most {FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, Function):
            continue
        if (lines := _lines(node)) > FUNCTION_LINES:
            yield f"{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES}"
        if node.name in commands and (lines := _lines(node) - _signature(node)) > COMMAND_LINES:
            yield f"{node.lineno}: command {node.name} has a body of {lines} lines, at most {COMMAND_LINES}"
        if (count := _parameters(node.args)) > PARAMETERS and node.name not in commands:
            yield f"{node.lineno}: {node.name} has {count} parameters, at most {PARAMETERS}"


def _lines(function: Function) -> int:
    """Lines from `def` to the last statement, without the docstring's."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        total -= (first.end_lineno or first.lineno) - first.lineno + 1
    return total


def _signature(function: Function) -> int:
    return function.body[0].lineno - function.lineno


def _parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len([one for one in named if one.arg not in ("self", "cls")])
