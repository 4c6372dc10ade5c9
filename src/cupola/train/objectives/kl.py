"""Estimators of KL(policy, reference) from the tokens that were sampled, d = logp - logp_ref, each (N, T)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Estimator = Callable[[Tensor, Tensor], Tensor]


def k1(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """d. Unbiased, of either sign; as a loss its mean gradient is 0, so its place is the reward (`token_rewards`)."""
    return logp - logp_ref


def k2(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """d^2 / 2. Biased, never negative; its gradient is that of KL(policy, reference) on-policy.

    prime-rl's `kl_tau` term is twice this, with the sampler as the reference.
    """
    return (logp - logp_ref).square() / 2


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """exp(-d) + d - 1. Unbiased, never negative; its gradient is biased (arXiv 2512.21852).

    Source of k1 to k3: Schulman, "Approximating KL divergence", 2020. GRPO's loss uses k3 (arXiv 2402.03300, eq. 4).
    verl holds d within 20 and the value within 10, OpenRLHF every estimator within 10, TRL nothing.
    """
    d = logp - logp_ref
    return torch.expm1(-d) + d


#: A drift this small, in nats, is the rounding between two forward passes: no policy has moved.
UNMOVED = 1e-5


def drift(logp: Tensor, logp_old: Tensor) -> Tensor:
    """|d| where the policy has moved, else 0 without a gradient: a rounding error's sign is a slope of 1, too."""
    d = logp - logp_old
    return torch.where(d.abs() > UNMOVED, d.abs(), 0.0)


def absolute(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """|d|. No estimate of the divergence; its gradient is the sign of d, and 0 at d = 0. verl's `abs`."""
    return (logp - logp_ref).abs()


def straight_through(estimator: Estimator) -> Estimator:
    """The value of an estimator with the gradient of k2, which is right where the estimator's own is not.

    l = k2 - sg(k2) + sg(estimator). Source: verl's estimators with the suffix `+`.
    """

    def combined(logp: Tensor, logp_ref: Tensor) -> Tensor:
        slope = k2(logp, logp_ref)
        return slope - slope.detach() + estimator(logp, logp_ref).detach()

    return combined


def importance_corrected(kl: Tensor, ratio: Tensor) -> Tensor:
    """rho * KL, with gradient through both: unbiased where the tokens came from the old policy.

    Source: DeepSeek-V3.2, arXiv 2512.02556; TRL's `use_bias_correction_kl`, by default on. It changes the gradient even
    at rho = 1, by KL * grad log pi.
    """
    return ratio * kl


#: Estimators by the names a recipe uses; a `+` marks the gradient of k2.
KL_ESTIMATORS: dict[str, Estimator] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": absolute,
    "k1+": straight_through(k1),
    "k3+": straight_through(k3),
}
