"""The first decision: advantages A = (r - b) / s of groups of rollouts, and their whitening."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cupola.train.objectives.checks import require, require_finite

Statistic = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Values this close are equal: the largest minus the smallest decides, never a standard deviation.
TOLERANCE = 1e-8


def group_mean(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """Mean reward of each rollout's group over the scored rollouts, (N,).

        b_i = (1 / n_g) * sum_{j in g, scored} r_j

    Source: GRPO, arXiv 2402.03300, section 4.1.1.
    """
    return _group_sum(torch.where(scored, rewards, 0.0), groups) / _group_sum(scored.to(rewards), groups).clamp(min=1)


def leave_one_out(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """Mean reward of the other scored rollouts of the group, (N,): r - b = (r - group mean) * n_g / (n_g - 1).

        b_i = (1 / (n_g - 1)) * sum_{j in g, scored, j != i} r_j

    It holds no reward of i's own, so it does not bias the gradient. Source: RLOO, arXiv 2402.14740, section 2.
    """
    n = _group_sum(scored.to(rewards), groups)
    own = torch.where(scored, rewards, 0.0)
    return (_group_sum(own, groups) - own) / (n - 1).clamp(min=1)


def batch_mean(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """Mean reward of all scored rollouts, (N,): an easy prompt's answers are praised, a hard one's blamed."""
    return group_mean(rewards, torch.zeros_like(groups), scored)


def no_baseline(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """b = 0: plain REINFORCE."""
    return torch.zeros_like(rewards)


def group_std(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """Standard deviation of each rollout's group over the scored rollouts with Bessel's correction, (N,).

        s_i = sqrt( sum_{j in g, scored} (r_j - mean_g)^2 / (n_g - 1) )

    0 for a group with fewer than two scored rollouts. TRL, verl and OpenRLHF use ddof 1 too; open-instruct ddof 0.
    """
    deviation = torch.where(scored, rewards - group_mean(rewards, groups, scored), 0.0)
    n = _group_sum(scored.to(rewards), groups)
    return (_group_sum(deviation.square(), groups) / (n - 1).clamp(min=1)).sqrt()


def batch_std(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """Standard deviation of all scored rewards, (N,): no group counts more for its own spread.

    Source: arXiv 2508.08221, as in TRL's `scale_rewards="batch"`.
    """
    return group_std(rewards, torch.zeros_like(groups), scored)


def positive_group_mean(rewards: Tensor, groups: Tensor, scored: Tensor) -> Tensor:
    """The group's mean reward as a scale, infinite where it is not above `TOLERANCE`, so that A is 0 there, (N,).

        A_i = (r_i - mean_g) / mean_g

    For rewards 0 and 1 a group counts by 1 / its solve rate. It is meant without epsilon and for rewards >= 0.

    Source: MaxRL, arXiv 2602.02710, as in prime-rl; SkyRL adds 1e-6.
    """
    mean = group_mean(rewards, groups, scored)
    return torch.where(mean > TOLERANCE, mean, torch.inf)


#: b and s by the names a recipe uses; a scale of `None` is s = 1.
BASELINES: dict[str, Statistic] = {
    "group_mean": group_mean,
    "leave_one_out": leave_one_out,
    "batch_mean": batch_mean,
    "none": no_baseline,
}
SCALES: dict[str, Statistic | None] = {
    "group_std": group_std,
    "batch_std": batch_std,
    "group_mean": positive_group_mean,
    "none": None,
}
#: Those that are counted over all rollouts and not over the group.
BATCH_WIDE = frozenset({"batch_mean", "batch_std"})


def dead_groups(rewards: Tensor, groups: Tensor, scored: Tensor, tolerance: float = TOLERANCE) -> Tensor:
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
    tolerance: float = TOLERANCE,
) -> Tensor:
    """Advantage of each rollout, (N,) float64.

        A_i = (r_i - b_i) / (s_i + epsilon)        or r_i - b_i where the scale is none

    Where the rewards that a baseline is taken from are equal (a dead group; the whole batch for `batch_mean`) or fewer
    than two, A is exactly 0: r minus the mean of equal floats is not always 0. Where those that a scale is taken from
    are, s = 1: there is no spread to divide by. Unscored rollouts get 0 and count in no statistic.

    Args:
        rewards: (N,) total rewards; entries that are not scored are ignored, whatever they hold.
        groups: (N,) int64 group index of each rollout, from 0.
        scored: (N,) bool, False where there is no reward.
        baseline: key of `BASELINES`.
        scale: key of `SCALES`.
        epsilon: added to the scale (TRL 1e-4, verl 1e-6; MaxRL means 0).
        tolerance: rewards this close count as equal.

    Raises:
        ValueError: shapes differ, or a scored reward is not finite (the rollout is named).
    """
    if not rewards.shape == groups.shape == scored.shape or rewards.ndim != 1:
        raise ValueError(
            f"rewards {tuple(rewards.shape)}, groups {tuple(groups.shape)} and scored {tuple(scored.shape)} must be "
            "equal one-dimensional shapes"
        )
    require_finite("reward", rewards, scored)
    rewards = torch.where(scored, rewards.double(), 0.0)

    def spread(name: str) -> Tensor:
        """Where the rewards that this statistic is taken from differ, (N,) bool."""
        scope = torch.zeros_like(groups) if name in BATCH_WIDE else groups
        return (_group_sum(scored.to(rewards), scope) >= 2) & ~dead_groups(rewards, scope, scored, tolerance)

    advantage = rewards - BASELINES[baseline](rewards, groups, scored)
    statistic = SCALES[scale]
    if statistic is not None:
        advantage = advantage / torch.where(spread(scale), statistic(rewards, groups, scored) + epsilon, 1.0)
    return torch.where(scored & (spread(baseline) | (baseline == "none")), advantage, 0.0)


def decoupled_advantages(
    rewards: Tensor,
    groups: Tensor,
    scored: Tensor,
    weights: Tensor,
    baseline: str = "group_mean",
    scale: str = "group_std",
    epsilon: float = 1e-4,
) -> Tensor:
    """Several rewards, each normalised apart and then summed, (N,) float64: no reward drowns in another's spread.

        A_i = sum_k w_k * (r_ik - b_ik) / (s_ik + epsilon)

    A reward that is missing adds 0, its neutral advantage. GDPO then divides by the batch's standard deviation:
    `whiten(A, scored.any(1), ddof=1, epsilon=1e-4, divisor="std", center=False)`. The paper and TRL centre too, on a
    mean that is 0 but for rounding; without it a dead group keeps exactly 0.

    Args:
        rewards: (N, K).
        groups: (N,).
        scored: (N, K) bool.
        weights: (K,).

    Source: GDPO, arXiv 2601.05242; TRL's `normalize_then_sum`.
    """
    parts = [
        weight * advantages(rewards[:, k], groups, scored[:, k], baseline, scale, epsilon)
        for k, weight in enumerate(weights.double())
    ]
    return torch.stack(parts).sum(0)


#: How epsilon enters the divisor of a whitening, from (variance, epsilon): TRL's, verl's, and OpenRLHF's way.
DIVISORS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "std": lambda variance, epsilon: variance.sqrt() + epsilon,
    "variance": lambda variance, epsilon: (variance + epsilon).sqrt(),
    "floor": lambda variance, epsilon: variance.clamp(min=epsilon).sqrt(),
}


def whiten(
    values: Tensor,
    mask: Tensor,
    ddof: int = 1,
    epsilon: float = 1e-8,
    divisor: str = "variance",
    center: bool = True,
) -> Tensor:
    """Values to mean 0 and variance 1 over all that the mask counts, of the same shape; 0 where masked.

        (x - mean) / d(variance, epsilon),        variance = sum (x - mean)^2 / (n - ddof)

    Over tokens, (N, T), a long answer counts more in both statistics, and a dead group does not keep its 0; over
    rollouts, (N,), each counts once. Whiten a whole update at once: statistics of a part would depend on the cut.
    Equal values have no variance: they become 0, or stay as they are where they are not centred.

    Args:
        values: (N,) or (N, T), without gradient.
        mask: of the same shape.
        ddof: 1 in verl and TRL, 0 in OpenRLHF.
        epsilon: 1e-8 in verl ("variance") and OpenRLHF ("floor"), 1e-4 in TRL ("std").
        divisor: key of `DIVISORS`.
        center: whether the mean is taken away from the result; the variance is about the mean either way.

    Raises:
        ValueError: the mask counts no more than `ddof` values.
    """
    scale = spread(values, mask, ddof, epsilon, divisor)
    if scale is None:
        return torch.zeros_like(values) if center else torch.where(mask.bool(), values, 0.0)
    shifted = values - values[mask.bool()].mean() if center else values
    return torch.where(mask.bool(), shifted / scale, 0.0)


def spread(
    values: Tensor, mask: Tensor, ddof: int = 1, epsilon: float = 1e-8, divisor: str = "variance"
) -> Tensor | None:
    """What `whiten` divides by, a scalar; `None` where all counted values are equal and nothing is divided."""
    counted = values[mask.bool()]
    require(
        len(counted) > ddof,
        f"whitening with ddof {ddof} needs at least {ddof + 1} values, the mask counts {len(counted)}",
    )
    if counted.max() - counted.min() <= TOLERANCE:
        return None
    return DIVISORS[divisor]((counted - counted.mean()).square().sum() / (len(counted) - ddof), epsilon)


def _group_sum(values: Tensor, groups: Tensor) -> Tensor:
    sums = torch.zeros(int(groups.max()) + 1, dtype=values.dtype, device=values.device)
    return sums.index_add(0, groups, values)[groups]
