"""Robust measures of a noisy series: level, change between its ends, and since when it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cupola.watch.diagnosis.series import LEVEL_POINTS, Points

TREND_POINTS = 20  # two windows of LEVEL_POINTS must leave half the run between them
VALIDATION_POINTS = 3  # before, between, after; each is itself a mean over all validation questions
WINDOW_SHARE = 5  # a window is a fifth of the run: long enough to average, short enough to be one end of it
SIGMAS = 3.0  # a change counts beyond three standard errors, for diagnosis looks again at every step
PEAK_SIGMAS = 4.0  # a fall from the best needs one more: the best of several is partly luck

_MAD_TO_STD = 1.4826  # of a normal distribution
_MEDIAN_TO_MEAN = 1.2533  # standard error of a median over that of a mean, sqrt(pi / 2)


@dataclass(frozen=True)
class Change:
    """From the median `first` of one window to the median `last` of another; `noise` is the difference's std error."""

    first: float
    last: float
    noise: float

    @property
    def by(self) -> float:
        return self.last - self.first

    def rises(self, least: float, sigmas: float = SIGMAS) -> bool:
        """Up by at least `least` and by more than the noise explains."""
        return self.by >= max(least, sigmas * self.noise) and self.by > 0

    def falls(self, least: float, sigmas: float = SIGMAS) -> bool:
        """Down by at least `least` and by more than the noise explains."""
        return Change(-self.first, -self.last, self.noise).rises(least, sigmas)


def window(n: int) -> int:
    """Points in the window at either end of a series of n."""
    return max(min(LEVEL_POINTS, n), n // WINDOW_SHARE)


def level(points: Points) -> float:
    """Median of the last window."""
    return float(np.median(points.values[-window(len(points)) :]))


def change(points: Points) -> Change:
    """Change from the first to the last window of a training series.

    The noise of a step is 1.4826·MAD of the first differences over sqrt(2): a drift shifts every difference alike and
    drops out. The difference of two window medians then has standard error 1.2533·noise·sqrt(2/k).
    """
    k = window(len(points))
    steps = np.diff(points.values)
    deviation = _MAD_TO_STD * float(np.median(np.abs(steps - np.median(steps)))) / math.sqrt(2)
    noise = _MEDIAN_TO_MEAN * deviation * math.sqrt(2 / k)
    return Change(float(np.median(points.values[:k])), level(points), noise)


def from_best(points: Points) -> tuple[int, Change]:
    """Step of the best running mean of a training series, and the change from it to the last window.

    Windows are those of `change`, but of at most TREND_POINTS, so that a long run's fall is seen soon. Means, because
    the best of many medians of a series of few values (one group a step) is one of these values; at the end the median,
    if that is higher, so that two bad batches are no fall. A wild step adds to the noise in proportion: s is the
    standard deviation of the first differences over sqrt(2), the standard error of two means' difference s·sqrt(2/k).
    """
    k = min(window(len(points)), TREND_POINTS)
    means, steps = np.lib.stride_tricks.sliding_window_view(points.values, k).mean(axis=1), np.diff(points.values)
    length = float(np.hypot.reduce(steps - steps.mean()))  # no square of it is ever too large
    best, last = int(means.argmax()), max(float(means[-1]), float(np.median(points.values[-k:])))
    noise = length / math.sqrt(2 * len(steps)) * math.sqrt(2 / k)
    return int(points.steps[best]), Change(float(means[best]), last, noise)


def from_lowest(points: Points) -> tuple[int, Change]:
    """As `from_best`, of the lowest running mean."""
    step, moved = from_best(Points(points.key, points.steps, -points.values))
    return step, Change(-moved.first, -moved.last, moved.noise)


def share_change(points: Points, answers: NDArray[np.float64], start: int = 0) -> Change:
    """Change of a share from point `start` to the median of the last window; `answers` (n,) stand behind each point.

    The noise is that of two independent binomial shares p of a and b answers: sqrt(p(1 − p)·(1/a + 1/b)), p midway
    between both. A validation window is a fifth of the points, but at least one: each is a mean already.
    """
    recent = slice(-max(1, len(points) // WINDOW_SHARE), None)
    first, last = float(points.values[start]), float(np.median(points.values[recent]))
    before, after = float(answers[start]), float(np.median(answers[recent]))
    least = 1 / max(2.0, min(before, after))
    middle = min(max((first + last) / 2, least), 1 - least)
    return Change(first, last, math.sqrt(middle * (1 - middle) * (1 / before + 1 / after)))


def smooth(values: NDArray[np.float64], width: int = LEVEL_POINTS) -> NDArray[np.float64]:
    """Medians of `width` consecutive values: (n − width + 1,)."""
    medians: NDArray[np.float64] = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=1)
    return medians


def since(points: Points, least: float) -> int:
    """The first step at `least` or above of the stretch in which the running median stays there until the end."""
    below = np.flatnonzero(smooth(points.values) < least)
    start = int(below[-1]) + 1 if len(below) else 0
    return int(points.steps[start + int((points.values[start:] >= least).argmax())])
