"""Line charts as plain geometry: what a template needs to draw one as SVG, with no script and no inline style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cupola.dashboard.text import NO_DATA, number

WIDTH, HEIGHT = 420, 210
LEFT, RIGHT, TOP, BOTTOM = 42, 412, 10, 182

#: No series is drawn with more points than this; what is left out never includes an extreme of its stretch.
MOST_POINTS = 600
#: Rows of a chart's table, and stretches that name their values under the pointer.
MOST_ROWS = 120


@dataclass(frozen=True)
class Point:
    """A value at a step, with its 95% interval where there is one. `None` is a gap, not zero."""

    step: float
    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """One line of a chart; `measured` series are drawn as points with intervals, others as a line alone."""

    label: str
    points: tuple[Point, ...]
    measured: bool = False

    @property
    def known(self) -> list[Point]:
        return [point for point in self.points if point.value is not None]


@dataclass(frozen=True)
class Chart:
    """What a chart shows. `fixed` sets the value axis; `limit` is a labelled horizontal line."""

    title: str
    unit: str
    series: tuple[Series, ...]
    fixed: tuple[float, float] | None = None
    limit: tuple[float, str] | None = None

    @property
    def drawn(self) -> list[Series]:
        """The series that have a value at all."""
        return [series for series in self.series if series.known]


@dataclass(frozen=True)
class Axis:
    """A linear map from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value, to a tenth."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class Mark:
    """One series as drawn: its path, the points that stand alone or are measured, and whiskers (x, low, high)."""

    path: str
    dots: tuple[tuple[float, float], ...]
    whiskers: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Plot:
    """A chart's geometry in a box of WIDTH x HEIGHT."""

    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    marks: tuple[Mark, ...]
    bands: tuple[tuple[float, float, str], ...]
    limit: tuple[float, str] | None


def ticks(low: float, high: float, most: int = 5, whole: bool = False) -> list[float]:
    """Round values that cover [low, high]: multiples of 1, 2, 2.5 or 5 times a power of ten, about `most` of them."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = max(1.0, round(step)) if whole else step
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [float(f"{index * step:.9g}") for index in range(first, last + 1)]


def tick_label(value: float) -> str:
    """A short label: 0.25, 12k, 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}".replace("-", "−")
    return f"{value:g}".replace("-", "−").replace("e−0", "e−")


def plot(chart: Chart) -> Plot:
    """The geometry of a chart that has at least one value."""
    x_values, x_axis = _step_axis([point.step for series in chart.drawn for point in series.points])
    y_values = _value_ticks(chart)
    y_axis = Axis(y_values[0], y_values[-1], BOTTOM, TOP)
    return Plot(
        x_ticks=tuple((x_axis(value), tick_label(value)) for value in x_values),
        y_ticks=tuple((y_axis(value), tick_label(value)) for value in y_values),
        marks=tuple(_mark(series, x_axis, y_axis) for series in chart.drawn),
        bands=_bands(chart, x_axis),
        limit=(y_axis(chart.limit[0]), chart.limit[1]) if chart.limit else None,
    )


def _step_axis(steps: Sequence[float]) -> tuple[list[float], Axis]:
    low, high = min(steps), max(steps)
    if low == high:
        return [low], Axis(low - 1, low + 1, LEFT, RIGHT)
    inside = [value for value in ticks(low, high, 6, whole=True) if low <= value <= high]
    return inside, Axis(low, high, LEFT + 6, RIGHT - 6)


def _value_ticks(chart: Chart) -> list[float]:
    """Ticks of the value axis, which starts at zero unless a value lies below it."""
    if chart.fixed:
        return ticks(*chart.fixed)
    points = [point for series in chart.drawn for point in series.known]
    values = [v for point in points for v in (point.value, point.low, point.high) if v is not None]
    values += [chart.limit[0]] if chart.limit else []
    low, high = min(0.0, *values), max(0.0, *values)
    return ticks(low, high) if high > low else [0.0, 1.0]


def _mark(series: Series, x_axis: Axis, y_axis: Axis) -> Mark:
    path: list[str] = []
    dots: list[tuple[float, float]] = []
    for stretch in stretches(thin(series.points)):
        corners = [(x_axis(point.step), y_axis(value)) for point, value in stretch]
        if len(corners) > 1:
            path += [f"{'L' if index else 'M'}{x:g} {y:g}" for index, (x, y) in enumerate(corners)]
        if len(corners) == 1 or series.measured:
            dots += corners
    whiskers = tuple(
        (x_axis(point.step), y_axis(point.low), y_axis(point.high))
        for point in series.known
        if point.low is not None and point.high is not None
    )
    return Mark("".join(path), tuple(dots), whiskers)


def stretches(points: Iterable[Point]) -> list[list[tuple[Point, float]]]:
    """Unbroken stretches of points that have a value: a missing value ends one."""
    found: list[list[tuple[Point, float]]] = [[]]
    for point in points:
        if point.value is not None:
            found[-1].append((point, point.value))
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most about `most` points: of each stretch its first gap, its least and its greatest value; and both ends."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(3 * len(points) / most)
    kept = {0, len(points) - 1}
    for start in range(0, len(points), size):
        span = range(start, min(start + size, len(points)))
        known = [(value, index) for index in span if (value := points[index].value) is not None]
        kept.update(index for _, index in (min(known), max(known))) if known else None
        kept.update([index for index in span if points[index].value is None][:1])
    return [points[index] for index in sorted(kept)]


def table(chart: Chart) -> tuple[int, list[list[str]]]:
    """(every how many steps there is a row, the rows): step, then each series' value, with its interval if known."""
    by_step = [{point.step: point for point in series.points} for series in chart.drawn]
    steps = sorted({step for points in by_step for step in points})
    every = math.ceil(len(steps) / MOST_ROWS) or 1
    chosen = [step for index, step in enumerate(steps) if index % every == 0 or step == steps[-1]]
    return every, [[f"{step:g}", *(cell(points.get(step)) for points in by_step)] for step in chosen]


def cell(point: Point | None) -> str:
    """A point's value in words, with its interval."""
    if point is None or point.value is None:
        return NO_DATA
    interval = "" if point.low is None else f" ({number(point.low)} to {number(point.high)})"
    return number(point.value) + interval


def _bands(chart: Chart, x_axis: Axis) -> tuple[tuple[float, float, str], ...]:
    """(x, width, text) of the stretches that tell their values under the pointer, without any script."""
    _, rows = table(chart)
    labels = [series.label for series in chart.drawn]
    centres = [x_axis(float(row[0])) for row in rows]
    middles = [(a + b) / 2 for a, b in pairwise(centres)]
    edges = [float(LEFT), *middles, float(RIGHT)]
    texts = [
        "\n".join([f"step {row[0]}", *(f"{name}: {value}" for name, value in zip(labels, row[1:], strict=True))])
        for row in rows
    ]
    return tuple(
        (round(left, 1), round(right - left, 1), text)
        for (left, right), text in zip(pairwise(edges), texts, strict=True)
    )


def caption(chart: Chart) -> str:
    """The reading in one sentence: first and last value, least and greatest, of every series."""
    sentence = "; ".join(_reading(series) for series in chart.drawn)
    return sentence[:1].upper() + sentence[1:] + "."


def _reading(series: Series) -> str:
    values = [(point.value, point) for point in series.known if point.value is not None]
    (first, start), last = values[0], values[-1][0]
    if len(values) == 1:
        return f"{series.label} {number(first)} at step {start.step:g}"
    low, high = min(value for value, _ in values), max(value for value, _ in values)
    return f"{series.label} {number(first)} → {number(last)}, between {number(low)} and {number(high)}"
