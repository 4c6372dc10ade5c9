"""The batch plan: omega of every term and which rollouts are forwarded, fixed before the first forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.core.config import Recipe
from cupola.train.loop.batch import Batch
from cupola.train.objectives import Counts, count, omega


@dataclass(frozen=True)
class Term:
    """One term of the loss in one optimiser step.

    `omega` (N,) is 0 outside the step; `counts` are the totals of the rule's scope, `excluded` what it leaves out.
    """

    rule: str
    counts: Counts
    omega: Tensor
    excluded: dict[str, int]


@dataclass(frozen=True)
class Plan:
    """One optimiser step: the rows it covers, the terms, and the rows that carry a gradient in any of them."""

    rows: Tensor
    terms: dict[str, Term]
    forward: list[int]


def plan_steps(batch: Batch, advantages: Tensor, recipe: Recipe) -> list[Plan]:
    """The optimiser steps of one batch: `minibatches` pieces, as many times as there are `epochs`."""
    pieces = torch.arange(len(batch)).tensor_split(recipe.optim.minibatches)
    return [plan_step(batch, advantages, rows, recipe) for rows in pieces] * recipe.optim.epochs


def plan_step(batch: Batch, advantages: Tensor, rows: Tensor, recipe: Recipe) -> Plan:
    """Weigh each term over its scope, and forward only what has a gradient.

    A rollout is left out of the forward pass only where every term's coefficient on it is exactly 0: advantage 0, no KL
    and no entropy term. That does not take it out of the count: of the scored rollouts only those of dead groups leave
    the policy term's counts, and they only where `count_dead` is false. A rollout masked as truncated leaves every term
    and its counts.
    """
    objective, max_tokens = recipe.objective, recipe.sampling.max_tokens
    step = torch.zeros(len(batch), dtype=torch.bool).index_fill(0, rows, True)
    scope = step if objective.scope == "update" else torch.ones_like(step)
    written = batch.lengths > 0
    cut = batch.truncated & torch.tensor(objective.mask_truncated)

    def term(rule: str, left_out: Mapping[str, Tensor]) -> Term:
        """The term that counts all rows of the scope but those left out, which are named once each."""
        counted, excluded = scope, dict[str, int]()
        for reason, rows in {"no_tokens": ~written, "truncated": cut, **left_out}.items():
            excluded[reason] = int((counted & rows).sum())
            counted = counted & ~rows
        counts = count(batch.lengths, batch.groups, counted)
        weights = omega(rule, batch.lengths, batch.groups, counted, counts, max_tokens)
        return Term(rule, counts, weights * step, excluded)

    leaving = {} if objective.count_dead else {"dead": batch.dead}
    terms = {"policy": term(objective.denominator, {"unscored": ~batch.scored, **leaving})}
    if objective.beta > 0:
        terms["kl"] = term(objective.kl_denominator or objective.denominator, {})
    if objective.entropy_coef > 0:
        terms["entropy"] = term(objective.entropy_denominator or objective.denominator, {})
    has_gradient = (advantages != 0) if len(terms) == 1 else torch.ones_like(step)
    return Plan(rows, terms, (has_gradient & step & written & ~cut).nonzero().squeeze(1).tolist())
