"""Entropy has fallen to a fraction of its start. The loss does not show it."""

from __future__ import annotations

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Points, Series
from cupola.watch.diagnosis.signals import improves, latest_level, progress, teaching_share
from cupola.watch.diagnosis.trend import TREND_POINTS, change, level

COLLAPSED = 0.2  # a fifth of the start: learning alone commonly halves it
HAD_ENTROPY = 0.05  # nats per token: below this there was nothing to lose
SOLVED = 0.9  # of correctness: near the top certainty is what was asked for
ENOUGH_SIGNAL = 0.3  # groups that still disagree are what entropy is needed for


def detect(series: Series, context: Context) -> Finding | None:
    entropy = series.need("entropy", points=TREND_POINTS)
    moved = change(entropy)
    if moved.first < HAD_ENTROPY or not moved.falls((1 - COLLAPSED) * moved.first):
        return None
    signal, train = teaching_share(series, context), progress(series, context)
    if train is not None and train.key != "reward" and level(train) >= SOLVED:
        reading = "solved"
    elif (train is not None and _still_improves(train)) or (signal is not None and signal >= ENOUGH_SIGNAL):
        reading = "still_learning"
    else:
        reading = "stalled"
    values = {
        "reading": reading,
        "first": moved.first,
        "last": moved.last,
        "signal": signal,
        "distinct_answers": latest_level(series, "groups/distinct_answers"),
        "progress_key": None if train is None else train.key,
        "progress": None if train is None else level(train),
        "loss": latest_level(series, "loss"),
    }
    return Finding("entropy_collapse", "warning" if reading == "stalled" else "info", entropy.span, values)


def _still_improves(train: Points) -> bool:
    second_half = train.cut(slice(len(train) // 2, None))
    return improves(second_half)
