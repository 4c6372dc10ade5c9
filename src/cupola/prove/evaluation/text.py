"""Estimates as plain strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cupola.core import stats
from cupola.prove.evaluation.samples import BEST


def percent(estimate: Mapping[str, Any]) -> str:
    """A share with its interval, as `50.0% [44.4, 55.6]`; its reason where it is undefined."""
    if estimate["value"] is None:
        return f"undefined: {estimate['reason']}"
    return _with_interval(estimate, stats.percent)


def points(difference: Mapping[str, Any]) -> str:
    """A difference in percentage points with its interval, as `+20.3 [+15.1, +25.5]`."""
    return "undefined" if difference["value"] is None else _with_interval(difference, stats.points)


def table(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows (measure, base, trained), or (measure, value) of a single arm, as plain text for the terminal."""
    arms = list(summary["arms"].values())
    names = dict.fromkeys(name for arm in arms for name in arm)
    return [(_label(name, arms), *(percent(arm[name]) if name in arm else "" for arm in arms)) for name in names]


def _label(name: str, arms: list[Mapping[str, Any]]) -> str:
    return f"best temperature ({arms[0][name]['mode']})" if name == BEST else name


def _with_interval(estimate: Mapping[str, Any], words: Callable[[float], str]) -> str:
    if estimate["low"] is None:
        return f"{words(estimate['value'])} (no interval from one question)"
    low, high = (words(estimate[end]).removesuffix("%") for end in ("low", "high"))
    return f"{words(estimate['value'])} [{low}, {high}]"
