"""Rollouts without a reward: nothing is learnt from them, and less from what is left of their groups."""

from __future__ import annotations

from typing import get_args

from cupola.core.records import Finding, Severity, Status
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, CannotJudge, Points, Series
from cupola.watch.diagnosis.signals import too_early
from cupola.watch.diagnosis.trend import window

MOST = 0.5  # of the groups: the run is trained by the minority that happens to be scored
SOME = 0.1  # of rollouts or groups: failures of 5 to 15 in a hundred already bias the groups
_SCORELESS = ("error", "timeout", "gold_bad", "skipped")  # statuses of a verdict without a score


def detect(series: Series, context: Context) -> Finding | None:
    points = _unscorable(series, context) or _undefined_reward(series)
    recent = points.cut(slice(-window(len(points)), None))
    groups = float(recent.values.mean())  # no median: failures come in bursts
    rollouts, status = _verdicts(series, context, len(recent))
    if max(groups, rollouts or 0.0) < SOME:
        return None
    most, of_steps = groups >= MOST, points.key == "reward"
    reading = "undefined" if of_steps and groups >= SOME else "most" if most else "some"
    counted = None if of_steps and reading == "some" else groups
    values = {"reading": reading, "groups": counted, "rollouts": rollouts, "status": status}
    # no task begins like this, so that nothing is scored is no bad start, but for a few it may be
    severity: Severity = "error" if most else "info" if too_early(points, context) else "warning"
    return Finding("unscored", severity, recent.span, values)


def _unscorable(series: Series, context: Context) -> Points | None:
    """Share of groups with fewer than two rewards; a group of one has no second, so it is asked of larger ones."""
    return None if context.group_size == 1 else series.find("groups/unscorable", points=LEVEL_POINTS)


def _undefined_reward(series: Series) -> Points:
    """Without such groups: 1 at the steps whose reward is recorded and is no number."""
    reward = series.defined("reward")
    if len(reward) < LEVEL_POINTS:
        raise CannotJudge("groups/unscorable", len(series.points("groups/unscorable")), LEVEL_POINTS)
    return Points(reward.key, reward.steps, 1 - reward.values)


def _verdicts(series: Series, context: Context, steps: int) -> tuple[float | None, str | None]:
    """Share of the last steps' rollouts that a verdict left without a reward, and the status that did it most often.

    Verdicts are counted over all parts, so two that fail on one rollout count twice: the share is an upper bound. A
    part that may skip voids nothing by it; only where no other verdict is missing are the skipped ones to blame.
    """
    counts = {status: float(series.points(f"verify/{status}").values[-steps:].sum()) for status in get_args(Status)}
    lost = {status: counts[status] for status in _SCORELESS if status != "skipped" or not context.optional}
    rollouts = sum(counts.values()) / context.parts
    share = min(1.0, sum(lost.values()) / rollouts) if rollouts else None
    blamed = lost if any(lost.values()) else {"skipped": counts["skipped"]}
    status = max(blamed, key=lambda name: blamed[name])
    return share, status if blamed[status] else None
