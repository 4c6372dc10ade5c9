"""`--dry-run`: check everything, take one small look at step 0, write nothing."""

from __future__ import annotations

import resource
import time
from typing import Any

from cupola.core.config import Recipe
from cupola.core.records import Group, Rollout
from cupola.train.rollout import group_metrics, headline, part_metrics
from cupola.workflows.assemble import assemble

#: Prompts of the look at step 0.
PROMPTS = 8


def preflight(recipe: Recipe) -> dict[str, Any]:
    """Sample a few groups of the first step's prompts and report pass rate, dead groups, tokens and time.

    Raises what `assemble` and the reward functions raise. Times and memory are those of this look, not of training.
    """
    made = assemble(recipe)
    made.learner()  # an unknown optimiser or schedule shows here
    prompts = made.source.draw(0, min(PROMPTS, recipe.sampling.prompts_per_step))
    started = time.perf_counter()
    groups = made.collector().collect(1, prompts, recipe.sampling.group_size, recipe.sampling.settings())
    seconds = time.perf_counter() - started
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tokens = sum(rollout.completion.n_tokens for rollout in rollouts)
    return {
        "model": {"source": recipe.model.source, "parameters": made.policy.parameters, "threads": made.threads},
        "data": made.source.notes(),
        "prompts": len(prompts),
        "completions": len(rollouts),
        **headline(groups),
        **part_metrics(rollouts),
        **group_metrics(groups, recipe.correctness_part()),
        "prompt": made.policy.tokenizer.decode(made.policy.encode(prompts[0].content)),
        "answers": [rollout.completion.text for rollout in _by_reward(groups[0])],
        "tokens_per_second": tokens / seconds,
        "sampling_seconds_per_step": seconds * recipe.sampling.prompts_per_step / len(prompts),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _by_reward(group: Group) -> list[Rollout]:
    """Best paid first; those without a reward last."""
    return sorted(group.rollouts, key=lambda r: float("-inf") if r.reward is None else r.reward, reverse=True)
