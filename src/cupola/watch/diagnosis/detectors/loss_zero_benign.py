"""A loss of about 0 with a live gradient: how an on-policy, group-centred objective looks."""

from __future__ import annotations

import numpy as np

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, Series
from cupola.watch.diagnosis.signals import signal_share
from cupola.watch.diagnosis.trend import change, level

ABOUT_ZERO = 1e-3  # what a progress table with three decimals prints as 0.000
NEARLY_ALWAYS = 0.9  # of the steps


def detect(series: Series, context: Context) -> Finding | None:
    loss = series.need("loss", points=LEVEL_POINTS)
    about_zero = float(np.quantile(np.abs(loss.values), NEARLY_ALWAYS)) <= ABOUT_ZERO
    without_signal = signal_share(series, context) == 0 or series.lapsed("reward")  # then only the distance is trained
    if not about_zero or without_signal or not _moves(series):
        return None
    gradient = series.find("grad_norm", points=LEVEL_POINTS)
    values = {"loss": level(loss), "grad_norm": None if gradient is None else level(gradient)}
    return Finding("loss_zero_benign", "info", loss.span, values)


def _moves(series: Series) -> bool:
    """A gradient, or a distance from the reference that grows: either shows that updates reach the weights."""
    gradient = series.find("grad_norm", points=LEVEL_POINTS)
    distance = series.find("kl", points=LEVEL_POINTS)
    return (gradient is not None and level(gradient) > 0) or (distance is not None and change(distance).rises(0))
