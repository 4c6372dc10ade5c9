"""The robust measures, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cupola.core.config import Recipe, validate
from cupola.watch.diagnosis import CannotJudge, Context, Points, Series
from cupola.watch.diagnosis.trend import (
    Change,
    change,
    from_best,
    from_lowest,
    level,
    share_change,
    since,
    window,
)


def points(*values: float) -> Points:
    return Points("x", np.arange(len(values)), np.array(values))


def test_windows_are_a_fifth_but_at_least_five_points() -> None:
    assert [window(n) for n in (3, 5, 20, 25, 100)] == [3, 5, 5, 5, 20]


def test_level_ignores_one_wild_step() -> None:
    assert level(points(9, 9, 9, 1, 1, 50, 1, 1)) == 1


def test_a_straight_line_has_no_noise() -> None:
    moved = change(points(*range(20)))
    assert (moved.first, moved.last, moved.noise) == (2, 17, 0)
    assert moved.rises(15)
    assert not moved.rises(15.1)
    assert not moved.falls(0)


def test_noise_of_a_zigzag() -> None:
    # nine differences of +1, nine of -1 and two of 0: their median is 0 and the median deviation from it 1
    values = [0, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert change(points(*values)).noise == pytest.approx(1.2533 * 1.4826 / math.sqrt(2) * math.sqrt(2 / 5))


def test_change_within_three_standard_errors_is_none() -> None:
    assert Change(0.0, 0.31, 0.1).rises(0.1)
    assert not Change(0.0, 0.29, 0.1).rises(0.1)
    assert Change(0.31, 0.0, 0.1).falls(0.1)
    assert not Change(0.0, 0.0, 0.0).rises(0)


def test_a_fall_from_the_best_by_hand() -> None:
    # windows of five: the best mean 0.8, the last 0; the one step down is a difference of -0.8 among ten, their mean
    # -0.08: sqrt(0.72² + 9·0.08²) = 0.7589, over sqrt(2·10) and times sqrt(2/5) 0.1073
    step, moved = from_best(points(*[0.8] * 6, *[0.0] * 5))
    assert (step, moved.first, moved.last) == (0, pytest.approx(0.8), 0)
    assert moved.noise == pytest.approx(0.1073, abs=1e-4)


def test_two_bad_batches_are_no_fall() -> None:
    assert from_best(points(*[0.8] * 8, 0.0, 0.0))[1].last == 0.8


def test_a_rise_from_the_lowest_by_hand() -> None:
    step, moved = from_lowest(points(3, 3, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4))
    assert (step, moved.first, moved.last) == (2, 1, 4)
    assert not from_lowest(points(*[1.0] * 8, 9.0, 9.0))[1].rises(0.1)


def test_share_change_by_hand() -> None:
    moved = share_change(points(0.4, 0.5, 0.6), np.array([100.0, 7.0, 50.0]))
    assert (moved.first, moved.last) == (0.4, 0.6)
    assert moved.noise == pytest.approx(math.sqrt(0.5 * 0.5 * (1 / 100 + 1 / 50)))


def test_share_change_from_the_best_point() -> None:
    moved = share_change(points(0.4, 0.8, 0.6), np.array([7.0, 100.0, 100.0]), start=1)
    assert (moved.first, moved.last) == (0.8, 0.6)
    assert moved.noise == pytest.approx(math.sqrt(2 * 0.7 * 0.3 / 100))


def test_one_answer_has_a_noise_too() -> None:
    # p is 0.5 at the least, as if one of two answers were right
    assert share_change(points(0.0, 1.0, 1.0), np.ones(3)).noise == pytest.approx(math.sqrt(0.25 * 2))


def test_share_change_of_nothing_right_still_has_noise() -> None:
    assert share_change(points(0.0, 0.0, 0.0), np.full(3, 100.0)).noise == pytest.approx(
        math.sqrt(2 * 0.01 * 0.99 / 100)
    )


def test_since_is_the_start_of_the_last_stay() -> None:
    assert since(points(1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1), 0.5) == 8
    assert since(points(1, 1, 1, 1, 1), 0.5) == 0


def test_values_that_are_no_number_are_left_out() -> None:
    rows = [{"step": i, "x": value} for i, value in enumerate([1.0, None, math.nan, math.inf, "2", True, 3])]
    found = Series(rows).points("x")
    assert (found.steps.tolist(), found.values.tolist()) == ([0, 6], [1.0, 3.0])


@pytest.mark.parametrize(("nulls", "found"), [(4, 6), (5, None)])
def test_what_lately_is_no_number_has_no_level(nulls: int, found: int | None) -> None:
    values: list[object] = [0.5] * 6 + [None, math.nan, "3", None, None][:nulls]
    series = Series([{"step": i, "x": value} for i, value in enumerate(values)])
    usable = series.find("x", points=5)
    assert (usable and len(usable)) == found
    if found is None:
        with pytest.raises(CannotJudge, match="latest x: 0 of the 5 points needed"):
            series.need("x", points=5)


def test_one_validation_without_a_number_is_enough_to_lapse() -> None:
    series = Series([{"step": i, "split": "validation", "x": value} for i, value in enumerate([0.5, 0.6, 0.7, None])])
    assert series.lapsed("x", "validation")
    with pytest.raises(CannotJudge, match="latest validation x: 0 of the 1 points needed"):
        series.need("x", points=3, split="validation")


def test_a_metric_that_is_recorded_now_and_then_has_not_lapsed() -> None:
    series = Series([{"step": i, **({"x": 1.0} if i % 10 == 0 else {})} for i in range(60)])
    assert not series.lapsed("x")
    assert not series.lapsed("never")


def test_numbers_beyond_all_measure_are_none_and_zero_has_no_sign() -> None:
    series = Series([{"step": i, "x": value} for i, value in enumerate([10**400, -(10**400), 1e305, 1e200, -0.0])])
    values = series.points("x").values.tolist()
    assert values == [1e200, 0.0]
    assert math.copysign(1, values[1]) == 1


def test_need_names_the_best_filled_key() -> None:
    series = Series([{"step": 0, "b": 1.0}, {"step": 1, "b": 2.0}])
    with pytest.raises(CannotJudge, match="b: 2 of the 3 points needed"):
        series.need("a", "b", points=3)


def test_roles_from_the_recipe() -> None:
    parts = [
        {"name": "tidy", "kind": "pattern"},
        {"name": "mine", "kind": "function"},
        {"name": "brief", "kind": "function", "role": "other"},
        {"name": "tagged", "kind": "function", "role": "format"},
    ]
    context = Context.of({"reward": parts, "validation": {"questions": 50, "samples": 0}}, [])
    assert context.correctness == ("correct/mean", "rewards/mine/mean")
    assert context.form == ("rewards/tidy/mean", "rewards/tagged/mean")
    assert context.answers == 50


@pytest.mark.parametrize(
    ("parts", "correct", "form"),
    [
        ([("a", "pattern", None), ("b", "exact", "other"), ("c", "exact", None)], "c", ("a",)),
        ([("a", "exact", None), ("b", "pattern", "correctness")], "b", ()),
        ([("a", "pattern", None), ("b", "pattern", None)], "a", ("b",)),
        ([("a", "exact", "other"), ("b", "pattern", "other")], "a", ()),
    ],
)
def test_correctness_is_the_part_that_the_recipe_names(
    parts: list[tuple[str, str, str | None]], correct: str, form: tuple[str, ...]
) -> None:
    extra = {"pattern": {"pattern": "x"}, "exact": {}}
    listed = [{"name": name, "kind": kind, "role": role, **extra[kind]} for name, kind, role in parts]
    context = Context.of({"reward": listed}, [])
    assert context.correctness == ("correct/mean", f"rewards/{correct}/mean")
    assert context.form == tuple(f"rewards/{name}/mean" for name in form)
    recipe = validate({"data": {"task": "arithmetic"}, "reward": listed}, Recipe)
    assert recipe.correctness_part() == correct


def test_roles_from_names() -> None:
    keys = ["rewards/format_reward/mean", "rewards/accuracy_reward/mean", "rewards/quality/mean", "reward"]
    context = Context.of(None, keys)
    assert context.correctness == ("correct/mean", "rewards/accuracy_reward/mean")
    assert context.form == ("rewards/format_reward/mean",)
