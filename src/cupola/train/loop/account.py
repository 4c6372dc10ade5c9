"""The books of an update: what each rollout weighed, TRL's training metrics, the ledger's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cupola.core.config import Recipe
from cupola.core.records import Group, GroupState, Outcome
from cupola.train.ledger import Weighted, ledger_row
from cupola.train.loop.plan import Batch, Plan
from cupola.train.rollout import Metrics, mean


@dataclass
class Tally:
    """What a step's forward passes saw, per row of the batch, summed over tokens and optimiser steps.

    `weights` (N,) per term are sums of |d term / d logp|; `low`, `high` count clipped tokens; `kl` sums the estimator.
    """

    weights: dict[str, Tensor]
    logp_old: dict[int, Tensor] = field(default_factory=dict)
    low: dict[int, float] = field(default_factory=dict)
    high: dict[int, float] = field(default_factory=dict)
    kl: dict[int, float] = field(default_factory=dict)
    losses: list[dict[str, float]] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)


def add(into: dict[int, float], rows: Sequence[int], values: Tensor) -> None:
    """Add one value to each row's sum."""
    for row, value in zip(rows, values.tolist(), strict=True):
        into[row] = into.get(row, 0.0) + value


def ledger_rows(
    update: int, plan: Plan, weights: dict[str, Tensor], groups: Sequence[Group], recipe: Recipe
) -> list[dict[str, Any]]:
    """A row per term of one optimiser step; `weights` (N,) are those of this step alone."""
    flat = [(rollout, group.solve_rate) for group in groups for rollout in group.rollouts]
    found = []
    for name, term in plan.terms.items():
        weighted = [
            Weighted(float(weights[name][row]), rollout.correct, rollout.completion.n_tokens, solve_rate)
            for row in plan.rows.tolist()
            for rollout, solve_rate in [flat[row]]
        ]
        counts = (term.counts.rollouts, term.counts.tokens, term.counts.prompts)
        why = getattr(recipe.objective.why, name)
        row = ledger_row(name, term.rule, counts, recipe.sampling.max_tokens, term.excluded, weighted, why)
        skipped = len(plan.rows) - len(plan.forward)
        found.append({"update": update, **row, "forwarded": len(plan.forward), "skipped": skipped})
    return found


def outcomes(batch: Batch, groups: Sequence[Group], tally: Tally, used: set[int]) -> dict[str, list[Outcome]]:
    """Each group's outcomes, one per rollout in order."""
    weight = torch.stack(list(tally.weights.values())).sum(0)
    total = float(weight.sum())
    found: dict[str, list[Outcome]] = {group.id: [] for group in groups}
    for i, g in enumerate(batch.groups.tolist()):
        outcome = Outcome(
            advantage=float(batch.advantages[i]) if batch.scored[i] else None,
            weight_share=float(weight[i]) / total if total > 0 else None,
            logp_old=tally.logp_old[i].float().numpy() if i in tally.logp_old else None,
            used=i in used,
            discard_reason=None if i in used else _discard_reason(batch, i, groups[g].state),
        )
        found[groups[g].id].append(outcome)
    return found


def update_metrics(batch: Batch, groups: Sequence[Group], tally: Tally, passes: int) -> Metrics:
    """TRL's training keys. Clip shares run over the tokens of all scored rollouts: a skipped one cannot clip."""
    tokens = int(batch.lengths[batch.scored].sum()) * passes
    own = {i: int(batch.lengths[i]) * passes for i in tally.low}
    low, high = sum(tally.low.values()), sum(tally.high.values())
    found: Metrics = {
        "loss": mean(sum(losses.values()) for losses in tally.losses),
        "grad_norm": mean(tally.grad_norms),
        "learning_rate": tally.learning_rates[-1] if tally.learning_rates else None,
        "clip_ratio/low_mean": low / tokens if tokens else None,
        "clip_ratio/high_mean": high / tokens if tokens else None,
        "clip_ratio/region_mean": (low + high) / tokens if tokens else None,
        "clip_ratio/low_min": min((tally.low[i] / n for i, n in own.items()), default=None),
        "clip_ratio/high_max": max((tally.high[i] / n for i, n in own.items()), default=None),
        **_sampler_gap(groups, tally),
    }
    if len(tally.weights) > 1:
        found["policy_loss"] = mean(losses["policy"] for losses in tally.losses)
    if "kl" in tally.weights:
        forwarded = sum(int(batch.lengths[i]) for i in tally.kl) * passes
        found["kl"] = sum(tally.kl.values()) / forwarded if forwarded else None
    return found


def _discard_reason(batch: Batch, i: int, state: GroupState) -> str:
    if not batch.scored[i] or state == "unscorable":
        return "unscorable"
    if batch.lengths[i] == 0:
        return "no_tokens"
    return "dead_group" if state == "dead" else "zero_advantage"


def _sampler_gap(groups: Sequence[Group], tally: Tally) -> Metrics:
    """TRL's `sampling/sampling_logp_difference`: |trainer - sampler| in nats over the forwarded tokens."""
    sampled = [rollout.completion.logps for group in groups for rollout in group.rollouts]
    gaps = [(logp.float() - torch.from_numpy(sampled[i])).abs() for i, logp in tally.logp_old.items()]
    if not gaps:
        return {}
    gap = torch.cat(gaps)
    return {
        "sampling/sampling_logp_difference/mean": float(gap.mean()),
        "sampling/sampling_logp_difference/max": float(gap.max()),
    }
