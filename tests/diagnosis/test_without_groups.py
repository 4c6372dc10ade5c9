"""Detectors where a critic stands in place of the group."""

from __future__ import annotations

import pytest
from cases import CRITIC, ONE, RECIPE, RUIN, dead, judge, rows


@pytest.mark.parametrize(
    ("objective", "asked"),
    [
        ({"baseline": "critic"}, False),
        ({"baseline": "none"}, False),
        ({"baseline": "batch_mean"}, False),
        ({"baseline": "none", "transform": "best_only"}, True),
        ({"baseline": "leave_one_out"}, True),
        ({}, True),
    ],
)
def test_equal_groups_are_dead_only_where_answers_of_a_group_are_compared(
    objective: dict[str, str], asked: bool
) -> None:
    found = judge("dead_groups_taking_over", dead(0.1, 0.6, 0.7), recipe={**RECIPE, "objective": objective})
    assert (found is not None) == asked


def test_without_signal_a_critic_is_still_trained() -> None:
    still = rows(grad_norm=[0.0] * 6, groups__with_signal=[0.0] * 6)
    assert judge("no_gradient", still) is None
    for recipe in (CRITIC, ONE):
        found = judge("no_gradient", still, recipe=recipe)
        assert found is not None
        assert found.values["signal"] is None
    lively = rows(loss=[0.0] * 6, grad_norm=[0.09] * 6, groups__with_signal=[0.0] * 6)
    assert judge("loss_zero_benign", lively) is None
    assert judge("loss_zero_benign", lively, recipe=CRITIC) is not None


def test_ruin_in_groups_of_one() -> None:
    """None of them counts as dead, so their share tells nothing: the reward does."""
    listed = rows(correct__mean=RUIN, groups__dead=[0.0] * 20)
    assert judge("policy_destroyed", listed) is None
    found = judge("policy_destroyed", listed, recipe=ONE)
    assert found is not None
    assert found.values["dead"] is None
