"""A step's rollouts as tensors, and their advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.core.config import Objective, Recipe
from cupola.core.records import DEAD_TOLERANCE, Content, Group, Rollout
from cupola.train.objectives import advantages, best_only, decoupled_advantages, pass_at_k, spread, whiten


@dataclass(frozen=True, eq=False)
class Batch:
    """All rollouts of a step, flat: N rows. An unscored row holds the reward NaN.

    `prompts` and `completions` are token ids, `sampler_logps` what the sampler said of each completion token.
    `lengths`, `groups` (the index of each row's group), `rewards`, `scored`, `dead` (whether its group is) and
    `truncated` (whether it was cut at the limit) are (N,); `parts` (N, K) are the scores of the parts in order,
    NaN for none.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    sampler_logps: list[Tensor]
    lengths: Tensor
    groups: Tensor
    rewards: Tensor
    scored: Tensor
    dead: Tensor
    truncated: Tensor
    parts: Tensor

    @classmethod
    def of(cls, groups: Sequence[Group], encode: Callable[[Content], list[int]]) -> Batch:
        """The batch of a step's groups."""
        prompts = [encode(group.prompt.content) for group in groups]
        rows = [(g, rollout) for g, group in enumerate(groups) for rollout in group.rollouts]
        rewards = [torch.nan if rollout.reward is None else rollout.reward for _, rollout in rows]
        return cls(
            prompts=[prompts[g] for g, _ in rows],
            completions=[rollout.completion.token_ids.tolist() for _, rollout in rows],
            sampler_logps=[torch.from_numpy(rollout.completion.logps) for _, rollout in rows],
            lengths=torch.tensor([rollout.completion.n_tokens for _, rollout in rows]),
            groups=torch.tensor([g for g, _ in rows]),
            rewards=torch.tensor(rewards, dtype=torch.float64),
            scored=torch.tensor([rollout.reward is not None for _, rollout in rows]),
            dead=torch.tensor([groups[g].state == "dead" for g, _ in rows]),
            truncated=torch.tensor([rollout.completion.finish_reason == "length" for _, rollout in rows]),
            parts=torch.tensor([_scores(rollout) for _, rollout in rows], dtype=torch.float64),
        )

    def __len__(self) -> int:
        return len(self.lengths)


def _scores(rollout: Rollout) -> list[float]:
    return [torch.nan if verdict.score is None else verdict.score for verdict in rollout.verdicts.values()]


@dataclass(frozen=True)
class Advantages:
    """The advantage of each row, (N,) float64, 0 for an unscored row; `spread` is what a whitening divided by."""

    values: Tensor
    spread: float | None = None


def batch_advantages(batch: Batch, recipe: Recipe) -> Advantages:
    """Transform, baseline and scale, whitening: the first decisions of the objective, over the whole batch."""
    objective = recipe.objective
    options = (objective.baseline, objective.scale, objective.scale_epsilon)
    if objective.combine == "apart":
        weights = torch.tensor([part.weight for part in recipe.reward])
        parts = torch.where(batch.scored[:, None], batch.parts, torch.nan)
        values = decoupled_advantages(parts, batch.groups, ~parts.isnan(), weights, *options)
    else:
        rewards, scored = transformed(batch, objective)
        values = advantages(rewards, batch.groups, scored, *options, DEAD_TOLERANCE)
    return whitened(values, batch, objective)


def transformed(batch: Batch, objective: Objective) -> tuple[Tensor, Tensor]:
    """Rewards and which of them count: a group with fewer than k rewards has no pass@k."""
    if objective.transform == "none":
        return batch.rewards, batch.scored
    counts = torch.zeros(int(batch.groups.max()) + 1).index_add(0, batch.groups, batch.scored.float())[batch.groups]
    scored = batch.scored & (counts >= objective.pass_k)
    if objective.transform == "best_only":
        return best_only(batch.rewards, batch.groups, scored), scored
    return pass_at_k(batch.rewards, batch.groups, scored, objective.pass_k), scored


def whitened(values: Tensor, batch: Batch, objective: Objective) -> Advantages:
    """Over rollouts (GDPO) divided alone; over tokens (REINFORCE++) centred too, so a dead group may leave its 0."""
    if objective.whiten == "none" or int(batch.scored.sum()) < 2:
        return Advantages(values)
    if objective.whiten == "rollouts":
        found = spread(values, batch.scored, 1, 1e-4, "std")
        return Advantages(whiten(values, batch.scored, 1, 1e-4, "std", center=False), _number(found))
    columns = torch.arange(max(1, int(batch.lengths.max())))
    mask = (columns < batch.lengths[:, None]) & batch.scored[:, None]
    tokens = values[:, None].expand(-1, len(columns))
    return Advantages(whiten(tokens, mask)[:, 0], _number(spread(tokens, mask)))


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)
