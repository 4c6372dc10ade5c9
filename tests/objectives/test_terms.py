"""The terms of the loss against numbers worked by hand, values and gradients."""

import math

import pytest
import torch

from cupola.train.objectives import (
    KL_ESTIMATORS,
    advantages,
    clipped_surrogate,
    clipped_tokens,
    count,
    entropy_term,
    gradient_weight,
    kl_term,
    omega,
    policy_term,
    token_entropy,
    token_logps,
    token_ratio,
)

# ratio, advantage, loss, gradient with respect to the ratio, clipped below, clipped above; clip 0.2 below, 0.28 above
CASES = [
    (1.0, 2.0, -2.0, -2.0, False, False),
    (1.25, 2.0, -2.5, -2.0, False, False),  # inside clip-higher, outside a symmetric 0.2
    (1.5, 2.0, -2.56, 0.0, False, True),
    (0.5, 2.0, -1.0, -2.0, False, False),  # a good token that became less likely is pulled back
    (0.5, -1.0, 0.8, 0.0, True, False),
    (0.9, -1.0, 0.9, 1.0, False, False),
    (1.5, -1.0, 1.5, 1.0, False, False),  # a bad token that became more likely is pushed back
    (1.5, 0.0, 0.0, 0.0, False, False),
    (0.5, 0.0, 0.0, 0.0, False, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient", "below", "above"), CASES)
def test_clipped_surrogate_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float, below: bool, above: bool
) -> None:
    rho = torch.tensor([[ratio]], dtype=torch.float64, requires_grad=True)
    found = clipped_surrogate(rho, torch.tensor([[advantage]], dtype=torch.float64), 0.2, 0.28)
    assert found.item() == pytest.approx(loss, abs=1e-15)
    found.sum().backward()
    assert rho.grad is not None
    assert rho.grad.item() == gradient
    low, high = clipped_tokens(rho.detach(), torch.tensor([[advantage]]), 0.2, 0.28)
    assert (low.item(), high.item()) == (below, above)


def test_clipping_takes_the_gradient_of_exactly_the_tokens_it_names() -> None:
    rho = torch.linspace(0.05, 2.5, 50, dtype=torch.float64).expand(2, 50).clone().requires_grad_()
    advantage = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    clipped_surrogate(rho, advantage, 0.2, 0.28).sum().backward()
    low, high = clipped_tokens(rho.detach(), advantage, 0.2, 0.28)
    assert rho.grad is not None
    assert (rho.grad == 0).equal(low | high)
    assert low.sum() == (rho[1] < 0.8).sum() > 0
    assert high.sum() == (rho[0] > 1.28).sum() > 0


def test_policy_term_is_the_plain_weighted_sum() -> None:
    # omega (.1, .5); losses of row 0: -2.56, -1.0; of row 1: .8 and a masked token
    ratio = torch.tensor([[1.5, 0.5], [0.5, 7.0]], dtype=torch.float64)
    found = policy_term(
        ratio,
        torch.tensor([2.0, -1.0]),
        torch.tensor([[1, 1], [1, 0]]),
        torch.tensor([0.1, 0.5], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.28,
    )
    assert found.item() == pytest.approx(0.1 * (-2.56 - 1.0) + 0.5 * 0.8, abs=1e-15)


@pytest.mark.parametrize(
    ("estimator", "at_half", "at_minus_half", "slope_at_half"),
    [
        ("k1", 0.5, -0.5, 1.0),
        ("k2", 0.125, 0.125, 0.5),
        ("k3", 0.10653065971263342, 0.14872127070012815, 0.3934693402873666),  # exp(-d) + d - 1; slope 1 - exp(-d)
    ],
)
def test_kl_estimators_by_hand(estimator: str, at_half: float, at_minus_half: float, slope_at_half: float) -> None:
    logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    found = KL_ESTIMATORS[estimator](logp, torch.tensor([-1.5, -1.5], dtype=torch.float64))
    assert found.tolist() == pytest.approx([at_half, at_minus_half], abs=1e-15)
    found[0].backward()
    assert logp.grad is not None
    assert logp.grad[0].item() == pytest.approx(slope_at_half, abs=1e-15)


@pytest.mark.parametrize("estimator", sorted(KL_ESTIMATORS))
def test_kl_of_a_policy_with_itself_is_exactly_zero(estimator: str) -> None:
    logp = torch.tensor([-0.3, -17.0])
    assert KL_ESTIMATORS[estimator](logp, logp).tolist() == [0.0, 0.0]


def test_k1_and_k3_estimate_the_kl_divergence() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    kl = 0.3 * math.log(2.5)  # .5 ln(.5/.2) + .2 ln(.2/.5)
    for estimator in ("k1", "k3"):
        assert float((p * KL_ESTIMATORS[estimator](p.log(), q.log())).sum()) == pytest.approx(kl, rel=1e-6)


def test_kl_and_entropy_terms_are_plain_weighted_sums() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 100.0]])
    mask, weights = torch.tensor([[1, 1], [1, 0]]), torch.tensor([0.5, 0.1])
    assert kl_term(values, mask, weights).item() == pytest.approx(0.5 * 3 + 0.1 * 3)
    assert entropy_term(values, mask, weights).item() == pytest.approx(0.5 * 3 + 0.1 * 3)


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


