"""What a key of a recipe becomes in TRL: small rules to make tables of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cupola.core.config import Objective, Recipe
from cupola.core.records import RecipeError
from cupola.integrations.trl.cut import Cut

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """A recipe and how its batches are cut; `vllm` tells whether vLLM samples."""

    recipe: Recipe
    cut: Cut
    vllm: bool

    @property
    def objective(self) -> Objective:
        return self.recipe.objective


#: From a dotted key and its value to arguments of GRPOConfig. Raises RecipeError for what TRL cannot do.
Rule = Callable[[Asked, str, Any], Arguments]


def refusal(key: str, value: object, instead: str) -> RecipeError:
    """The one line that says what TRL lacks and what it has."""
    shown = repr(value) if isinstance(value, str | int | float) else "this"
    return RecipeError(f"{key}: {shown} has no counterpart in TRL; {instead}")


def ours(asked: Asked, key: str, value: Any) -> Arguments:
    """cupola sees to it around TRL's trainer, or another key's rule does."""
    return {}


def to(name: str) -> Rule:
    """The argument of this name, with the value as it is."""
    return lambda asked, key, value: {name: value}


def only(allowed: Any, instead: str, where: Callable[[Asked], bool] = lambda asked: True) -> Rule:
    """One value alone, wherever `where` holds; it is what TRL does without being asked."""

    def rule(asked: Asked, key: str, value: Any) -> Arguments:
        if value != allowed and where(asked):
            raise refusal(key, value, instead)
        return {}

    return rule


def choice(name: str, known: Mapping[Any, Any], instead: str) -> Rule:
    """The argument of this name, in TRL's words."""

    def rule(asked: Asked, key: str, value: Any) -> Arguments:
        if value not in known:
            raise refusal(key, value, instead)
        return {name: known[value]}

    return rule
