"""The averages of a recipe's validation and evaluation.

Source: `loop.record.validation_metrics`, `rollout.metrics`, `prove.evaluation.summarise`.
"""

from __future__ import annotations

from cupola.core.config import Recipe
from cupola.train.ledger.averages import Measure, measure

READ = {"truncated": "judged", "unparsed": "wrong", "not judged": "left_out"}
SCORED = {"truncated": "judged", "without a reward": "left_out"}
QUESTION = "answers to one question are alike, so the question is the unit"
AS_TRL = "TRL's key has this average"


def measures(recipe: Recipe) -> list[Measure]:
    """Each average that a run of the recipe reports, with the reason it has."""
    return [*_validation(recipe), *_evaluation(recipe)]


def _validation(recipe: Recipe) -> list[Measure]:
    sampled, greedy = recipe.validation.samples > 0, recipe.validation.greedy
    found = []
    if sampled:
        found.append(measure("validation correct/mean", "macro", READ, QUESTION))
    if greedy:
        found.append(measure("validation correct/greedy", "macro", READ, "one answer a question: no other average"))
    if sampled or greedy:
        found += [
            measure("validation reward", "micro", SCORED, AS_TRL),
            measure("validation rewards/*/mean", "micro", SCORED, AS_TRL),
            measure("validation entropy", "token", {}, AS_TRL),
        ]
    return found


def _evaluation(recipe: Recipe) -> list[Measure]:
    n = recipe.evaluation.samples
    paired = {**READ, "question that an arm cannot score": "left_out"}
    vote = {**paired, "unparsed": "abstain", "ties": "shared"}
    found = [
        measure("evaluation greedy", "macro", paired, "what a user of the policy gets"),
        measure("evaluation pass@1", "macro", paired, QUESTION),
    ]
    if n > 1:
        found.append(measure(f"evaluation pass@{n}", "pass_at_k", paired, "what can be reached by drawing again"))
    found.append(measure(f"evaluation maj@{n}", "vote", vote, "what can be reached without a verifier"))
    return found
