"""A form reward rises while correctness falls: the easier part of the reward is bought with the harder one."""

from __future__ import annotations

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import Series
from cupola.watch.diagnosis.trend import TREND_POINTS, change

FORM_RISE = 0.05  # five completions in a hundred that newly keep the form
CORRECT_FALL = 0.2  # a fifth of the right answers lost
LEAST_FALL = 0.01  # and at least one in a hundred


def detect(series: Series, context: Context) -> Finding | None:
    if context.form == ():
        return None  # the reward pays for no form
    correct = series.need(*context.correctness, points=TREND_POINTS)
    forms = [found for key in context.form or () if (found := series.find(key, points=TREND_POINTS))]
    if not forms:
        forms = [series.need(*(context.form or ["rewards/<format part>/mean"]), points=TREND_POINTS)]  # raises
    right = change(correct)
    form = max(forms, key=lambda points: change(points).by)
    kept = change(form)
    if not right.falls(max(LEAST_FALL, CORRECT_FALL * right.first)) or not kept.rises(FORM_RISE):
        return None
    values = {
        "correct_key": correct.key,
        "correct_first": right.first,
        "correct_last": right.last,
        "form_key": form.key,
        "form_first": kept.first,
        "form_last": kept.last,
    }
    return Finding("format_up_correctness_down", "warning", correct.span, values)
