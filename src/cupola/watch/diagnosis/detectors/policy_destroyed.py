"""Reward fell from a real level to nothing and every group is dead. The loss stays smooth: only this tells."""

from __future__ import annotations

import numpy as np

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Points, Series
from cupola.watch.diagnosis.signals import dead_share, latest_level, peak_learning_rate
from cupola.watch.diagnosis.trend import LEVEL_POINTS, level, smooth

REMAINS = 0.1  # a tenth of the best level: no change of difficulty or bad batch does that for many steps
HAD_LEVEL = 0.05  # a policy below five right answers in a hundred had nothing to destroy
NEARLY_ALL = 0.8  # groups dead at the end: nothing is left to learn the way back from
SCATTER = 3.0  # the best level must stand out of the series' own step-to-step scatter by so many times


def detect(series: Series, context: Context) -> Finding | None:
    points = series.need(*context.correctness, "reward", points=TREND_POINTS)
    fall = _fall(points)
    dead = dead_share(series)
    if fall is None or (dead is not None and level(dead) < NEARLY_ALL):
        return None
    peak, start, best = fall
    values = {
        "key": points.key,
        "before": best,
        "before_step": int(points.steps[peak]),
        "after": level(points.cut(slice(start, None))),
        "first_step": int(points.steps[start]),
        "dead": None if dead is None else level(dead),
        "learning_rate": peak_learning_rate(series, context),
        "loss": latest_level(series, "loss"),
    }
    return Finding("policy_destroyed", "error", (int(points.steps[start]), points.span[1]), values)


def _fall(points: Points) -> tuple[int, int, float] | None:
    """Indices of the best level and of the first point of the ruin that lasts to the end, and the best level."""
    medians = smooth(points.values)
    peak = int(medians.argmax())
    best = float(medians[peak])
    scatter = float(np.median(np.abs(np.diff(points.values))))
    if points.values.min() < 0 or best < max(HAD_LEVEL, SCATTER * scatter):
        return None
    alive = np.flatnonzero(points.values > REMAINS * best)
    start = int(alive[-1]) + 1
    return (peak, start, best) if len(points) - start >= LEVEL_POINTS else None
