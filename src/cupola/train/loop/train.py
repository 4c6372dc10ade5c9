"""The training loop: sample, verify, advantage, loss, update, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from cupola.core.config import Recipe
from cupola.core.records import Action, Group, NumericalError, Outcome
from cupola.train.loop.account import ledger_rows, outcomes
from cupola.train.loop.advantage import batch_advantages
from cupola.train.loop.batch import Batch, without_rejected
from cupola.train.loop.checkpoint import Position
from cupola.train.loop.metrics import before_metrics, update_metrics
from cupola.train.loop.plan import plan_steps
from cupola.train.loop.ranks import lost_ranks_named
from cupola.train.loop.record import Run, Trained, is_due, logged, record, step_metrics
from cupola.train.rollout import Collected, mean


@lost_ranks_named()
def train(run: Run, position: Position) -> Action:
    """Train from `position` to the recipe's last step; `continue` says that it got there, else what was asked for.

    A step that is recorded is finished: it is written only after its update. Raises NumericalError where an update was
    not finite, after recording it, unless the recipe skips such steps; RankError where another rank has ended.
    """
    run.selector.restore(position.selection)
    run.collector.publish(run.learner.version)
    begun = run.learner.ranks.first(run.writer.layout.checkpoint_steps)
    if not begun and (action := record(run, position, None)) != "continue":
        return action
    drawn: Callable[[], Collected] | None = None
    while position.step < run.recipe.run.steps:
        started, step = time.perf_counter(), position.step + 1
        groups, vain = (drawn or begin(run, step))()
        if drawn is not None:  # only now does nobody draw with the weights from before the last update
            publish(run, step - 1)
        drawn = begin(run, step + 1) if draws_ahead(run.recipe, step) else None
        sampled = time.perf_counter()
        trained = train_step(run, step, groups, vain)
        if drawn is None:
            publish(run, step)
        position = Position(position.step + 1, position.num_tokens + tokens_of(run, trained.groups))
        ended = time.perf_counter()
        trained.metrics.update({"time/sampling": sampled - started, "time/update": ended - sampled})
        trained.metrics.update(num_tokens=position.num_tokens, step_time=ended - started)
        action = record(run, position, trained)
        if trained.refused is not None and run.recipe.optim.on_nonfinite == "stop":
            raise NumericalError(f"step {position.step}, {trained.refused}")
        if action != "continue" and position.step < run.recipe.run.steps:
            return action
    return "continue"


def begin(run: Run, step: int) -> Callable[[], Collected]:
    """Sample and verify a step's groups; the call waits for them."""
    return run.collector.begin(step, run.selector.draw, run.recipe.sampling)


def publish(run: Run, step: int) -> None:
    """Hand the sampler the weights as a step has left them, and keep its receipt."""
    receipt = run.collector.publish(run.learner.version)
    run.learner.ranks.first(lambda: run.writer.receipt(step, receipt))


def draws_ahead(recipe: Recipe, step: int) -> bool:
    """Whether a step's update goes on beside the sampling of the next one.

    Not before a validation and its checkpoint: what is drawn after it then depends on the checkpoint alone, so that a
    killed run is recomputed exactly.
    """
    return recipe.sampling.one_step_off and not is_due(recipe, step)


def train_step(run: Run, step: int, groups: list[Group], vain: list[Group]) -> Trained:
    """One step of the algorithm on its sampled and verified groups, with those drawn in vain."""
    recipe, learner, encode = run.recipe, run.learner, run.learner.policy.encode
    staleness = mean(learner.version - rollout.completion.policy_version for g in groups for rollout in g.rollouts)

    # What the models say before the update; baseline and scale; denominators and what to forward; loss, gradient,
    # optimiser.
    batch = Batch.of(groups, encode)
    before = learner.before(batch)
    batch = without_rejected(batch, before, recipe.objective)
    advantages = batch_advantages(batch, before, recipe)
    plans = plan_steps(batch, advantages.values, recipe)
    book = learner.update(batch, before, advantages, plans)

    became = outcomes(batch, advantages.values, groups, plans, book)
    became |= {group.id: [Outcome(discard_reason="dynamic_sampling")] * len(group.rollouts) for group in vain}
    metrics = {
        **step_metrics([*groups, *vain], became, recipe.correctness_part()),
        **before_metrics(batch, before, advantages, recipe.objective),
        **update_metrics(batch, groups, plans, book),
        **run.selector.observe([*groups, *vain]),
        "groups/drawn": len(groups) + len(vain),
        "sampler/version": learner.version,
        "sampler/staleness": staleness,
    }
    return Trained(
        [*groups, *vain],
        became,
        logged(run, step - 1, metrics),
        ledger_rows(batch, advantages, plans, book, groups, recipe),
        next((step.refused for step in book.steps if step.refused is not None), None),
    )


def tokens_of(run: Run, groups: Sequence[Group]) -> int:
    """Prompt and completion tokens of every rollout, TRL's `num_tokens` of one step."""
    prompts = sum(len(run.learner.policy.encode(group.prompt.content)) * len(group.rollouts) for group in groups)
    return prompts + sum(rollout.completion.n_tokens for group in groups for rollout in group.rollouts)
