"""Transforms of the rewards before baseline and scale. Rollouts without a reward get 0 and count nowhere."""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from cupola.train.objectives.checks import require


def pass_at_k(rewards: Tensor, groups: Tensor, scored: Tensor, k: int) -> Tensor:
    """Rewards whose policy gradient is that of the expected maximum of k answers, (N,); pass@k for rewards 0 and 1.

        s_i = (n / C(n, k)) * sum over subsets I of size k that hold i of max_{j in I} r_j

    with n the group's scored rollouts. For rewards 0 and 1, c of them right: k for a right answer,
    k * (1 - C(n-1-c, k-1) / C(n-1, k-1)) for a wrong one. k = 1 returns the rewards.

    The others' s_j hold r_i too, so a baseline made of them, leave-one-out included, biases the gradient a little.

    Args:
        k: at most the scored rollouts of every group that has any.

    Raises:
        ValueError: a group has fewer than k scored rollouts.

    Source: PKPO, arXiv 2505.15201. The paper's values are these over n, as its estimator
    sums over the group where the denominators here average.
    """
    found = torch.zeros_like(rewards, dtype=torch.float64)
    for rows in _groups(groups, scored):
        n = len(rows)
        require(1 <= k <= n, f"pass@{k} needs {k} scored rollouts in every group, one has {n}; take k <= group size")
        values, order = rewards[rows].double().sort()
        # In ascending order: the share of all subsets whose maximum is i, and of those with i below the maximum j.
        own = values.new_tensor([n * comb(i, k - 1) / comb(n, k) for i in range(n)])
        above = values.new_tensor([n * comb(j - 1, k - 2) / comb(n, k) if k > 1 else 0.0 for j in range(1, n)])
        higher = (above * values[1:]).flip(0).cumsum(0).flip(0)
        found[rows[order]] = own * values + torch.cat([higher, values.new_zeros(1)])
    return found


def best_only(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """r_max - r_second for a group's best answer and 0 for the others, (N,): advantages, to be taken with no baseline.

    What the best adds to the group's maximum. 0 where two share the maximum, and for a group with one scored rollout.
    verl's `grpo_passk` then divides by the standard deviation of the group's rewards plus 1e-6.

    Source: arXiv 2503.19595; the case k = n of PKPO's `sloo_minus_one`.
    """
    found = torch.zeros_like(rewards, dtype=torch.float64)
    for rows in _groups(groups, scored):
        if len(rows) >= 2:
            values, order = rewards[rows].double().topk(2)
            found[rows[order[0]]] = values[0] - values[1]
    return found


def soft_overlong_punishment(lengths: Tensor, max_tokens: int, cache: int) -> Tensor:
    """What is added to the reward of a long answer, (N,), in [-1, 0].

        0 while |o| <= L_max - L_cache, then (L_max - L_cache - |o|) / L_cache, and -1 above L_max

    Source: DAPO, arXiv 2503.14476, eq. 13 (16384 + 4096 and 4096 in the paper). TRL's function is the same; verl's is
    not held at -1, and can scale.
    """
    require(0 < cache <= max_tokens, f"cache = {cache} must lie in (0, max_tokens = {max_tokens}]")
    return ((max_tokens - cache - lengths.double()) / cache).clamp(-1.0, 0.0)


def _groups(groups: Tensor, scored: Tensor) -> list[Tensor]:
    """The scored rows of each group that has any."""
    return [((groups == g) & scored).nonzero().squeeze(1) for g in groups[scored].unique()]
