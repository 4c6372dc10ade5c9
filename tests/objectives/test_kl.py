"""The KL estimators against numbers worked by hand, values and gradients."""

import math

import pytest
import torch

from cupola.train.objectives import KL_ESTIMATORS, importance_corrected

# value at d = .5 and d = -.5, slope at both; k3 is exp(-d) + d - 1 with slope 1 - exp(-d)
K3 = (0.10653065971263342, 0.14872127070012815, 0.3934693402873666, -0.6487212707001282)
BY_HAND = {
    "k1": (0.5, -0.5, 1.0, 1.0),
    "k2": (0.125, 0.125, 0.5, -0.5),
    "k3": K3,
    "abs": (0.5, 0.5, 1.0, -1.0),
    "k1+": (0.5, -0.5, 0.5, -0.5),
    "k3+": (*K3[:2], 0.5, -0.5),
}


def test_every_estimator_is_worked_here() -> None:
    assert set(BY_HAND) == set(KL_ESTIMATORS)


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_estimator_by_hand(name: str) -> None:
    logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    found = KL_ESTIMATORS[name](logp, torch.tensor([-1.5, -1.5], dtype=torch.float64))
    found.sum().backward()
    assert logp.grad is not None
    assert [*found.tolist(), *logp.grad.tolist()] == pytest.approx(BY_HAND[name], abs=1e-15)


@pytest.mark.parametrize("name", sorted(KL_ESTIMATORS))
def test_kl_of_a_policy_with_itself_is_exactly_zero(name: str) -> None:
    logp = torch.tensor([-0.3, -17.0])
    assert KL_ESTIMATORS[name](logp, logp).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["k1", "k3", "k1+", "k3+"])
def test_unbiased_estimators_average_to_the_divergence(name: str) -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    kl = 0.3 * math.log(2.5)  # .5 ln(.5/.2) + .2 ln(.2/.5)
    assert float((p * KL_ESTIMATORS[name](p.log(), q.log())).sum()) == pytest.approx(kl, rel=1e-6)


def test_whose_gradient_is_that_of_the_divergence() -> None:
    """On-policy, the mean over tokens of the estimator's gradient, exactly by enumeration over three tokens."""
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    logits = torch.tensor([0.4, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - q.log())).sum(), logits, retain_graph=True)

    def mean_gradient(name: str, corrected: bool = False) -> torch.Tensor:
        kl = KL_ESTIMATORS[name](logp, q.log())
        if corrected:
            kl = importance_corrected(kl, (logp - logp.detach()).exp())
        (gradient,) = torch.autograd.grad((logp.detach().exp() * kl).sum(), logits, retain_graph=True)
        return gradient

    for name in ("k2", "k1+", "k3+"):
        torch.testing.assert_close(mean_gradient(name), exact)
    for name in ("k1", "k3"):
        torch.testing.assert_close(mean_gradient(name, corrected=True), exact)
        assert (mean_gradient(name) - exact).norm() > 0.1 * exact.norm()
    torch.testing.assert_close(mean_gradient("k1"), torch.zeros(3, dtype=torch.float64))
