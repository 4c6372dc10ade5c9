"""TOML files and overrides to a validated recipe, with where each value came from."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from cupola.core.config.presets import PRESETS
from cupola.core.config.recipe import Recipe
from cupola.core.records import RecipeError

M = TypeVar("M", bound=BaseModel)
Provenance = dict[str, str]


def load_recipe(paths: Sequence[Path], overrides: Sequence[str] = ()) -> tuple[Recipe, Provenance]:
    """`load` of a training recipe."""
    return load(paths, overrides, Recipe)


def load(paths: Sequence[Path], overrides: Sequence[str], kind: type[M]) -> tuple[M, Provenance]:
    """Merge the files left to right, then the `a.b=value` overrides, and validate.

    Returns the recipe and, for each dotted key, `file:line`, `command line`, `preset NAME` or `default`.
    Raises RecipeError naming the file or override, the key, and the nearest known key.
    """
    merged: dict[str, Any] = {}
    origin: Provenance = {}
    for path in paths:
        table, lines = _read(path)
        _merge(merged, table)
        origin.update({key: f"{path}:{line}" for key, line in lines.items()})
    for override in overrides:
        key, value = _parse_override(override)
        _set(merged, key, value)
        origin[key] = "command line"
    recipe = validate(merged, kind, origin)
    return recipe, _provenance(recipe, origin)


def validate(values: Mapping[str, Any], kind: type[M], origin: Mapping[str, str] | None = None) -> M:
    """The validated model, or a RecipeError of one line for the first fault."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        place = (origin or {}).get(key) or next(
            (at for name, at in (origin or {}).items() if key and name.startswith(f"{key}.")), ""
        )
        text = f"{place + ': ' if place else ''}{key or 'recipe'}: {_fault(first, kind)}"
        raise RecipeError(text) from error


def dump(recipe: BaseModel) -> str:
    """The recipe as TOML, every value spelled out (absent optional values stay absent)."""
    return tomli_w.dumps(recipe.model_dump(mode="json", exclude_none=True))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    try:
        return tomllib.loads(text), _line_numbers(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not TOML: {error}") from error


def _line_numbers(text: str) -> dict[str, int]:
    """Line of each plainly written `key =`; tomllib itself keeps no positions."""
    lines: dict[str, int] = {}
    table, counts = "", dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        if many := re.match(r"\s*\[\[\s*([\w.-]+)\s*\]\]", line):
            index = counts.get(many[1], 0)
            counts[many[1]], table = index + 1, f"{many[1]}.{index}."
        elif one := re.match(r"\s*\[\s*([\w.-]+)\s*\]", line):
            table = f"{one[1]}."
            lines[one[1]] = number
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines[table + key[1]] = number
    return lines


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _parse_override(text: str) -> tuple[str, Any]:
    key, sign, raw = text.partition("=")
    if not sign or not re.fullmatch(r"[\w.-]+", key):
        raise RecipeError(f"{text!r}: an override is written key.subkey=value")
    try:
        return key, tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        return key, raw


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    here: Any = table
    for part in parents:
        here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
        if not isinstance(here, dict | list):
            raise RecipeError(f"{key}: {part} is a value, not a table")
    if isinstance(here, list):
        here[int(last)] = value
    else:
        here[last] = value


def _fault(error: Any, kind: type[BaseModel]) -> str:
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        near = difflib.get_close_matches(name, _siblings(kind, error["loc"][:-1]), n=1)
        return f"unknown key{f'; did you mean {near[0]}?' if near else ''}"
    if error["type"] == "missing":
        return "is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return message
    return f"{message[0].lower()}{message[1:]}, got {error['input']!r}"


def _siblings(kind: type[BaseModel], loc: Sequence[Any]) -> list[str]:
    here: Any = kind
    for part in loc:
        if isinstance(part, str):
            annotation = here.model_fields[part].annotation
            inner = getattr(annotation, "__args__", (annotation,))
            here = next(a for a in inner if isinstance(a, type) and issubclass(a, BaseModel))
    return list(here.model_fields)


def _provenance(recipe: BaseModel, origin: Mapping[str, str]) -> Provenance:
    found: Provenance = {}
    preset = getattr(getattr(recipe, "objective", None), "preset", None)

    def walk(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{key}.{name}" if key else name)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, inner in enumerate(value):
                walk(inner, f"{key}.{index}")
        else:
            from_preset = key.startswith("objective.") and key.split(".")[1] in PRESETS.get(preset or "", {})
            fallback = f"preset {preset}" if from_preset else "default"
            found[key] = origin.get(key, fallback)

    walk(recipe.model_dump(mode="json"), "")
    return found
