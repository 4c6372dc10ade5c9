"""Hardly an answer has ever been right: the task is too hard, or right answers are not recognised."""

from __future__ import annotations

import numpy as np

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, CannotJudge, Points, Series
from cupola.watch.diagnosis.signals import teaching_share
from cupola.watch.diagnosis.trend import TREND_POINTS, change, level

FLOOR = 0.02  # one answer in fifty: a group of eight holds none in five cases of six
FLOOR_SPREAD = 0.05  # a total reward near 0 is a floor only if all rollouts get it
STILL_RISING = 0.005  # a quarter of the floor: what rises that much may be about to take off
ENOUGH_SIGNAL = 0.25  # with a quarter of the groups informative a hard task is still being learnt
FORM_LEARNT = 0.1  # a form reward that rose so far shows that updates work
PATIENCE = 0.75  # share of the steps that must lie on the floor; the rest are lucky batches


def detect(series: Series, context: Context) -> Finding | None:
    split, points = _judged(series, context)
    moved = change(points)
    on_floor = max(level(points), moved.first, float(np.quantile(points.values, PATIENCE))) <= FLOOR
    signal = teaching_share(series, context) if split == "train" and points.key != "reward" else None
    hopeful = moved.rises(STILL_RISING) or (signal is not None and signal >= ENOUGH_SIGNAL)
    if not on_floor or hopeful or float(points.values.min()) < 0:
        return None
    form = _learnt_form(series, context)
    values = {
        "reading": "any" if form is None else "form_learnt",
        "key": points.key if split == "train" else f"{split} {points.key}",
        "level": level(points),
        "signal": signal,
        "form_key": None if form is None else form.key,
        "form_level": None if form is None else level(form),
    }
    return Finding("flat_near_floor", "warning", points.span, values)


def _judged(series: Series, context: Context) -> tuple[str, Points]:
    """Correctness of training, else a total reward that is the same for all, else correctness of validation."""
    correct = series.find(*context.correctness, points=TREND_POINTS)
    if correct is not None:
        return "train", correct
    reward, spread = series.find("reward", points=TREND_POINTS), series.find("reward_std", points=TREND_POINTS)
    if reward is not None and spread is not None and level(spread) <= FLOOR_SPREAD:
        return "train", reward
    held_out = series.find(*context.correctness, points=LEVEL_POINTS, split="validation")
    if held_out is None:
        raise CannotJudge(context.correctness[-1], len(series.points(context.correctness[-1])), TREND_POINTS)
    return "validation", held_out


def _learnt_form(series: Series, context: Context) -> Points | None:
    found = (series.find(key, points=TREND_POINTS) for key in context.form or ())
    return next((form for form in found if form is not None and change(form).rises(FORM_LEARNT)), None)
