"""Denominators explained: those a run wrote, a recipe's without a run, or another trainer's configuration's."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cupola.core.config import SftRecipe, load, load_recipe, read_recipe, read_text
from cupola.core.records import RecipeError, RunFolderError
from cupola.core.runlog import RunReader
from cupola.train.ledger import TRAINERS, Explanation, explain_supervised, explain_training

#: Tables and keys that only a supervised recipe has.
SUPERVISED = {"output", "training"}


def read_step(run: Path, step: int | None) -> tuple[list[dict[str, Any]], str]:
    """The ledger's rows of a run's step, by default the newest, and their title."""
    rows = RunReader(run).ledger()
    wanted = max((row["step"] for row in rows), default=None) if step is None else step
    chosen = [row for row in rows if row["step"] == wanted]
    if not chosen:
        raise RunFolderError(f"{run}: the ledger has no row of step {wanted}")
    return chosen, f"{run}: step {wanted}"


def explain_recipe(path: Path) -> Explanation:
    """The denominators of a training recipe or a supervised one, in the numbers that it fixes.

    Raises RecipeError as `load_recipe` does.
    """
    table, _ = read_recipe(path)
    if SUPERVISED & table.keys():
        return explain_supervised(str(path), *load([path], [], SftRecipe))
    return explain_training(str(path), *load_recipe([path]))


def explain_foreign(trainer: str, path: Path) -> Explanation:
    """The denominators of another trainer's configuration, or of a loop described in its rules, in JSON or TOML.

    Raises RecipeError naming the trainer, or file and key.
    """
    if trainer not in TRAINERS:
        raise RecipeError(f"--from: knows {', '.join(TRAINERS)}, not {trainer!r}")
    return TRAINERS[trainer](str(path), _table(path))


def _once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object's keys. Raises RecipeError for one that stands there twice."""
    seen = set[str]()
    for key, _ in pairs:
        if key in seen:
            raise RecipeError(f"{path}: {key}: stands there twice; keep one")
        seen.add(key)
    return dict(pairs)


def _table(path: Path) -> Mapping[str, Any]:
    """A file's keys. What is no JSON is TOML; the fault told is of the one that its name or first sign promises."""
    text = read_text(path, "file")
    try:
        table = json.loads(text, object_pairs_hook=partial(_once, path))
    except RecipeError:
        raise
    except (ValueError, RecursionError) as no_json:
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as no_toml:
            if path.suffix.lower() in (".yaml", ".yml"):
                raise RecipeError(f"{path}: YAML is not read; write its keys as JSON or TOML") from None
            fault = no_json if path.suffix.lower() == ".json" or text.lstrip().startswith("{") else no_toml
            raise RecipeError(f"{path}: neither JSON nor TOML: {fault}") from None
    if not isinstance(table, dict):
        raise RecipeError(f"{path}: holds no table of keys")
    return table
