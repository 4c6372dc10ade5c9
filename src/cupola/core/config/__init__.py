"""The recipe: what a run is asked to do, and where each value came from."""

from cupola.core.config.load import COMMAND_LINE, Provenance, dump, load, load_recipe, read_recipe, read_text, validate
from cupola.core.config.objective import Objective
from cupola.core.config.recipe import Data, Evaluation, Lora, Recipe, SamplingSection
from cupola.core.config.reward import (
    ExactReward,
    FunctionReward,
    NumericReward,
    OverlongReward,
    PatternReward,
    Reward,
    RewardPart,
)
from cupola.core.config.sampler import SamplerSection
from cupola.core.config.section import PositiveInt, Section, Share
from cupola.core.config.shared import Optim, Source
from cupola.core.config.supervised import SftRecipe
from cupola.core.config.template import commented, starting_recipe

__all__ = [
    "COMMAND_LINE",
    "Data",
    "Evaluation",
    "ExactReward",
    "FunctionReward",
    "Lora",
    "NumericReward",
    "Objective",
    "Optim",
    "OverlongReward",
    "PatternReward",
    "PositiveInt",
    "Provenance",
    "Recipe",
    "Reward",
    "RewardPart",
    "SamplerSection",
    "SamplingSection",
    "Section",
    "SftRecipe",
    "Share",
    "Source",
    "commented",
    "dump",
    "load",
    "load_recipe",
    "read_recipe",
    "read_text",
    "starting_recipe",
    "validate",
]
