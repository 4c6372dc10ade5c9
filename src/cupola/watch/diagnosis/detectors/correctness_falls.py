"""Right answers, or else the reward, have fallen from their best, in training or validation, whatever the groups do."""

from __future__ import annotations

from dataclasses import dataclass

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Series
from cupola.watch.diagnosis.signals import fall_of_validation, progress
from cupola.watch.diagnosis.trend import PEAK_SIGMAS, TREND_POINTS, VALIDATION_POINTS, Change, from_best

LOST = 0.3  # of the best training level: batches of easier and harder questions differ by less
NEARLY_ALL = 0.9  # lost: hardly anything of what the policy could do is left


@dataclass(frozen=True)
class _Fall:
    key: str
    steps: tuple[int, int]
    change: Change

    @property
    def share(self) -> float:
        """Of the best level, which is the larger end unless a part of the reward is negative."""
        return -self.change.by / max(abs(self.change.first), abs(self.change.last))


def detect(series: Series, context: Context) -> Finding | None:
    falls = [fall for fall in (_in_training(series, context), _in_validation(series, context)) if fall is not None]
    if not falls:
        series.need(*context.correctness, "reward", points=TREND_POINTS)
        return None
    worst = max(falls, key=lambda fall: fall.share)
    nearly_all = worst.share >= NEARLY_ALL
    values = {
        "reading": "nearly_all" if nearly_all else "some",
        "key": worst.key,
        "best": worst.change.first,
        "best_step": worst.steps[0],
        "last": worst.change.last,
    }
    return Finding("correctness_falls", "error" if nearly_all else "warning", worst.steps, values)


def _in_training(series: Series, context: Context) -> _Fall | None:
    points = progress(series, context)
    if points is None or float(points.values.min()) < 0:
        return None  # rewards of either sign have no level of which a share could be lost
    best, change = from_best(points)
    fall = _Fall(points.key, (best, points.span[1]), change)
    return fall if change.falls(0, PEAK_SIGMAS) and fall.share >= LOST else None


def _in_validation(series: Series, context: Context) -> _Fall | None:
    points = series.find(*context.correctness, points=VALIDATION_POINTS, split="validation")
    found = None if points is None else fall_of_validation(series, context, points)
    if points is None or found is None:
        return None
    best, change = found
    return _Fall(f"validation {points.key}", (best, points.span[1]), change)
