"""The batch plan: omega of every term and which rollouts are forwarded, fixed before the first forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.core.config import Objective
from cupola.core.records import DEAD_TOLERANCE, Group
from cupola.train.ledger import Excluded
from cupola.train.objectives import Counts, advantages, count, omega


@dataclass(frozen=True, eq=False)
class Batch:
    """All rollouts of a step, flat: N rows. Advantages are float64; unscored rows hold advantage 0."""

    prompts: list[list[int]]
    completions: list[list[int]]
    lengths: Tensor
    groups: Tensor
    scored: Tensor
    dead: Tensor
    advantages: Tensor

    @classmethod
    def of(cls, groups: Sequence[Group], prompts: Sequence[list[int]], objective: Objective) -> Batch:
        """The batch of a step's groups; `prompts` are the token ids of each group's prompt."""
        rollouts = [(g, r) for g, group in enumerate(groups) for r in group.rollouts]
        rewards = torch.tensor([torch.nan if r.reward is None else r.reward for _, r in rollouts], dtype=torch.float64)
        scored = torch.tensor([r.reward is not None for _, r in rollouts])
        index = torch.tensor([g for g, _ in rollouts])
        return cls(
            prompts=[prompts[g] for g, _ in rollouts],
            completions=[r.completion.token_ids.tolist() for _, r in rollouts],
            lengths=torch.tensor([r.completion.n_tokens for _, r in rollouts]),
            groups=index,
            scored=scored,
            dead=torch.tensor([groups[g].state == "dead" for g, _ in rollouts]),
            advantages=advantages(
                rewards,
                index,
                scored,
                objective.baseline,
                objective.scale,
                objective.scale_epsilon,
                DEAD_TOLERANCE,
            ),
        )


@dataclass(frozen=True)
class Term:
    """One term of the loss in one update: its rule, its totals, its omega (N,) and what it leaves out."""

    rule: str
    counts: Counts
    omega: Tensor
    excluded: Excluded


@dataclass(frozen=True)
class Plan:
    """One optimiser step: the rows it covers, the terms, and the rows that carry a gradient in any of them."""

    rows: Tensor
    terms: dict[str, Term]
    forward: list[int]


def plan(batch: Batch, rows: Tensor, objective: Objective, max_tokens: int) -> Plan:
    """Weigh each term over its scope and forward only what has a gradient.

    A rollout is left out of the forward pass only where every term's coefficient on it is exactly 0: advantage 0 and
    no KL and no entropy term. It stays in the policy term's counts unless `count_dead` is false.
    """
    n = len(batch.lengths)
    inside = torch.zeros(n, dtype=torch.bool).index_fill(0, rows, True)
    scope = inside if objective.scope == "update" else torch.ones(n, dtype=torch.bool)
    empty = batch.lengths == 0
    dead = batch.dead & batch.scored & ~torch.tensor(objective.count_dead)

    def term(rule: str, counted: Tensor, excluded: dict[str, Tensor]) -> Term:
        counted = counted & scope & ~empty
        counts = count(batch.lengths, batch.groups, counted)
        weights = omega(rule, batch.lengths, batch.groups, counted, counts, max_tokens)
        left_out = {"no_tokens": empty, **excluded}
        return Term(rule, counts, weights * inside, {why: int((rows & scope).sum()) for why, rows in left_out.items()})

    everything = torch.ones(n, dtype=torch.bool)
    terms = {
        "policy": term(
            objective.denominator, batch.scored & ~dead, {"unscorable": ~batch.scored, "dead": dead & ~empty}
        )
    }
    has_gradient = batch.advantages != 0
    if objective.beta > 0:
        terms["kl"] = term(objective.kl_denominator or objective.denominator, everything, {})
        has_gradient = everything
    if objective.entropy_coef > 0:
        terms["entropy"] = term(objective.entropy_denominator or objective.denominator, everything, {})
        has_gradient = everything
    forward = (has_gradient & inside & ~empty).nonzero().squeeze(1).tolist()
    return Plan(rows, terms, forward)
