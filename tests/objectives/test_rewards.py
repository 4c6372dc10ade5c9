"""Reward transforms against numbers worked by hand and against enumeration of subsets."""

from itertools import combinations
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.train.objectives import best_only, pass_at_k, soft_overlong_punishment


def group(*rewards: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n = len(rewards)
    return torch.tensor(rewards), torch.zeros(n, dtype=torch.long), torch.ones(n, dtype=torch.bool)


def test_pass_at_k_of_binary_rewards_by_hand() -> None:
    # n 4, c 1, k 2: right 2; wrong 2 (1 - C(2, 1) / C(3, 1)) = 2 / 3. The paper's are these over 4: 1/2 and 1/6.
    assert pass_at_k(*group(1, 0, 0, 0), k=2).tolist() == pytest.approx([2, 2 / 3, 2 / 3, 2 / 3])
    # n 4, c 2, k 3: right 3; wrong 3 (1 - C(1, 2) / C(3, 2)) = 3: any three of four hold a right answer
    assert pass_at_k(*group(0, 1, 1, 0), k=3).tolist() == pytest.approx([3.0, 3.0, 3.0, 3.0])


def test_pass_at_one_is_the_reward() -> None:
    assert pass_at_k(*group(0.5, 3.0, -1.0), k=1).tolist() == pytest.approx([0.5, 3.0, -1.0])


def test_pass_at_k_of_graded_rewards_by_hand() -> None:
    # pairs of (1, 2, 4): maxima 2, 4, 4. s times 3 / 3: of 1: 2 + 4; of 2: 2 + 4; of 4: 4 + 4
    assert pass_at_k(*group(1, 2, 4), k=2).tolist() == pytest.approx([6.0, 6.0, 8.0])


def test_each_group_apart_and_unscored_rollouts_left_out() -> None:
    rewards = torch.tensor([1.0, 9.0, 0.0, 4.0, 2.0, 1.0, 7.0])
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    scored = torch.tensor([True, False, True, True, True, True, False])
    found = pass_at_k(rewards, groups, scored, k=2)
    assert found.tolist() == pytest.approx([2.0, 0.0, 2.0, 8.0, 6.0, 6.0, 0.0])
    assert best_only(rewards, groups, scored).tolist() == [1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]


@settings(deadline=None)
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=7).flatmap(
        lambda r: st.tuples(st.just(r), st.integers(1, len(r)))
    )
)
def test_pass_at_k_is_the_mean_maximum_over_subsets(case: tuple[list[int], int]) -> None:
    rewards, k = case
    n = len(rewards)
    expected = [
        n / comb(n, k) * sum(max(rewards[j] for j in subset) for subset in combinations(range(n), k) if i in subset)
        for i in range(n)
    ]
    found = pass_at_k(*group(*rewards), k=k)
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_the_gradient_of_pass_at_k_is_unbiased() -> None:
    """A coin that lands right with probability p: over all outcomes of n throws, the mean of the estimator is exact."""
    p, n, k = 0.3, 4, 2
    total = 0.0
    for outcome in range(2**n):
        rewards = [float(outcome >> i & 1) for i in range(n)]
        probability = p ** sum(rewards) * (1 - p) ** (n - sum(rewards))
        score = [1 / p if r else -1 / (1 - p) for r in rewards]  # d log probability / dp
        s = pass_at_k(*group(*rewards), k=k).tolist()
        total += probability * sum(a * b for a, b in zip(s, score, strict=True)) / n
    assert total == pytest.approx(k * (1 - p) ** (k - 1))  # of 1 - (1 - p)^k


def test_a_group_too_small_for_k_is_named() -> None:
    with pytest.raises(ValueError, match="pass@3 needs 3 scored rollouts in every group, one has 2"):
        pass_at_k(*group(1, 0), k=3)
    with pytest.raises(ValueError, match="pass@0"):
        pass_at_k(*group(1, 0), k=0)


def test_best_only_by_hand() -> None:
    assert best_only(*group(1, 5, 3)).tolist() == [0.0, 2.0, 0.0]
    assert best_only(*group(5, 1, 5)).tolist() == [0.0, 0.0, 0.0]
    assert best_only(*group(5)).tolist() == [0.0]


def test_soft_overlong_punishment_by_hand() -> None:
    lengths = torch.tensor([0, 80, 81, 90, 100, 101, 400])
    found = soft_overlong_punishment(lengths, max_tokens=100, cache=20)
    assert found.tolist() == pytest.approx([0.0, 0.0, -0.05, -0.5, -1.0, -1.0, -1.0])
    with pytest.raises(ValueError, match="cache = 0 must lie in"):
        soft_overlong_punishment(lengths, max_tokens=100, cache=0)
    with pytest.raises(ValueError, match="max_tokens = 100"):
        soft_overlong_punishment(lengths, max_tokens=100, cache=101)
