"""Step after step without a gradient although groups have signal: nothing is trained, whatever the loss says."""

from __future__ import annotations

import numpy as np

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, CannotJudge, Series
from cupola.watch.diagnosis.signals import signal_share
from cupola.watch.diagnosis.trend import window


def detect(series: Series, context: Context) -> Finding | None:
    recorded, norm = series.defined("grad_norm"), series.points("grad_norm")
    if len(recorded) < LEVEL_POINTS:
        raise CannotJudge("grad_norm", len(recorded), LEVEL_POINTS)
    recent = recorded.cut(slice(-window(len(recorded)), None))
    moved = norm.steps[np.flatnonzero(norm.values > 0)]
    signal = signal_share(series, context)
    if signal == 0 or (len(moved) and moved[-1] >= recent.span[0]):
        return None  # without signal there is none to be had: dead_groups_taking_over and unscored tell why
    reading = "undefined" if recent.values.max() == 0 else "zero"
    after = recorded.steps[recorded.steps > (moved[-1] if len(moved) else -1)]
    return Finding("no_gradient", "error", (int(after[0]), recorded.span[1]), {"reading": reading, "signal": signal})
