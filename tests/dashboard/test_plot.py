from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.dashboard.figures import line
from cupola.dashboard.plot import (
    BOTTOM,
    HEIGHT,
    TOP,
    WIDTH,
    Axis,
    Chart,
    Curve,
    Point,
    caption,
    plot,
    stretches,
    table,
    thin,
    tick_label,
    ticks,
)
from cupola.dashboard.summary import spark
from cupola.dashboard.text import number


def chart(*values: float | None, limit: tuple[float, str] | None = None) -> Chart:
    points = tuple(Point(step, value) for step, value in enumerate(values, 1))
    return Chart("Reward", "mean", (Curve("reward", points),), limit=limit)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 0.054, [0, 0.02, 0.04, 0.06]),
        (-3, 7, [-4, -2, 0, 2, 4, 6, 8]),
        (0, 12800, [0, 5000, 10000, 15000]),
        (0, 1e-6, [0, 2e-7, 4e-7, 6e-7, 8e-7, 1e-6]),
    ],
)
def test_ticks_are_round_and_cover_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


def test_steps_have_whole_ticks() -> None:
    assert ticks(1, 3, 6, whole=True) == [1, 2, 3]


def test_tick_labels_are_short() -> None:
    assert [tick_label(v) for v in (0.25, 5000, 12500, 1.5e6, -2, 2e-7)] == [
        "0.25",
        "5k",
        "12.5k",
        "1.5M",
        "−2",
        "2e−7",
    ]


def test_an_axis_maps_its_ends_and_its_middle() -> None:
    axis = Axis(0, 10, 100, 0)
    assert [axis(0), axis(5), axis(10)] == [100, 50, 0]


def test_a_missing_value_is_a_gap_and_never_a_zero() -> None:
    mark = plot(chart(1.0, 2.0, None, 3.0)).marks[0]
    assert mark.path.count("M") == 1
    assert mark.path.count("L") == 1
    assert len(mark.dots) == 1, "a point between gaps has no line, so it is drawn as a dot"
    assert [len(s) for s in stretches(chart(1.0, 2.0, None, 3.0).curves[0].points)] == [2, 1]


def test_the_value_axis_starts_at_zero() -> None:
    drawing = plot(chart(5.0, 10.0))
    assert drawing.y_ticks[0] == (BOTTOM, "0")
    assert drawing.y_ticks[-1] == (TOP, "10")


def test_the_limit_is_inside_the_axis() -> None:
    drawing = plot(chart(5.0, 10.0, limit=(40.0, "cap 40")))
    assert drawing.limit == (TOP, "cap 40")


def test_one_step_is_drawn_in_the_middle() -> None:
    drawing = plot(chart(0.5))
    assert drawing.x_ticks == ((227.0, "1"),)
    assert drawing.marks[0].dots == ((227.0, drawing.marks[0].dots[0][1]),)


def test_intervals_become_whiskers() -> None:
    curve = Curve("validation", (Point(0, 0.5, 0.4, 0.6), Point(1, 0.7)), measured=True)
    mark = plot(Chart("Right", "share", (curve,), fixed=(0, 1))).marks[0]
    assert len(mark.whiskers) == 1
    assert mark.whiskers[0][1] - mark.whiskers[0][2] == pytest.approx(0.2 * (BOTTOM - TOP), abs=0.11)


def test_the_caption_tells_first_last_least_and_greatest() -> None:
    assert caption(chart(1.0, None, 4.0, 3.0)) == "Reward 1 → 3, between 1 and 4."
    assert caption(chart(None, 4.0)) == "Reward 4 at step 2."


def test_the_table_has_a_dash_for_no_data() -> None:
    assert table(chart(0.5, None)) == (1, [["1", "0.500"], ["2", "–"]])


def test_a_long_table_says_how_many_steps_it_leaps() -> None:
    every, rows = table(chart(*[1.0] * 1000))
    assert every == 9
    assert (rows[0][0], rows[1][0], rows[-1][0]) == ("1", "10", "1000")


def test_thinning_keeps_the_ends_the_spike_and_the_gap() -> None:
    values: list[float | None] = [1.0] * 10_000
    values[5000], values[7000] = 99.0, None
    kept = thin(chart(*values).curves[0].points, 300)
    assert len(kept) <= 303
    assert (kept[0].step, kept[-1].step) == (1, 10_000)
    assert 99.0 in [point.value for point in kept]
    assert None in [point.value for point in kept]


values = st.lists(st.one_of(st.none(), st.floats(-1e9, 1e9, allow_subnormal=False)), min_size=1, max_size=40)


@given(values.filter(lambda listed: any(value is not None for value in listed)))
def test_every_coordinate_lies_in_the_box(listed: list[float | None]) -> None:
    drawing = plot(chart(*listed))
    for mark in drawing.marks:
        corners = mark.path.replace("M", " ").replace("L", " ").split()
        assert all(0 <= float(x) <= WIDTH for x in corners[::2])
        assert all(0 <= float(y) <= HEIGHT for y in corners[1::2])
    assert all(x >= 0 and width >= 0 and x + width <= WIDTH for x, width, _ in drawing.bands)


@pytest.mark.parametrize("odd", [10**400, 1e308, -1e308, 1e200, 5e-324, -0.0, "0.5"])
def test_no_value_is_too_odd_for_a_chart(odd: Any) -> None:
    for values in ([odd, odd], [odd, 1.0], [0.5, odd, None]):
        rows = [{"step": step, "x": value} for step, value in enumerate(values, 1)]
        curve = line(rows, "x", "x")
        if curve.known:
            drawn = repr(plot(Chart("x", "x", (curve,)))) + spark(curve)
            assert "nan" not in drawn
            assert "inf" not in drawn
            assert len(caption(Chart("x", "x", (curve,)))) < 80


def test_huge_numbers_have_short_labels() -> None:
    assert (tick_label(2e15), number(1e200), number(10**400)) == ("2e+15", "1.00e+200", "–")
