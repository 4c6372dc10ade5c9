"""Estimates as plain strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def percent(estimate: Mapping[str, Any]) -> str:
    """A share with its interval, as `50.0% [44.4, 55.6]`; its reason where it is undefined."""
    if estimate["value"] is None:
        return f"undefined: {estimate['reason']}"
    return f"{100 * estimate['value']:.1f}%{_interval(estimate, '.1f')}"


def points(difference: Mapping[str, Any]) -> str:
    """A difference in percentage points with its interval, as `+20.3 [+15.1, +25.5]`."""
    if difference["value"] is None:
        return "undefined"
    return f"{100 * difference['value']:+.1f}{_interval(difference, '+.1f')}"


def table(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Rows (measure, base, trained), or (measure, value) of a single arm, as plain text for the terminal."""
    arms = list(summary["arms"].values())
    names = dict.fromkeys(name for arm in arms for name in arm)
    return [(_label(name, arms), *(percent(arm[name]) if name in arm else "" for arm in arms)) for name in names]


def _label(name: str, arms: list[Mapping[str, Any]]) -> str:
    return f"best temperature ({arms[0][name]['mode']})" if name == "best_temperature" else name


def _interval(estimate: Mapping[str, Any], style: str) -> str:
    if estimate["low"] is None:
        return " (no interval from one question)"
    return f" [{100 * estimate['low']:{style}}, {100 * estimate['high']:{style}}]"
