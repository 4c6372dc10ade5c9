"""Advantages against numbers worked by hand, and their invariants."""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.train.objectives import (
    BASELINES,
    DIVISORS,
    SCALES,
    advantages,
    dead_groups,
    decoupled_advantages,
    group_mean,
    group_std,
    whiten,
)


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


#: Scales that a shift of all rewards of a group leaves alone.
SHIFT_FREE = ["batch_std", "group_std", "none"]


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
@given(GROUPS, REWARDS, st.sampled_from(["group_mean", "leave_one_out"]), st.sampled_from(["group_std", "none"]))
def test_a_constant_added_to_a_groups_rewards_changes_nothing(
    rewards: list[list[float | None]], shift: float, baseline: str, scale: str
) -> None:
    values, groups, scored = tensors(rewards)
    found = advantages(values + shift * (groups == 0), groups, scored, baseline, scale)
    torch.testing.assert_close(found, advantages(values, groups, scored, baseline, scale), atol=1e-8, rtol=1e-7)


@settings(deadline=None)
@given(GROUPS, REWARDS, st.sampled_from(["group_mean", "leave_one_out", "batch_mean"]), st.sampled_from(SHIFT_FREE))
def test_a_constant_added_to_every_reward_changes_nothing(
    rewards: list[list[float | None]], shift: float, baseline: str, scale: str
) -> None:
    values, groups, scored = tensors(rewards)
    found = advantages(values + shift, groups, scored, baseline, scale)
    torch.testing.assert_close(found, advantages(values, groups, scored, baseline, scale), atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize(
    ("baseline", "scale"), [("group_mean", "group_mean"), ("batch_mean", "none"), ("group_mean", "batch_std")]
)
def test_where_the_statistic_is_not_the_groups_spread_a_shift_of_one_group_shows(baseline: str, scale: str) -> None:
    values, groups, scored = tensors([[1.0, 0.0], [0.0, 1.0]])
    moved = advantages(values + 3.0 * (groups == 0), groups, scored, baseline, scale, epsilon=0.0)
    still = advantages(values, groups, scored, baseline, scale, epsilon=0.0)
    assert (moved - still).abs().max() > 0.1


@settings(deadline=None)
@given(GROUPS, st.floats(0.1, 10), st.sampled_from(["group_std", "batch_std", "group_mean"]))
def test_scaling_all_rewards_changes_nothing_without_an_epsilon(
    rewards: list[list[float | None]], factor: float, scale: str
) -> None:
    values, groups, scored = tensors(rewards)
    found = advantages(values * factor, groups, scored, scale=scale, epsilon=0.0)
    torch.testing.assert_close(
        found, advantages(values, groups, scored, scale=scale, epsilon=0.0), atol=1e-8, rtol=1e-7
    )


def test_where_the_epsilon_breaks_the_invariance() -> None:
    """Rewards (x, 0) have the deviation x / sqrt 2, so A = x / 2 / (x / sqrt 2 + 1e-4).

    Far above the epsilon every group gets 1 / sqrt 2, however small its spread: the division overweights groups of low
    variance against their r - mean. Near and below it they are compressed instead, in the end to x / 2 / 1e-4.
    """
    for spread, expected in {100.0: 0.707106, 1.0: 0.707007, 1e-2: 0.697247, 1e-4: 0.292893, 1e-6: 0.0049650}.items():
        found = advantages(*tensors([[spread, 0.0]]))
        assert found.tolist() == pytest.approx([expected, -expected], rel=1e-4)


def test_leave_one_out_by_hand() -> None:
    # (1, 0, 2): others' means 1, 1.5, .5; an unscored rollout stands outside
    found = advantages(*tensors([[1.0, 0.0, None, 2.0], [4.0, 2.0]]), baseline="leave_one_out", scale="none")
    assert found.tolist() == pytest.approx([0.0, -1.5, 0.0, 1.5, 2.0, -2.0])


@settings(deadline=None)
@given(st.lists(REWARDS, min_size=2, max_size=6))
def test_leave_one_out_is_the_groups_difference_stretched(rewards: list[float]) -> None:
    n = len(rewards)
    apart = advantages(*tensors([list(rewards)]), baseline="leave_one_out", scale="none")
    mean = advantages(*tensors([list(rewards)]), baseline="group_mean", scale="none")
    torch.testing.assert_close(apart, mean * n / (n - 1), atol=1e-9, rtol=1e-9)


def test_batch_statistics_by_hand() -> None:
    # rewards 0, 0, 1, 3: mean 1, squares of deviations 1 + 1 + 0 + 4 = 6, / 3 = 2
    rewards = [[0.0, 0.0], [1.0, None, 3.0]]
    found = advantages(*tensors(rewards), baseline="batch_mean", scale="none")
    assert found.tolist() == [-1.0, -1.0, 0.0, 0.0, 2.0]  # a dead group keeps its advantage
    found = advantages(*tensors(rewards), baseline="batch_mean", scale="batch_std", epsilon=0.0)
    assert found.tolist() == pytest.approx([-math.sqrt(0.5)] * 2 + [0.0, 0.0, math.sqrt(2)])
    found = advantages(*tensors(rewards), baseline="group_mean", scale="batch_std", epsilon=0.0)
    assert found.tolist() == pytest.approx([0.0, 0.0, -math.sqrt(0.5), 0.0, math.sqrt(0.5)])


def test_a_batch_of_equal_rewards_has_no_advantage_under_a_batch_baseline() -> None:
    assert advantages(*tensors([[0.1, 0.1], [0.1]]), "batch_mean", "batch_std").tolist() == [0.0] * 3


def test_maxrl_by_hand() -> None:
    # solved 1 of 4: (1 - .25) / .25 = 3 and -1; none solved, and a mean that is not positive: 0
    found = advantages(*tensors([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0], [-3.0, 1.0]]), scale="group_mean", epsilon=0.0)
    assert found.tolist() == [3.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert sum([0.1, 0.2, -0.3]) > 0  # a mean of 0 but for its rounding, which nothing may be divided by
    assert advantages(*tensors([[0.1, 0.2, -0.3]]), scale="group_mean", epsilon=0.0).tolist() == [0.0] * 3


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", sorted(SCALES))
def test_a_dead_group_is_exactly_zero_under_every_group_baseline_and_scale(baseline: str, scale: str) -> None:
    found = advantages(*tensors([[0.1, 0.1, 0.1], [0.0, 0.7]]), baseline=baseline, scale=scale, epsilon=0.0)
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert found[3:].abs().min() > 0


@settings(deadline=None)
@given(GROUPS, st.randoms(use_true_random=False), st.sampled_from(sorted(BASELINES)), st.sampled_from(sorted(SCALES)))
def test_the_order_of_the_rollouts_plays_no_part_in_any_composition(
    rewards: list[list[float | None]], random: Random, baseline: str, scale: str
) -> None:
    values, groups, scored = tensors(rewards)
    order = list(range(len(values)))
    random.shuffle(order)
    moved = advantages(values[order], groups[order], scored[order], baseline, scale)
    torch.testing.assert_close(moved, advantages(values, groups, scored, baseline, scale)[order], atol=1e-7, rtol=1e-6)


def test_rewards_normalised_apart_by_hand() -> None:
    """Two rewards of unlike spread: (1, 0) and (0, 10) weigh alike apart, while their sum follows the larger alone."""
    rewards = torch.tensor([[1.0, 0.0], [0.0, 10.0], [0.0, 0.0], [math.nan, 10.0]])
    groups, scored = torch.tensor([0, 0, 1, 1]), ~rewards.isnan()
    found = decoupled_advantages(rewards, groups, scored, torch.tensor([1.0, 1.0]), epsilon=0.0)
    root = math.sqrt(0.5)
    assert found.tolist() == pytest.approx([0.0, 0.0, -root, root])  # the missing part adds nothing
    found = decoupled_advantages(rewards, groups, scored, torch.tensor([3.0, 1.0]), epsilon=0.0)
    assert found.tolist() == pytest.approx([2 * root, -2 * root, -root, root])
    together = advantages(rewards.nan_to_num(nan=0.0).sum(1), groups, scored.all(1) | True, epsilon=0.0)
    assert together.tolist() == pytest.approx([-root, root, -root, root])


# (1, 3, 5) beside a masked 100: mean 3, squares 8; variance 4 with ddof 1, 8 / 3 with ddof 0
WHITENED = [
    ("variance", 1, 0.0, True, [-1.0, 0.0, 1.0]),
    ("variance", 1, 5.0, True, [-2 / 3, 0.0, 2 / 3]),  # sqrt(4 + 5)
    ("std", 1, 2.0, True, [-0.5, 0.0, 0.5]),  # sqrt 4 + 2
    ("floor", 1, 16.0, True, [-0.5, 0.0, 0.5]),  # sqrt(max(4, 16))
    ("floor", 1, 1.0, True, [-1.0, 0.0, 1.0]),
    ("variance", 0, 0.0, True, [-math.sqrt(1.5), 0.0, math.sqrt(1.5)]),
    ("variance", 1, 0.0, False, [0.5, 1.5, 2.5]),
]


@pytest.mark.parametrize(("divisor", "ddof", "epsilon", "center", "expected"), WHITENED)
def test_whitening_by_hand(divisor: str, ddof: int, epsilon: float, center: bool, expected: list[float]) -> None:
    values = torch.tensor([[1.0, 100.0], [3.0, 5.0]], dtype=torch.float64)
    found = whiten(values, torch.tensor([[1, 0], [1, 1]]), ddof, epsilon, divisor, center)
    assert found.flatten().tolist() == pytest.approx([expected[0], 0.0, *expected[1:]])


def test_every_divisor_is_worked_here() -> None:
    assert {case[0] for case in WHITENED} == set(DIVISORS)


def test_whitening_over_rollouts_counts_each_once_and_over_tokens_by_length() -> None:
    over_rollouts = whiten(torch.tensor([1.0, 0.0]), torch.ones(2), ddof=0, epsilon=0.0)
    assert over_rollouts.tolist() == [1.0, -1.0]
    per_token = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    over_tokens = whiten(per_token, torch.tensor([[1, 0, 0], [1, 1, 1]]), ddof=0, epsilon=0.0)
    # mean 1/4, variance 3/16: the one good token outweighs each bad one by three
    assert over_tokens[:, 0].tolist() == pytest.approx([math.sqrt(3), -math.sqrt(1 / 3)])


def test_equal_values_whiten_to_zero_and_not_to_their_rounding() -> None:
    values = torch.full((7,), 0.1)
    assert whiten(values, torch.ones(7), epsilon=0.0).tolist() == [0.0] * 7
    assert whiten(values, torch.ones(7), epsilon=0.0, center=False).equal(values)


def test_too_few_values_to_whiten_are_named() -> None:
    with pytest.raises(ValueError, match="ddof 1 needs at least 2 values, the mask counts 1"):
        whiten(torch.ones(3), torch.tensor([0, 1, 0]))


@settings(deadline=None)
@given(st.lists(REWARDS, min_size=2, max_size=8, unique=True))
def test_whitened_values_have_mean_zero_and_variance_one(values: list[float]) -> None:
    found = whiten(torch.tensor(values, dtype=torch.float64), torch.ones(len(values)), epsilon=0.0)
    assert float(found.mean()) == pytest.approx(0, abs=1e-9)
    assert float(found.var()) == pytest.approx(1, rel=1e-9)
