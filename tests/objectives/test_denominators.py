"""The denominator rules against numbers worked by hand."""

import pytest
import torch

from cupola.train.objectives import RULES, Counts, count, omega, omega_by_cut, padded_widths

# Two groups of unequal size and lengths: N = 5, 20 tokens, P = 2, and L_max = 16.
LENGTHS = torch.tensor([2, 4, 1, 3, 10])
GROUPS = torch.tensor([0, 0, 1, 1, 1])
ALL = torch.ones(5, dtype=torch.bool)

BY_HAND = {
    "sequence_mean": [1 / 10, 1 / 20, 1 / 5, 1 / 15, 1 / 50],
    "token_mean": [1 / 20] * 5,
    "constant": [1 / 80] * 5,
    "prompt_mean": [1 / 12, 1 / 12, 1 / 28, 1 / 28, 1 / 28],
    "sequence_sum": [1 / 5] * 5,
    "token_sum": [1.0] * 5,
    "padded": [1 / 50] * 5,  # all are forwarded together, so padded to the longest, 10
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
    assert weights("sequence_sum", counted) == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3, 0], rel=1e-15)
    assert weights("token_sum", counted) == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert weights("padded", counted) == pytest.approx([1 / 30, 0, 1 / 30, 1 / 30, 0], rel=1e-15)  # the longest pads


@pytest.mark.parametrize("rule", sorted(BY_HAND))
def test_a_rollout_without_tokens_weighs_nothing(rule: str) -> None:
    lengths = torch.tensor([0, 3])
    groups = torch.tensor([0, 0])
    both = torch.ones(2, dtype=torch.bool)
    found = omega(rule, lengths, groups, both, count(lengths, groups, lengths > 0), max_tokens=3)
    assert found[0] == 0.0
    assert found[1].item() == pytest.approx({"sequence_sum": 1.0, "token_sum": 1.0}.get(rule, 1 / 3))


@pytest.mark.parametrize("rule", sorted(BY_HAND))
def test_nothing_counted_is_all_zero(rule: str) -> None:
    assert weights(rule, ~ALL) == [0.0] * 5


@pytest.mark.parametrize("rule", ["sequence_mean", "token_mean", "prompt_mean"])
def test_the_weights_of_all_tokens_sum_to_one(rule: str) -> None:
    assert sum(w * n for w, n in zip(weights(rule), LENGTHS.tolist(), strict=True)) == pytest.approx(1, rel=1e-14)


# Micro-batches {0, 1, 4} and {2, 3} of rollouts without tokens in row 4: 6 tokens of 3 rollouts, 4 tokens of 2.
CUT = torch.tensor([0, 0, 1, 1, 0])
SHORT = torch.tensor([2, 4, 1, 3, 0])
BY_CUT = {
    "sequence_mean": [1 / 12, 1 / 24, 1 / 4, 1 / 12, 0],
    "token_mean": [1 / 12, 1 / 12, 1 / 8, 1 / 8, 0],
    "constant": [1 / 96, 1 / 96, 1 / 64, 1 / 64, 0],
    "sequence_sum": [1 / 6, 1 / 6, 1 / 4, 1 / 4, 0],
}


@pytest.mark.parametrize("rule", sorted(BY_CUT))
def test_an_average_within_each_micro_batch_by_hand(rule: str) -> None:
    assert omega_by_cut(rule, SHORT, GROUPS, ALL, CUT, max_tokens=16).tolist() == pytest.approx(BY_CUT[rule], rel=1e-15)


@pytest.mark.parametrize("rule", sorted(BY_CUT))
def test_it_depends_on_the_cut_which_the_rules_do_not(rule: str) -> None:
    whole = omega_by_cut(rule, SHORT, GROUPS, ALL, torch.zeros_like(CUT), max_tokens=16)
    assert whole.equal(omega(rule, SHORT, GROUPS, ALL, count(SHORT, GROUPS, ALL), max_tokens=16))
    assert not whole.allclose(omega_by_cut(rule, SHORT, GROUPS, ALL, CUT, max_tokens=16))


def test_a_micro_batch_of_empty_answers_only_weighs_nothing_and_counts_in_the_average() -> None:
    found = omega_by_cut("token_mean", SHORT, GROUPS, ALL, torch.tensor([0, 0, 0, 0, 1]), max_tokens=16)
    assert found.tolist() == pytest.approx([1 / 20] * 4 + [0.0])


def test_what_does_not_count_or_stands_outside_the_step_is_in_no_micro_batch() -> None:
    """Rows 0 and 1 are a micro-batch of which row 1 does not count; row 2 is another; rows 3 and 4 another step's."""
    counted, cut = torch.tensor([True, False, True, True, True]), torch.tensor([0, 0, 1, -1, -1])
    found = omega_by_cut("sequence_mean", LENGTHS, GROUPS, counted, cut, max_tokens=16)
    assert found.tolist() == pytest.approx([1 / 4, 0, 1 / 2, 0, 0], rel=1e-15)


def test_each_rollout_is_padded_to_the_longest_of_its_micro_batch() -> None:
    assert padded_widths(LENGTHS, torch.tensor([0, 0, 1, 1, -1])).tolist() == [4, 4, 3, 3, 0]
    found = omega("padded", LENGTHS, GROUPS, ALL, Counts(4, 10, 2), 16, torch.tensor([4, 4, 3, 3, 10]))
    assert found.tolist() == pytest.approx([1 / 16, 1 / 16, 1 / 12, 1 / 12, 1 / 40], rel=1e-15)


# The weight of a token of the rollouts of 2, 4, 1 and 3 tokens; the fifth is masked from end to end.
OTHERS = {
    # verl: / batch_num_tokens; / global_batch_size, nominal, so that the masked rollout counts; / loss_mask.shape[-1]
    "verl:token-mean": ("token_mean", ALL, 16, [1 / 10] * 4),
    "verl:seq-mean-token-sum": ("sequence_sum", ALL, 16, [1 / 5] * 4),
    "verl:seq-mean-token-sum-norm": ("padded", ALL, 16, [1 / 20] * 4),  # padded to its longest, 4
    "verl, loss_scale_factor = 16": ("constant", ALL, 16, [1 / 80] * 4),
    "verl:seq-mean-token-mean": ("sequence_mean", ALL, 16, [1 / 10, 1 / 20, 1 / 5, 1 / 15]),
    # OpenRLHF: / tokens of the step; / rollouts that have any
    "openrlhf:token-mean": ("token_mean", ALL, 16, [1 / 10] * 4),
    "openrlhf:seq-mean-token-mean": ("sequence_mean", SHORT > 0, 16, [1 / 8, 1 / 16, 1 / 4, 1 / 12]),
    "prime-rl:default": ("token_mean", ALL, 16, [1 / 10] * 4),
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_other_trainers_rules_by_hand(name: str) -> None:
    """Whether a masked rollout stays in the count is the caller's choice of what is counted, not another rule."""
    rule, counted, max_tokens, expected = OTHERS[name]
    found = omega(rule, SHORT, GROUPS, ALL, count(SHORT, GROUPS, counted), max_tokens)
    assert found.tolist() == pytest.approx([*expected, 0.0], rel=1e-15)
