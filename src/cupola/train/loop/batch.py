"""A step's rollouts as tensors, what the models say of them before the update, and whom that rejects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cupola.core.config import Objective
from cupola.core.records import DEAD_TOLERANCE, Content, Group, Rollout
from cupola.train.objectives import KL_ESTIMATORS, RATIOS, dead_groups, within


@dataclass(frozen=True, eq=False)
class Batch:
    """All rollouts of a step, flat: N rows. An unscored row holds the reward NaN.

    `prompts` and `completions` are token ids, `sampler_logps` what the sampler said of each completion token.
    `lengths`, `groups` (the index of each row's group), `rewards`, `scored`, `rejected` (see `without_rejected`),
    `dead` (whether its group is) and `truncated` (whether it was cut at the limit) are (N,); `parts` (N, K) are the
    scores of the parts in order, NaN for none.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    sampler_logps: list[Tensor]
    lengths: Tensor
    groups: Tensor
    rewards: Tensor
    scored: Tensor
    rejected: Tensor
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
            rejected=torch.zeros(len(rows), dtype=torch.bool),
            dead=torch.tensor([groups[g].state == "dead" for g, _ in rows]),
            truncated=torch.tensor([rollout.completion.finish_reason == "length" for _, rollout in rows]),
            parts=torch.tensor([_scores(rollout) for _, rollout in rows], dtype=torch.float64),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def counted(self) -> Tensor:
        """The rows that stand in baselines and in the policy's counts, (N,) bool."""
        return self.scored & ~self.rejected

    @property
    def group_sizes(self) -> Tensor:
        """How many counted rows each row's group has, (N,)."""
        sizes = torch.zeros(int(self.groups.max()) + 1, dtype=torch.long)
        return sizes.index_add(0, self.groups, self.counted.long())[self.groups]

    @property
    def mask(self) -> Tensor:
        """Where each row has a token, (N, T) bool; T is the longest row's length, at least 1."""
        return torch.arange(max(1, int(self.lengths.max()))) < self.lengths[:, None]

    def padded(self, rows: Sequence[Tensor]) -> Tensor:
        """One (T_i,) tensor per row as (N, T), 0 beyond each row's end."""
        found = rows[0].new_zeros(len(self), self.mask.shape[1])
        for i, row in enumerate(rows):
            found[i, : len(row)] = row
        return found


def _scores(rollout: Rollout) -> list[float]:
    return [torch.nan if verdict.score is None else verdict.score for verdict in rollout.verdicts.values()]


@dataclass(frozen=True, eq=False)
class Before:
    """Per token of the batch, (N, T), 0 beyond each row's end; `None` where no decision of the recipe asks for it.

    `logp` are the policy's, `logp_ref` the reference's log-probabilities, `values` the critic's.
    """

    logp: Tensor | None = None
    logp_ref: Tensor | None = None
    values: Tensor | None = None

    @property
    def kl(self) -> Tensor | None:
        """k1 of each token, for a KL in the reward."""
        if self.logp is None or self.logp_ref is None:
            return None
        return KL_ESTIMATORS["k1"](self.logp, self.logp_ref)


def without_rejected(batch: Batch, before: Before, objective: Objective) -> Batch:
    """The batch with those rows marked whose ratio of trainer to sampler lies out of the band.

    A token that the sampler did not score (NaN) has ratio 1. What is rejected is known before the update, so it leaves
    the baseline and the counts, as an unscored rollout does; whether a group is dead is asked of those that are left.
    """
    band = objective.masks.reject
    if band is None or before.logp is None:
        return batch
    sampler = batch.padded(batch.sampler_logps).to(before.logp)
    sampler = torch.where(sampler.isnan(), before.logp, sampler)
    ratio = RATIOS[band.level](before.logp, sampler, batch.mask)
    kept = replace(batch, rejected=~within(ratio, band.low, band.high).all(-1) & (batch.lengths > 0))
    equal = dead_groups(kept.rewards, kept.groups, kept.counted, DEAD_TOLERANCE)
    return replace(kept, dead=equal & (kept.group_sizes >= 2))
