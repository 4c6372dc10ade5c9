"""Every recipe that ships is one the program accepts, and tells where each of its values came from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cupola.core.config import Recipe, SftRecipe, load

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def leaves(table: Any, key: str = "") -> Iterator[str]:
    """The dotted key of each value; lists of tables count from 0."""
    inner: list[tuple[str, Any]] = []
    if isinstance(table, dict):
        inner = list(table.items())
    elif isinstance(table, list) and all(isinstance(entry, dict) for entry in table):
        inner = [(str(index), entry) for index, entry in enumerate(table)]
    if not inner:
        yield key
    for name, value in inner:
        yield from leaves(value, f"{key}.{name}" if key else name)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_parses_and_every_value_has_an_origin(path: Path) -> None:
    recipe, provenance = load([path], [], SftRecipe if "sft" in path.stem else Recipe)
    written = path.read_text(encoding="utf-8")
    given = set(leaves(tomllib.loads(written)))
    assert len(given) > 10
    assert set(provenance) == set(leaves(recipe.model_dump(mode="json")))
    for key, origin in provenance.items():
        if key in given:
            file, _, number = origin.rpartition(":")
            assert file == str(path)
            # A value in an inline table stands on the line of the table.
            names = written.splitlines()[int(number) - 1].partition("=")[0].strip()
            assert names in key.split("."), f"{key}: {origin}"
        else:
            assert origin == "default" or origin.startswith("preset "), f"{key}: {origin}"
    assert given <= set(provenance)


def test_there_are_recipes() -> None:
    assert {"demo", "embedded-sft"} <= {path.stem for path in RECIPES}
