"""No catastrophe is silent: nothing scored, nothing trained, everything lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cases import RECIPE, judge, rows, verdicts


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
