"""Reward and answer length rise together: earned by right answers, or by words."""

from __future__ import annotations

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Series
from cupola.watch.diagnosis.signals import CORRECT_RISE, improves
from cupola.watch.diagnosis.trend import TREND_POINTS, change

LONGER = 0.3  # by a third: shorter drifts come with every change of style


def detect(series: Series, context: Context) -> Finding | None:
    reward = series.need("reward", points=TREND_POINTS)
    length = series.need("completions/mean_length", points=TREND_POINTS)
    paid, longer = change(reward), change(length)
    if not improves(reward) or not longer.rises(LONGER * longer.first):
        return None
    correct = series.find(*context.correctness, points=TREND_POINTS)
    right = None if correct is None else change(correct)
    if right is None:
        reading = "unknown"
    else:
        reading = "earned" if right.rises(CORRECT_RISE) else "unearned"
    values = {
        "reading": reading,
        "reward_first": paid.first,
        "reward_last": paid.last,
        "length_first": longer.first,
        "length_last": longer.last,
        "correct_first": None if right is None else right.first,
        "correct_last": None if right is None else right.last,
        "cap": context.cap,
    }
    return Finding("reward_and_length_rise", "warning" if reading == "unearned" else "info", reward.span, values)
