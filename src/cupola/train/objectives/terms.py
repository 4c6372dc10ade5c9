"""The terms of the loss, each a plain sum over tokens of omega * mask * value.

    L = policy_term + beta * kl_term - c_H * entropy_term

Shapes: N rollouts, T tokens; `mask` (N, T) is 1 where a token counts, `omega` (N,) is the denominator rule's weight.
All log-probabilities are in nats at the sampling temperature.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def token_ratio(logp: Tensor, logp_old: Tensor) -> Tensor:
    """rho_it = exp(logp_it - logp_old_it), (N, T). Source: PPO, arXiv 1707.06347, section 3."""
    return (logp - logp_old).exp()


#: Ratio levels by the names a recipe uses.
RATIOS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"token": token_ratio}


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """The negated clipped objective of each token, (N, T).

        l = -min(rho * A, clip(rho, 1 - clip_low, 1 + clip_high) * A)

    Equal bounds are PPO's (arXiv 1707.06347, eq. 7); clip_high > clip_low is DAPO's clip-higher (arXiv 2503.14476).

    Args:
        ratio: (N, T).
        advantages: (N, 1) or (N, T).
    """
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages)


def clipped_tokens(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Where clipping takes the gradient away, two (N, T) bool: below (A < 0) and above (A > 0).

    The definitions of TRL's `clip_ratio/low_*` and `clip_ratio/high_*`.
    """
    return (ratio < 1 - clip_low) & (advantages < 0), (ratio > 1 + clip_high) & (advantages > 0)


def policy_term(
    ratio: Tensor, advantages: Tensor, mask: Tensor, omega: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """sum_it omega_i m_it l_it with `clipped_surrogate` as l; a scalar.

    Args:
        ratio: (N, T), with gradient.
        advantages: (N,), constant over a rollout's tokens.
        mask: (N, T).
        omega: (N,).
    """
    check_shapes(ratio, mask, omega)
    loss = clipped_surrogate(ratio, advantages[:, None].to(ratio), clip_low, clip_high)
    return weighted_sum(loss, mask, omega)


def k1(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """d = logp - logp_ref. Unbiased for KL(policy, reference), of either sign; as a loss its mean gradient is 0."""
    return logp - logp_ref


def k2(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """d^2 / 2. Biased, never negative; its gradient is that of KL(policy, reference) on-policy."""
    return (logp - logp_ref).square() / 2


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """exp(-d) + d - 1 with d = logp - logp_ref. Unbiased, never negative; its gradient is biased (arXiv 2512.21852).

    Source of k1 to k3: Schulman, "Approximating KL divergence", 2020. GRPO's loss uses k3 (arXiv 2402.03300, eq. 4).
    """
    d = logp - logp_ref
    return torch.expm1(-d) + d


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_term(kl: Tensor, mask: Tensor, omega: Tensor) -> Tensor:
    """sum_it omega_i m_it KL_it; a scalar. `kl` (N, T) comes from `KL_ESTIMATORS`."""
    check_shapes(kl, mask, omega)
    return weighted_sum(kl, mask, omega)


def entropy_term(entropy: Tensor, mask: Tensor, omega: Tensor) -> Tensor:
    """sum_it omega_i m_it H_it; a scalar. `entropy` (N, T) comes from `token_entropy`."""
    check_shapes(entropy, mask, omega)
    return weighted_sum(entropy, mask, omega)


def token_logps(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits) at the given tokens, (N, T), from logits (N, T, V) already divided by the temperature."""
    return -torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens, reduction="none")


def token_entropy(logits: Tensor) -> Tensor:
    """H = -sum_v p_v log p_v of each position in nats, (N, T), from logits (N, T, V)."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)


def weighted_sum(values: Tensor, mask: Tensor, omega: Tensor) -> Tensor:
    """sum_it omega_i m_it v_it. A masked value is left out whatever it holds: 0 * NaN would not be 0."""
    return (torch.where(mask.bool(), values, 0.0) * omega[:, None].to(values)).sum()


def gradient_weight(term: Tensor, logp: Tensor) -> Tensor:
    """sum_t |d term / d logp_it| of each rollout, (N,): how much of the gradient's weight it carries."""
    (gradient,) = torch.autograd.grad(term, logp, retain_graph=True)
    return gradient.abs().sum(-1).detach()


def check_shapes(values: Tensor, mask: Tensor, omega: Tensor) -> None:
    """Raise ValueError naming the shapes where they do not go together."""
    if values.shape != mask.shape or omega.shape != values.shape[:1]:
        raise ValueError(
            f"values {tuple(values.shape)} and mask {tuple(mask.shape)} must be equal and omega {tuple(omega.shape)} "
            "must have one entry per rollout"
        )
