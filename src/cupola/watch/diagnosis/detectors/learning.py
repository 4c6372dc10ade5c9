"""Validation rises: the policy learns something that the training questions did not give away."""

from __future__ import annotations

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Series
from cupola.watch.diagnosis.signals import answers_behind, progress
from cupola.watch.diagnosis.trend import VALIDATION_POINTS, change, share_change

LEAST_RISE = 0.02  # two answers in a hundred; the noise of a usual validation set asks for more anyway


def detect(series: Series, context: Context) -> Finding | None:
    if not context.validated:
        return None
    validation = series.need(*context.correctness, points=VALIDATION_POINTS, split="validation")
    held_out = share_change(validation, answers_behind(series, context, validation))
    train = progress(series, context)
    seen = None if train is None else change(train)
    if not held_out.rises(LEAST_RISE) or (seen is not None and seen.falls(0)):
        return None
    evaluation = context.evaluation
    values = {
        "reading": "evaluated" if evaluation else "unevaluated",
        "verdict": (evaluation["verdict"]["word"] or "undecided") if evaluation else None,
        "validation_first": held_out.first,
        "validation_last": held_out.last,
        "train_key": None if train is None else train.key,
        "train_first": None if seen is None else seen.first,
        "train_last": None if seen is None else seen.last,
    }
    return Finding("learning", "info", validation.span, values)
