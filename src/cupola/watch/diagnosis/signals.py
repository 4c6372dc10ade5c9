"""Readings that several detectors share."""

from __future__ import annotations

import numpy as np

from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Points, Series
from cupola.watch.diagnosis.trend import LEVEL_POINTS, TREND_POINTS, change, level

REWARD_RISE = 0.05  # of the larger end: rewards have no common scale, so a rise is told relative to its own
CORRECT_RISE = 0.03  # three answers in a hundred: below that a rise is of no use to anybody


def progress(series: Series, context: Context) -> Points | None:
    """The share of right answers, else the reward."""
    return series.find(*context.correctness, "reward", points=TREND_POINTS)


def improves(points: Points) -> bool:
    """Whether reward or correctness rises over these points."""
    moved = change(points)
    least = REWARD_RISE * max(abs(moved.first), abs(moved.last)) if points.key == "reward" else CORRECT_RISE
    return moved.rises(least)


def dead_share(series: Series) -> Points | None:
    """Share of groups whose rewards are all equal.

    A log that has only `reward_std` (the mean over groups) proves it at its end alone: 0 means that all are dead.
    """
    recorded = series.find("groups/dead", "frac_reward_zero_std", points=LEVEL_POINTS)
    if recorded is not None:
        return recorded
    spread = series.find("reward_std", points=LEVEL_POINTS)
    if spread is None or level(spread) > 0:
        return None
    return Points(spread.key, spread.steps, (spread.values == 0).astype(np.float64))


def signal_share(series: Series) -> float | None:
    """Share of groups at the end of the run from which something can be learnt."""
    recorded = series.find("groups/with_signal", points=LEVEL_POINTS)
    if recorded is not None:
        return level(recorded)
    dead = dead_share(series)
    return None if dead is None else 1 - level(dead)


def quote(series: Series, key: str) -> float | None:
    """A metric's level for the text of a finding, never for its decision."""
    found = series.find(key, points=1)
    return None if found is None else level(found)


def peak_learning_rate(series: Series, context: Context) -> float | None:
    """The recipe's learning rate, else the largest one logged."""
    logged = series.points("learning_rate")
    return context.learning_rate or (float(logged.values.max()) if len(logged) else None)
