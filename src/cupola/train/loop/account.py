"""The books of an update: what each rollout weighed, TRL's training metrics, the ledger's rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cupola.core.config import Recipe
from cupola.core.records import Group, GroupState, Outcome
from cupola.train.ledger import Weighted, ledger_row, scale_row, whitening_row
from cupola.train.loop.batch import Batch
from cupola.train.loop.loss import Loss
from cupola.train.loop.plan import Plan
from cupola.train.rollout import Metrics, mean


class StepBook:
    """One optimiser step, per row of the batch (N,): gradient weight of each term, clipped tokens, KL sums.

    `grad_norm` and `learning_rate` are `None` where no step was taken.
    """

    def __init__(self, number: int, rows: int, terms: Sequence[str]) -> None:
        self.number = number
        self.weights = {name: torch.zeros(rows, dtype=torch.float64) for name in terms}
        self.losses = dict.fromkeys(terms, 0.0)
        self.low, self.high, self.kl = (torch.zeros(rows, dtype=torch.float64) for _ in range(3))
        self.logp: dict[int, Tensor] = {}
        self.corrections: dict[int, Tensor] = {}
        self.grad_norm: float | None = None
        self.learning_rate: float | None = None

    def add(self, rows: Sequence[int], loss: Loss, lengths: Tensor) -> None:
        """Book one micro-batch."""
        index = torch.tensor(rows)
        for name, term in loss.terms.items():
            self.losses[name] += float(term.detach())
            self.weights[name][index] += loss.weights[name].cpu().double()
        self.low[index] += loss.low.cpu()
        self.high[index] += loss.high.cpu()
        if loss.kl is not None:
            self.kl[index] += loss.kl.cpu()
        self.logp.update({row: loss.logp[k, : int(lengths[row])].cpu() for k, row in enumerate(rows)})
        if loss.correction is not None:
            self.corrections |= {row: loss.correction[k, : int(lengths[row])].cpu() for k, row in enumerate(rows)}


class UpdateBook:
    """All optimiser steps of one batch of N rows; `logp_old` holds the forwarded rows' old log-probabilities."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.steps: list[StepBook] = []
        self.logp_old: dict[int, Tensor] = {}

    def total(self, name: str) -> Tensor:
        """Sum over the steps of `low`, `high` or `kl`, (N,)."""
        return torch.stack([getattr(step, name) for step in self.steps]).sum(0)

    def weight(self) -> Tensor:
        """Gradient weight of each row over all steps and terms, (N,)."""
        return torch.stack([weights for step in self.steps for weights in step.weights.values()]).sum(0)


def ledger_rows(
    plans: Sequence[Plan], book: UpdateBook, groups: Sequence[Group], spread: float | None, recipe: Recipe
) -> list[dict[str, Any]]:
    """A row per optimiser step and term; last, where the advantages have them, the batch's scale and whitening.

    `spread` is what a whitening divided the advantages by.
    """
    flat = [(rollout, group.solve_rate) for group in groups for rollout in group.rollouts]
    objective = recipe.objective
    found = []
    for plan, step in zip(plans, book.steps, strict=True):
        passed = {"forwarded": len(plan.forward), "skipped": len(plan.rows) - len(plan.forward)}
        for name, term in plan.terms.items():
            weighted = []
            for row in plan.rows.tolist():
                rollout, solve_rate = flat[row]
                weight = float(step.weights[name][row])
                weighted.append(Weighted(weight, rollout.correct, rollout.completion.n_tokens, solve_rate))
            counts = (term.counts.rollouts, term.counts.tokens, term.counts.prompts)
            why = getattr(objective.why, name)
            row = ledger_row(name, term.rule, counts, recipe.sampling.max_tokens, term.excluded, weighted, why)
            if name == "policy" and step.corrections:
                zeroed = sum(int((each == 0).sum()) for each in step.corrections.values())
                row["numerators"] = {"correction": zeroed}
                row["words"] += [f"{zeroed} tokens lost their numerator to the correction; they stay in the count."]
            found.append({"update": step.number, **row, **passed})
    rewards = [group.rewards for group in groups if group.state != "unscorable"]
    forwarded = len(book.logp_old)
    whole = {"forwarded": forwarded, "skipped": len(flat) - forwarded}
    if objective.scale != "none":
        row = scale_row(objective.scale, objective.scale_epsilon, rewards, objective.why.scale)
        found.append({"update": book.steps[-1].number, **row, **whole})
    if objective.whiten != "none":
        row = whitening_row(objective.whiten, spread, rewards, objective.why.whiten)
        found.append({"update": book.steps[-1].number, **row, **whole})
    return found


