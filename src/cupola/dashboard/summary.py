"""The head of a report: what the run is, its headline numbers, and what the newest evaluation says was gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.core.runlog import RunReader
from cupola.dashboard.figures import dig
from cupola.dashboard.plot import Axis, Point, stretches, thin
from cupola.dashboard.text import duration, finite, measured, number, percent, points

Row = Mapping[str, Any]
SPARK_WIDTH, SPARK_HEIGHT = 120, 28
BAR_WIDTH = 180


@dataclass(frozen=True)
class Tile:
    """A headline number: where it started and where it ended, with its whole course as a small line."""

    label: str
    first: str
    last: str
    note: str
    spark: str


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval; any of them may be missing."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Measure:
    """One line of the comparison: a measure's estimate for each arm."""

    label: str
    estimates: tuple[Estimate, ...]


@dataclass(frozen=True)
class Difference:
    """A paired difference, with the pixels (low, value, high) of its interval on the common axis, if it has one."""

    name: str
    estimate: Estimate
    bar: tuple[float, float, float] | None


@dataclass(frozen=True)
class Gains:
    """The newest evaluation, read tolerantly."""

    id: str
    split: str | None
    questions: object
    samples: object
    arms: tuple[str, ...]
    measures: tuple[Measure, ...]
    differences: tuple[Difference, ...]
    word: str | None
    reason: str | None


def facts(reader: RunReader) -> list[tuple[str, str]]:
    """Label and value of what identifies a run; what is not recorded is left out."""
    manifest, train = reader.manifest(), reader.metrics("train")
    planned = dig(manifest, "recipe", "run", "steps")
    steps = f"{len(train)} of {planned}" if planned is not None else str(len(train))
    seconds = wall_time(manifest, reader.metrics())
    spent = [value for row in train if (value := measured(row, "tokens/spent")) is not None]
    found = {
        "model": dig(manifest, "recipe", "model", "source"),
        "objective": dig(manifest, "recipe", "objective", "preset"),
        "steps": steps,
        "seed": dig(manifest, "recipe", "run", "seed"),
        "duration": None if seconds is None else duration(seconds),
        "tokens generated": number(sum(spent)) if spent else None,
    }
    return [(label, str(value)) for label, value in found.items() if value is not None]


def wall_time(manifest: Row, rows: Sequence[Row]) -> float | None:
    """Seconds of all attempts, without the pauses between them; `None` where no time is recorded.

    An attempt that did not say when it ended lasted, as far as is known, from its first row to its last.
    """
    times: dict[object, list[float]] = {}
    for row in rows:
        if (moment := measured(row, "time")) is not None:
            times.setdefault(row.get("attempt", 0), []).append(moment)
    for attempt in manifest.get("attempts") or []:
        told = [moment for key in ("started", "ended") if (moment := measured(attempt, key)) is not None]
        times.setdefault(attempt.get("attempt", 0), []).extend(told)
    spans = [max(moments) - min(moments) for moments in times.values() if len(moments) > 1]
    return sum(spans) if spans else None


def tiles(reader: RunReader) -> list[Tile]:
    """Validation, reward, prompts with signal, truncation: first and last recorded value."""
    train, validation = reader.metrics("train"), reader.metrics("validation")
    found = [
        _tile("Validation pass@1", validation, "correct/mean", percent),
        _tile("Reward", train, "reward", number),
        _tile("Prompts with signal", train, "groups/with_signal", percent),
        _tile("Truncated", train, "completions/clipped_ratio", percent),
    ]
    return [tile for tile in found if tile]


def _tile(label: str, rows: Sequence[Row], key: str, style: Callable[[object], str]) -> Tile | None:
    course = [Point(row["step"], measured(row, key)) for row in rows]
    known = [(point.step, point.value) for point in course if point.value is not None]
    if not known:
        return None
    (start, first), (end, last) = known[0], known[-1]
    if len(known) == 1:
        return Tile(label, "", style(last), f"step {end:g}", "")
    change = f"{points(last - first)} points" if style is percent else number(last - first, sign=True)
    return Tile(label, style(first), style(last), f"{change} · step {start:g} to {end:g}", spark(course))


