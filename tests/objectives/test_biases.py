"""The two biases that Dr.GRPO takes out of GRPO, as numbers: arXiv 2503.20783, section 3.1."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from cupola.train.objectives import advantages, count, omega


def weights(rule: str, lengths: list[int], max_tokens: int = 64) -> torch.Tensor:
    """omega of each rollout of one group."""
    tokens = torch.tensor(lengths)
    groups = torch.zeros(len(lengths), dtype=torch.long)
    counted = torch.ones(len(lengths), dtype=torch.bool)
    return omega(rule, tokens, groups, counted, count(tokens, groups, counted), max_tokens)


def test_a_long_wrong_answer_is_punished_less_per_token_under_grpo_alone() -> None:
    """Wrong answers of 10 and 40 tokens: per token 1/(N 10) against 1/(N 40), a factor of 4; constant: none."""
    grpo = weights("sequence_mean", [20, 10, 40])
    assert float(grpo[1] / grpo[2]) == pytest.approx(4)
    dr_grpo = weights("constant", [20, 10, 40])
    assert dr_grpo.tolist() == pytest.approx([1 / (3 * 64)] * 3)


def mean_weight(right: int, of: int, scale: str) -> float:
    """Mean |A| of a group with so many right answers."""
    rewards = torch.tensor([1.0] * right + [0.0] * (of - right))
    group, scored = torch.zeros(of, dtype=torch.long), torch.ones(of, dtype=torch.bool)
    return float(advantages(rewards, group, scored, "group_mean", scale, epsilon=0.0).abs().mean())


@pytest.mark.parametrize("right", [1, 4, 8, 15])
def test_the_standard_deviation_lifts_groups_of_low_variance(right: int) -> None:
    """Mean |A| is 2 p (1 - p) without the std and 2 sqrt(p (1 - p)) with it, times sqrt(15/16) for ddof 1."""
    p = right / 16
    assert mean_weight(right, 16, "none") == pytest.approx(2 * p * (1 - p))
    assert mean_weight(right, 16, "group_std") == pytest.approx(2 * sqrt(p * (1 - p)) * sqrt(15 / 16))


def test_how_much_it_lifts_them() -> None:
    """A group solved once in sixteen against one solved half the time: 0.234 without the std, 0.484 with it."""
    assert mean_weight(1, 16, "none") / mean_weight(8, 16, "none") == pytest.approx(15 / 64)
    assert mean_weight(1, 16, "group_std") / mean_weight(8, 16, "group_std") == pytest.approx(sqrt(15) / 8)


def test_near_epsilon_the_std_compresses_instead() -> None:
    """Rewards 0 and s of two answers: |A| = (s / 2) / (s / sqrt(2) + epsilon), sqrt(1/2) until s comes near epsilon."""

    def weight(s: float) -> float:
        rewards, group = torch.tensor([0.0, s], dtype=torch.float64), torch.zeros(2, dtype=torch.long)
        return float(advantages(rewards, group, torch.ones(2, dtype=torch.bool), epsilon=1e-4)[1])

    assert weight(1.0) == pytest.approx(sqrt(0.5), rel=1e-3)
    assert weight(1e-4) == pytest.approx(0.5 / (sqrt(0.5) + 1), rel=1e-9)
    assert weight(1e-6) == pytest.approx(0.005 / (0.01 * sqrt(0.5) + 1), rel=1e-9)