def test_ratio_by_hand() -> None:
    found = token_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -1.0]]))
    assert found[0].tolist() == pytest.approx([1.0, math.exp(-1)])


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_masked_value_leaks_into_no_sum_and_no_gradient(poison: float) -> None:
    values = torch.tensor([[2.0, poison]], requires_grad=True)
    mask, weight, advantage = torch.tensor([[1, 0]]), torch.tensor([0.5]), torch.tensor([-1.0])
    terms = {
        "kl": (kl_term(values, mask, weight), 1.0, 0.5),
        "entropy": (entropy_term(values, mask, weight), 1.0, 0.5),
        "policy": (policy_term(values, advantage, mask, weight, 0.2, 0.2), 1.0, 0.5),
    }
    for name, (term, value, slope) in terms.items():
        (gradient,) = torch.autograd.grad(term, values)
        assert term.item() == value, name
        assert gradient.tolist() == [[slope, 0.0]], name


def test_shapes_that_do_not_go_together_are_named() -> None:
    values, mask, weights = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2)
    for term in (kl_term, entropy_term):
        with pytest.raises(ValueError, match=r"values \(2, 3\) and mask \(2, 4\)"):
            term(values, mask, weights)
        with pytest.raises(ValueError, match=r"omega \(3,\)"):
            term(values, torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"values \(2, 3\) and mask \(2, 4\)"):
        policy_term(values, torch.zeros(2), mask, weights, 0.2, 0.2)


def test_the_first_update_on_policy_by_hand() -> None:
    """Ratio 1, so nothing is clipped; the loss is -sum omega A |o|, and the gradient is there even where that is 0."""
    lengths, groups = torch.tensor([1, 2, 1, 1]), torch.zeros(4, dtype=torch.long)
    everyone = torch.ones(4, dtype=torch.bool)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0])
    advantage = advantages(rewards, groups, everyone, epsilon=0.0)  # 1.5, -.5, -.5, -.5
    mask = torch.tensor([[1, 0], [1, 1], [1, 0], [1, 0]])
    logp = torch.full((4, 2), -1.0, dtype=torch.float64, requires_grad=True)
    ratio = token_ratio(logp, logp.detach())
    assert ratio.eq(1).all()

    # token_mean: omega 1/5: -(1.5 - .5 * 2 - .5 - .5) / 5 = .1; sequence_mean: -(1.5 - 3 * .5) / 4 = 0
    slopes = {
        "token_mean": (0.1, [[-0.3, 0.0], [0.1, 0.1], [0.1, 0.0], [0.1, 0.0]]),
        "sequence_mean": (0.0, [[-0.375, 0.0], [0.0625, 0.0625], [0.125, 0.0], [0.125, 0.0]]),
    }
    for rule, (loss, slope) in slopes.items():
        weights = omega(rule, lengths, groups, everyone, count(lengths, groups, everyone), max_tokens=2)
        term = policy_term(ratio, advantage, mask, weights, 0.2, 0.2)
        (gradient,) = torch.autograd.grad(term, logp, retain_graph=True)
        assert term.item() == pytest.approx(loss, abs=1e-12)
        torch.testing.assert_close(gradient, torch.tensor(slope, dtype=torch.float64))
        assert gradient_weight(term, logp).tolist() == pytest.approx([sum(map(abs, row)) for row in slope])
