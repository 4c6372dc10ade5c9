"""Which charts a run has: metrics rows to charts, one entry each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cupola.core.runlog import RunReader
from cupola.dashboard.plot import Chart, Curve, Point
from cupola.dashboard.text import finite, measured

Row = Mapping[str, Any]


def charts(reader: RunReader) -> list[Chart]:
    """All charts of a run, in reading order, including those for which nothing was recorded."""
    train, validation = reader.metrics("train"), reader.metrics("validation")
    return [
        Chart("Right answers", "share of answers", _right_answers(train, validation), fixed=(0, 1)),
        Chart("Reward", "mean per completion", _rewards(train)),
        Chart(
            "Prompts with signal",
            "share of prompts",
            (
                line(train, "groups/with_signal", "with signal"),
                line(train, "groups/dead_right", "dead, all right"),
                line(train, "groups/dead_wrong", "dead, all wrong"),
            ),
            fixed=(0, 1),
        ),
        Chart("Entropy", "nats per token", (line(train, "entropy", "entropy"),)),
        _length(train, reader.manifest()),
        Chart("Truncation", "share of completions cut", (line(train, "completions/clipped_ratio", "cut at the cap"),)),
        Chart(
            "Clipped ratios",
            "share of tokens",
            (
                line(train, "clip_ratio/low_mean", "clipped below"),
                line(train, "clip_ratio/high_mean", "clipped above"),
            ),
        ),
        Chart("Gradient norm", "before clipping", (line(train, "grad_norm", "gradient norm"),)),
        Chart("Learning rate", "per step", (line(train, "learning_rate", "learning rate"),)),
        Chart(
            "Tokens",
            "tokens per step",
            (line(train, "tokens/spent", "spent"), line(train, "tokens/wasted", "of these without a gradient")),
        ),
    ]


def line(rows: Sequence[Row], key: str, label: str) -> Curve:
    """The curve of one metric key."""
    return Curve(label, tuple(Point(row["step"], measured(row, key)) for row in rows))


def _right_answers(train: Sequence[Row], validation: Sequence[Row]) -> tuple[Curve, ...]:
    sampled = tuple(
        Point(row["step"], *(measured(row, f"correct/{name}") for name in ("mean", "mean_low", "mean_high")))
        for row in validation
    )
    greedy = tuple(Point(row["step"], measured(row, "correct/greedy")) for row in validation)
    return (
        line(train, "correct/mean", "training"),
        Curve("validation", sampled, measured=True),
        Curve("validation, greedy", greedy, measured=True),
    )


def _rewards(train: Sequence[Row]) -> tuple[Curve, ...]:
    """The total and, where there are several, its parts."""
    names = reward_parts(train)
    parts = [line(train, f"rewards/{name}/mean", name) for name in names] if len(names) > 1 else []
    return (line(train, "reward", "total"), *parts)


def reward_parts(rows: Sequence[Row]) -> list[str]:
    """Names of the reward parts, in the order of their first appearance."""
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("rewards/") and key.endswith("/mean"))
    return [key.removeprefix("rewards/").removesuffix("/mean") for key in keys]


def _length(train: Sequence[Row], manifest: Row) -> Chart:
    cap = finite(dig(manifest, "recipe", "sampling", "max_tokens"))
    curves = (
        line(train, "completions/mean_length", "mean"),
        line(train, "completions/mean_terminated_length", "mean of those that ended"),
    )
    return Chart("Length", "tokens per completion", curves, limit=None if cap is None else (cap, f"cap {cap:g}"))


def dig(mapping: Mapping[str, Any], *keys: str) -> Any:
    """A nested value, or `None` where any key is missing."""
    here: Any = mapping
    for key in keys:
        if not isinstance(here, Mapping):
            return None
        here = here.get(key)
    return here
