"""The head of a report: what the run is, its headline numbers, and what the newest evaluation says was gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.core.config import Objective
from cupola.core.config.dotted import leaves
from cupola.core.config.presets import PRESETS
from cupola.core.runlog import RunReader
from cupola.core.stats import Estimate
from cupola.dashboard.figures import dig, line
from cupola.dashboard.plot import Axis, Curve, stretches, thin
from cupola.dashboard.text import duration, measured, number, percent, points

Row = Mapping[str, Any]
SPARK_WIDTH, SPARK_HEIGHT = 120, 28
BAR_WIDTH = 180

#: The base at the temperature where it did best on other questions, as an evaluation names it.
BEST = "best_temperature"
#: What stands for a measure that an arm does not have.
NOT_MEASURED = Estimate(None, None, None, 0)


@dataclass(frozen=True)
class Tile:
    """A headline number: where it started and where it ended, with its whole course as a small line."""

    label: str
    first: str
    last: str
    note: str
    spark: str


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
    """The newest evaluation. `word` is `None` where the verdict is open, `reason` too where one arm stands alone."""

    id: str
    split: str
    questions: int
    samples: int
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
        "objective": objective(dig(manifest, "recipe", "objective") or {}),
        "steps": steps,
        "seed": dig(manifest, "recipe", "run", "seed"),
        "duration": None if seconds is None else duration(seconds),
        "tokens generated": number(sum(spent)) if spent else None,
    }
    return [(label, str(value)) for label, value in found.items() if value is not None]


def objective(recorded: Row) -> str | None:
    """The preset, and every decision that departs from it: `grpo, denominator constant`. `None` without a preset."""
    preset = recorded.get("preset")
    if preset not in PRESETS:
        return preset
    usual = Objective(preset=preset).model_dump(mode="json", exclude={"why"})
    own = leaves(usual)
    told = [leaf for key in usual if key in recorded for leaf in leaves(recorded[key], key).items()]
    changed = [f"{_name(key)} {_setting(value)}" for key, value in told if value != own.get(key)]
    return ", ".join([preset, *changed])


def _name(key: str) -> str:
    """A dotted key in words: `critic lam`; what a table is goes by the table's name: `reference`."""
    return key.removesuffix(".kind").replace(".", " ").replace("_", " ")


def _setting(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace("_", " ").lower()


def wall_time(manifest: Row, rows: Sequence[Row]) -> float | None:
    """Seconds of all attempts, without the pauses between them; `None` where no time is recorded.

    An attempt that did not say when it ended lasted, as far as is known, from its first row to its last.
    """
    times: dict[object, list[float]] = {}
    for row in rows:
        if (moment := measured(row, "time")) is not None:
            times.setdefault(row.get("attempt", 0), []).append(moment)
    for attempt in manifest.get("attempts", []):
        told = [moment for key in ("started", "ended") if (moment := measured(attempt, key)) is not None]
        times.setdefault(attempt["attempt"], []).extend(told)
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
    course = line(rows, key, label)
    if not course.known:
        return None
    (start, first), (end, last) = course.known[0], course.known[-1]
    if len(course.known) == 1:
        return Tile(label, "", style(last), f"step {end.step:g}", "")
    change = f"{points(last - first)} points" if style is percent else number(last - first, sign=True)
    note = f"{change} · step {start.step:g} to {end.step:g}"
    return Tile(label, style(first), style(last), note, spark(course))


def spark(course: Curve) -> str:
    """A line's path in a box of SPARK_WIDTH x SPARK_HEIGHT, without axes."""
    values = [value for _, value in course.known]
    low, high = min(values), max(values)
    if low == high:
        room = max(1.0, abs(low))
        low, high = low - room, high + room
    x_axis = Axis(course.points[0].step, course.points[-1].step, 2, SPARK_WIDTH - 2)
    y_axis = Axis(low, high, SPARK_HEIGHT - 3, 3)
    return "".join(
        f"{'L' if index else 'M'}{x_axis(point.step):g} {y_axis(value):g}"
        for stretch in stretches(thin(course.points, SPARK_WIDTH))
        for index, (point, value) in enumerate(stretch)
    )


def gains(reader: RunReader) -> Gains | None:
    """The newest evaluation: its arms beside each other, base first; `None` if there is none."""
    evaluations = list(reader.evals().values())
    if not evaluations:
        return None
    summary = evaluations[-1]
    arms: Mapping[str, Row] = summary["arms"]
    verdict = summary["verdict"] or {"word": None, "reason": None}
    return Gains(
        id=summary["id"],
        split=summary["split"],
        questions=summary["questions"],
        samples=summary["samples"],
        arms=tuple(sorted(arms)),
        measures=_measures(arms, summary["temperature"]),
        differences=_differences(summary["differences"]),
        word=verdict["word"],
        reason=verdict["reason"],
    )


def _measures(arms: Mapping[str, Row], temperature: float) -> tuple[Measure, ...]:
    """Every measure with each arm's estimate: greedy first, then the best temperature, one sample, several."""
    found = {key: row for arm in sorted(arms) for key, row in arms[arm].items()}
    return tuple(
        Measure(
            _measure_label(key, found[key], temperature),
            tuple(_estimate(arms[arm][key]) if key in arms[arm] else NOT_MEASURED for arm in sorted(arms)),
        )
        for key in sorted(found, key=_measure_rank)
    )


def _estimate(row: Row) -> Estimate:
    return Estimate(row["value"], row["low"], row["high"], row["n"])


def _measure_rank(key: str) -> int:
    order = ("greedy", BEST, "pass@1", "maj", "pass")
    return order.index(key if key in order else key.partition("@")[0])


def _measure_label(key: str, row: Row, temperature: float) -> str:
    name, _, count = key.partition("@")
    if name == BEST:
        return f"Best temperature ({row['mode']}), chosen on other questions"
    if name == "greedy":
        return "Greedy"
    if key == "pass@1":
        return f"pass@1, one sample at temperature {temperature:g}"
    return f"{key}, {'the majority' if name == 'maj' else 'any'} of {count} samples"


def _differences(rows: Sequence[Row]) -> tuple[Difference, ...]:
    """Differences with their intervals on one axis around zero that holds them all."""
    estimates = [_estimate(row) for row in rows]
    ends = [abs(end) for each in estimates for end in (each.low, each.high) if end is not None]
    widest = max(ends, default=0.0) or 1.0
    axis = Axis(-widest, widest, 6, BAR_WIDTH - 6)
    return tuple(Difference(row["name"], each, _bar(each, axis)) for row, each in zip(rows, estimates, strict=True))


def _bar(each: Estimate, axis: Axis) -> tuple[float, float, float] | None:
    if each.value is None or each.low is None or each.high is None:
        return None
    return axis(each.low), axis(each.value), axis(each.high)
