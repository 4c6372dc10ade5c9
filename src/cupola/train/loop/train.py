"""The training loop: sample, verify, advantage, loss, update, record."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupola.core.config import Recipe
from cupola.core.records import Action, Group, Observer, Outcome, Prompt, Sampling
from cupola.core.runlog import RunWriter
from cupola.core.stats import mean_interval
from cupola.train.loop.checkpoint import Position, save_checkpoint
from cupola.train.loop.update import Learner, Updated
from cupola.train.rollout import Collector, Metrics, group_states, headline, mean, parts
from cupola.train.tasks import PromptSource

Rows = list[dict[str, Any]]


@dataclass
class MetricLog:
    """Collects what reward functions log; `column` values reach the rollouts by way of the scorer."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def column(self, name: str, values: Sequence[Any]) -> None: ...

    def metric(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def take(self) -> Metrics:
        """Mean of each metric since the last call."""
        taken = {name: mean(values) for name, values in self.values.items()}
        self.values.clear()
        return taken


@dataclass
class Run:
    """Everything one training run works with."""

    recipe: Recipe
    learner: Learner
    collector: Collector
    source: PromptSource
    validation: Sequence[Prompt]
    writer: RunWriter
    observers: Sequence[Observer] = ()
    interrupted: Callable[[], bool] = lambda: False
    logged: MetricLog = field(default_factory=MetricLog)


def train(run: Run, position: Position) -> Action:
    """Train from `position` to the recipe's last step; returns what ended it: `continue` at the end, else the request.

    Each step samples groups, updates on them, and only then records everything about them; a step that is recorded
    is finished. Validation and checkpoints come at step 0, every `validation.every` steps, and at the end.
    """
    recipe, learner = run.recipe, run.learner
    sampling = sampling_of(recipe)
    run.collector.sampler.publish(learner.version)
    if not run.writer.layout.checkpoint_steps():
        record_validation_start(run, position)
    for step in range(position.step + 1, recipe.run.steps + 1):
        started = time.perf_counter()
        prompts = run.source.draw(step - 1, recipe.sampling.prompts_per_step)
        groups = run.collector.collect(step, prompts, recipe.sampling.group_size, sampling)
        updated = learner.update(groups)
        receipt = run.collector.sampler.publish(learner.version)
        position = Position(step, position.num_tokens + tokens_read_and_written(run, groups))
        metrics = step_metrics(run, groups, updated)
        metrics |= {"num_tokens": position.num_tokens, "step_time": time.perf_counter() - started}

        last = step == recipe.run.steps
        due = step % recipe.validation.every == 0 or last
        checked = validate(run, step) if due else []
        run.writer.rollouts(step, [*groups, *checked], updated.outcomes, recipe.correctness_part())
        run.writer.ledger(step, updated.ledger)
        run.writer.receipt(step, receipt)
        rows = [run.writer.metrics(step, "train", metrics)]
        if checked:
            rows.append(run.writer.metrics(step, "validation", validation_metrics(checked) | run.logged.take()))
        actions = [observe(step, rows, groups) for observe in run.observers]
        action: Action = "stop" if "stop" in actions else "pause" if "pause" in actions else "continue"
        if run.interrupted():
            action = "pause"
        if due or action != "continue":
            checkpoint(run, position)
        if action != "continue" and not last:
            return action
    return "continue"


def record_validation_start(run: Run, position: Position) -> None:
    """Step 0: how the untrained policy answers, and a checkpoint to resume from."""
    checked = validate(run, 0)
    run.writer.rollouts(0, checked, {}, run.recipe.correctness_part())
    rows = [run.writer.metrics(0, "validation", validation_metrics(checked) | run.logged.take())]
    checkpoint(run, position)
    for observe in run.observers:
        observe(0, rows, checked)


def validate(run: Run, step: int) -> list[Group]:
    """Groups of the fixed validation questions: sampled at the training temperature, then greedy."""
    settings, sampling = run.recipe.validation, sampling_of(run.recipe)
    groups: list[Group] = []
    if settings.samples:
        groups += run.collector.collect(step, run.validation, settings.samples, sampling, "validation")
    if settings.greedy:
        greedy = sampling_of(run.recipe, temperature=0)
        groups += run.collector.collect(step, run.validation, 1, greedy, "validation", "greedy")
    return groups


def validation_metrics(groups: Sequence[Group]) -> Metrics:
    """`correct/mean` is sampled pass@1 with its 95% interval over questions; `correct/greedy` the greedy accuracy."""
    sampled = [group for group in groups if not group.id.endswith("greedy")]
    greedy = [group for group in groups if group.id.endswith("greedy")]
    estimate = mean_interval([rate for group in sampled if (rate := group.solve_rate) is not None])
    return {
        **headline(sampled or greedy),
        **parts([rollout for group in sampled or greedy for rollout in group.rollouts]),
        "correct/mean": estimate.value,
        "correct/mean_low": estimate.low,
        "correct/mean_high": estimate.high,
        "correct/greedy": mean(rate for group in greedy if (rate := group.solve_rate) is not None),
    }


def tokens_read_and_written(run: Run, groups: Sequence[Group]) -> int:
    """Prompt and completion tokens of every rollout, TRL's `num_tokens` of one step."""
    prompts = sum(len(run.learner.policy.encode(group.prompt.content)) * len(group.rollouts) for group in groups)
    return prompts + sum(rollout.completion.n_tokens for group in groups for rollout in group.rollouts)


def step_metrics(run: Run, groups: Sequence[Group], updated: Updated) -> Metrics:
    """The train row: headline metrics over all generated rollouts, the same over the used ones, and the update's."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    outcomes = [outcome for group in groups for outcome in updated.outcomes[group.id]]
    wasted = sum(
        rollout.completion.n_tokens
        for rollout, outcome in zip(rollouts, outcomes, strict=True)
        if not outcome.weight_share
    )
    return {
        **headline(groups),
        **parts(rollouts),
        **group_states(groups, run.recipe.correctness_part()),
        **updated.metrics,
        **{f"used/{key}": value for key, value in headline(_used(groups, updated.outcomes)).items()},
        "tokens/spent": sum(rollout.completion.n_tokens for rollout in rollouts),
        "tokens/wasted": wasted,
        "sampler/version": run.learner.version,
        **run.logged.take(),
    }


def checkpoint(run: Run, position: Position) -> None:
    """Save, then drop the oldest checkpoints beyond `validation.keep` (step 0 and the newest always stay)."""
    layout, keep = run.writer.layout, run.recipe.validation.keep
    save_checkpoint(layout.checkpoint(position.step), run.learner, position)
    if keep:
        for step in layout.checkpoint_steps()[1:-keep]:
            shutil.rmtree(layout.checkpoint(step))


def sampling_of(recipe: Recipe, temperature: float | None = None) -> Sampling:
    """The recipe's sampling, at another temperature if given."""
    s = recipe.sampling
    t = s.temperature if temperature is None else temperature
    return Sampling(s.max_tokens, t, tuple(s.stop), tuple(s.stop_token_ids))


def _used(groups: Sequence[Group], outcomes: dict[str, list[Outcome]]) -> list[Group]:
    """The groups with their forwarded rollouts alone."""
    found = []
    for group in groups:
        pairs = zip(group.rollouts, outcomes[group.id], strict=True)
        kept = tuple(rollout for rollout, outcome in pairs if outcome.used)
        if kept:
            found.append(Group(group.id, group.prompt, kept, group.split))
    return found
