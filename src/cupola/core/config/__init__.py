"""The recipe: what a run is asked to do, and where each value came from."""

from cupola.core.config.load import Provenance, dump, load, validate
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
    "dump",
    "load",
    "validate",
]
