"""Training reward rises while validation has fallen from its best: overfitting, or a reward that is not the goal."""

from __future__ import annotations

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Points, Series
from cupola.watch.diagnosis.signals import fall_of_validation, improves
from cupola.watch.diagnosis.trend import TREND_POINTS, VALIDATION_POINTS, change


def detect(series: Series, context: Context) -> Finding | None:
    if not context.validated:
        return None
    validation = series.need(*context.correctness, points=VALIDATION_POINTS, split="validation")
    fallen, train = fall_of_validation(series, context, validation), _recorded_progress(series, context)
    if fallen is None or (train is not None and not improves(train)):
        return None
    best_step, fall = fallen
    moved = None if train is None else change(train)
    values = {
        "reading": "train_unknown" if train is None else "train_up",
        "best": fall.first,
        "best_step": best_step,
        "validation_last": fall.last,
        "train_key": None if train is None else train.key,
        "train_first": None if moved is None else moved.first,
        "train_last": None if moved is None else moved.last,
    }
    return Finding("train_up_eval_down", "warning", (best_step, validation.span[1]), values)


def _recorded_progress(series: Series, context: Context) -> Points | None:
    """As `progress`, but what was recorded for too few steps is no missing record: it cannot be judged yet."""
    keys = (*context.correctness, "reward")
    if not any(len(series.points(key)) for key in keys):
        return None
    return series.need(*keys, points=TREND_POINTS)
