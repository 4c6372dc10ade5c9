"""A step's rollouts as tensors, and their advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.core.config import Objective
from cupola.core.records import DEAD_TOLERANCE, Content, Group
from cupola.train.objectives import advantages


@dataclass(frozen=True, eq=False)
class Batch:
    """All rollouts of a step, flat: N rows. An unscored row holds the reward NaN.

    `prompts` and `completions` are token ids; `lengths`, `groups` (the index of each row's group), `rewards`, `scored`,
    `dead` (whether its group is) and `truncated` (whether it was cut at the limit) are (N,).
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    lengths: Tensor
    groups: Tensor
    rewards: Tensor
    scored: Tensor
    dead: Tensor
    truncated: Tensor

    @classmethod
    def of(cls, groups: Sequence[Group], encode: Callable[[Content], list[int]]) -> Batch:
        """The batch of a step's groups."""
        prompts = [encode(group.prompt.content) for group in groups]
        rows = [(g, rollout) for g, group in enumerate(groups) for rollout in group.rollouts]
        rewards = [torch.nan if rollout.reward is None else rollout.reward for _, rollout in rows]
        return cls(
            prompts=[prompts[g] for g, _ in rows],
            completions=[rollout.completion.token_ids.tolist() for _, rollout in rows],
            lengths=torch.tensor([rollout.completion.n_tokens for _, rollout in rows]),
            groups=torch.tensor([g for g, _ in rows]),
            rewards=torch.tensor(rewards, dtype=torch.float64),
            scored=torch.tensor([rollout.reward is not None for _, rollout in rows]),
            dead=torch.tensor([groups[g].state == "dead" for g, _ in rows]),
            truncated=torch.tensor([rollout.completion.finish_reason == "length" for _, rollout in rows]),
        )

    def __len__(self) -> int:
        return len(self.lengths)


def batch_advantages(batch: Batch, objective: Objective) -> Tensor:
    """The advantage of each row under the recipe's baseline and scale, (N,) float64; 0 for an unscored row."""
    return advantages(
        batch.rewards,
        batch.groups,
        batch.scored,
        objective.baseline,
        objective.scale,
        objective.scale_epsilon,
        DEAD_TOLERANCE,
    )
