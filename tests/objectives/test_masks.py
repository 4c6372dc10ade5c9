"""Masks and weights against numbers worked by hand: what each keeps, and what it leaves out."""

import math

import pytest
import torch
from torch import Tensor

from cupola.train.objectives import (
    ClipCov,
    clip_cov,
    high_entropy_tokens,
    importance_weights,
    kl_cov,
    on_policy_sequences,
    token_covariance,
    within,
)

# Means over the five counted tokens: A (1 + 1 + 1 - 1 - 1) / 5 = .2, logp (-1 - 2 - 3 - 4 - 5) / 5 = -3.
LOGP = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, -99.0]], dtype=torch.float64)
A = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
NONE = torch.zeros(2, 3, dtype=torch.bool)
COVARIANCE = [[1.6, 0.8, 0.0], [1.2, 2.4, -math.inf]]


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def left_out(keep: Tensor) -> list[list[int]]:
    return (~keep).nonzero().tolist()


def test_covariance_by_hand() -> None:
    torch.testing.assert_close(token_covariance(LOGP, A, MASK), torch.tensor(COVARIANCE, dtype=torch.float64))


def test_clip_cov_leaves_out_tokens_between_its_bounds() -> None:
    everyone = ClipCov(fraction=1.0, low=1.0, high=2.0)
    assert left_out(clip_cov(LOGP, A, MASK, NONE, everyone, draws())) == [[0, 0], [1, 0]]
    limited = NONE.clone()
    limited[1, 0] = True  # the surrogate took its gradient already
    assert left_out(clip_cov(LOGP, A, MASK, limited, everyone, draws())) == [[0, 0]]


def test_clip_cov_draws_its_share_and_one_at_least() -> None:
    wide = {"low": 0.5, "high": 5.0}  # four candidates
    assert len(left_out(clip_cov(LOGP, A, MASK, NONE, ClipCov(2e-4, **wide), draws()))) == 1
    assert len(left_out(clip_cov(LOGP, A, MASK, NONE, ClipCov(0.5, **wide), draws()))) == 2  # of 5 tokens
    found = {tuple(left_out(clip_cov(LOGP, A, MASK, NONE, ClipCov(2e-4, **wide), draws(s)))[0]) for s in range(40)}
    assert found == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert left_out(clip_cov(LOGP, A, MASK, NONE, ClipCov(1.0, 3.0, 4.0), draws())) == []


def test_kl_cov_chooses_the_highest_covariances() -> None:
    assert kl_cov(LOGP, A, MASK).nonzero().tolist() == [[1, 1]]
    assert kl_cov(LOGP, A, MASK, fraction=0.4).nonzero().tolist() == [[0, 0], [1, 1]]
    assert kl_cov(LOGP, A, MASK, fraction=1.0).equal(MASK.bool())


def test_nothing_counted_is_nothing_chosen() -> None:
    empty = torch.zeros_like(MASK)
    assert not kl_cov(LOGP, A, empty).any()
    assert clip_cov(LOGP, A, empty, NONE, ClipCov(), draws()).all()
    assert not high_entropy_tokens(LOGP, empty).any()


def test_constants_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fraction = 0\.0"):
        ClipCov(fraction=0.0)
    with pytest.raises(ValueError, match=r"low = 6.0 must be < high = 5.0"):
        ClipCov(low=6.0)
    with pytest.raises(ValueError, match="fraction = 2"):
        kl_cov(LOGP, A, MASK, fraction=2)
    with pytest.raises(ValueError, match=r"share = 0\.0"):
        high_entropy_tokens(LOGP, MASK, share=0.0)
    with pytest.raises(ValueError, match=r"\[0.0, 0.5\] must hold 1"):
        importance_weights(LOGP, LOGP, MASK, high=0.5)


