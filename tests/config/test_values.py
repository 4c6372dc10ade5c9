"""Values that no reader takes, and sampling that would discard what teaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from cupola.core.config import load_recipe
from cupola.core.records import RecipeError


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 3000])
def test_a_value_beyond_reading_is_one_line(recipe: Path, value: str) -> None:
    recipe.write_text(recipe.read_text() + f"\n[diagnosis]\nexact_share_every = {value}\n")
    with pytest.raises(RecipeError, match="not TOML"):
        load_recipe([recipe])


def test_dynamic_sampling_does_not_discard_groups_that_teach(recipe: Path) -> None:
    for objective, what in (("gdpo", "combine = 'apart'"), ("reinforce_pp", "baseline = 'none'")):
        with pytest.raises(RecipeError, match=rf"sampling.max_batches: above 1 discards .* objective.{what} they have"):
            load_recipe([recipe], [f"objective.preset={objective}", "sampling.max_batches=2"])
