"""The batch plan: omega of every term, and what is forwarded together, fixed before the first forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.core.config import Objective, Recipe
from cupola.core.config.recipe import Updates
from cupola.train.loop.batch import Batch
from cupola.train.models import micro_batches
from cupola.train.objectives import BY_CUT, Counts, count, omega, omega_by_cut, padded_widths


@dataclass(frozen=True)
class Denominator:
    """A term's denominator as the recipe has it: its rule, its scope, and the rows that it leaves out, by reason."""

    rule: str
    scope: str
    left_out: Mapping[str, Tensor]

    @property
    def needs_cut(self) -> bool:
        """Whether omega depends on what is forwarded together."""
        return self.scope == "micro_batch" or self.rule in BY_CUT


@dataclass(frozen=True)
class Term:
    """One term of the loss in one optimiser step.

    `omega` (N,) is 0 outside the step; `counts` are the totals of the rule's scope (of all micro-batches together where
    each is counted alone), `excluded` what they leave out.
    """

    rule: str
    scope: str
    counts: Counts
    omega: Tensor
    excluded: dict[str, int]
    silent: dict[str, int]


@dataclass(frozen=True)
class Plan:
    """One optimiser step: the rows it covers, the terms, and in micro-batches the rows that carry a gradient."""

    rows: Tensor
    terms: dict[str, Term]
    micro: list[list[int]]

    @property
    def forward(self) -> list[int]:
        """The rows that carry a gradient, in order."""
        return sorted(row for rows in self.micro for row in rows)


def plan_steps(batch: Batch, advantages: Tensor, recipe: Recipe) -> list[Plan]:
    """The optimiser steps of one batch: `minibatches` pieces, as many times as there are `epochs`.

    `advantages` are (N, 1), or (N, T) where the tokens of an answer have their own.
    """
    pieces = torch.arange(len(batch)).tensor_split(recipe.optim.minibatches)
    return [plan_step(batch, advantages, rows, recipe) for rows in pieces] * recipe.optim.epochs


def plan_step(batch: Batch, advantages: Tensor, rows: Tensor, recipe: Recipe) -> Plan:
    """Weigh each term over its scope, and forward only what has a gradient.

    A rollout is left out of the forward pass only where every term's coefficient on it is exactly 0: advantage 0, no
    other term, and no KL-Cov, which may charge any token. That does not take it out of any count. Where a weight
    depends on what is forwarded together, the whole step is cut into micro-batches first, and rows left out leave
    theirs; else only what is forwarded is cut.
    """
    has_advantage = (advantages != 0).any(-1)
    found = denominators(batch, has_advantage, recipe.objective)
    fixed = any(each.needs_cut for each in found.values())
    pieces = cut_rows(batch, rows.tolist(), recipe.optim) if fixed else [rows.tolist()]
    cut = torch.full((len(batch),), -1)
    for index, piece in enumerate(pieces):
        cut[piece] = index

    terms = {name: _weighed(each, batch, cut, recipe) for name, each in found.items()}
    moved = {name: term.omega != 0 for name, term in terms.items()}
    if recipe.objective.masks.kl_cov is None:
        moved["policy"] &= has_advantage
    forwarded = torch.stack(list(moved.values())).any(0)
    micro = [[row for row in piece if forwarded[row]] for piece in pieces]
    return Plan(rows, terms, [piece for piece in micro if piece] if fixed else cut_rows(batch, micro[0], recipe.optim))


def denominators(batch: Batch, has_advantage: Tensor, objective: Objective) -> dict[str, Denominator]:
    """The denominators of the terms that the objective has.

    Of the counted rollouts only those of dead groups leave the policy term's count, and they only where `count_dead` is
    false. A rollout without tokens, or masked as truncated, leaves every term.
    """
    everywhere = {"no_tokens": batch.lengths == 0, "truncated": _masked(batch, objective)}
    judged = {**everywhere, "unscored": ~batch.scored, "rejected": batch.rejected}
    silent = torch.ones(int(batch.groups.max()) + 1, dtype=torch.bool)
    silent[batch.groups[has_advantage]] = False  # a dead group may have advantages yet: a critic's, or of parts apart
    leaving = {} if objective.count_dead else {"dead": batch.dead & silent[batch.groups]}
    left_out = {"policy": {**judged, **leaving}, "kl": everywhere, "entropy": everywhere, "value": judged}
    return {name: Denominator(rule, scope, left_out[name]) for name, (rule, scope) in objective.terms.items()}


def _weighed(denominator: Denominator, batch: Batch, cut: Tensor, recipe: Recipe) -> Term:
    """The term that counts all rows of the scope but those left out, which are named once each.

    With the nominal count none is left out; a rollout whose tokens are masked counts as one without any.
    """
    objective, max_tokens = recipe.objective, recipe.sampling.max_tokens
    step = cut >= 0
    rule, scope = denominator.rule, denominator.scope
    counted = step if scope in ("update", "micro_batch") else torch.ones_like(step)
    excluded, silent = dict[str, int](), dict[str, int]()
    for reason, rows in denominator.left_out.items():
        if objective.count == "nominal":
            silent[reason] = int(batch.lengths[counted & rows].sum())
            continue
        excluded[reason] = int((counted & rows).sum())
        counted = counted & ~rows
    silent_rows = _masked(batch, objective) | (batch.rejected & torch.tensor("rejected" in denominator.left_out))
    lengths = batch.lengths.masked_fill(silent_rows, 0)
    widths = padded_widths(batch.lengths, cut)
    counts = count(lengths, batch.groups, counted)
    if scope == "micro_batch":
        weights = omega_by_cut(rule, lengths, batch.groups, counted, cut, max_tokens, widths)
    else:
        share = recipe.optim.minibatches if scope == "generation" else 1
        weights = share * omega(rule, lengths, batch.groups, counted, counts, max_tokens, widths)
    silent = {reason: tokens for reason, tokens in silent.items() if tokens}
    return Term(rule, scope, counts, torch.where(step, weights, 0.0), excluded, silent)


def _masked(batch: Batch, objective: Objective) -> Tensor:
    """Rows cut at the limit, where the objective takes those out."""
    return batch.truncated & torch.tensor(objective.mask_truncated)


def cut_rows(batch: Batch, rows: list[int], optim: Updates) -> list[list[int]]:
    """Micro-batches of `micro_rollouts` rows in order; without it of `micro_tokens`, similar lengths together."""
    if optim.micro_rollouts is not None:
        return [rows[start : start + optim.micro_rollouts] for start in range(0, len(rows), optim.micro_rollouts)]
    prompts, completions = [batch.prompts[i] for i in rows], [batch.completions[i] for i in rows]
    return [[rows[k] for k in chosen] for chosen in micro_batches(prompts, completions, optim.micro_tokens)]
