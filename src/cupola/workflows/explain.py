"""Denominators explained: those a run wrote, a recipe's without a run, or another trainer's configuration's."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cupola.core.config import Objective, Recipe, load_recipe
from cupola.core.records import RecipeError, RunFolderError
from cupola.core.runlog import RunReader
from cupola.train.ledger import (
    RULES,
    SCALES,
    TRAINERS,
    WHITENINGS,
    Denominator,
    Explanation,
    cancelled,
    clip_notices,
    paired,
    with_numbers,
)

#: A recipe's omega is computed before the forward pass; micro-batches return plain sums.
UNCHANGED = "does not change it: micro-batches return plain sums"
ONE = "does not change it: one process trains"

SCALE_SCOPE = {
    "group_std": "each prompt's scored answers",
    "group_mean": "each prompt's scored answers",
    "batch_std": "all scored answers of the step",
}


def read_step(run: Path, step: int | None) -> tuple[list[dict[str, Any]], str]:
    """The ledger's rows of a run's step, by default the newest, and their title."""
    rows = RunReader(run).ledger()
    wanted = max((row["step"] for row in rows), default=None) if step is None else step
    chosen = [row for row in rows if row["step"] == wanted]
    if not chosen:
        raise RunFolderError(f"{run}: the ledger has no row of step {wanted}")
    return chosen, f"{run}: step {wanted}"


def explain_recipe(path: Path) -> Explanation:
    """The denominators of a recipe, in the numbers that it fixes. Raises RecipeError as `load_recipe` does."""
    recipe, origins = load_recipe([path])
    objective = recipe.objective
    absent = {
        term: reason
        for term, left_out, reason in (
            ("kl", objective.beta == 0, "objective.beta is 0"),
            ("entropy", objective.entropy_coef == 0, "objective.entropy_coef is 0"),
            ("scale", objective.scale == "none", "objective.scale is none: A = r - b"),
            ("whiten", objective.whiten == "none", "objective.whiten is none"),
        )
        if left_out
    }
    rules = {
        "policy": objective.denominator,
        "kl": objective.kl_denominator or objective.denominator,
        "entropy": objective.entropy_denominator or objective.denominator,
    }
    terms = [_term(name, rule, recipe) for name, rule in rules.items()]
    rows = [row for row in (*terms, *_scales(objective)) if row.term not in absent]
    read = {
        key: {"value": _value(recipe, key), "from": origin}
        for key, origin in origins.items()
        if key.startswith(BEARING) and not key.startswith("objective.why.")
    }
    optimizer = cancelled(recipe.optim.name, recipe.optim.max_grad_norm)
    return Explanation(f"recipe {path}", rows, absent, optimizer, _notices(recipe), read)


#: Keys of a recipe that bear on a denominator.
BEARING = (
    "objective.",
    "sampling.prompts_per_step",
    "sampling.group_size",
    "sampling.max_tokens",
    "optim.minibatches",
    "optim.name",
    "optim.max_grad_norm",
)


def _value(recipe: Recipe, key: str) -> Any:
    """The value at a dotted key."""
    value: Any = recipe
    for part in key.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return value


def _term(name: str, rule: str, recipe: Recipe) -> Denominator:
    entry, numbers, counted = RULES[rule], _numbers(recipe), _counted(name, recipe.objective)
    known = {"N", "P"} <= set(numbers)
    # Tokens are known only when the answers are there: 0 stands for them, and for a value that depends on them.
    value = entry.value(numbers["N"], 0, numbers["P"], numbers["L_max"]) if known else 0
    return Denominator(
        term=name,
        rule=rule,
        formula=entry.formula,
        numbers=with_numbers(entry.formula, numbers),
        value=value or None,
        scope=f"{SCOPES[recipe.objective.scope]}; {counted}",
        words=[entry.says],
        accumulation=UNCHANGED,
        world=ONE,
        cut="yes",
        why=getattr(recipe.objective.why, name),
    )


SCOPES = {"update": "the answers of one optimiser step", "batch": "all answers of the step's batch"}


def _counted(name: str, objective: Objective) -> str:
    cut = ", and those cut at max_tokens," if objective.mask_truncated else ""
    if name != "policy":
        return f"dead groups and unscored answers are counted; answers without a token{cut} are not"
    dead = "stay in the count" if objective.count_dead else "leave the count"
    return f"dead groups {dead}; unscored answers and those without a token{cut} are not counted"


def _numbers(recipe: Recipe) -> dict[str, int]:
    """N, P and L_max at most; N and P are left out where the updates of a batch differ in them."""
    sampling = recipe.sampling
    pieces = recipe.optim.minibatches if recipe.objective.scope == "update" else 1
    rollouts = sampling.prompts_per_step * sampling.group_size
    found = {"L_max": sampling.max_tokens}
    if rollouts % pieces == 0:
        found["N"] = rollouts // pieces
    if sampling.prompts_per_step % pieces == 0:
        found["P"] = sampling.prompts_per_step // pieces
    return found


def _scales(objective: Objective) -> list[Denominator]:
    """What the advantages are divided by: the scale, then the whitening, whichever there are."""
    found = []
    if objective.scale != "none":
        entry = SCALES[objective.scale]
        scope = f"{SCALE_SCOPE[objective.scale]}; an answer without a reward is left out"
        apart = ", for each part of the reward apart" if objective.combine == "apart" else ""
        formula = entry.formula.format(epsilon=objective.scale_epsilon)
        found.append(_divisor("scale", objective.scale, formula, scope + apart, entry.says, objective.why.scale))
    if objective.whiten != "none":
        whitening = WHITENINGS[objective.whiten]
        scope = f"the {objective.whiten} of the step's batch"
        found.append(
            _divisor("whiten", objective.whiten, whitening.formula, scope, whitening.says, objective.why.whiten)
        )
    return found


def _divisor(term: str, rule: str, formula: str, scope: str, says: str, why: str | None) -> Denominator:
    return Denominator(
        term=term,
        rule=rule,
        formula=formula,
        numbers=formula,
        value=None,
        scope=scope,
        words=[says],
        accumulation=UNCHANGED,
        world=ONE,
        cut="yes",
        why=why,
    )


def _notices(recipe: Recipe) -> list[str]:
    surrogate = recipe.objective.surrogate
    constants = tuple(surrogate.model_dump(exclude={"kind"}).values())
    uneven = not {"N", "P"} <= set(_numbers(recipe))
    return [
        *paired([(uneven, "optim.minibatches cuts the batch unevenly: updates differ in their N or P.")]),
        *clip_notices(surrogate.kind, constants),
    ]


def explain_foreign(trainer: str, path: Path) -> Explanation:
    """The denominators of another trainer's configuration, a JSON or TOML file.

    Raises RecipeError naming the trainer, or file and key.
    """
    if trainer not in TRAINERS:
        raise RecipeError(f"--from: knows {', '.join(TRAINERS)}, not {trainer!r}")
    return TRAINERS[trainer](str(path), _read(path))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from error
    try:
        table = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except ValueError as error:
        raise RecipeError(f"{path}: neither JSON nor, with the ending .toml, TOML: {error}") from error
    if not isinstance(table, dict):
        raise RecipeError(f"{path}: holds no table of keys")
    return table
