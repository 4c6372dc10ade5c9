"""From a batch to advantages: transforms, several rewards apart, whitening. Worked by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
from loop_parts import group, recipe

from cupola.core.records import Group, Verdict
from cupola.train.loop import Batch, batch_advantages
from cupola.train.loop.batch import Before


def encode(content: object) -> list[int]:
    return [1]


def two_rewards(one: Group, second: list[float]) -> Group:
    """The group with a further reward part beside `correct`; the total is their sum."""
    rollouts = [
        replace(r, verdicts={**r.verdicts, "form": Verdict(s, "ok")}, reward=None if r.reward is None else r.reward + s)
        for r, s in zip(one.rollouts, second, strict=True)
    ]
    return replace(one, rollouts=tuple(rollouts))


def test_tokens_whiten_with_long_answers_counting_more() -> None:
    """A: 1/2 on one token, -1/2 on three; mean -1/4, variance (9/16 + 3/16) / 3 = 1/4."""
    batch = Batch.of([group("g", "1+2=", [(1, 1.0, True), (3, 0.0, False)])], encode)
    found = batch_advantages(batch, Before(), recipe({"preset": "reinforce_pp_baseline"}))
    assert found.spread == pytest.approx(0.5)
    assert found.values[:, 0].tolist() == pytest.approx([1.5, -0.5])


def test_reinforce_pp_has_no_group() -> None:
    """Rewards 1 and 0 on two tokens each: mean 1/2, variance 4/4 / 3 = 1/3."""
    batch = Batch.of([group("g", "1+2=", [(2, 1.0, True), (2, 0.0, False)])], encode)
    found = batch_advantages(batch, Before(), recipe({"preset": "reinforce_pp"}))
    assert found.values[:, 0].tolist() == pytest.approx([sqrt(3) / 2, -sqrt(3) / 2], rel=1e-6)


def test_rewards_normalised_apart_do_not_drown_in_each_other() -> None:
    """Parts (1, 0) and (0, 100): the sum is all the second's; apart they cancel but for their weights 1 and 1/2."""
    one = two_rewards(group("g", "1+2=", [(2, 1.0, True), (2, 0.0, False)]), [0.0, 100.0])
    parts = [{"name": "correct", "kind": "exact"}, {"name": "form", "kind": "pattern", "pattern": "a", "weight": 0.5}]
    settings = recipe({"preset": "gdpo", "scale_epsilon": 0.0, "whiten": "none"}, reward=parts)
    found = batch_advantages(Batch.of([one], encode), Before(), settings)
    each = sqrt(0.5)  # +-1/2 over the standard deviation sqrt(1/2) of two equally far values
    assert found.values[:, 0].tolist() == pytest.approx([each - each / 2, each / 2 - each])
    whitened = batch_advantages(
        Batch.of([one], encode), Before(), recipe({"preset": "gdpo", "scale_epsilon": 0.0}, reward=parts)
    )
    assert whitened.spread == pytest.approx(0.5 + 1e-4)  # the advantages are +-sqrt(1/8); their deviation is 1/2
    assert whitened.values[:, 0].tolist() == pytest.approx([sqrt(0.125) / 0.5001, -sqrt(0.125) / 0.5001])


def test_pass_at_k_pays_a_right_answer_k_and_a_wrong_one_its_share_of_luck() -> None:
    """One right of four, k = 2: a right one is worth 2, a wrong one 2 (1 - C(2,1) / C(3,1)) = 2/3; the mean is 1."""
    batch = Batch.of([group("g", "1+2=", [(2, 1.0, True), *[(2, 0.0, False)] * 3])], encode)
    found = batch_advantages(batch, Before(), recipe({"preset": "pass_at_k", "pass_k": 2}))
    assert found.values[:, 0].tolist() == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])


def test_a_group_with_fewer_rewards_than_k_has_no_pass_at_k() -> None:
    few = group("few", "5=", [(2, 1.0, True), (2, None, None), (2, None, None), (2, 0.0, False)])
    found = batch_advantages(Batch.of([few], encode), Before(), recipe({"preset": "pass_at_k", "pass_k": 3}))
    assert found.values[:, 0].tolist() == [0.0] * 4


def test_maxrl_divides_by_the_groups_mean() -> None:
    """Mean 1/4: (1 - 1/4) / (1/4) = 3 for the right one, -1 for the others; a group without a right one is 0."""
    groups = [
        group("g", "1+2=", [(2, 1.0, True), *[(2, 0.0, False)] * 3]),
        group("dead", "5=", [(2, 0.0, False)] * 4),
    ]
    found = batch_advantages(Batch.of(groups, encode), Before(), recipe({"preset": "maxrl"}))
    assert found.values[:, 0].tolist() == pytest.approx([3.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0])
