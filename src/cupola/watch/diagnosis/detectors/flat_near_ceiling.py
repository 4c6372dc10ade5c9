"""Nearly every answer is right: from the start (too easy), or by now (solved)."""

from __future__ import annotations

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Series
from cupola.watch.diagnosis.signals import teaching_share
from cupola.watch.diagnosis.trend import TREND_POINTS, change, level, since

CEILING = 0.95  # at 19 right of 20 two groups of eight in three hold no wrong answer
_FULL = 1 + 1e-9  # a part that pays more than 1 is no share of right answers


def detect(series: Series, context: Context) -> Finding | None:
    points = series.need(*context.correctness, points=TREND_POINTS)
    if level(points) < CEILING or float(points.values.max()) > _FULL:
        return None
    moved, start = change(points), since(points, CEILING)
    easy = moved.first >= CEILING
    values = {
        "reading": "from_start" if easy else "reached",
        "key": points.key,
        "first": moved.first,
        "level": moved.last,
        "signal": teaching_share(series, context),
    }
    return Finding("flat_near_ceiling", "warning" if easy else "info", (start, points.span[1]), values)
