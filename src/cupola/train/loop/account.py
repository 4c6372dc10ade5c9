"""The books of an update: what each rollout weighed, the ledger's rows, what became of each rollout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cupola.core.config import Recipe
from cupola.core.records import Group, GroupState, Outcome
from cupola.train.ledger import Weighted, ledger_row, numerator_words, scale_row, scoped_row, shares, whitening_row
from cupola.train.loop.batch import Batch
from cupola.train.loop.loss import Loss
from cupola.train.loop.plan import Plan


class StepBook:
    """One optimiser step, per row of the batch (N,): gradient weight of each term, and `sums` over the row's tokens.

    `left` counts the tokens that each mask took; `exact` (N,) are the norms of the rows' own gradients where they were
    measured. The gradient norms and `learning_rate` are `None` where no step was taken.
    """

    def __init__(self, number: int, rows: int, terms: Sequence[str]) -> None:
        self.number = number
        self.weights = {name: torch.zeros(rows, dtype=torch.float64) for name in terms}
        self.losses = dict.fromkeys(terms, 0.0)
        self.sums: dict[str, Tensor] = defaultdict(lambda: torch.zeros(rows, dtype=torch.float64))
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
        return torch.stack([weights for step in self.steps for weights in step.weights.values()]).sum(0)


def ledger_rows(
    plans: Sequence[Plan], book: UpdateBook, groups: Sequence[Group], spread: float | None, recipe: Recipe
) -> list[dict[str, Any]]:
    """A row per optimiser step and term; last, where the advantages have them, the batch's scale and whitening.

    `spread` is what a whitening divided the advantages by.
    """
    objective = recipe.objective
    found = []
    for plan, step in zip(plans, book.steps, strict=True):
        passed = {"forwarded": len(plan.forward), "skipped": len(plan.rows) - len(plan.forward)}
        for name in plan.terms:
            row = _term_row(name, plan, step, groups, recipe)
            found.append({"update": step.number, **row, **passed})
    rewards = [group.rewards for group in groups if group.state != "unscorable"]
    forwarded = len({row for plan in plans for row in plan.forward})
    whole = {"forwarded": forwarded, "skipped": book.rows - forwarded}
    if objective.scale != "none":
        row = scale_row(objective.scale, objective.scale_epsilon, rewards, objective.why.scale)
        found.append({"update": book.steps[-1].number, **row, **whole})
    if objective.whiten != "none":
        row = whitening_row(objective.whiten, spread, rewards, objective.why.whiten)
        found.append({"update": book.steps[-1].number, **row, **whole})
    return found


def _term_row(name: str, plan: Plan, step: StepBook, groups: Sequence[Group], recipe: Recipe) -> dict[str, Any]:
    """One term's row; the policy's says too what lost its numerator, and the gradient shares where they were measured.

    The exact shares are of the whole loss: a gradient of one row belongs to all its terms.
    """
    term, why = plan.terms[name], getattr(recipe.objective.why, name)
    rows = plan.rows.tolist()
    counts = (term.counts.rollouts, term.counts.tokens, term.counts.prompts)
    weighted = _weighted(groups, rows, step.weights[name])
    row = ledger_row(name, term.rule, counts, recipe.sampling.max_tokens, term.excluded, weighted, why)
    row = scoped_row(row, term.scope, recipe.optim.minibatches)
    if name != "policy":
        return row
    left = dict(step.left)
    if step.corrections:
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
    used = {row for plan in plans for row in plan.forward}
    found: dict[str, list[Outcome]] = {group.id: [] for group in groups}
    for i, g in enumerate(batch.groups.tolist()):
        outcome = Outcome(
            advantage=float(mean[i]) if batch.counted[i] else None,
            weight_share=float(weight[i]) / total if total > 0 else None,
            logp_old=book.logp_old[i].float().numpy() if i in book.logp_old else None,
            used=i in used,
            discard_reason=None if i in used else _discard_reason(batch, i, float(mean[i]), groups[g].state),
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
    if state in ("dead", "unscorable"):
        return f"{state}_group"
    return "truncated" if advantage != 0 else "zero_advantage"
