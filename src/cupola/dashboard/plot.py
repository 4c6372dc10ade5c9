"""Line charts as plain geometry: what a template needs to draw one as SVG, with no script and no inline style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cupola.dashboard.text import NO_DATA, number

WIDTH, HEIGHT = 420, 210
LEFT, RIGHT, TOP, BOTTOM = 42, 412, 10, 182

#: No curve is drawn with more points than this; what is left out never includes an extreme of its stretch.
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
class Curve:
    """One line of a chart; `measured` ones are drawn as points with intervals, others as a line alone."""

    label: str
    points: tuple[Point, ...]
    measured: bool = False

    @property
    def known(self) -> list[tuple[Point, float]]:
        """The points that have a value, with it."""
        return [(point, point.value) for point in self.points if point.value is not None]


@dataclass(frozen=True)
class Chart:
    """What a chart shows. `fixed` sets the value axis; `limit` is a labelled horizontal line."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    fixed: tuple[float, float] | None = None
    limit: tuple[float, str] | None = None

    @property
    def drawn(self) -> list[Curve]:
        """The curves that have a value at all."""
        return [curve for curve in self.curves if curve.known]


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
    """One curve as drawn: its path, the points that stand alone or are measured, and whiskers (x, low, high)."""

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
    """A short label: 0.25, 12k, 1.5M, 2e+15."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(value) < 1e12:
            return f"{value / size:g}{letter}".replace("-", "−")
    return f"{value:g}".replace("-", "−").replace("e−0", "e−")


def plot(chart: Chart) -> Plot:
    """The geometry of a chart that has at least one value."""
    x_values, x_axis = _step_axis([point.step for curve in chart.drawn for point in curve.points])
    y_values = _value_ticks(chart)
    y_axis = Axis(y_values[0], y_values[-1], BOTTOM, TOP)
    return Plot(
        x_ticks=tuple((x_axis(value), tick_label(value)) for value in x_values),
        y_ticks=tuple((y_axis(value), tick_label(value)) for value in y_values),
        marks=tuple(_mark(curve, x_axis, y_axis) for curve in chart.drawn),
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
    known = [pair for curve in chart.drawn for pair in curve.known]
    values = [v for point, value in known for v in (value, point.low, point.high) if v is not None]
    values += [chart.limit[0]] if chart.limit else []
    low, high = min(0.0, *values), max(0.0, *values)
    return ticks(low, high) if high > low else [0.0, 1.0]


def _mark(curve: Curve, x_axis: Axis, y_axis: Axis) -> Mark:
    path: list[str] = []
    dots: list[tuple[float, float]] = []
    for stretch in stretches(thin(curve.points)):
        corners = [(x_axis(point.step), y_axis(value)) for point, value in stretch]
        if len(corners) > 1:
            path += [f"{'L' if index else 'M'}{x:g} {y:g}" for index, (x, y) in enumerate(corners)]
        if len(corners) == 1 or curve.measured:
            dots += corners
    whiskers = tuple(
        (x_axis(point.step), y_axis(point.low), y_axis(point.high))
        for point, _ in curve.known
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
        if known:
            kept |= {min(known)[1], max(known)[1]}
        kept.update([index for index in span if points[index].value is None][:1])
    return [points[index] for index in sorted(kept)]


def table(chart: Chart) -> tuple[int, list[list[str]]]:
    """(every how many steps there is a row, the rows): step, then each curve's value, with its interval if known."""
    by_step = [{point.step: point for point in curve.points} for curve in chart.drawn]
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
    labels = [curve.label for curve in chart.drawn]
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
    """The chart in one sentence: first and last value, least and greatest, of every curve."""
    sentence = "; ".join(_course(curve) for curve in chart.drawn)
    return sentence[:1].upper() + sentence[1:] + "."


def _course(curve: Curve) -> str:
    start, values = curve.known[0][0], [value for _, value in curve.known]
    if len(values) == 1:
        return f"{curve.label} {number(values[0])} at step {start.step:g}"
    first, last, low, high = (number(value) for value in (values[0], values[-1], min(values), max(values)))
    return f"{curve.label} {first} → {last}, between {low} and {high}"
