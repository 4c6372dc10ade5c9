"""Reward fell from a real level to nothing and every group is dead. The loss stays smooth: only this tells."""

from __future__ import annotations

import numpy as np

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, Points, Series
from cupola.watch.diagnosis.signals import dead_share, latest_level, peak_learning_rate
from cupola.watch.diagnosis.trend import level, smooth

REMAINS = 0.1  # a tenth of the best level: no change of difficulty or bad batch does that for many steps
HAD_LEVEL = 0.05  # a policy below five right answers in a hundred had nothing to destroy
NEARLY_ALL = 0.8  # groups dead at the end: nothing is left to learn the way back from
HAD_AT_START = 0.2  # a first step alone is a level if it is so far above luck: ruin may leave no second one
SCATTER = 3.0  # the best level must stand out of the series' own step-to-step scatter by so many times
RUIN_POINTS = 10  # a level before the fall and one after it


def detect(series: Series, context: Context) -> Finding | None:
    points = series.need(*context.correctness, "reward", points=RUIN_POINTS)
    before_step, best = max(_best(points), _start(series, points), key=lambda level: level[1])
    alive = np.flatnonzero(points.values > REMAINS * best)
    start = int(alive[-1]) + 1 if len(alive) else 0
    fell = best >= HAD_LEVEL and len(points) - start >= LEVEL_POINTS and points.values.min() >= 0
    dead = dead_share(series, context)
    if not fell or (dead is not None and level(dead) < NEARLY_ALL):
        return None
    values = {
        "key": points.key,
        "before": best,
        "before_step": before_step,
        "after": level(points.cut(slice(start, None))),
        "first_step": int(points.steps[start]),
        "dead": None if dead is None else level(dead),
        "learning_rate": peak_learning_rate(series, context),
        "loss": latest_level(series, "loss"),
    }
    return Finding("policy_destroyed", "error", (int(points.steps[start]), points.span[1]), values)


def _best(points: Points) -> tuple[int, float]:
    """Step and height of the best running median, 0 where it does not stand out of the scatter."""
    medians = smooth(points.values)
    peak = int(medians.argmax())
    scatter = float(np.median(np.abs(np.diff(points.values))))
    return int(points.steps[peak]), float(medians[peak]) if medians[peak] >= SCATTER * scatter else 0.0


def _start(series: Series, points: Points) -> tuple[int, float]:
    """Step and level of the best validation, if it is of the same policy, else of the first step, if it is high.

    Training questions may be harder than those of validation. So training lost that level only if validation lost it
    too or, where none came after it, if the first step stood near it.
    """
    first = float(points.values[0])
    held_out = series.find(points.key, points=1, split="validation")
    if held_out is not None:
        best = int(held_out.values.argmax())
        peak, later = float(held_out.values[best]), held_out.values[best + 1 :]
        if later[-1] <= REMAINS * peak if len(later) else first > REMAINS * peak:
            return int(held_out.steps[best]), peak
    return points.span[0], first if first >= HAD_AT_START else 0.0
