"""Entropy has risen to a multiple of its lowest level without any gain: the policy comes apart into noise."""

from __future__ import annotations

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Points, Series
from cupola.watch.diagnosis.signals import improves, latest_level, progress
from cupola.watch.diagnosis.trend import PEAK_SIGMAS, TREND_POINTS, change, from_lowest, level

MULTIPLIED = 2.0  # times its lowest level: exploration that pays raises entropy by a part of it
RISE = 1.0  # and by one nat per token: a certain policy may double its entropy and stay certain


def detect(series: Series, context: Context) -> Finding | None:
    entropy = series.need("entropy", points=TREND_POINTS)
    lowest_step, moved = from_lowest(entropy)
    train = progress(series, context)
    if not moved.rises(max(RISE, (MULTIPLIED - 1) * moved.first), PEAK_SIGMAS) or _holds_gain(train):
        return None
    values = {
        "first": moved.first,
        "last": moved.last,
        "progress_key": None if train is None else train.key,
        "progress": None if train is None else level(train),
        "grad_norm": latest_level(series, "grad_norm"),
    }
    return Finding("entropy_explosion", "warning", (lowest_step, entropy.span[1]), values)


def _holds_gain(train: Points | None) -> bool:
    """Up over the run, and not down again in its second half."""
    return train is not None and improves(train) and not change(train.cut(slice(len(train) // 2, None))).falls(0)
