"""What a critic brings: rewards per token, advantages per token, and the value loss."""

from __future__ import annotations

import torch
from torch import Tensor

from cupola.train.objectives.checks import require


def token_rewards(rewards: Tensor, logp_old: Tensor, logp_ref: Tensor, mask: Tensor, beta: float) -> Tensor:
    """The reward at the last counted token, and -beta * k1 at every counted token, (N, T).

        r_it = [t is last] * r_i - beta * (logp_old_it - logp_ref_it)

    The sum over t is the reward that RLOO's leave-one-out baseline takes (TRL's RLOOTrainer, beta 0.05). Unlike a KL
    term in the loss it has the right gradient in expectation.

    Args:
        rewards: (N,).
        logp_old: (N, T), of the policy that the tokens are credited to, without gradient.
        logp_ref: (N, T).
        mask: (N, T).
        beta: 0 leaves the reference out.

    Source: Ziegler et al., arXiv 1909.08593, eq. 2.
    """
    counted = mask.bool()
    last = counted & (counted.long().cumsum(-1) == counted.sum(-1, keepdim=True))
    penalty = torch.where(counted, beta * (logp_old - logp_ref), 0.0)
    return torch.where(last, rewards[:, None].to(penalty), 0.0) - penalty


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the returns that the critic learns, two (N, T); 0 where masked.

        delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lam A_{t+1}        R_t = A_t + V_t

    Steps are counted tokens: a masked one in between is passed over. After the last one the value is 0, for a truncated
    answer too. With `values` 0 and lam = 1 the advantages are discounted returns, REINFORCE++'s (arXiv 2501.03262).

    Args:
        rewards: (N, T), see `token_rewards`.
        values: (N, T) of the critic before the update, without gradient.
        mask: (N, T).
        gamma: discount in [0, 1].
        lam: lambda in [0, 1]; 1 is returns minus values, 0 the one-step error.

    Source: arXiv 1506.02438, eq. 16. verl also whitens the result; here that is `advantages.whiten`.
    """
    require(0 <= gamma <= 1 and 0 <= lam <= 1, f"gamma = {gamma} and lambda = {lam} must lie in [0, 1]")
    counted = mask.bool()
    rewards, values = torch.where(counted, rewards, 0.0), torch.where(counted, values, 0.0)
    following, carried = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        here = counted[:, t]
        step = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * carried
        carried = torch.where(here, step, carried)
        following = torch.where(here, values[:, t], following)
        advantages[:, t] = torch.where(here, step, 0.0)
    return advantages, advantages + values


def value_loss(values: Tensor, values_old: Tensor, returns: Tensor, clip: float = 0.2) -> Tensor:
    """The critic's loss at each token, (N, T), weighted by its own omega in `terms.weighted_sum`.

        l = max( (V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2 ) / 2

    `clip` = inf is the plain square. Source: OpenAI baselines' PPO; the paper (arXiv 1707.06347, eq. 9) does not clip.
    The half is verl's and OpenRLHF's.
    """
    require(clip > 0, f"clip = {clip} must be > 0, or the critic stands still")
    near = values_old + (values - values_old).clamp(-clip, clip)
    return torch.maximum((values - returns).square(), (near - returns).square()) / 2
