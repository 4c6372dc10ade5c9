"""The books of an update: what each rollout weighed, the ledger's rows, what became of each rollout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cupola.core.config import Recipe
from cupola.core.records import Group, GroupState, Outcome
from cupola.train.ledger import Weighted, ledger_row, numerator_words, scale_row, scoped_row, shares, whitening_row
from cupola.train.loop.advantage import Advantages
from cupola.train.loop.batch import Batch
from cupola.train.loop.loss import Loss
from cupola.train.loop.plan import Plan


class StepBook:
    """One optimiser step, per row of the batch (N,): gradient weight of each term, and `sums` over the row's tokens.

    A step that was refused says why in `refused` and holds nothing else.

    `left` counts the tokens that each mask took; `exact` (N,) are the norms of the rows' own gradients where they were
    measured. The gradient norms are `None` where nothing was forwarded, `learning_rate` where no step was taken.
    """

    def __init__(self, number: int, rows: int, terms: Sequence[str], refused: str | None = None) -> None:
        self.number, self.refused = number, refused
        self.weights = {name: torch.zeros(rows, dtype=torch.float64) for name in terms}
        self.losses = dict.fromkeys(terms, 0.0)
        self.sums: dict[str, Tensor] = defaultdict(partial(torch.zeros, rows, dtype=torch.float64))
        self.logp: dict[int, Tensor] = {}
        self.corrections: dict[int, Tensor] = {}
        self.left: dict[str, int] = {}
        self.exact: Tensor | None = None
        self.grad_norm: float | None = None
        self.critic_grad_norm: float | None = None
        self.learning_rate: float | None = None

    def add(self, rows: Sequence[int], loss: Loss, lengths: Tensor) -> None:
        """Book one micro-batch."""
        index = torch.tensor(rows)
        for name, term in loss.terms.items():
            self.losses[name] += float(term.detach())
            self.weights[name][index] += loss.weights[name].cpu().double()
        for name, values in loss.sums.items():
            self.sums[name][index] += values.cpu()
        self.logp.update({row: loss.logp[k, : int(lengths[row])].cpu() for k, row in enumerate(rows)})
        if loss.correction is not None:
            self.corrections |= {row: loss.correction[k, : int(lengths[row])].cpu() for k, row in enumerate(rows)}

    def absorb(self, other: StepBook) -> None:
        """Add what another rank booked of the same step."""
        for name, losses in other.losses.items():
            self.losses[name] += losses
            self.weights[name] += other.weights[name]
        for name, sums in other.sums.items():
            self.sums[name] += sums
        self.logp |= other.logp
        self.corrections |= other.corrections
        if self.exact is not None and other.exact is not None:
            self.exact = self.exact + other.exact

    def weight(self, but: str = "") -> Tensor:
        """Gradient weight of each row over all terms but one, (N,)."""
        return torch.stack([weights for name, weights in self.weights.items() if name != but]).sum(0)

    @property
    def entropy(self) -> float | None:
        """Nats per token over the rows forwarded; `None` without an entropy term."""
        tokens = sum(len(logp) for logp in self.logp.values())
        return float(self.sums["entropy"].sum()) / tokens if "entropy" in self.sums and tokens else None


class UpdateBook:
    """All optimiser steps of one batch of N rows; `logp_old` holds the forwarded rows' old log-probabilities,
    `entropy_coef` the bonus's coefficient after the last step."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.steps: list[StepBook] = []
        self.logp_old: dict[int, Tensor] = {}
        self.entropy_coef: float | None = None

    def total(self, name: str) -> Tensor:
        """A step's `sums` over all steps, (N,)."""
        return torch.stack([step.sums[name] for step in self.steps]).sum(0)

    def weight(self) -> Tensor:
        """Gradient weight of each row over all steps and terms, (N,)."""
        return torch.stack([step.weight() for step in self.steps]).sum(0)


def ledger_rows(
    batch: Batch,
    advantages: Advantages,
    plans: Sequence[Plan],
    book: UpdateBook,
    groups: Sequence[Group],
    recipe: Recipe,
) -> list[dict[str, Any]]:
    """A row per optimiser step and term; last, where the advantages have them, the batch's scales and whitening."""
    objective = recipe.objective
    found = []
    for plan, step in zip(plans, book.steps, strict=True):
        passed = {"forwarded": len(plan.forward), "skipped": len(plan.rows) - len(plan.forward)}
        for name in plan.terms:
            row = _term_row(name, plan, step, groups, recipe)
            found.append({"update": step.number, **row, **passed})
    forwarded = len({row for plan in plans for row in plan.forward})
    whole = {"forwarded": forwarded, "skipped": book.rows - forwarded}
    if objective.scale != "none":
        apart = [part.name for part in recipe.reward] if objective.combine == "apart" else [None]
        for part, (rewards, counted) in zip(apart, advantages.compared, strict=True):
            compared = [each for each in _by_group(rewards, counted, batch.groups) if len(each) > 1]
            row = scale_row(objective.scale, objective.scale_epsilon, compared, objective.why.scale)
            named = {} if part is None else {"part": part}
            found.append({"update": book.steps[-1].number, **row, **named, **whole})
    if objective.whiten != "none":
        counted_rows = _by_group(batch.rewards, batch.counted, batch.groups)
        row = whitening_row(objective.whiten, advantages.spread, counted_rows, objective.why.whiten)
        found.append({"update": book.steps[-1].number, **row, **whole})
    return found


