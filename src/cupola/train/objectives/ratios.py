"""The second decision: the level at which two policies are compared.

Every function takes the log-probabilities of the policy, (N, T) with gradient, those of the older policy, and the mask,
and returns (N, T). A masked token has ratio 1 and no gradient, whatever its log-probabilities hold. The same functions
compare the old policy with the sampler (see `masks.importance_weights`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cupola.train.objectives.checks import masked_mean

Ratio = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Where exp would overflow in float32 its gradient is 0 * inf; far outside every clip range, so that nothing else
#: changes. verl and OpenRLHF stop at 20, TRL nowhere.
LARGEST_EXPONENT = 80.0


def log_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """logp - logp_old where the mask counts, 0 elsewhere, (N, T)."""
    return torch.where(mask.bool(), logp - logp_old, 0.0)


def token_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """rho_it = pi(o_it) / pi_old(o_it). Source: PPO, arXiv 1707.06347, section 3."""
    return _exp(log_ratio(logp, logp_old, mask))


def sequence_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """s_i = (pi(o_i) / pi_old(o_i))^(1/|o_i|) = exp( (1/|o_i|) sum_t log rho_it ), at every token.

    Source: GSPO, arXiv 2507.18071, eq. 7. With `sequence_mean` as the denominator it is the paper's objective, since
    every token of a rollout holds the same value.
    """
    return _exp(masked_mean(log_ratio(logp, logp_old, mask), mask)).expand_as(logp)


def sequence_token_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """s_it = sg(s_i) * pi(o_it) / sg(pi(o_it)): the value of `sequence_ratio`, the gradient each token's own.

    With one advantage per rollout and `sequence_mean` the gradient is that of `sequence_ratio`; it differs where
    advantages, masks or weights differ between the tokens of a rollout.

    Source: GSPO-token, arXiv 2507.18071, eq. 14. verl's `gspo` is this one, its exponent held below 10.
    """
    level = sequence_ratio(logp, logp_old, mask).detach()
    return level * log_ratio(logp, logp.detach(), mask).exp()


def sequence_product_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """R_i = pi(o_i) / pi_old(o_i) = exp( sum_t log rho_it ), at every token: exact, and the wider the longer |o_i|.

    Source: RLOO, arXiv 2402.14740, as in TRL's RLOOTrainer.
    """
    return _exp(log_ratio(logp, logp_old, mask).sum(-1, keepdim=True)).expand_as(logp)


def no_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """1 without a gradient: for surrogates whose gradient goes through log pi itself."""
    return torch.ones_like(logp)


#: Ratio levels by the names a recipe uses.
RATIOS: dict[str, Ratio] = {
    "token": token_ratio,
    "sequence": sequence_ratio,
    "sequence_token": sequence_token_ratio,
    "sequence_product": sequence_product_ratio,
    "none": no_ratio,
}


def _exp(exponent: Tensor) -> Tensor:
    return exponent.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()
