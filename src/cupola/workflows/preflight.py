"""`--dry-run`: check everything, take one small look at step 0, write nothing."""

from __future__ import annotations

import resource
import time
from typing import Any

from cupola.core.config import Recipe
from cupola.train.loop import sampling_of
from cupola.train.rollout import group_states, headline, parts
from cupola.workflows.assemble import assemble, data_notes

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
    groups = made.collector().collect(0, prompts, recipe.sampling.group_size, sampling_of(recipe))
    seconds = time.perf_counter() - started
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tokens = sum(rollout.completion.n_tokens for rollout in rollouts)
    return {
        "model": {"source": recipe.model.source, "parameters": made.policy.parameters, "threads": made.threads},
        "data": data_notes(made.source),
        "prompts": len(prompts),
        "completions": len(rollouts),
        **headline(groups),
        **parts(rollouts),
        **group_states(groups, recipe.correctness_part()),
        "tokens_per_second": tokens / seconds,
        "sampling_seconds_per_step": seconds * recipe.sampling.prompts_per_step / len(prompts),
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