def _by_group(rewards: Tensor, counted: Tensor, groups: Tensor) -> list[list[float]]:
    """The counted rewards of each group that has any."""
    found = [rewards[counted & (groups == group)].tolist() for group in groups.unique()]
    return [each for each in found if each]


def _term_row(name: str, plan: Plan, step: StepBook, groups: Sequence[Group], recipe: Recipe) -> dict[str, Any]:
    """One term's row; the policy's says too what lost its numerator, and the gradient shares where they were measured.

    The exact shares are of the gradient of the policy's parameters, by all terms that reach them.
    """
    term, why = plan.terms[name], getattr(recipe.objective.why, name)
    rows = plan.rows.tolist()
    counts = (term.counts.rollouts, term.counts.tokens, term.counts.prompts)
    weighted = _weighted(groups, rows, step.weights[name])
    row = ledger_row(name, term.rule, counts, recipe.sampling.max_tokens, term.excluded, weighted, why)
    row = scoped_row(row, term.scope, recipe.optim.minibatches)
    if step.refused is not None:
        row |= {"refused": step.refused, "words": [step.refused]}
    if name != "policy":
        return row
    left = {**term.silent, **step.left}
    whole = recipe.objective.ratio in recipe.objective.surrogate.whole  # there a weight scales the answer, not a token
    if step.corrections and not (whole and recipe.objective.correction.level == "token"):
        left["correction"] = sum(int((each == 0).sum()) for each in step.corrections.values())
    if left:
        row["numerators"] = left
        row["words"] += [numerator_words(reason, tokens, term.counts.tokens) for reason, tokens in left.items()]
    if step.exact is not None:
        row["exact_shares"] = shares(_weighted(groups, rows, step.exact))
    return row


def _weighted(groups: Sequence[Group], rows: Sequence[int], weights: Tensor) -> list[Weighted]:
    """These rows' weights with what the ledger groups them by."""
    flat = [(rollout, group.solve_rate) for group in groups for rollout in group.rollouts]
    return [Weighted(float(weights[i]), flat[i][0].correct, flat[i][0].completion.n_tokens, flat[i][1]) for i in rows]


def outcomes(
    batch: Batch, advantages: Tensor, groups: Sequence[Group], plans: Sequence[Plan], book: UpdateBook
) -> dict[str, list[Outcome]]:
    """Each group's outcomes, one per rollout in order; of advantages per token the mean over the row's."""
    weight = book.weight()
    mean = (
        (advantages * batch.mask).sum(-1) / batch.lengths.clamp(min=1) if advantages.shape[1] > 1 else advantages[:, 0]
    )
    total = float(weight.sum())
    taken = [plan for plan, step in zip(plans, book.steps, strict=True) if step.refused is None]
    used = {row for plan in taken for row in plan.forward}
    refused = {row for plan in plans for row in plan.forward} - used
    found: dict[str, list[Outcome]] = {group.id: [] for group in groups}
    for i, g in enumerate(batch.groups.tolist()):
        outcome = Outcome(
            advantage=float(mean[i]) if batch.counted[i] else None,
            weight_share=float(weight[i]) / total if total > 0 else None,
            logp_old=book.logp_old[i].float().numpy() if i in book.logp_old else None,
            used=i in used,
            discard_reason=(
                None
                if i in used
                else "update_refused"
                if i in refused
                else _discard_reason(batch, i, float(mean[i]), groups[g].state)
            ),
        )
        found[groups[g].id].append(outcome)
    return found


def _discard_reason(batch: Batch, i: int, advantage: float, state: GroupState) -> str:
    if not batch.scored[i]:
        return "unscored"
    if batch.rejected[i]:
        return "rejected"
    if batch.lengths[i] == 0:
        return "no_tokens"
    if batch.dead[i] or state == "unscorable":
        return "dead_group" if batch.dead[i] else "unscorable_group"
    return "truncated" if advantage != 0 else "zero_advantage"
