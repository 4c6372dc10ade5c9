"""What the recipe tells the detectors: limits, rates, and which reward parts mean correctness and form."""

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
    """`None` is what is not known. `correctness` and `form` are metric keys, best first; () means that there is none.

    `parts` counts the reward's parts; `optional` tells whether one of them may give no score without voiding the sum.
    `compares_groups` tells whether advantages compare the answers of a group, so that one of equal rewards teaches
    nothing: a critic, or no baseline, gives such a group a gradient, and a group of one is always equal.
    `evaluation` is the summary that compares the last checkpoint with its start.
    """

    correctness: tuple[str, ...] = ("correct/mean",)
    form: tuple[str, ...] | None = None
    parts: int = 1
    optional: bool = False
    cap: int | None = None
    learning_rate: float | None = None
    group_size: int | None = None
    compares_groups: bool = True
    steps: int | None = None
    validated: bool = True
    answers: int = ASSUMED_ANSWERS
    evaluation: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls, recipe: Mapping[str, Any] | None, keys: Iterable[str], evaluation: Mapping[str, Any] | None = None
    ) -> Context:
        """From a recipe as nested mappings (any part may be absent) and the metric keys that were recorded."""
        recipe = recipe or {}
        parts = sorted(match[1] for key in keys if (match := _PART.fullmatch(key)))
        reward = recipe.get("reward", [])
        correct, form = _roles(reward) if reward else _roles_by_name(parts)
        sampling, validation = recipe.get("sampling", {}), recipe.get("validation", {})
        return cls(
            correctness=("correct/mean", *(f"rewards/{name}/mean" for name in correct)),
            form=tuple(f"rewards/{name}/mean" for name in form) if reward or parts else None,
            parts=len(reward) or max(1, len(parts)),
            optional=any(part.get("optional") for part in reward),
            cap=sampling.get("max_tokens"),
            learning_rate=recipe.get("optim", {}).get("learning_rate"),
            group_size=sampling.get("group_size"),
            compares_groups=_compares_groups(recipe.get("objective", {})) and sampling.get("group_size") != 1,
            steps=recipe.get("run", {}).get("steps"),
            validated=bool(validation.get("samples", 1) or validation.get("greedy", True)),
            answers=validation.get("questions", ASSUMED_ANSWERS) * max(1, validation.get("samples", 1)),
            evaluation=evaluation,
        )


def _compares_groups(objective: Mapping[str, Any]) -> bool:
    baseline = objective.get("baseline", "group_mean")
    return baseline in ("group_mean", "leave_one_out") or objective.get("transform") == "best_only"


def _roles(parts: list[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The part that decides correctness, and the parts that pay for form: a pattern does, unless its role says other.

    The first is the rule of `Recipe.correctness_part`. It stands here a second time because a recorded recipe may be
    partial or of another version, and a run must be judged without validating its recipe anew.
    """
    roles = {part["name"]: part.get("role") or ("format" if part.get("kind") == "pattern" else None) for part in parts}
    named = [name for name, role in roles.items() if role == "correctness"]
    silent = [name for name, role in roles.items() if role is None]
    correct = [*named, *silent, *roles][:1]
    return correct, [name for name, role in roles.items() if role == "format" and name not in correct]


def _roles_by_name(parts: list[str]) -> tuple[list[str], list[str]]:
    form = [name for name in parts if _FORMAT.search(name)]
    return [name for name in parts if name not in form and _CORRECT.search(name)], form
