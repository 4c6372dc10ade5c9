"""Every recipe that ships is one the program accepts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupola.core.config import Recipe, SftRecipe, load

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_parses_and_every_value_has_an_origin(path: Path) -> None:
    recipe, provenance = load([path], [], SftRecipe if "sft" in path.stem else Recipe)
    assert recipe.run.seed >= 0
    assert any(origin.startswith(f"{path}:") for origin in provenance.values())


def test_there_are_recipes() -> None:
    assert {"demo", "embedded-sft"} <= {path.stem for path in RECIPES}
