"""A recipe's denominators before it is run, in the numbers that it fixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.core.config import Objective, Recipe, SftRecipe
from cupola.core.config.objective import TermRule
from cupola.train.ledger.averages import SUPERVISED
from cupola.train.ledger.constants import paper_notices
from cupola.train.ledger.explained import Denominator, Explanation, cancelled, paired, with_numbers
from cupola.train.ledger.leaving import term_words
from cupola.train.ledger.measures import measures
from cupola.train.ledger.rules import RULES, SCALES, WHITENINGS

#: A recipe's omega is computed before the forward pass; micro-batches return plain sums.
UNCHANGED = "does not change it: micro-batches return plain sums"
APART = "each micro-batch counts alike, whatever it holds: a token counts more where there are few"
ONE = "does not change it: one process trains"

#: Keys of a training recipe that bear on a denominator or an average.
BEARING = (
    "objective.",
    "sampling.prompts_per_step",
    "sampling.group_size",
    "sampling.max_tokens",
    "optim.minibatches",
    "optim.micro_rollouts",
    "optim.name",
    "optim.max_grad_norm",
    "validation.samples",
    "validation.greedy",
    "evaluation.samples",
)
SFT_BEARING = ("training.batch_size", "optim.name", "optim.max_grad_norm")

#: Where a KL that is no term of the loss went.
KL_IN = {
    "reward": "objective.kl_in is reward: beta * KL of the whole answer is taken from its reward before baseline and "
    "scale, so its weight is the advantage's and the policy term's denominator divides it",
    "token_reward": "objective.kl_in is token_reward: beta * KL of each token is taken from the advantage of all "
    "tokens up to it, undivided by a scale, so its weight is the advantage's and the policy term's denominator divides "
    "it",
}
#: What follows the rule's own weight where micro-batches or optimiser steps share it.
SHARE = {"generation": ", times steps", "micro_batch": ", divided by K"}
SCOPES = {
    "update": "the answers of one optimiser step",
    "batch": "all answers of the step's batch",
    "generation": "all answers of the step's batch, and the count divided by its optimiser steps",
    "micro_batch": "the answers of each of K micro-batches alone, then their mean",
}
SCALE_SCOPE = {
    "group_std": "each prompt's scored answers",
    "group_mean": "each prompt's scored answers",
    "batch_std": "all scored answers of the step",
}


def explain_training(place: str, recipe: Recipe, origins: Mapping[str, str]) -> Explanation:
    """The denominators of a training recipe; `origins` says where each key's value came from."""
    objective = recipe.objective
    terms = [_term(name, rule, recipe) for name, rule in objective.terms.items()]
    return Explanation(
        source=f"recipe {place}",
        denominators=[*terms, *_scales(objective)],
        absent=_absent(objective),
        optimizer=cancelled(recipe.optim.name, recipe.optim.max_grad_norm),
        notices=_notices(recipe),
        read=_read(recipe, origins, BEARING),
        averages=measures(recipe),
        why_at="objective.why.",
    )


def explain_supervised(place: str, recipe: SftRecipe, origins: Mapping[str, str]) -> Explanation:
    """The one denominator of a supervised recipe. Source: `loop.sft`."""
    said = SUPERVISED["token_mean"]
    loss = Denominator(
        term="loss",
        rule="token_mean",
        formula=said.formula,
        numbers=said.formula,
        value=None,
        scope=f"the target tokens of the step's {recipe.training.batch_size} examples, each with its stop token",
        words=[said.says, "Prompt tokens are in neither numerator nor count."],
        accumulation=UNCHANGED,
        world=ONE,
        cut="yes",
        why="built in: of the means over tokens, only that over the whole step does not depend on how it is cut",
    )
    optimizer = cancelled(recipe.optim.name, recipe.optim.max_grad_norm)
    return Explanation(f"supervised recipe {place}", [loss], {}, optimizer, [], _read(recipe, origins, SFT_BEARING))


#: What A is without a scale where the rewards are transformed first.
NO_SCALE = {
    "pass_at_k": "A = s - b, s being what the group's rewards say of pass@k: a wrong answer is worth something where "
    "k of the group may hold a right one",
    "best_only": "A = s, the best answer's lead over the second, and 0 for all others",
}


def _absent(objective: Objective) -> dict[str, str]:
    """The terms and divisors that an objective does not have, and why."""
    baseline = objective.baseline
    no_scale = NO_SCALE.get(objective.transform, "A = r - b")
    no_scale = "A is what GAE makes of rewards and values" if baseline == "critic" else no_scale
    divisors = {"scale": objective.scale, "whiten": objective.whiten}
    there = {*objective.terms, *(name for name, rule in divisors.items() if rule != "none")}
    reasons = {
        "kl": "objective.beta is 0" if objective.beta == 0 else KL_IN.get(objective.kl_in, ""),
        "entropy": "objective.entropy_coef is 0",
        "value": f"objective.baseline is {baseline}: there is no critic",
        "scale": f"objective.scale is none: {no_scale}",
        "whiten": "objective.whiten is none",
    }
    return {term: reason for term, reason in reasons.items() if term not in there}


