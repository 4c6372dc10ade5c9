"""Advantages A = (r - b) / s of groups of rollouts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Statistic = Callable[[Tensor, Tensor, Tensor], Tensor]


def group_mean(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """Mean reward of each rollout's group over the scored rollouts, (N,).

        b_i = (1 / n_g) * sum_{j in g, scored} r_j

    Source: GRPO, arXiv 2402.03300, section 4.1.1.
    """
    return _group_sum(torch.where(scored, rewards, 0.0), groups) / _group_sum(scored.to(rewards), groups).clamp(min=1)


def group_std(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """Standard deviation of each rollout's group over the scored rollouts with Bessel's correction, (N,).

        s_i = sqrt( sum_{j in g, scored} (r_j - mean_g)^2 / (n_g - 1) )

    0 for a group with fewer than two scored rollouts. TRL, verl and OpenRLHF use ddof 1 too; open-instruct ddof 0.
    """
    deviation = torch.where(scored, rewards - group_mean(rewards, groups, scored), 0.0)
    n = _group_sum(scored.to(rewards), groups)
    return (_group_sum(deviation.square(), groups) / (n - 1).clamp(min=1)).sqrt()


def no_baseline(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """b = 0: plain REINFORCE."""
    return torch.zeros_like(rewards)


#: b and s by the names a recipe uses; a scale of `None` is s = 1.
BASELINES: dict[str, Statistic] = {"group_mean": group_mean, "none": no_baseline}
SCALES: dict[str, Statistic | None] = {"group_std": group_std, "none": None}


def dead_groups(rewards: Tensor, groups: Tensor, scored: Tensor, tolerance: float = 1e-8) -> Tensor:
    """Whether each rollout's group has equal rewards: max - min <= tolerance over its scored rollouts, (N,) bool.

    Never decided by a floating-point standard deviation: its rounding residue divided by itself gives advantages
    of any size.
    """
    n = int(groups.max()) + 1
    low = torch.full((n,), torch.inf, dtype=rewards.dtype, device=rewards.device).scatter_reduce(
        0, groups, torch.where(scored, rewards, torch.inf), "amin"
    )
    high = torch.full((n,), -torch.inf, dtype=rewards.dtype, device=rewards.device).scatter_reduce(
        0, groups, torch.where(scored, rewards, -torch.inf), "amax"
    )
    return ((high - low) <= tolerance)[groups]


def advantages(
    rewards: Tensor,
    groups: Tensor,
    scored: Tensor,
    baseline: str = "group_mean",
    scale: str = "group_std",
    epsilon: float = 1e-4,
    tolerance: float = 1e-8,
) -> Tensor:
    """Advantage of each rollout, (N,) float64.

        A_i = (r_i - b_i) / (s_i + epsilon)        or r_i - b_i where the scale is none

    Under a group baseline a dead group (see `dead_groups`) and a group with fewer than two scored rollouts get
    exactly 0: r minus the mean of equal floats is not always 0. Unscored rollouts get 0 and count in no statistic.

    Args:
        rewards: (N,) total rewards; entries that are not scored are ignored, whatever they hold.
        groups: (N,) int64 group index of each rollout, from 0.
        scored: (N,) bool, False where there is no reward.
        baseline: key of `BASELINES`.
        scale: key of `SCALES`.
        epsilon: added to the standard deviation (TRL 1e-4, verl 1e-6).
        tolerance: rewards this close count as equal.

    Raises:
        ValueError: shapes differ, or a scored reward is not finite (the rollout is named).
    """
    if not rewards.shape == groups.shape == scored.shape or rewards.ndim != 1:
        raise ValueError(
            f"rewards {tuple(rewards.shape)}, groups {tuple(groups.shape)} and scored {tuple(scored.shape)} must be "
            "equal one-dimensional shapes"
        )
    rewards = torch.where(scored, rewards.double(), 0.0)
    if not rewards.isfinite().all():
        raise ValueError(f"the reward of rollout {int((~rewards.isfinite()).nonzero()[0])} is not finite")
    advantage = rewards - BASELINES[baseline](rewards, groups, scored)
    differ = (_group_sum(scored.to(rewards), groups) >= 2) & ~dead_groups(rewards, groups, scored, tolerance)
    statistic = SCALES[scale]
    if statistic is not None:  # without a spread to divide by, s = 1
        advantage = torch.where(differ, advantage / (statistic(rewards, groups, scored) + epsilon), advantage)
    return torch.where(scored & (differ | (baseline == "none")), advantage, 0.0)


def _group_sum(values: Tensor, groups: Tensor) -> Tensor:
    sums = torch.zeros(int(groups.max()) + 1, dtype=values.dtype, device=values.device)
    return sums.index_add(0, groups, values)[groups]
