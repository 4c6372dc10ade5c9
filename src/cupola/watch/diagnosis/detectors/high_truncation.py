"""Many answers are cut at the token limit, or are taken to be."""

from __future__ import annotations

import numpy as np

from cupola.core.records import Finding, Severity
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, Points, Series
from cupola.watch.diagnosis.signals import too_early
from cupola.watch.diagnosis.trend import level, since

HIGH = 0.3  # near a third cut: runs that were later withdrawn for truncation had 0.4, workable ones 0.14
AT_CAP = 0.995  # a mean length this near the limit leaves room for no other reading
WELL_BELOW = 0.9  # the longest answer stays a tenth below the limit that it is said to have hit


def detect(series: Series, context: Context) -> Finding | None:
    cut = series.find("completions/clipped_ratio", points=LEVEL_POINTS) or _all_at_cap(series, context)
    if level(cut) < HIGH:
        return None
    longest = series.find("completions/max_length", points=LEVEL_POINTS)
    contradiction = longest is not None and context.cap is not None and level(longest) < WELL_BELOW * context.cap
    values = {
        "reading": "below_cap" if contradiction else "at_cap",
        "share": level(cut),
        "max_length": None if longest is None else level(longest),
        "cap": context.cap,
    }
    severity: Severity = "info" if too_early(cut, context) else "warning"
    return Finding("high_truncation", severity, (since(cut, HIGH), cut.span[1]), values)


def _all_at_cap(series: Series, context: Context) -> Points:
    """Without the ratio: 1 at the steps where even the mean length is the limit, else 0."""
    length = series.find("completions/mean_length", points=LEVEL_POINTS)
    if length is None or context.cap is None:
        return series.need("completions/clipped_ratio", points=LEVEL_POINTS)  # raises: it has too few
    return Points(length.key, length.steps, (length.values >= AT_CAP * context.cap).astype(np.float64))
