"""Advantages against numbers worked by hand, and their invariants."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.train.objectives import BASELINES, SCALES, advantages, dead_groups, group_mean, group_std


def tensors(rewards: list[list[float | None]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, groups and scored from a list per group; `None` is a rollout without a reward, held as NaN."""
    flat = [(reward, g) for g, group in enumerate(rewards) for reward in group]
    values = torch.tensor([math.nan if reward is None else reward for reward, _ in flat], dtype=torch.float64)
    scored = torch.tensor([reward is not None for reward, _ in flat])
    return values, torch.tensor([g for _, g in flat]), scored


def test_group_mean_by_hand() -> None:
    rewards, groups, scored = tensors([[1.0, 0.0, 0.0, 0.0], [2.0, None, 5.0], [7.0]])
    assert group_mean(rewards, groups, scored).tolist() == [0.25, 0.25, 0.25, 0.25, 3.5, 3.5, 3.5, 7.0]


def test_group_std_has_bessels_correction() -> None:
    # [1,0,0,0]: squares of deviations .5625 + 3 * .0625 = .75, / 3 = .25; [2,5]: 2 * 1.5^2 / 1 = 4.5
    rewards, groups, scored = tensors([[1.0, 0.0, 0.0, 0.0], [2.0, None, 5.0], [7.0], [None, None]])
    expected = [0.5] * 4 + [math.sqrt(4.5)] * 3 + [0.0] + [0.0] * 2
    assert group_std(rewards, groups, scored).tolist() == pytest.approx(expected, abs=1e-15)


def test_advantages_by_hand() -> None:
    # one right of four: (1 - .25) / (.5 + 1e-4) and (0 - .25) / (.5 + 1e-4)
    found = advantages(*tensors([[1.0, 0.0, 0.0, 0.0]]))
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([1.4997000599880024, *[-0.4999000199960008] * 3], rel=1e-14)


def test_without_a_scale_the_advantage_is_the_difference() -> None:
    assert advantages(*tensors([[1.0, 0.0, 0.0, 0.0]]), scale="none").tolist() == [0.75, -0.25, -0.25, -0.25]


def test_without_a_baseline_the_advantage_is_the_reward() -> None:
    found = advantages(*tensors([[0.5, 0.5], [3.0], [None, 2.0]]), baseline="none", scale="none")
    assert found.tolist() == [0.5, 0.5, 3.0, 0.0, 2.0]


def test_an_unscored_rollout_gets_nothing_and_leaves_its_groups_statistics() -> None:
    # mean of (1, 0) is .5, not 1/3; std of (1, 0) is sqrt(.5)
    found = advantages(*tensors([[1.0, None, 0.0]]), epsilon=0.0)
    assert found.tolist() == pytest.approx([math.sqrt(0.5), 0.0, -math.sqrt(0.5)], abs=1e-15)


def test_a_dead_group_gets_exactly_zero_though_its_float_mean_differs() -> None:
    rewards, groups, scored = tensors([[0.1, 0.1, 0.1]])
    assert group_mean(rewards, groups, scored)[0] != 0.1  # the residue that a float std would divide by itself
    assert advantages(rewards, groups, scored, epsilon=0.0).tolist() == [0.0, 0.0, 0.0]


def test_rewards_within_the_tolerance_are_equal() -> None:
    assert advantages(*tensors([[1.0, 1.0 + 0.9e-8]])).tolist() == [0.0, 0.0]
    assert advantages(*tensors([[1.0, 1.0 + 1.2e-8]]))[1] > 0
    assert advantages(*tensors([[1.0, 1.4]]), tolerance=0.5).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rewards", [[[5.0]], [[None, 5.0, None]], [[None, None]]])
def test_a_group_with_fewer_than_two_rewards_gets_zero(rewards: list[list[float | None]]) -> None:
    assert advantages(*tensors(rewards), epsilon=0.0).tolist() == [0.0] * len(rewards[0])


