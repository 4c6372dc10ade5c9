"""No catastrophe is silent: nothing scored, nothing trained, everything lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cases import CLIMBING, FALL, RECIPE, RISE, STILL, Rows, judge, lacks, rows, verdicts

from cupola.watch.diagnosis import LiveDiagnosis, diagnose_rows

LOST = [0.8] * 30 + [0.0] * 30
FALLEN = [0.8, 0.6, 0.35, 0.1]


def names(*parts: Rows) -> list[str]:
    return [found.name for found in diagnose_rows([row for part in parts for row in part], RECIPE).findings]


@pytest.mark.parametrize(
    ("lost", "share"),
    [
        ({"error": 9.0}, None),  # nine of a hundred answers
        ({"timeout": 10.0}, 0.1),
        ({"gold_bad": 150.0}, 1.0),  # two parts may fail on one answer: an upper bound, and no more than all
        ({"parse_fail": 100.0, "wrong": 100.0}, None),  # these have a score
        ({"groups": 0.1}, 0.0),
    ],
)
def test_answers_without_a_reward(lost: dict[str, float], share: float | None) -> None:
    found = judge("unscored", verdicts(**lost))
    assert (found and found.values["rollouts"]) == share


def test_a_burst_of_failures_is_no_outlier() -> None:
    log = verdicts(4) + verdicts(1, error=60.0)
    for step, row in enumerate(log):
        row["step"] = step
    found = judge("unscored", log)
    assert found is not None
    assert found.values["rollouts"] == 0.12  # 60 of the 500 answers


def test_an_optional_part_may_skip() -> None:
    recipe = {**RECIPE, "reward": [{"name": "a", "kind": "exact"}, {"name": "b", "kind": "function", "optional": True}]}
    assert judge("unscored", verdicts(skipped=100.0), recipe=recipe) is None
    found = judge("unscored", verdicts(skipped=100.0, error=12.0), recipe=recipe)
    assert found is not None
    assert (found.values["rollouts"], found.values["status"]) == (0.12, "error")
    alone = judge("unscored", verdicts(skipped=200.0, groups=1.0), recipe=recipe)
    assert alone is not None
    assert (alone.severity, alone.values["status"]) == ("error", "skipped")


def test_that_nothing_is_scored_is_an_error_at_once() -> None:
    found = judge("unscored", verdicts(5, error=200.0, groups=1.0), recipe={**RECIPE, "run": {"steps": 100}})
    assert found is not None
    assert found.severity == "error"


def test_a_gradient_at_some_steps_is_one() -> None:
    assert judge("no_gradient", rows(grad_norm=[None, 0.0, 0.0, 0.1, None, 0.0])) is None


def test_without_signal_no_gradient_is_expected() -> None:
    assert judge("no_gradient", rows(grad_norm=[None] * 6, groups__with_signal=[0.0] * 6)) is None


@pytest.mark.parametrize(
    ("listed", "name", "severity"),
    [
        (rows(reward=[math.nan] * 6), "unscored", "error"),
        (rows(reward=[None] * 6, groups__unscorable=[1.0] * 6, grad_norm=[None] * 6), "unscored", "error"),
        (rows(reward=[0.4, 0.5, 0.6] * 4, grad_norm=[math.nan] * 12), "no_gradient", "error"),
        (rows(reward=[0.4, 0.5, 0.6] * 4, grad_norm=[0.0] * 12), "no_gradient", "error"),
        (rows(reward=[0.5] * 20), "dead_groups_taking_over", "warning"),
        (rows(reward=[0.5] * 5, reward_std=[0.0] * 5), "dead_groups_taking_over", "warning"),
        (rows(reward=[0.5, 0.4, 0.1, *[0.0] * 7]), "policy_destroyed", "error"),
        (rows(reward=[0.5, *[0.0] * 9]), "policy_destroyed", "error"),
        (
            rows(correct__mean=[0.1, *[0.0] * 9]) + rows("validation", every=5, correct__mean=[0.15, 0.01]),
            "policy_destroyed",
            "error",
        ),
        (rows(correct__mean=[0.0] * 20), "flat_near_floor", "warning"),
        (rows(correct__mean=LOST, groups__dead=[0.1] * 60), "correctness_falls", "error"),
        (rows(correct__mean=[0.8 - 0.7 * i / 59 for i in range(60)]), "correctness_falls", "warning"),
        (rows(correct__mean=STILL) + rows("validation", correct__mean=FALLEN), "correctness_falls", "warning"),
        (rows(reward=[8.0 - 0.3 * i for i in range(20)]), "correctness_falls", "warning"),
        (
            rows(correct__mean=[0.5] * 60, entropy=[0.5 + 0.18 * i for i in range(60)], grad_norm=[1e6] * 60),
            "entropy_explosion",
            "warning",
        ),
        (
            rows(correct__mean=[0.0] * 20, groups__with_signal=[1.0] * 20, groups__no_signal=[1.0] * 20),
            "flat_near_floor",
            "warning",
        ),
    ],
)
def test_no_catastrophe_is_silent(listed: list[dict[str, Any]], name: str, severity: str) -> None:
    found = judge(name, listed, recipe=None)
    assert found is not None
    assert found.severity == severity


def test_a_lucky_first_step_of_a_hard_task_is_no_level() -> None:
    assert judge("policy_destroyed", rows(correct__mean=[0.1, *[0.0] * 19])) is None


def test_harder_training_questions_are_no_fall_from_validation() -> None:
    held_out = rows("validation", every=5, correct__mean=[0.5, 0.52])
    assert judge("policy_destroyed", rows(correct__mean=[0.03] * 10), held_out) is None


def test_the_deeper_fall_is_told() -> None:
    held_out = rows("validation", every=20, correct__mean=[0.2, 0.8, 0.5, 0.35])
    found = judge("correctness_falls", rows(correct__mean=RISE), held_out)
    assert found is None  # training rises: that is train_up_eval_down
    found = judge("correctness_falls", rows(correct__mean=[0.5] * 60), held_out)
    assert found is not None
    assert (found.values["key"], found.values["best_step"], found.steps) == ("validation correct/mean", 20, (20, 60))
    found = judge("correctness_falls", rows(correct__mean=[0.5] * 53 + [0.0] * 7, groups__dead=[0.1] * 60), held_out)
    assert found is not None
    # 7 of the last 12 steps lie at 0, so 0.5·5/12 is left: 0.42 of the level, in validation 0.35/0.8 = 0.44
    assert (found.values["key"], found.severity) == ("correct/mean", "warning")


def test_a_run_that_rose_and_fell_is_not_learning() -> None:
    held_out = rows("validation", every=20, correct__mean=[0.2, 0.8, 0.5, 0.45])
    assert names(rows(correct__mean=[0.5] * 60), held_out) == ["correctness_falls"]


def test_a_fall_has_one_name() -> None:
    ruin = rows(correct__mean=LOST, groups__dead=[0.1] * 30 + [1.0] * 30)
    assert names(ruin) == ["policy_destroyed"]
    overfit = rows("validation", every=5, correct__mean=[0.50, 0.55, 0.40, 0.30])
    assert names(rows(correct__mean=RISE), overfit) == ["train_up_eval_down"]
    assert names(rows(rewards__answer__mean=FALL, rewards__form__mean=CLIMBING)) == ["format_up_correctness_down"]


def test_small_or_noisy_falls_are_none() -> None:
    assert names(rows(correct__mean=[0.5] * 10 + [0.38] * 10)) == []
    assert names(rows(correct__mean=[1.0, 0.0, 1.0, 1.0, 0.0] * 3 + [0.0, 0.0, 1.0, 0.0, 1.0])) == []


def test_a_live_fall_of_validation_stays_told_when_training_has_points_enough() -> None:
    reported: list[tuple[int, str, str]] = []
    live = LiveDiagnosis(
        {**RECIPE, "run": {"steps": 60}}, lambda step, found: reported.append((step, found.name, found.severity))
    )
    validation = dict(zip((0, 8, 16, 24), FALLEN, strict=True))
    for step in range(31):
        log = rows(correct__mean=[0.5])
        if step in validation:
            log += rows("validation", correct__mean=[validation[step]])
        live(step, [{**row, "step": step} for row in log], [])
    assert reported == [(16, "correctness_falls", "warning")]


def test_a_wreck_is_not_blamed_on_the_task() -> None:
    """The first step ruins the policy; validation every eight steps."""
    dead = {
        "groups__dead": [0.3] + [1.0] * 24,
        "groups__dead_wrong": [0.2] + [1.0] * 24,
        "groups__dead_right": [0.0] * 25,
    }
    wreck = rows(correct__mean=[0.1] + [0.0] * 24, **dead)
    assert names(wreck, rows("validation", every=8, correct__mean=[0.44, 0.0, 0.0, 0.0])) == ["policy_destroyed"]
    assert names(wreck, rows("validation", correct__mean=[0.44])) == ["policy_destroyed"]
    assert names(wreck, rows("validation", every=8, correct__mean=[0.0, 0.44, 0.0, 0.0])) == ["policy_destroyed"]
    hard = rows(correct__mean=[0.0] * 25, groups__dead=[1.0] * 25)
    assert names(hard, rows("validation", correct__mean=[0.44])) == ["flat_near_floor", "dead_groups_taking_over"]
    assert names(hard, rows("validation", every=8, correct__mean=[0.44, 0.2, 0.1, 0.05])) == ["correctness_falls"]


def test_exploration_that_pays_is_no_explosion() -> None:
    assert judge("entropy_explosion", rows(entropy=[0.5] * 10 + [2.0] * 10, correct__mean=RISE)) is None
    assert judge("entropy_explosion", rows(entropy=[0.06] * 10 + [0.3] * 10, correct__mean=STILL)) is None
    assert judge("entropy_explosion", rows(entropy=[3.0] * 10 + [4.5] * 10, correct__mean=STILL)) is None


def test_a_gradient_norm_alone_is_no_finding() -> None:
    assert names(rows(correct__mean=STILL, grad_norm=[10.0**i for i in range(20)])) == []


def test_what_became_null_is_not_judged_by_yesterday() -> None:
    gone = [0.97] * 30 + [None] * 30
    log = rows(correct__mean=gone, entropy=gone, groups__dead=gone, groups__dead_right=gone, groups__dead_wrong=gone)
    assert names(log) == []
    missing = lacks(log)
    assert missing["flat_near_ceiling"] == ("latest correct/mean", 0, 5)
    assert missing["entropy_collapse"] == ("latest entropy", 0, 5)
    assert {"dead_groups_taking_over", "policy_destroyed", "correctness_falls", "flat_near_floor"} <= set(missing)


def test_the_gradient_of_the_distance_alone_is_not_benign() -> None:
    quiet: dict[str, list[float | None]] = {"loss": [0.0] * 6, "grad_norm": [0.1] * 6}
    assert judge("loss_zero_benign", rows(**quiet, groups__with_signal=[0.0] * 6)) is None
    assert judge("loss_zero_benign", rows(**quiet, frac_reward_zero_std=[1.0] * 6)) is None
    assert judge("loss_zero_benign", rows(**quiet, reward=[None] * 6)) is None
    assert judge("loss_zero_benign", rows(**quiet, groups__with_signal=[0.5] * 6)) is not None


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e200, -1e200, 1e308, -0.0, 5e-324, "0.5", [], {}, True])
def test_no_value_is_too_odd(value: Any) -> None:
    log = rows(
        **dict.fromkeys(["correct__mean", "reward", "reward_std", "entropy", "loss", "grad_norm"], [value, 0.5] * 10)
    )
    held_out = rows("validation", correct__mean=[0.5, value, 0.5, 0.4], correct__answers=[value, -5, 0, 100])
    for recipe in (RECIPE, None):
        found = diagnose_rows(log + held_out, recipe).findings
        assert all(math.isfinite(number) for each in found for number in each.values.values() if type(number) is float)


def test_a_fall_below_zero_has_a_share_too() -> None:
    assert (
        judge("correctness_falls", rows("validation", correct__mean=[0.0, -1.0, -2.0]), rows(reward=STILL)) is not None
    )
