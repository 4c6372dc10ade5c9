"""TOML files and overrides to a validated recipe, with where each value came from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from cupola.core.config.dotted import leaves, walk
from cupola.core.config.faults import told
from cupola.core.config.presets import with_preset
from cupola.core.config.recipe import Recipe
from cupola.core.records import RecipeError

M = TypeVar("M", bound=BaseModel)
Provenance = dict[str, str]


def load_recipe(paths: Sequence[Path], overrides: Sequence[str] = ()) -> tuple[Recipe, Provenance]:
    """`load` of a training recipe."""
    return load(paths, overrides, Recipe)


#: Where an override's value came from.
COMMAND_LINE = "command line"


def load(paths: Sequence[Path], overrides: Sequence[str], kind: type[M]) -> tuple[M, Provenance]:
    """Merge the files left to right, then the `a.b=value` overrides, and validate.

    Returns the recipe and, for each dotted key, `file:line`, `command line`, `preset NAME` or `default`.
    Raises RecipeError naming the file or override, the key, and the nearest known key.
    """
    merged: dict[str, Any] = {}
    origin: Provenance = {}
    for path in paths:
        table, lines = read_recipe(path)
        _merge(merged, table)
        _forget(origin, [key for key, value in walk(table) if not isinstance(value, dict)])
        origin.update({key: _at(path, lines, key) for key, _ in walk(table)})
    for override in overrides:
        key, value = _parse_override(override)
        _set(merged, key, value)
        _forget(origin, [key])
        origin.update({name: COMMAND_LINE for name, _ in walk(value, key)})
        for around in accumulate(key.split(".")[:-1], "{}.{}".format):  # tables that the override itself made
            origin.setdefault(around, COMMAND_LINE)
    recipe = validate(merged, kind, origin)
    return recipe, _provenance(recipe, merged, origin)


def validate(values: Mapping[str, Any], kind: type[M], origin: Mapping[str, str] | None = None, at: str = "") -> M:
    """The validated model, or a RecipeError of one line for the first fault.

    `origin` tells where a key stands; `at` is the dotted key of `values` where they are a part of a recipe.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise RecipeError(told(error, kind, origin or {}, at)) from error


def dump(recipe: BaseModel) -> str:
    """The recipe as TOML, every value spelled out (absent optional values stay absent)."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def read_recipe(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """A recipe's keys as they stand in the file, and the line of each. Raises RecipeError where it is no TOML."""
    text = read_text(path, "recipe")
    try:
        return tomllib.loads(text), _line_numbers(text)
    except (ValueError, RecursionError) as error:  # not TOML; a number of thousands of digits; brackets without end
        raise RecipeError(f"{path}: not TOML: {error}") from error


def read_text(path: Path, kind: str) -> str:
    """The text of a `kind` of file, named so where there is none. Raises RecipeError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such {kind}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error


def _line_numbers(text: str) -> dict[str, int]:
    """Line of each plainly written `key =`; tomllib itself keeps no positions."""
    lines: dict[str, int] = {}
    table, counts = "", dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if many := re.match(r"\s*\[\[\s*([\w.-]+)\s*\]\]", line):
            index = counts.get(many[1], 0)
            counts[many[1]], table = index + 1, f"{many[1]}.{index}."
            lines[table.removesuffix(".")] = number
        elif one := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            table = f"{one[1]}."
            lines[one[1]] = number
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines[table + key[1]] = number
    return lines


def _at(path: Path, lines: Mapping[str, int], key: str) -> str:
    """`file:line` of a key, or of the nearest table around it whose line is known."""
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return f"{path}:{lines[key]}" if key else str(path)


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _forget(origin: Provenance, replaced: Sequence[str]) -> None:
    """Drop where keys stood below those that are replaced whole."""
    inside = tuple(f"{key}." for key in replaced)
    for key in [key for key in origin if key.startswith(inside)]:
        del origin[key]


def _parse_override(text: str) -> tuple[str, Any]:
    key, sign, raw = text.partition("=")
    if not sign or not re.fullmatch(r"[\w.-]+", key):
        raise RecipeError(f"{text!r}: an override is written key.subkey=value")
    try:
        return key, tomllib.loads(f"v = {raw}")["v"]
    except (ValueError, RecursionError):
        return key, raw


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    here: Any = table
    for part in parents:
        here = _entry(here, part, key) if isinstance(here, list) else here.setdefault(part, {})
        if not isinstance(here, dict | list):
            raise RecipeError(f"{key}: {part} is a value, not a table")
    if isinstance(here, list):
        _entry(here, last, key)
        here[int(last)] = value
    else:
        here[last] = value


def _entry(entries: list[Any], index: str, key: str) -> Any:
    """The entry of a list such as `reward`, which overrides count from 0."""
    if not index.isdecimal() or int(index) >= len(entries):
        raise RecipeError(f"{key}: {index} is none of the {len(entries)} entries, which count from 0")
    return entries[int(index)]


def _provenance(recipe: BaseModel, given: Mapping[str, Any], origin: Mapping[str, str]) -> Provenance:
    """Where each leaf of the recipe came from: its origin if it was given, else its preset or the default."""
    preset = getattr(getattr(recipe, "objective", None), "preset", None)
    put_in = {} if preset is None else leaves(with_preset(preset, given.get("objective", {})), "objective")
    set_by_user = {key for key, _ in walk(given)}

    def source(key: str, value: Any) -> str:
        if key in set_by_user:
            return origin[key]
        return f"preset {preset}" if key in put_in and put_in[key] == value else "default"

    return {key: source(key, value) for key, value in leaves(recipe.model_dump(mode="json")).items()}
