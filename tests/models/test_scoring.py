"""Padding and cutting: no row is lost, none sees another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import distributions, tiny_policy

from cupola.train.models import logprobs, micro_batches, pad

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), max_size=20)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 300))
def test_batches_hold_every_row_once_and_keep_to_the_budget(lengths: list[tuple[int, int]], budget: int) -> None:
    prompts, completions = [[p] * p for p, _ in lengths], [[0] * c for _, c in lengths]
    batches = list(micro_batches(prompts, completions, budget))
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        read = {lengths[i][0] for i in batch}  # prompts of equal length are equal here, and are read once
        padded = len(read) * max(read) + len(batch) * max(lengths[i][1] for i in batch)
        assert padded <= budget or len(batch) == 1


def test_a_large_batch_is_closed_before_it_is_mostly_padding() -> None:
    """200 answers of 10 tokens and 20 of 40: together 8,800 padded tokens for 2,800, apart 2,800."""
    completions = [[0] * 10] * 200 + [[0] * 40] * 20
    batches = list(micro_batches([[1]] * 220, completions, 100_000))
    assert [len(batch) for batch in batches] == [200, 20]


def test_padding_by_hand() -> None:
    found = pad([[5], [6, 7], [5]], [[8, 9, 10], [11], []], pad_id=0)
    assert found.prompts.tolist() == [[0, 5], [6, 7]]
    assert found.prompt_mask.tolist() == [[0, 1], [1, 1]]
    assert found.prompt_of.tolist() == [0, 1, 0]
    assert found.tokens.tolist() == [[8, 9, 10], [11, 0, 0], [0, 0, 0]]
    assert found.mask.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_log_probabilities_are_those_of_each_sequence_alone(budget: int) -> None:
    policy = tiny_policy()
    prompts = ["1+2=", "5=", "123+456=", "1+2="]
    completions = [[5, 6, 7], [8], [2, 3, 4, 5, 6, 1], []]
    found = logprobs(
        policy.model,
        [policy.encode(prompt) for prompt in prompts],
        completions,
        pad_id=policy.pad_id,
        temperature=0.7,
        micro_tokens=budget,
    )
    assert [len(logp) for logp in found] == [3, 1, 6, 0]
    assert not any(logp.requires_grad for logp in found)
    for prompt, completion, logp in zip(prompts[:3], completions[:3], found[:3], strict=True):
        expected = distributions(policy, prompt, completion, 0.7)[range(len(completion)), completion]
        torch.testing.assert_close(logp, expected, atol=1e-5, rtol=0)