def outcomes(
    batch: Batch, advantages: Tensor, groups: Sequence[Group], plans: Sequence[Plan], book: UpdateBook
) -> dict[str, list[Outcome]]:
    """Each group's outcomes, one per rollout in order."""
    weight = book.weight()
    total = float(weight.sum())
    used = {row for plan in plans for row in plan.forward}
    found: dict[str, list[Outcome]] = {group.id: [] for group in groups}
    for i, g in enumerate(batch.groups.tolist()):
        outcome = Outcome(
            advantage=float(advantages[i]) if batch.scored[i] else None,
            weight_share=float(weight[i]) / total if total > 0 else None,
            logp_old=book.logp_old[i].float().numpy() if i in book.logp_old else None,
            used=i in used,
            discard_reason=None if i in used else _discard_reason(batch, i, float(advantages[i]), groups[g].state),
        )
        found[groups[g].id].append(outcome)
    return found


def update_metrics(batch: Batch, groups: Sequence[Group], plans: Sequence[Plan], book: UpdateBook) -> Metrics:
    """TRL's training keys. Clip shares run over the tokens of all scored rollouts: a skipped one cannot clip."""
    steps = [step for step in book.steps if step.grad_norm is not None]
    passes = torch.zeros(len(batch), dtype=torch.float64)
    for plan in plans:
        passes[plan.rows] += 1
    tokens = passes * batch.lengths * batch.scored
    own = torch.tensor(sorted(book.logp_old), dtype=torch.long)
    low, high = book.total("low"), book.total("high")
    found: Metrics = {
        "loss": mean(sum(step.losses.values()) for step in steps),
        "grad_norm": mean(step.grad_norm for step in steps if step.grad_norm is not None),
        "learning_rate": next((s.learning_rate for s in reversed(steps) if s.learning_rate is not None), None),
        "clip_ratio/low_mean": _share(low.sum(), tokens.sum()),
        "clip_ratio/high_mean": _share(high.sum(), tokens.sum()),
        "clip_ratio/region_mean": _share((low + high).sum(), tokens.sum()),
        "clip_ratio/low_min": float((low / tokens)[own].nan_to_num(0).min()) if len(own) else None,
        "clip_ratio/high_max": float((high / tokens)[own].nan_to_num(0).max()) if len(own) else None,
        **_sampler_gap(groups, book),
        **_corrections(steps),
    }
    if len(plans[0].terms) > 1:
        found["policy_loss"] = mean(step.losses["policy"] for step in steps)
    if "kl" in plans[0].terms:
        found["kl"] = _share(book.total("kl").sum(), (passes * batch.lengths)[own].sum())
    return found


def _corrections(steps: Sequence[StepBook]) -> Metrics:
    """TRL's `sampling/importance_sampling_ratio`, after the bound, over the tokens of every optimiser step."""
    weights = [each for step in steps for each in step.corrections.values()]
    if not weights:
        return {}
    tokens = torch.cat(weights)
    return {
        "sampling/importance_sampling_ratio/min": float(tokens.min()),
        "sampling/importance_sampling_ratio/mean": float(tokens.mean()),
        "sampling/importance_sampling_ratio/max": float(tokens.max()),
    }


def _share(part: Tensor, whole: Tensor) -> float | None:
    return float(part / whole) if whole > 0 else None


def _discard_reason(batch: Batch, i: int, advantage: float, state: GroupState) -> str:
    if not batch.scored[i]:
        return "unscored"
    if batch.lengths[i] == 0:
        return "no_tokens"
    if state in ("dead", "unscorable"):
        return f"{state}_group"
    return "truncated" if advantage != 0 else "zero_advantage"


def _sampler_gap(groups: Sequence[Group], book: UpdateBook) -> Metrics:
    """TRL's `sampling/sampling_logp_difference`: |trainer - sampler| in nats over the forwarded tokens."""
    sampled = [rollout.completion.logps for group in groups for rollout in group.rollouts]
    gaps = [(logp.float() - torch.from_numpy(sampled[i])).abs() for i, logp in book.logp_old.items()]
    if not gaps:
        return {}
    gap = torch.cat(gaps)
    return {
        "sampling/sampling_logp_difference/mean": float(gap.mean()),
        "sampling/sampling_logp_difference/max": float(gap.max()),
    }