def test_groups_may_lie_interleaved() -> None:
    rewards = torch.tensor([1.0, 10.0, 0.0, 30.0])
    found = advantages(rewards, torch.tensor([0, 1, 0, 1]), torch.ones(4, dtype=torch.bool), scale="none")
    assert found.tolist() == [0.5, -10.0, -0.5, 10.0]


def test_dead_groups_by_hand() -> None:
    found = dead_groups(*tensors([[0.0, 0.0], [0.0, 1.0], [1.0, None, 1.0]]))
    assert found.tolist() == [True] * 2 + [False] * 2 + [True] * 3


def test_no_scale_divides_by_a_dead_groups_standard_deviation() -> None:
    """Without a baseline a dead group keeps its reward; over a standard deviation of 0 it would be 1e4 times that."""
    found = advantages(*tensors([[1.0, 1.0, 1.0, 1.0]]), baseline="none", scale="group_std")
    assert found.abs().max() <= 1


def test_shapes_that_differ_are_named() -> None:
    with pytest.raises(ValueError, match=r"rewards \(3,\), groups \(2,\) and scored \(3,\)"):
        advantages(torch.zeros(3), torch.zeros(2, dtype=torch.long), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"rewards \(2, 2\)"):
        advantages(torch.zeros(2, 2), torch.zeros(2, 2, dtype=torch.long), torch.ones(2, 2, dtype=torch.bool))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_scored_reward_that_is_not_finite_is_named(bad: float) -> None:
    rewards, groups, scored = tensors([[0.0, 1.0], [2.0, bad]])
    with pytest.raises(ValueError, match="rollout 3 is not finite"):
        advantages(rewards, groups, scored)
    scored[3] = False
    assert advantages(rewards, groups, scored)[2:].tolist() == [0.0, 0.0]


REWARDS = st.floats(-100, 100).map(lambda reward: round(reward, 3))
GROUPS = st.lists(st.lists(st.one_of(st.none(), REWARDS), min_size=1, max_size=6), min_size=1, max_size=4)


@settings(deadline=None)
@given(GROUPS, st.sampled_from(sorted(SCALES)))
def test_advantages_of_a_group_sum_to_zero(rewards: list[list[float | None]], scale: str) -> None:
    values, groups, scored = tensors(rewards)
    found = advantages(values, groups, scored, scale=scale)
    for g in range(len(rewards)):
        assert float(found[groups == g].sum()) == pytest.approx(0, abs=1e-10)


@settings(deadline=None)
@given(GROUPS)
def test_normalised_advantages_keep_their_arithmetic_bound(rewards: list[list[float | None]]) -> None:
    values, groups, scored = tensors(rewards)
    found = advantages(values, groups, scored, epsilon=0.0)
    for g, group in enumerate(rewards):
        n = max(1, sum(reward is not None for reward in group))
        assert float(found[groups == g].abs().max()) <= (n - 1) / math.sqrt(n) + 1e-9


@settings(deadline=None)
@given(GROUPS, REWARDS, st.sampled_from(sorted(SCALES)))
def test_a_constant_added_to_every_reward_changes_nothing(
    rewards: list[list[float | None]], shift: float, scale: str
) -> None:
    values, groups, scored = tensors(rewards)
    found = advantages(values + shift, groups, scored, scale=scale)
    torch.testing.assert_close(found, advantages(values, groups, scored, scale=scale), atol=1e-8, rtol=1e-7)


@settings(deadline=None)
@given(GROUPS, st.randoms(use_true_random=False), st.sampled_from(sorted(BASELINES)))
def test_the_order_of_the_rollouts_plays_no_part(
    rewards: list[list[float | None]], random: Random, baseline: str
) -> None:
    values, groups, scored = tensors(rewards)
    order = list(range(len(values)))
    random.shuffle(order)
    moved = advantages(values[order], groups[order], scored[order], baseline=baseline, scale="none")
    still = advantages(values, groups, scored, baseline=baseline, scale="none")
    torch.testing.assert_close(moved, still[order], atol=1e-10, rtol=1e-12)
