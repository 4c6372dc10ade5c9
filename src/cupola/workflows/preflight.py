"""`--dry-run`: check everything, take a few growing looks at step 0, say what a run will cost, write nothing."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cupola.core.config import Recipe
from cupola.core.records import Group, RecipeError, Rollout
from cupola.train.loop import Batch, Learner, batch_advantages, plan_steps, without_rejected
from cupola.train.models import trainable
from cupola.train.rollout import Collector, group_metrics, headline, part_metrics
from cupola.workflows.assemble import Assembly, assemble

#: Prompts of the second look; the first takes half of them, and each further one twice as many.
PROMPTS = 8

#: Seconds that a look may take if a larger one is to follow, up to the size of a step.
QUICK = 3.0


@dataclass(frozen=True)
class Look:
    """One small step: its groups, the padded tokens of its widest forward pass, seconds, and peak memory in GB.

    `widest` is 0 where nothing was forwarded: no answer had a reward.
    """

    groups: list[Group]
    rows: int
    widest: int
    sampling: float
    update: float
    peak: float


def preflight(recipe: Recipe) -> dict[str, Any]:
    """Sample and update on a few of the first step's prompts; report what came of them, and estimate a step.

    Raises what `assemble` and the reward functions raise, and RecipeError where the estimated memory is not there.
    """
    made = assemble(recipe)
    learner, collector = made.learner(), made.collector()
    look(made, learner, collector, 1)  # what runs for the first time is slow
    small, large = looks(made, learner, collector)
    estimate = estimated(recipe, small, large)
    refuse_too_large(estimate["peak_memory_gb"])
    rollouts = [rollout for group in large.groups for rollout in group.rollouts]
    return {
        "model": {
            "source": recipe.model.source,
            "parameters": made.policy.parameters,
            "trainable": sum(parameter.numel() for parameter in trainable(made.policy.model)),
            "threads": made.threads,
        },
        "data": made.source.notes(),
        "prompts": len(large.groups),
        "completions": len(rollouts),
        **headline(large.groups),
        **part_metrics(rollouts),
        **group_metrics(large.groups, recipe.correctness_part()),
        "prompt": made.policy.tokenizer.decode(made.policy.encode(large.groups[0].prompt.content)),
        "answers": [rollout.completion.text for rollout in _by_reward(large.groups[0])],
        "tokens_per_second": sum(rollout.completion.n_tokens for rollout in rollouts) / large.sampling,
        **estimate,
    }


def looks(made: Assembly, learner: Learner, collector: Collector) -> tuple[Look, Look]:
    """The two largest of growing looks: a quick step is measured whole, of a slow one two small parts."""
    most = made.recipe.sampling.prompts_per_step
    size = min(PROMPTS, most)
    small, large = (look(made, learner, collector, n) for n in (max(1, size // 2), size))
    while size < most and large.sampling + large.update < QUICK:
        size = min(2 * size, most)
        small, large = large, look(made, learner, collector, size)
    return small, large


def look(made: Assembly, learner: Learner, collector: Collector, prompts: int) -> Look:
    """Sample and update on so many prompts. The weights move, and are thrown away with this process.

    Every counted rollout has an advantage here: with dead groups alone, usual at step 0 of a hard task, a look would
    see no update at all.
    """
    recipe = made.recipe
    reset_peak()
    started = time.perf_counter()
    drawn = made.source.draw(0, prompts)
    groups = collector.collect(1, drawn, recipe.sampling.group_size, recipe.sampling.settings())
    sampled = time.perf_counter()
    batch = Batch.of(groups, made.policy.encode)
    before = learner.before(batch)
    batch = without_rejected(batch, before, recipe.objective)
    advantages = batch_advantages(batch, before, recipe)
    advantages = replace(advantages, values=batch.counted[:, None].double().expand_as(advantages.values))
    plans = plan_steps(batch, advantages.values, recipe)
    learner.update(batch, before, advantages, plans)
    widest = max((padded(batch, rows) for plan in plans for rows in plan.micro), default=0)
    return Look(groups, len(batch), widest, sampled - started, time.perf_counter() - sampled, peak_gb())


def padded(batch: Batch, rows: Sequence[int]) -> int:
    """Tokens of a forward pass of these rows: equal prompts go through it once, answers as wide as the longest."""
    prompts = {tuple(batch.prompts[i]) for i in rows}
    return len(prompts) * max(map(len, prompts)) + len(rows) * max(len(batch.completions[i]) for i in rows)


def estimated(recipe: Recipe, small: Look, large: Look) -> dict[str, float | None]:
    """Seconds of a step and of all steps, and peak memory in GB: a line through the two looks, by rows and by tokens.

    A forward pass holds no more than `optim.micro_rollouts` or `optim.micro_tokens`, and no more than a step has. Where
    nothing was forwarded, only the sampling is known.
    """
    rows, most = recipe.sampling.prompts_per_step * recipe.sampling.group_size, recipe.optim.micro_rollouts
    sampling = _line(small.rows, small.sampling, large.rows, large.sampling, rows)
    if not large.widest:
        unknown = dict.fromkeys(("update_seconds_per_step", "training_seconds", "peak_memory_gb"))
        return {"sampling_seconds_per_step": sampling, **unknown}
    tokens = (
        min(recipe.optim.micro_tokens, large.widest * rows / large.rows)
        if most is None
        else large.widest * min(rows, most) / min(large.rows, most)
    )
    update = _line(small.rows, small.update, large.rows, large.update, rows)
    return {
        "sampling_seconds_per_step": sampling,
        "update_seconds_per_step": update,
        "training_seconds": recipe.run.steps * (sampling + update),
        "peak_memory_gb": _line(small.widest, small.peak, large.widest, large.peak, tokens),
    }


def _line(x0: float, y0: float, x1: float, y1: float, x: float) -> float:
    """y at x on the line through two points; never less than the larger of both, which has been measured."""
    slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
    return max(y0, y1, y1 + slope * (x - x1))


def refuse_too_large(needed: float | None) -> None:
    """Raise RecipeError where the machine is known to have less memory than is known to be needed."""
    there = available_gb()
    if needed is not None and there is not None and needed > there:
        raise RecipeError(
            f"optim.micro_tokens: a step is estimated to need {needed:.1f} GB, but {there:.1f} GB are free; lower it, "
            "or take [model.lora] or a smaller model"
        )


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak() -> None:
    """Begin the measurement of peak memory anew, where the system can."""
    if CLEAR.exists() and os.access(CLEAR, os.W_OK):
        CLEAR.write_text("5")


def peak_gb() -> float:
    """Peak resident memory of this process in GB since `reset_peak`, or since its start where that does nothing."""
    if STATUS.exists():
        return _kilobytes(STATUS, "VmHWM") / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30  # macOS counts bytes


def available_gb() -> float | None:
    """Memory that this process may still have, with what it has; `None` where the system does not tell."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    return (_kilobytes(meminfo, "MemAvailable") + _kilobytes(STATUS, "VmRSS")) / 2**20


def _kilobytes(file: Path, key: str) -> float:
    return float(next(line.split()[1] for line in file.read_text().splitlines() if line.startswith(f"{key}:")))


def _by_reward(group: Group) -> Sequence[Rollout]:
    """Best paid first; those without a reward last."""
    return sorted(group.rollouts, key=lambda r: float("-inf") if r.reward is None else r.reward, reverse=True)
