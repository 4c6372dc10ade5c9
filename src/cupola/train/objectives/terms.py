"""The terms of the loss, each the plain sum over tokens of omega * mask * value.

    L = policy + beta * KL - c_H * entropy + c_V * value

Shapes: N rollouts, T tokens; `mask` (N, T) is 1 where a token counts, `omega` (N,) is the denominator rule's weight.
All log-probabilities are in nats at the sampling temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cupola.train.objectives.checks import require_shapes


def weighted_sum(values: Tensor, mask: Tensor, omega: Tensor) -> Tensor:
    """sum_it omega_i m_it v_it, a scalar. A masked value is left out whatever it holds: 0 * NaN would not be 0.

    Args:
        values: (N, T) per-token losses of a surrogate, KL estimates, entropies or value losses.
        mask: (N, T).
        omega: (N,).

    Raises:
        ValueError: the shapes do not go together.
    """
    require_shapes(values, mask, omega)
    return (torch.where(mask.bool(), values, 0.0) * omega[:, None].to(values)).sum()


def gradient_weight(term: Tensor, logp: Tensor) -> Tensor:
    """sum_t |d term / d logp_it| of each rollout, (N,): how much of the gradient's weight it carries."""
    (gradient,) = torch.autograd.grad(term, logp, retain_graph=True)
    return gradient.abs().sum(-1).detach()


def token_logps(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits) at the given tokens, (N, T), from logits (N, T, V) already divided by the temperature."""
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, -2), tokens.flatten(), reduction="none")
    return -flat.view_as(tokens)


def token_entropy(logits: Tensor) -> Tensor:
    """H = -sum_v p_v log p_v of each position in nats, (N, T), from logits (N, T, V)."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)
