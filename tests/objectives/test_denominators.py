"""The denominator rules against numbers worked by hand."""

import pytest
import torch

from cupola.train.objectives import RULES, Counts, count, omega

# Two groups of unequal size and lengths: N = 5, 20 tokens, P = 2, and L_max = 16.
LENGTHS = torch.tensor([2, 4, 1, 3, 10])
GROUPS = torch.tensor([0, 0, 1, 1, 1])
ALL = torch.ones(5, dtype=torch.bool)

BY_HAND = {
    "sequence_mean": [1 / 10, 1 / 20, 1 / 5, 1 / 15, 1 / 50],
    "token_mean": [1 / 20] * 5,
    "constant": [1 / 80] * 5,
    "prompt_mean": [1 / 12, 1 / 12, 1 / 28, 1 / 28, 1 / 28],
}


def weights(rule: str, counted: torch.Tensor = ALL) -> list[float]:
    counts = count(LENGTHS, GROUPS, counted)
    found: list[float] = omega(rule, LENGTHS, GROUPS, counted, counts, max_tokens=16).tolist()
    return found


def test_totals() -> None:
    assert count(LENGTHS, GROUPS, ALL) == Counts(rollouts=5, tokens=20, prompts=2)
    assert count(LENGTHS, GROUPS, torch.tensor([True, True, False, False, False])) == Counts(2, 6, 1)
    assert count(LENGTHS, GROUPS, ~ALL) == Counts(0, 0, 0)


def test_every_rule_is_worked_here() -> None:
    assert set(BY_HAND) == set(RULES)


@pytest.mark.parametrize("rule", sorted(BY_HAND))
def test_rule_by_hand(rule: str) -> None:
    assert weights(rule) == pytest.approx(BY_HAND[rule], rel=1e-15)


def test_a_rollout_that_does_not_count_weighs_nothing_and_is_in_no_total() -> None:
    counted = torch.tensor([True, False, True, True, False])  # N = 3, 6 tokens, groups of 2 and 4 tokens
    assert weights("sequence_mean", counted) == pytest.approx([1 / 6, 0, 1 / 3, 1 / 9, 0], rel=1e-15)
    assert weights("token_mean", counted) == pytest.approx([1 / 6, 0, 1 / 6, 1 / 6, 0], rel=1e-15)
    assert weights("constant", counted) == pytest.approx([1 / 48, 0, 1 / 48, 1 / 48, 0], rel=1e-15)
    assert weights("prompt_mean", counted) == pytest.approx([1 / 4, 0, 1 / 8, 1 / 8, 0], rel=1e-15)


@pytest.mark.parametrize("rule", sorted(BY_HAND))
def test_a_rollout_without_tokens_weighs_nothing(rule: str) -> None:
    lengths = torch.tensor([0, 3])
    groups = torch.tensor([0, 0])
    both = torch.ones(2, dtype=torch.bool)
    found = omega(rule, lengths, groups, both, count(lengths, groups, lengths > 0), max_tokens=3)
    assert found.tolist() == [0.0, pytest.approx(1 / 3)]


@pytest.mark.parametrize("rule", sorted(BY_HAND))
def test_nothing_counted_is_all_zero(rule: str) -> None:
    assert weights(rule, ~ALL) == [0.0] * 5


@pytest.mark.parametrize("rule", ["sequence_mean", "token_mean", "prompt_mean"])
def test_the_weights_of_all_tokens_sum_to_one(rule: str) -> None:
    assert sum(w * n for w, n in zip(weights(rule), LENGTHS.tolist(), strict=True)) == pytest.approx(1, rel=1e-14)
