"""What leaves a numerator of a recipe's loss, and what that does to the term's count."""

from __future__ import annotations

from collections.abc import Sequence

from cupola.core.config import Objective, Recipe
from cupola.train.ledger.explained import paired

#: The surrogates that take a token's gradient away, with the tokens that they take it from.
LIMITING = {
    "clipped": "clipped tokens",
    "two_sided": "clipped tokens",
    "dual_clip": "clipped tokens",
    "gmpo": "clipped tokens",
    "dppo_tv": "tokens whose probability moved too far",
    "dppo_kl": "tokens whose divergence is too large",
}
#: What leaving the count does to the others, where it is not that they weigh more.
COUNTLESS = {"token_sum": "this rule divides by no count, so the others weigh what they did."}
#: A weight of tokens, where each entry carries the gradient of the whole answer.
SCALED = (
    "The weights from sampler to trainer are each token's, but the gradient of a token stands in all entries of its "
    "answer: the mean weight of an answer scales the answer, and no token loses its gradient alone."
)


def term_words(term: str, rule: str, recipe: Recipe) -> list[str]:
    """For one term: what loses its numerator and stays in the count, what leaves both, what else weighs it."""
    own = {"policy": _policy, "kl": _kl, "entropy": _entropy, "value": _value}[term](recipe)
    return [*own, *_out_of_count(term, rule, recipe.objective)]


def _policy(recipe: Recipe) -> list[str]:
    objective = recipe.objective
    masks, correction, answers = objective.masks, objective.correction, objective.ratio.startswith("sequence")
    limited = LIMITING.get(objective.surrogate.kind, "")
    silent = objective.baseline in ("group_mean", "leave_one_out") and objective.combine == "sum"
    silent &= objective.whiten != "tokens" and not (objective.beta > 0 and objective.kl_in != "loss")
    whole = objective.ratio in objective.surrogate.whole and correction.level == "token"
    masked = correction.level != "none" and correction.bound == "mask" and not whole
    out = "answers" if correction.level.startswith("sequence") else "tokens"
    stay = paired(
        (
            (limited, "clipped answers" if answers and limited == "clipped tokens" else limited),
            (
                masked,
                f"{out} whose weight from sampler to trainer is outside {correction.low:g} to {correction.high:g}",
            ),
            (
                masks.off_policy is not None,
                f"answers with A < 0 that the policy left by more than {masks.off_policy} nats per token",
            ),
            (masks.top_entropy < 1, f"all but the {masks.top_entropy:.0%} of the tokens with the highest entropy"),
            (masks.clip_cov, "tokens drawn by Clip-Cov"),
            (objective.count_dead and silent, "dead groups, whose A is 0"),
        )
    )
    paying = "Tokens chosen by KL-Cov pay a penalty inside this term, under this denominator; none leaves."
    return [*_stays(stay), *paired([(masks.kl_cov, paying), (whole, SCALED)])]


def _stays(what: Sequence[str]) -> list[str]:
    """What loses its numerator alone."""
    after = "the step shrinks with them, and the others weigh what they did"
    return [f"Lose their numerator and stay in the count, so that {after}: {'; '.join(what)}."] if what else []


def _kl(recipe: Recipe) -> list[str]:
    objective, kind = recipe.objective, recipe.objective.reference.kind
    switched_off = kind == "adapter_off" or (kind == "start" and recipe.model.lora is not None)
    moving = f"The reference moves after the policy every {objective.reference.every} optimiser steps"
    return [
        "Clips, corrections and masks of the policy term do not touch it; dead groups pull to the reference too.",
        *paired(
            (
                (
                    objective.kl_ratio != "none",
                    "Each token's KL is multiplied by its importance ratio, which is in no count.",
                ),
                (
                    kind == "moving",
                    f"{moving}: the term shrinks at each move, with the same denominator.",
                ),
                (switched_off, "The reference is the policy without its adapter."),
            )
        ),
    ]


def _entropy(recipe: Recipe) -> list[str]:
    steered = recipe.objective.adaptive_entropy
    found = ["Clips, corrections and masks of the policy term do not touch it."]
    if steered is not None:
        found.append(
            f"Its coefficient moves by {steered.step:g} per optimiser step within {steered.low:g} to {steered.high:g}, "
            f"and is 0 while the entropy is above {steered.target:g}: what it weighs against the policy term is no "
            "constant, though the denominator is."
        )
    return found


def _value(recipe: Recipe) -> list[str]:
    critic = recipe.objective.critic
    clip = critic.value_clip
    alone = "the critic is a model of its own with its own optimiser and gradient clip, and shares no weight with the "
    clipped = [] if clip == 0 else [f"values that moved by more than {clip:g} to the return"]
    return [
        f"It is weighed against no other term: {alone}policy. An adaptive optimiser cancels coef = {critic.coef:g} and "
        "any constant of the denominator.",
        *_stays(clipped),
    ]


def _out_of_count(term: str, rule: str, objective: Objective) -> list[str]:
    """What loses numerator and count; with the nominal count, only the numerator."""
    judged = term in ("policy", "value")
    leave = paired(
        (
            (judged and objective.masks.reject, "Rejected answers, which leave the baseline too,"),
            (term == "policy" and not objective.count_dead, "Dead groups whose A is 0"),
            (objective.mask_truncated, "Answers cut at max_tokens, which stay in the baseline,"),
        )
    )
    left = f"leave numerator and count: {COUNTLESS.get(rule, 'the others weigh more.')}"
    if objective.count == "nominal":
        left = (
            "lose their numerator and stay in the count of answers, which is nominal: the others weigh what they did."
        )
    return [f"{what} {left}" for what in leave]
