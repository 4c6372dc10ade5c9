"""A user's function from `package.module:name` or `file.py:name`."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from cupola.core.records import RecipeError


def load_function(path: str) -> Callable[..., Any]:
    """The function; a file is taken relative to the current directory and imported once, like any module.

    The current directory, or the file's folder, joins the import path, so that the user's modules find each other.
    Raises RecipeError naming the path: malformed, missing file or module, failing import, missing name, not callable.
    """
    target, _, name = path.rpartition(":")
    if not target or not name:
        raise RecipeError(f"{path}: write package.module:name or file.py:name")
    module = _from_file(path, Path(target)) if target.endswith(".py") else _from_package(path, target)
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, [n for n in vars(module) if callable(getattr(module, n))], n=1)
        raise RecipeError(f"{path}: {target} has no {name!r}{f'; did you mean {near[0]!r}?' if near else ''}")
    found: Callable[..., Any] = getattr(module, name)
    if not callable(found):
        raise RecipeError(f"{path}: {name!r} is not callable but {type(found).__name__}")
    return found


def module_digest(target: str) -> str | None:
    """SHA-256 of the file of a loaded `file.py` or `package.module`; `None` where no file is behind it."""
    file = target if target.endswith(".py") else getattr(sys.modules[target], "__file__", None)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None


def printing_aside() -> AbstractContextManager[object]:
    """User code prints to standard error, so that standard output stays what the command itself has to say."""
    return redirect_stdout(sys.stderr)


def brief(error: BaseException) -> str:
    """Type and text of an exception, the text cut to a bounded length."""
    return f"{type(error).__name__}: {str(error)[:300]}"


def _from_package(path: str, target: str) -> ModuleType:
    _join_import_path(Path.cwd())
    try:
        with printing_aside():
            return importlib.import_module(target)
    except (Exception, SystemExit) as error:
        raise RecipeError(f"{path}: cannot be imported: {brief(error)}") from error


def _from_file(path: str, file: Path) -> ModuleType:
    file = file.resolve()
    if not file.is_file():
        raise RecipeError(f"{path}: no file {file}")
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _join_import_path(file.parent)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None  # a .py file always has one
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with printing_aside():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise RecipeError(f"{path}: cannot be imported: {brief(error)}") from error
    return module


def _join_import_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
