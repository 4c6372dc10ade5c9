"""Most groups have equal rewards: nothing is learnt from them. Solved, hopeless, some of each, or tied?"""

from __future__ import annotations

from cupola.core.records import Finding, Severity
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import LEVEL_POINTS, CannotJudge, Series
from cupola.watch.diagnosis.signals import dead_share, improves, latest_level, progress, signal_share, too_early
from cupola.watch.diagnosis.trend import level, since

MOST = 0.6  # beyond three groups in five, more is sampled for nothing than for learning
MAJORITY = 0.5  # of the dead groups are neither right nor wrong: the reward's sum ties them
DOMINANT = 0.6  # of the dead groups: what decides which kind they are
MOSTLY_RIGHT = 0.8  # without the split: where so many answers are right, equal groups are right ones
MOSTLY_WRONG = 0.2  # and where so few are, wrong ones


def detect(series: Series, context: Context) -> Finding | None:
    if not context.compares_groups:
        return None
    dead = dead_share(series, context)
    if dead is None:
        if series.find("reward_std", points=LEVEL_POINTS):
            return None  # some groups differ, and the log does not say how many
        raise CannotJudge("frac_reward_zero_std", len(series.points("frac_reward_zero_std")), LEVEL_POINTS)
    share = level(dead)
    if share < MOST:
        return None
    right, wrong = latest_level(series, "groups/dead_right"), latest_level(series, "groups/dead_wrong")
    reading = _by_level(series, context) if right is None or wrong is None else _by_split(share, right, wrong)
    train = progress(series, context)
    if reading in ("all_wrong", "mixed", "unknown") and train is not None and improves(train):
        reading = "improving"
    spent, wasted = latest_level(series, "tokens/spent"), latest_level(series, "tokens/wasted")
    signal = signal_share(series, context)
    values = {
        "reading": reading,
        "share": share,
        "right": right,
        "wrong": wrong,
        "wasted": min(1.0, wasted / spent) if spent and wasted is not None else None,
        "signal": signal or None,
        "no_signal": None if signal else signal,
        "group_size": context.group_size,
        "loss": latest_level(series, "loss"),
    }
    harmless = reading in ("all_right", "improving") or too_early(dead, context)
    severity: Severity = "info" if harmless else "warning"
    return Finding("dead_groups_taking_over", severity, (since(dead, MOST), dead.span[1]), values)


def _by_split(share: float, right: float, wrong: float) -> str:
    if share - right - wrong > MAJORITY * share:
        return "tied"
    if max(right, wrong) < DOMINANT * share:
        return "mixed"
    return "all_right" if right > wrong else "all_wrong"


def _by_level(series: Series, context: Context) -> str:
    correct = series.find(*context.correctness, points=LEVEL_POINTS)
    if correct is not None and level(correct) >= MOSTLY_RIGHT:
        return "all_right"
    if correct is not None and level(correct) <= MOSTLY_WRONG:
        return "all_wrong"
    return "unknown"
