"""What several detectors ask of a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, Points, Series
from cupola.watch.diagnosis.trend import PEAK_SIGMAS, TREND_POINTS, Change, change, level, share_change

REWARD_RISE = 0.05  # of the larger end: rewards have no common scale, so a rise is told relative to its own
LEAST_FALL = 0.03  # of validation: three answers in a hundred
CORRECT_RISE = 0.03  # three answers in a hundred: below that a rise is of no use to anybody


def progress(series: Series, context: Context) -> Points | None:
    """The share of right answers, else the reward."""
    return series.find(*context.correctness, "reward", points=TREND_POINTS)


def improves(points: Points) -> bool:
    """Whether reward or correctness rises over these points."""
    moved = change(points)
    least = REWARD_RISE * max(abs(moved.first), abs(moved.last)) if points.key == "reward" else CORRECT_RISE
    return moved.rises(least)


def dead_share(series: Series, context: Context) -> Points | None:
    """Share of groups whose rewards are all equal; in groups of one that is counted of none.

    A log without it proves it at its end alone, where all groups are dead: by a `reward_std` of 0, or without that by a
    mean reward that is exactly the same at 20 steps.
    """
    recorded = series.find("groups/dead", "frac_reward_zero_std", points=LEVEL_POINTS)
    if recorded is not None and context.group_size != 1:
        return recorded
    spread = series.find("reward_std", points=LEVEL_POINTS)
    if spread is not None:
        return None if level(spread) > 0 else _equals(spread, 0)
    reward = series.find("reward", points=TREND_POINTS)
    if reward is None or np.ptp(reward.values[-TREND_POINTS:]) > 0:
        return None
    return _equals(reward, float(reward.values[-1]))


def _equals(points: Points, value: float) -> Points:
    return Points(points.key, points.steps, (points.values == value).astype(np.float64))


def signal_share(series: Series, context: Context) -> float | None:
    """Share of groups at the end of the run whose rewards differ; `None` where a gradient needs no difference."""
    if not context.compares_groups:
        return None
    recorded = series.find("groups/with_signal", points=LEVEL_POINTS)
    if recorded is not None:
        return level(recorded)
    dead = dead_share(series, context)
    return None if dead is None else 1 - level(dead)


def teaching_share(series: Series, context: Context) -> float | None:
    """Share of groups at the end of the run that can teach correctness: not other parts of the reward alone differ."""
    signal, beside = signal_share(series, context), latest_level(series, "groups/no_signal")
    return signal if signal is None or beside is None else max(0.0, signal - beside)


def fall_of_validation(series: Series, context: Context, validation: Points) -> tuple[int, Change] | None:
    """Step of the best validation, and the change from there to the end; `None` where that is no fall."""
    best = int(validation.values.argmax())
    moved = share_change(validation, answers_behind(series, context, validation), best)
    return (int(validation.steps[best]), moved) if moved.falls(LEAST_FALL, PEAK_SIGMAS) else None


def answers_behind(series: Series, context: Context, validation: Points) -> NDArray[np.float64]:
    """Judged answers behind each validation point (n,): as recorded, else as many as the recipe asks for."""
    counted = series.points("correct/answers", "validation")
    recorded = dict(zip(counted.steps.tolist(), counted.values.tolist(), strict=True))
    counts = [recorded.get(step) or context.answers for step in validation.steps.tolist()]
    return np.maximum(np.array(counts, dtype=np.float64), 1)


def latest_level(series: Series, key: str) -> float | None:
    """Where a metric stands at the end, from however few points; `None` where it was never recorded."""
    found = series.find(key, points=1)
    return None if found is None else level(found)


def too_early(points: Points, context: Context) -> bool:
    """Whether the run goes on and has too few points to tell a bad start from a bad run.

    Until then a bad level is told as information: a live warning may stop the run, and a hard task begins like this.
    """
    return context.steps is not None and points.span[1] < context.steps and len(points) < TREND_POINTS


def peak_learning_rate(series: Series, context: Context) -> float | None:
    """The recipe's learning rate, else the largest one logged."""
    logged = series.points("learning_rate")
    return context.learning_rate or (float(logged.values.max()) if len(logged) else None)