def test_off_policy_sequences_leave_where_the_answer_was_bad() -> None:
    # mean of sampler - policy over counted tokens: .2, .2, .1, and .3 / 2 beside an unscored token
    policy = torch.zeros(4, 2)
    sampler = torch.tensor([[0.1, 0.3], [0.1, 0.3], [0.1, 9.0], [math.nan, 0.3]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1]])
    advantages = torch.tensor([[-1.0], [0.0], [-1.0], [-1.0]])
    assert on_policy_sequences(policy, sampler, advantages, mask, 0.15).tolist() == [[False], [True], [True], [True]]
    assert on_policy_sequences(policy, sampler, advantages, mask, 0.14).tolist() == [[False], [True], [True], [False]]


def test_high_entropy_tokens_by_hand() -> None:
    # counted 1, 2, 3, 4, 5; the .8 quantile is 4.2, the .5 quantile 3, the 0 quantile 1
    entropy = torch.tensor([[1.0, 5.0, 3.0], [2.0, 4.0, 99.0]])
    assert high_entropy_tokens(entropy, MASK).nonzero().tolist() == [[0, 1]]
    assert high_entropy_tokens(entropy, MASK, share=0.5).nonzero().tolist() == [[0, 1], [0, 2], [1, 1]]
    assert high_entropy_tokens(entropy, MASK, share=1.0).equal(MASK.bool())


def test_the_quantile_is_torchs() -> None:
    entropy = torch.rand(7, 11, generator=draws(), dtype=torch.float64)
    mask = torch.rand(7, 11, generator=draws(1)) < 0.7
    for share in (0.1, 0.2, 0.33, 0.8):
        threshold = entropy[mask].quantile(1 - share)
        assert high_entropy_tokens(entropy, mask, share).equal((entropy >= threshold) & mask)


# ratios of the old policy to the sampler: 2 and .25 in row 0, 4 beside an unscored and a masked token in row 1
OLD = torch.tensor([[0.5, 0.125, 0.5], [0.8, 0.5, 0.5]], dtype=torch.float64).log()
SAMPLER = torch.tensor([[0.25, 0.5, 0.5], [0.2, math.nan, 0.1]], dtype=torch.float64).log()

WEIGHTS = {
    ("token", "truncate", 0.0, 3.0): [[2.0, 0.25, 1.0], [3.0, 1.0, 1.0]],
    ("token", "truncate", 0.5, 5.0): [[2.0, 0.5, 1.0], [4.0, 1.0, 1.0]],
    ("token", "mask", 0.5, 3.0): [[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]],
    ("sequence_product", "truncate", 0.0, 3.0): [[0.5] * 3, [3.0] * 3],
    ("sequence_product", "mask", 0.5, 3.0): [[0.5] * 3, [0.0] * 3],
    ("sequence", "truncate", 0.0, 3.0): [[0.5 ** (1 / 3)] * 3, [2.0] * 3],
}


@pytest.mark.parametrize(("level", "bound", "low", "high"), sorted(WEIGHTS))
def test_importance_weights_by_hand(level: str, bound: str, low: float, high: float) -> None:
    old = OLD.clone().requires_grad_()
    found = importance_weights(old, SAMPLER, MASK, level, bound, low, high)
    torch.testing.assert_close(found, torch.tensor(WEIGHTS[level, bound, low, high], dtype=torch.float64))
    assert not found.requires_grad


def test_a_sampler_that_cuts_its_distribution_off_makes_the_weight_the_mass_it_kept() -> None:
    """top-p 0.8 over (.5, .3, .2) keeps .8: the ratio is .8 at every token, however long the policy stands still."""
    kept = torch.tensor([[0.5, 0.3, 0.5]]).log()
    found = importance_weights(kept, kept - math.log(0.8), torch.ones(1, 3))
    assert found.flatten().tolist() == pytest.approx([0.8] * 3)


def test_a_band_keeps_its_bounds() -> None:
    assert within(torch.tensor([0.4, 0.5, 1.0, 5.0, 5.1]), 0.5, 5.0).tolist() == [False, True, True, True, False]