def _term(name: str, found: TermRule, recipe: Recipe) -> Denominator:
    objective = recipe.objective
    rule, scope = found
    entry, apart = RULES[rule], scope == "micro_batch"
    by_cut = APART if apart else entry.by_cut
    return Denominator(
        term=name,
        rule=rule,
        formula=entry.formula,
        numbers=with_numbers(entry.formula + SHARE.get(scope, ""), _numbers(recipe, scope)),
        value=_shared(rule, recipe, scope),
        scope=f"{SCOPES[scope]}; {_counted(name, objective)}",
        words=[entry.says, *term_words(name, rule, recipe)],
        accumulation=APART if apart else UNCHANGED,
        world=ONE,
        cut=f"no: {by_cut}" if by_cut else "yes",
        why=getattr(objective.why, name),
    )


def _counted(name: str, objective: Objective) -> str:
    """Which answers a term's count holds."""
    if objective.count == "nominal":
        return "every answer is counted, whatever became of it, and every token that is not masked"
    cut = ["those cut at max_tokens"] if objective.mask_truncated else []
    unjudged = ["unscored answers", *paired([(objective.masks.reject, "rejected ones")])]
    dead = ["dead groups"]
    counted, out = (dead, unjudged) if name in ("policy", "value") else (dead + unjudged, [])
    if name == "policy" and not objective.count_dead:
        counted, out = [], dead + unjudged
    inside = f"{', '.join(counted)} are counted; " if counted else ""
    return f"{inside}{', '.join([*out, 'answers without a token', *cut])} are not"


def _shared(rule: str, recipe: Recipe, scope: str) -> float | None:
    """The part of the denominator that all tokens share; `None` where it depends on the answers, or on the update."""
    known = _numbers(recipe, scope)
    sizes = [known.get(name, 0) for name in ("N", "P")]  # 0 stands for what is not known, tokens among it
    value = RULES[rule].value(sizes[0], 0, sizes[1], recipe.sampling.max_tokens)
    times = {"generation": 1 / recipe.optim.minibatches, "micro_batch": known.get("K", 0)}.get(scope, 1)
    return value * times or None


def _numbers(recipe: Recipe, scope: str) -> dict[str, int]:
    """L_max, steps, and of N, P and K those that are the same in every update of a batch."""
    sampling, optim = recipe.sampling, recipe.optim
    pieces = optim.minibatches if scope in ("update", "micro_batch") else 1
    sizes = {"N": sampling.prompts_per_step * sampling.group_size, "P": sampling.prompts_per_step}
    found = {name: size // pieces for name, size in sizes.items() if size % pieces == 0}
    if scope == "micro_batch":
        rows, cut = found.get("N"), optim.micro_rollouts
        found = {"N": cut, "K": rows // cut} if rows and cut and rows % cut == 0 else {}
    return {**found, "L_max": sampling.max_tokens, "steps": optim.minibatches}


def _scales(objective: Objective) -> list[Denominator]:
    """What the advantages are divided by: the scale, then the whitening, whichever there are."""
    found = []
    if objective.scale != "none":
        entry = SCALES[objective.scale]
        apart = ", for each part of the reward apart" if objective.combine == "apart" else ""
        out = "without a reward, or rejected," if objective.masks.reject else "without a reward"
        scope = f"{SCALE_SCOPE[objective.scale]}; an answer {out} is left out{apart}"
        formula = entry.formula.format(epsilon=objective.scale_epsilon)
        found.append(_divisor("scale", objective.scale, formula, scope, [entry.says], objective))
    if objective.whiten != "none":
        said, scope = WHITENINGS[objective.whiten], f"the {objective.whiten} of the step's batch"
        found.append(_divisor("whiten", objective.whiten, said.formula, scope, [said.says], objective))
    return found


def _divisor(term: str, rule: str, formula: str, scope: str, words: list[str], objective: Objective) -> Denominator:
    return Denominator(
        term=term,
        rule=rule,
        formula=formula,
        numbers=formula,
        value=None,
        scope=scope,
        words=words,
        accumulation=UNCHANGED,
        world=ONE,
        cut="yes",
        why=getattr(objective.why, term),
    )


def _notices(recipe: Recipe) -> list[str]:
    objective, masks = recipe.objective, recipe.objective.masks
    sections = {
        objective.surrogate.kind: objective.surrogate,
        "clip_cov": masks.clip_cov,
        "kl_cov": masks.kl_cov,
        "critic": objective.critic if objective.baseline == "critic" else None,
    }
    uneven = objective.scope == "update" and not {"N", "P"} <= set(_numbers(recipe, "update"))
    return [
        *paired([(uneven, "optim.minibatches cuts the batch unevenly: updates differ in their N or P.")]),
        *(
            notice
            for kind, section in sections.items()
            if section
            for notice in paper_notices(kind, section.model_dump())
        ),
    ]


def _read(
    recipe: Recipe | SftRecipe, origins: Mapping[str, str], bearing: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """The keys that bear on a denominator, with their values and where those came from."""
    return {
        key: {"value": _value(recipe, key), "from": origin}
        for key, origin in origins.items()
        if key.startswith(bearing) and not key.startswith("objective.why.")
    }


def _value(recipe: Recipe | SftRecipe, key: str) -> Any:
    """The value at a dotted key."""
    value: Any = recipe
    for part in key.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return value
