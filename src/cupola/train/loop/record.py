"""Recording: what a step generated, what the update made of it, and how the policy answers the validation questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cupola.core.config import Recipe
from cupola.core.records import Action, Group, Observer, Outcome, Prompt
from cupola.core.runlog import RunWriter
from cupola.core.stats import mean_interval
from cupola.train.loop.checkpoint import Position, save_checkpoint
from cupola.train.loop.update import Learner
from cupola.train.rollout import (
    Collector,
    MetricLog,
    Metrics,
    Selector,
    group_metrics,
    headline,
    mean,
    part_metrics,
    with_logged,
)

GREEDY = "greedy"


@dataclass
class Run:
    """Everything one training run works with."""

    recipe: Recipe
    learner: Learner
    collector: Collector
    selector: Selector
    validation: Sequence[Prompt]
    writer: RunWriter
    observers: Sequence[Observer] = ()
    interrupted: Callable[[], bool] = lambda: False
    logged: MetricLog = field(default_factory=MetricLog)


@dataclass(frozen=True)
class Trained:
    """A finished step: its groups, what became of each rollout, its metrics row and its ledger rows.

    `refused` says why an optimiser step was refused, if one was.
    """

    groups: Sequence[Group]
    outcomes: dict[str, list[Outcome]]
    metrics: Metrics
    ledger: list[dict[str, Any]]
    refused: str | None = None


def record(run: Run, position: Position, trained: Trained | None) -> Action:
    """Write a step's record, validation and checkpoint where they are due, and ask the observers.

    Step 0 has nothing trained: it shows how the policy starts. The metrics rows come last, so a step that has one is
    recorded whole. Returns the gravest of what the observers ask; an interruption is a pause. All ranks call it; the
    first writes and observes.
    """
    due = is_due(run.recipe, position.step)
    checked = validate(run, position.step) if due else []
    metrics = logged(run, position.step, validation_metrics(checked)) if checked else None
    action = run.learner.ranks.first(lambda: _observed(run, position.step, trained, checked, metrics))
    if due or action != "continue":
        checkpoint(run, position)
    return action


def _observed(
    run: Run, step: int, trained: Trained | None, checked: Sequence[Group], metrics: Metrics | None
) -> Action:
    """Write what a step has, the metrics rows last, and show it to the observers."""
    groups = [*(trained.groups if trained else []), *checked]
    if groups:
        run.writer.rollouts(step, groups, trained.outcomes if trained else {}, run.recipe.correctness_part())
        forget_rollouts(run.writer, run.recipe, step)
    rows = []
    if trained:
        run.writer.ledger(step, trained.ledger)
        rows.append(run.writer.metrics(step, "train", trained.metrics))
    if metrics is not None:
        rows.append(run.writer.metrics(step, "validation", metrics))
    asked = [observe(step, rows, groups) for observe in run.observers]
    if run.interrupted():
        asked.append("pause")
    return "stop" if "stop" in asked else "pause" if "pause" in asked else "continue"


def logged(run: Run, finished: int, metrics: Metrics) -> Metrics:
    """The row with what reward functions logged when so many steps were finished, on whatever rank."""
    told = run.learner.ranks.gather(run.logged.values.pop(finished, {}))
    names = dict.fromkeys(name for each in told for name in each)
    return with_logged(metrics, {name: [value for each in told for value in each.get(name, ())] for name in names})


def is_due(recipe: Recipe, step: int) -> bool:
    """Whether a step is validated and saved: step 0, every `validation.every` steps, and the last."""
    return step % recipe.validation.every == 0 or step == recipe.run.steps


def forget_rollouts(writer: RunWriter, recipe: Recipe, step: int) -> None:
    """Remove what `run.keep_rollouts` does not keep once `step` is written."""
    old = step - recipe.run.keep_rollouts
    if recipe.run.keep_rollouts and old > 0 and not is_due(recipe, old):
        writer.forget_rollouts(old)


def validate(run: Run, step: int) -> list[Group]:
    """Groups of the fixed validation questions: sampled at the training temperature, then greedy."""
    settings, sampling = run.recipe.validation, run.recipe.sampling
    groups: list[Group] = []
    if settings.samples:
        groups += run.collector.collect(step, run.validation, settings.samples, sampling.settings(), "validation")
    if settings.greedy:
        groups += run.collector.collect(step, run.validation, 1, sampling.settings(0), "validation", GREEDY)
    return groups


def validation_metrics(groups: Sequence[Group]) -> Metrics:
    """`correct/mean` is sampled pass@1 with its 95% interval over questions; `correct/greedy` the greedy accuracy."""
    sampled = [group for group in groups if group.mode != GREEDY]
    greedy = [group for group in groups if group.mode == GREEDY]
    estimate = mean_interval([rate for group in sampled if (rate := group.solve_rate) is not None])
    return {
        **headline(sampled or greedy),
        **part_metrics([rollout for group in sampled or greedy for rollout in group.rollouts]),
        "correct/mean": estimate.value,
        "correct/mean_low": estimate.low,
        "correct/mean_high": estimate.high,
        "correct/greedy": mean(rate for group in greedy if (rate := group.solve_rate) is not None),
    }


def step_metrics(groups: Sequence[Group], outcomes: dict[str, list[Outcome]], part: str) -> Metrics:
    """Over all generated rollouts, and under `used/` the headline again over the forwarded ones."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    weights = [outcome.weight_share for group in groups for outcome in outcomes[group.id]]
    tokens = [rollout.completion.n_tokens for rollout in rollouts]
    return {
        **headline(groups),
        **part_metrics(rollouts),
        **group_metrics(groups, part),
        **{f"used/{key}": value for key, value in headline(_used(groups, outcomes)).items()},
        "tokens/spent": sum(tokens),
        "tokens/wasted": sum(n for n, weight in zip(tokens, weights, strict=True) if not weight),
    }


def checkpoint(run: Run, position: Position) -> None:
    """Save, then drop the oldest checkpoints beyond `validation.keep` (step 0 and the newest always stay)."""
    now = replace(position, selection=run.selector.state())
    save_checkpoint(run.writer.layout.checkpoint(position.step), run.learner, now)
    run.learner.ranks.first(lambda: run.writer.forget_checkpoints(run.recipe.validation.keep))


def _used(groups: Sequence[Group], outcomes: dict[str, list[Outcome]]) -> list[Group]:
    """The groups with their forwarded rollouts alone."""
    found = []
    for group in groups:
        pairs = zip(group.rollouts, outcomes[group.id], strict=True)
        kept = tuple(rollout for rollout, outcome in pairs if outcome.used)
        if kept:
            found.append(Group(group.id, group.prompt, kept, group.split, group.mode))
    return found
