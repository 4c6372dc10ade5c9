"""The terms of the loss against numbers worked by hand."""

import math

import pytest
import torch

from cupola.train.objectives import gradient_weight, require_finite, token_entropy, token_logps, weighted_sum


def test_a_term_is_the_plain_weighted_sum() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 100.0]])
    mask, weights = torch.tensor([[1, 1], [1, 0]]), torch.tensor([0.5, 0.1])
    assert weighted_sum(values, mask, weights).item() == pytest.approx(0.5 * 3 + 0.1 * 3)


def test_gradient_weight_by_hand() -> None:
    """d/dlogp of .5 (3 x - 2 y) and of .1 z^2 at z = -4, the last token masked."""
    logp = torch.tensor([[-1.0, -2.0], [-4.0, -5.0]], requires_grad=True)
    values = torch.stack([logp[0] * torch.tensor([3.0, -2.0]), logp[1].square()])
    term = weighted_sum(values, torch.tensor([[1, 1], [1, 0]]), torch.tensor([0.5, 0.1]))
    assert gradient_weight(term, logp).tolist() == pytest.approx([2.5, 0.8])


def test_entropy_of_known_distributions() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [math.log(2), 0.0, 0.0, -1e30]]], dtype=torch.float64)
    # uniform over four: ln 4; (1/2, 1/4, 1/4): 1.5 ln 2
    assert token_entropy(logits)[0].tolist() == pytest.approx([1.3862943611198906, 1.0397207708399179], abs=1e-15)


def test_entropy_of_a_token_ruled_out_by_the_model() -> None:
    """Models rule out padding of their vocabulary by a logit of minus infinity: 0 ln 0 is 0, and has no gradient."""
    logits = torch.tensor([[[0.0, 0.0, -math.inf]]], requires_grad=True)
    entropy = token_entropy(logits)
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(math.log(2))
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_token_logps_by_hand() -> None:
    logits = torch.tensor([[[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]], dtype=torch.float64).log() + 3
    found = token_logps(logits, torch.tensor([[0, 2]]))
    assert found[0].tolist() == pytest.approx([-0.6931471805599453, -1.3862943611198906], abs=1e-15)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_masked_value_leaks_into_no_sum_and_no_gradient(poison: float) -> None:
    values = torch.tensor([[2.0, poison]], requires_grad=True)
    term = weighted_sum(values, torch.tensor([[1, 0]]), torch.tensor([0.5]))
    (gradient,) = torch.autograd.grad(term, values)
    assert term.item() == 1.0
    assert gradient.tolist() == [[0.5, 0.0]]


def test_shapes_that_do_not_go_together_are_named() -> None:
    values = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"values \(2, 3\) and mask \(2, 4\)"):
        weighted_sum(values, torch.zeros(2, 4), torch.zeros(2))
    with pytest.raises(ValueError, match=r"omega \(3,\)"):
        weighted_sum(values, torch.zeros(2, 3), torch.zeros(3))


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_counted_value_that_is_not_finite_is_named_by_its_rollout(poison: float) -> None:
    values = torch.tensor([[1.0, poison], [2.0, poison]])
    mask = torch.tensor([[1, 0], [1, 1]])
    with pytest.raises(ValueError, match="the log-probability of rollout 1 is not finite"):
        require_finite("log-probability", values, mask)
    with pytest.raises(ValueError, match="of rollout 17 is not finite"):
        require_finite("log-probability", values, mask, rollouts=[4, 17])
    mask[1, 1] = 0
    require_finite("log-probability", values, mask)
    assert not values.isfinite().all()