def spark(course: Sequence[Point]) -> str:
    """A line's path in a box of SPARK_WIDTH x SPARK_HEIGHT, without axes."""
    known = [point.value for point in course if point.value is not None]
    low, high = min(known), max(known)
    if low == high:
        low, high = low - 1, high + 1
    x_axis = Axis(course[0].step, course[-1].step, 2, SPARK_WIDTH - 2)
    y_axis = Axis(low, high, SPARK_HEIGHT - 3, 3)
    return "".join(
        f"{'L' if index else 'M'}{x_axis(point.step):g} {y_axis(value):g}"
        for stretch in stretches(thin(course, SPARK_WIDTH))
        for index, (point, value) in enumerate(stretch)
    )


def gains(reader: RunReader) -> Gains | None:
    """The newest evaluation: its arms beside each other, base first; `None` if there is none."""
    evaluations = reader.evals()
    if not evaluations:
        return None
    name, summary = list(evaluations.items())[-1]
    arms = {arm: row for arm, row in sorted((summary.get("arms") or {}).items()) if isinstance(row, Mapping)}
    keys = sorted(dict.fromkeys(key for row in arms.values() for key in row), key=_measure_rank)
    return Gains(
        id=str(summary.get("id", name)),
        split=summary.get("split"),
        questions=summary.get("questions"),
        samples=summary.get("samples"),
        arms=tuple(arms),
        measures=tuple(
            Measure(_measure_label(key, summary), tuple(estimate(row.get(key)) for row in arms.values()))
            for key in keys
        ),
        differences=_differences([row for row in summary.get("differences") or [] if isinstance(row, Mapping)]),
        word=dig(summary, "verdict", "word"),
        reason=dig(summary, "verdict", "reason"),
    )


def estimate(value: object) -> Estimate:
    """An estimate from `{"value", "low", "high"}` or from a bare number."""
    if isinstance(value, Mapping):
        return Estimate(*(measured(value, key) for key in ("value", "low", "high")))
    return Estimate(finite(value), None, None)


def _measure_rank(key: str) -> int:
    """Greedy first, then the best temperature, one sample, the majority of several, any of several."""
    kinds = ("greedy", "best_temperature", "pass@1", "maj")
    return next((rank for rank, kind in enumerate(kinds) if key == kind or key.partition("@")[0] == kind), len(kinds))


def _measure_label(key: str, summary: Row) -> str:
    name, _, count = key.partition("@")
    if key == "best_temperature":
        chosen = finite(dig(summary, "arms", "base", key, "temperature"))
        return "Best temperature" + ("" if chosen is None else f" ({chosen:g}), chosen on other questions")
    if key == "pass@1":
        return f"pass@1, one sample at temperature {summary.get('temperature', 1):g}"
    words = {"maj": f"the majority of {count} samples", "pass": f"any of {count} samples"}
    return f"{key}, {words[name]}" if name in words else key.replace("_", " ").capitalize()


def _differences(rows: Sequence[Row]) -> tuple[Difference, ...]:
    """Differences with their intervals on one axis around zero that holds them all."""
    estimates = [estimate(row) for row in rows]
    ends = [abs(end) for each in estimates for end in (each.low, each.high) if end is not None]
    widest = max(ends, default=0.0) or 1.0
    axis = Axis(-widest, widest, 6, BAR_WIDTH - 6)
    return tuple(
        Difference(str(row.get("name", "")), each, _bar(each, axis)) for row, each in zip(rows, estimates, strict=True)
    )


def _bar(each: Estimate, axis: Axis) -> tuple[float, float, float] | None:
    if each.value is None or each.low is None or each.high is None:
        return None
    return axis(each.low), axis(each.value), axis(each.high)
