"""The ratio levels against numbers worked by hand, values and gradients."""

import math

import pytest
import torch
from torch import Tensor

from cupola.train.objectives import RATIOS

# Log-ratios ln 2, ln 8 and a masked token; one rollout of a single token at ln 3; one without any.
OLD = torch.tensor([[-3.0, -4.0, -1.0], [-2.0, -1.0, -1.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
STEP = torch.tensor([[2.0, 8.0, 5.0], [3.0, 7.0, 7.0], [9.0, 9.0, 9.0]], dtype=torch.float64).log()
MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])

BY_HAND = {
    "token": [[2.0, 8.0, 1.0], [3.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
    "sequence": [[4.0] * 3, [3.0] * 3, [1.0] * 3],  # sqrt(2 * 8)
    "sequence_token": [[4.0] * 3, [3.0] * 3, [1.0] * 3],
    "sequence_product": [[16.0] * 3, [3.0] * 3, [1.0] * 3],
    "none": [[1.0] * 3, [1.0] * 3, [1.0] * 3],
}
# Gradient of the ratio at the first token of rollout 0 with respect to each of its log-probabilities.
SLOPES = {
    "token": [2.0, 0.0, 0.0],
    "sequence": [2.0, 2.0, 0.0],  # s / |o| each
    "sequence_token": [4.0, 0.0, 0.0],  # s at its own token
    "sequence_product": [16.0, 16.0, 0.0],
}


def logp() -> Tensor:
    return (OLD + STEP).requires_grad_()


def test_every_level_is_worked_here() -> None:
    assert set(BY_HAND) == set(RATIOS) == {*SLOPES, "none"}


@pytest.mark.parametrize("level", sorted(BY_HAND))
def test_level_by_hand(level: str) -> None:
    torch.testing.assert_close(RATIOS[level](logp(), OLD, MASK), torch.tensor(BY_HAND[level], dtype=torch.float64))


@pytest.mark.parametrize("level", sorted(SLOPES))
def test_gradient_by_hand(level: str) -> None:
    leaf = logp()
    RATIOS[level](leaf, OLD, MASK)[0, 0].backward()
    assert leaf.grad is not None
    assert leaf.grad[0].tolist() == pytest.approx(SLOPES[level])
    assert leaf.grad[1:].eq(0).all()


def test_without_a_ratio_there_is_no_gradient() -> None:
    assert not RATIOS["none"](logp(), OLD, MASK).requires_grad


@pytest.mark.parametrize("level", sorted(RATIOS))
def test_on_policy_the_ratio_is_exactly_one(level: str) -> None:
    leaf = logp()
    assert RATIOS[level](leaf, leaf.detach(), MASK).eq(1).all()


@pytest.mark.parametrize("level", sorted(SLOPES))
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_masked_token_leaks_into_no_value_and_no_gradient(level: str, poison: float) -> None:
    leaf = torch.where(MASK.bool(), OLD + STEP, poison).requires_grad_()
    ratio = RATIOS[level](leaf, torch.where(MASK.bool(), OLD, -poison), MASK)
    torch.testing.assert_close(ratio, torch.tensor(BY_HAND[level], dtype=torch.float64))
    ratio.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("level", sorted(SLOPES))
@pytest.mark.parametrize("step", [-1e4, 1e4])
def test_a_ratio_out_of_range_stays_finite(level: str, step: float) -> None:
    leaf = torch.full((1, 2), step, requires_grad=True)
    ratio = RATIOS[level](leaf, torch.zeros(1, 2), torch.ones(1, 2))
    ratio.sum().backward()
    assert leaf.grad is not None
    assert ratio.isfinite().all()
    assert leaf.grad.isfinite().all()


def test_the_two_sequence_ratios_have_the_same_gradient_under_one_advantage_and_a_sequence_mean() -> None:
    gradients = []
    for level in ("sequence", "sequence_token"):
        leaf = logp()
        (torch.where(MASK.bool(), RATIOS[level](leaf, OLD, MASK), 0.0).sum(-1)[:2] / MASK.sum(-1)[:2]).sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients)
