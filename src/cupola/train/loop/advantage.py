"""The advantages of a batch: of each rollout, or of each token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cupola.core.config import Objective, Recipe
from cupola.core.records import DEAD_TOLERANCE
from cupola.train.loop.batch import Batch, Before
from cupola.train.objectives import (
    advantages,
    best_only,
    decoupled_advantages,
    gae,
    pass_at_k,
    spread,
    token_rewards,
    whiten,
)


@dataclass(frozen=True, eq=False)
class Advantages:
    """The advantage of each row, (N, 1), or of each token, (N, T), float64; 0 for a row that is not counted.

    `spread` is what a whitening divided by, `None` where it divided by nothing; `compared` are the rewards (N,) that
    baseline and scale were taken from with the rows that counted (N,), once for each part where parts are apart. Of a
    critic, (N, T): `values_old` before the update, and the `returns` that it learns.
    """

    values: Tensor
    spread: float | None = None
    compared: tuple[tuple[Tensor, Tensor], ...] = ()
    values_old: Tensor | None = None
    returns: Tensor | None = None


def batch_advantages(batch: Batch, before: Before, recipe: Recipe) -> Advantages:
    """Transform, baseline and scale, whitening: the first decisions of the objective, over the whole batch."""
    objective = recipe.objective
    if objective.kl_in == "reward" and before.kl is not None:
        batch = replace(batch, rewards=batch.rewards - objective.beta * before.kl.double().sum(-1))
    if objective.baseline == "critic":
        return critic_advantages(batch, before, objective)
    values, compared = group_advantages(batch, recipe)
    if objective.kl_in == "token_reward" and before.kl is not None:
        counted = batch.mask & batch.counted[:, None]
        penalty = objective.beta * torch.where(counted, before.kl.double(), 0.0)
        values = torch.where(counted, values - penalty.flip(-1).cumsum(-1).flip(-1), 0.0)
    return replace(whitened(values, batch, objective), compared=compared)


def group_advantages(batch: Batch, recipe: Recipe) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], ...]]:
    """One advantage per row, (N, 1), and what was compared."""
    objective = recipe.objective
    options = (objective.baseline, objective.scale, objective.scale_epsilon)
    if objective.combine == "apart":
        weights = torch.tensor([part.weight for part in recipe.reward])
        parts = torch.where(batch.counted[:, None], batch.parts, torch.nan)
        scored = ~parts.isnan()
        values = decoupled_advantages(parts, batch.groups, scored, weights, *options)
        return values[:, None], tuple(zip(parts.unbind(1), scored.unbind(1), strict=True))
    rewards, counted = transformed(batch, objective)
    values = advantages(rewards, batch.groups, counted, *options, DEAD_TOLERANCE)
    return values[:, None], ((rewards, counted),)


def critic_advantages(batch: Batch, before: Before, objective: Objective) -> Advantages:
    """GAE over each answer's tokens: the reward at the last one, k1 at each where the KL is in the tokens' rewards."""
    assert before.values is not None  # the learner asks its critic wherever the baseline is one
    mask = batch.mask & batch.counted[:, None]
    rewards = torch.where(batch.counted, batch.rewards, 0.0)
    logp = logp_ref = torch.zeros_like(before.values)
    if objective.kl_in == "token_reward" and before.logp is not None and before.logp_ref is not None:
        logp, logp_ref = before.logp, before.logp_ref
    per_token = token_rewards(rewards, logp.double(), logp_ref.double(), mask, objective.beta)
    values, returns = gae(per_token, before.values.double(), mask, objective.critic.gamma, objective.critic.lam)
    made = whitened(values, batch, objective)
    return replace(made, values_old=before.values, returns=returns)


def transformed(batch: Batch, objective: Objective) -> tuple[Tensor, Tensor]:
    """Rewards and which of them count: a group with fewer than k rewards has no pass@k."""
    if objective.transform == "none":
        return batch.rewards, batch.counted
    if objective.transform == "best_only":
        return best_only(batch.rewards, batch.groups, batch.counted), batch.counted
    counted = batch.counted & (batch.group_sizes >= objective.pass_k)
    return pass_at_k(batch.rewards, batch.groups, counted, objective.pass_k), counted


def whitened(values: Tensor, batch: Batch, objective: Objective) -> Advantages:
    """Over rollouts (GDPO) divided alone; over tokens (REINFORCE++) centred too, so a dead group may leave its 0."""
    if objective.whiten == "none":
        return Advantages(values)
    if objective.whiten == "rollouts":
        row, counted = values[:, 0], batch.counted
        if int(counted.sum()) < 2:
            return Advantages(values)
        found = spread(row, counted, 1, 1e-4, "std")
        return Advantages(whiten(row, counted, 1, 1e-4, "std", center=False)[:, None], _number(found))
    mask = batch.mask & batch.counted[:, None]
    if int(mask.sum()) < 2:
        return Advantages(values)
    tokens = values.expand(mask.shape)
    white = whiten(tokens, mask)
    return Advantages(white[:, : values.shape[1]], _number(spread(tokens, mask)))


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)
