"""Objective presets as data: one file each, with the equation, its source, and where it departs from it.

A file `NAME.toml` beside this one is a preset: the keys of a recipe's `[objective]` that it sets. The pages stand in
docs/objectives/.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cupola.core.config.presets.compatibility import COMPATIBLE

#: The project's own: their gradient does not depend on how a batch is cut.
OWN: dict[str, dict[str, Any]] = {
    file.stem: tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(Path(__file__).parent.glob("*.toml"))
}

#: Values a recipe's `[objective]` takes from its preset unless it sets them itself.
PRESETS: dict[str, dict[str, Any]] = {**OWN, **COMPATIBLE}


def with_preset(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's values with those given in their place, tables key by key, but for a surrogate of another kind."""
    preset = dict(PRESETS[name])
    surrogate = given.get("surrogate")
    if (
        isinstance(surrogate, Mapping)
        and surrogate.get("kind", preset["surrogate"]["kind"]) != preset["surrogate"]["kind"]
    ):
        del preset["surrogate"]
    return _merged(preset, given)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables as one; where both have a key, `over` has the say, key by key in a table."""
    both = {key: _merged(under[key], over[key]) for key in under if _is_table(under[key]) and _is_table(over.get(key))}
    return {**under, **over, **both}


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)
