"""What a recipe can name is what the room offers, with the same constants."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from cupola.core.config import Objective
from cupola.core.config.objective import Baseline, Denominator, Scale
from cupola.core.config.presets import PRESETS
from cupola.core.config.surrogate import SURROGATES as NAMED
from cupola.core.config.surrogate import Ratio
from cupola.train.objectives import BASELINES, RATIOS, RULES, SCALES, SURROGATES


def test_every_decision_has_one_set_of_names() -> None:
    assert set(get_args(Baseline)) == {*BASELINES, "critic"}  # the critic has its own function, `gae`
    assert set(get_args(Scale)) == set(SCALES)
    assert set(get_args(Ratio)) == set(RATIOS)
    assert set(get_args(Denominator)) == set(RULES)
    assert set(NAMED) == set(SURROGATES)


@pytest.mark.parametrize("name", SURROGATES)
def test_a_surrogates_constants_and_levels_are_the_same_in_both_rooms(name: str) -> None:
    recipe = NAMED[name]()
    constants = SURROGATES[name].constants()
    assert recipe.model_dump(exclude={"kind"}) == {
        each.name: getattr(constants, each.name) for each in fields(constants)
    }
    assert tuple(recipe.levels) == SURROGATES[name].levels


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_whole_and_goes_together(name: str) -> None:
    objective = Objective(preset=name)
    assert {"baseline", "scale", "ratio", "surrogate", "denominator", "beta"} <= set(PRESETS[name])
    assert objective.ratio in NAMED[objective.surrogate.kind].levels
    SURROGATES[objective.surrogate.kind].constants(**objective.surrogate.model_dump(exclude={"kind"}))
