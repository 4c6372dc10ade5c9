"""What the recipe tells the detectors: limits, rates, and which reward part means correctness."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Answers behind a validation point where no recipe tells: a small benchmark, so that doubt stays on the quiet side.
ASSUMED_ANSWERS = 100

# Without a recipe a part's role is read from the habits of naming; what fits neither has no role.
_FORMAT = re.compile(r"format|xml|tag|think|struct|style|syntax|length|repetition|language|reasoning_steps", re.I)
_CORRECT = re.compile(r"accura|correct|exact_?match|answer|solve|outcome|verif", re.I)
_PART = re.compile(r"rewards/(.+)/mean")


@dataclass(frozen=True)
class Context:
    """`correctness` and `form` are metric keys, best first; `None` where the recipe is not known."""

    correctness: tuple[str, ...] = ("correct/mean",)
    form: tuple[str, ...] = ()
    cap: int | None = None
    learning_rate: float | None = None
    group_size: int | None = None
    answers: int = ASSUMED_ANSWERS

    @classmethod
    def of(cls, recipe: Mapping[str, Any] | None, keys: Iterable[str]) -> Context:
        """From a recipe as nested mappings (any part may be absent) and the metric keys that were recorded."""
        recipe = recipe or {}
        parts = sorted(match[1] for key in keys if (match := _PART.fullmatch(key)))
        correct, form = _roles(recipe["reward"]) if recipe.get("reward") else _roles_by_name(parts)
        sampling, validation = recipe.get("sampling", {}), recipe.get("validation", {})
        return cls(
            correctness=("correct/mean", *(f"rewards/{name}/mean" for name in correct)),
            form=tuple(f"rewards/{name}/mean" for name in form),
            cap=sampling.get("max_tokens"),
            learning_rate=recipe.get("optim", {}).get("learning_rate"),
            group_size=sampling.get("group_size"),
            answers=validation.get("questions", ASSUMED_ANSWERS) * max(1, validation.get("samples", 1)),
        )


def _roles(parts: list[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    named = [part["name"] for part in parts if part.get("role") == "correctness"]
    judging = [part["name"] for part in parts if part.get("role") is None and part.get("kind") != "pattern"]
    correct = (named or judging or [parts[0]["name"]])[:1]
    return correct, [part["name"] for part in parts if part["name"] not in correct]


def _roles_by_name(parts: list[str]) -> tuple[list[str], list[str]]:
    form = [name for name in parts if _FORMAT.search(name)]
    return [name for name in parts if name not in form and _CORRECT.search(name)], form
