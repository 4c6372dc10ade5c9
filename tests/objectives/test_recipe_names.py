"""What a recipe can name is what the room offers, with the same constants."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest
import torch

from cupola.core.config import Objective, validate
from cupola.core.config.objective import Baseline, Denominator, Scale
from cupola.core.config.presets import PRESETS
from cupola.core.config.surrogate import SURROGATES as NAMED
from cupola.core.config.surrogate import Ratio
from cupola.core.records import RecipeError
from cupola.train.objectives import BASELINES, RATIOS, RULES, SCALES, SURROGATES, Clip, Reinforce, constants_of


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
    made = constants_of(objective.surrogate.model_dump())
    assert isinstance(made, SURROGATES[objective.surrogate.kind].constants)


def test_constants_of_a_recipes_table() -> None:
    assert constants_of({"kind": "clipped", "low": 0.1, "high": 0.3}) == Clip(low=0.1, high=0.3)
    assert constants_of({"kind": "reinforce"}) == Reinforce()


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "clipped", "low": 1.5},
        {"kind": "two_sided", "high": 1.0, "delta": 2.0},
        {"kind": "dual_clip", "c": 1.0},
        {"kind": "sapo", "tau_pos": 0.0},
        {"kind": "gmpo", "low": -0.1},
        {"kind": "cispo", "ceiling": 1.0, "floor": 2.0},
        {"kind": "cispo", "ceiling": 0.0},
        {"kind": "dppo_tv", "ceiling": 0.5},
        {"kind": "dppo_kl", "high": -1.0},
        {"kind": "vespo", "k_neg": 0.0},
    ],
    ids=str,
)
def test_what_the_mathematics_refuses_the_recipe_refuses_first(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        constants_of(settings)
    with pytest.raises(RecipeError, match=f"^surrogate\\.{list(settings)[-1]}: "):
        validate({"ratio": NAMED[settings["kind"]].levels[0], "surrogate": settings}, Objective)


@pytest.mark.parametrize(("name", "level"), [(name, level) for name in NAMED for level in NAMED[name].levels])
def test_an_entry_is_its_tokens_own_unless_the_table_says_otherwise(name: str, level: str) -> None:
    """One answer of three tokens: the first one's entry is dropped, and its gradient with it, or not."""
    logp = torch.tensor([[-1.0, -0.5, -2.0]], dtype=torch.float64, requires_grad=True)
    old = logp.detach() + torch.tensor([[1e-4, -1e-4, 1e-5]])  # within every clip
    mask, advantage = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 1, dtype=torch.float64)
    entry = SURROGATES[name]
    loss = entry.loss(logp, RATIOS[level](logp, old, mask), advantage, mask, entry.constants())
    (gradient,) = torch.autograd.grad(loss[0, 1:].sum(), logp)
    assert (gradient[0, 0] != 0) == (level in NAMED[name].whole)
