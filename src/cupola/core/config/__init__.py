"""The recipe: what a run is asked to do, and where each value came from."""

from cupola.core.config.load import Provenance, dump, load, load_recipe, validate
from cupola.core.config.presets import PRESETS
from cupola.core.config.recipe import (
    Data,
    Evaluation,
    Objective,
    Optim,
    Recipe,
    Reward,
    SamplingSection,
    SftRecipe,
    Validation,
)
from cupola.core.config.template import commented, starting_recipe

__all__ = [
    "PRESETS",
    "Data",
    "Evaluation",
    "Objective",
    "Optim",
    "Provenance",
    "Recipe",
    "Reward",
    "SamplingSection",
    "SftRecipe",
    "Validation",
    "commented",
    "dump",
    "load",
    "load_recipe",
    "starting_recipe",
    "validate",
]
