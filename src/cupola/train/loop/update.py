"""The update: from a step's groups to optimiser steps, exact however the batch is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cupola.core.config import Recipe
from cupola.core.records import Group, NumericalError, Outcome
from cupola.train.ledger import Weighted, ledger_row
from cupola.train.loop.optim import build_optimizer, learning_rate
from cupola.train.loop.plan import Batch, Plan, plan
from cupola.train.models import Policy, completion_logits, logprobs, micro_batches, pad, to_device
from cupola.train.objectives import (
    KL_ESTIMATORS,
    RATIOS,
    clipped_tokens,
    entropy_term,
    gradient_weight,
    kl_term,
    policy_term,
    token_entropy,
    token_logps,
)
from cupola.train.rollout import Metrics, mean


@dataclass
class Tally:
    """What the forward passes of a step saw, per row of the batch; sums over tokens and updates."""

    weights: dict[str, Tensor]
    logp_old: dict[int, Tensor] = field(default_factory=dict)
    low: dict[int, int] = field(default_factory=dict)
    high: dict[int, int] = field(default_factory=dict)
    kl: dict[int, float] = field(default_factory=dict)
    losses: list[dict[str, float]] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Updated:
    """What a step's update did: each group's outcomes, metrics, and ledger rows."""

    outcomes: dict[str, list[Outcome]]
    metrics: Metrics
    ledger: list[dict[str, Any]]


class Learner:
    """Owns the optimiser. `planned` counts the optimiser steps the schedule has passed, `version` the weights'."""

    def __init__(self, policy: Policy, reference: PreTrainedModel | None, recipe: Recipe) -> None:
        self.policy, self.reference, self.recipe = policy, reference, recipe
        self.optimizer = build_optimizer(recipe.optim, policy.model.parameters())
        per_step = recipe.optim.minibatches * recipe.optim.epochs
        self.rate = learning_rate(recipe.optim, recipe.run.steps * per_step)
        self.several = per_step > 1
        self.planned = 0
        self.version = 0

    def update(self, groups: Sequence[Group]) -> Updated:
        """Take every optimiser step of one batch and say what each rollout weighed."""
        objective, max_tokens = self.recipe.objective, self.recipe.sampling.max_tokens
        batch = Batch.of(groups, [self.policy.encode(group.prompt.content) for group in groups], objective)
        n = len(batch.lengths)
        pieces = torch.arange(n).tensor_split(self.recipe.optim.minibatches)
        plans = [plan(batch, rows, objective, max_tokens) for rows in pieces] * self.recipe.optim.epochs
        tally = Tally({name: torch.zeros(n, dtype=torch.float64) for name in plans[0].terms})
        if self.several:
            rows = sorted({row for each in plans for row in each.forward})
            tally.logp_old = dict(zip(rows, self._logps(self.policy.model, batch, rows), strict=True))
        for each in plans:
            self._step(batch, each, tally, groups)
        used = {row for each in plans for row in each.forward}
        return Updated(_outcomes(batch, groups, tally, used), self._metrics(batch, groups, tally), tally.ledger)

    def _step(self, batch: Batch, plan: Plan, tally: Tally, groups: Sequence[Group]) -> None:
        """One optimiser step: a sum of micro-batch losses, clipped. Without a gradient the optimiser stands still."""
        self.planned += 1
        before = {name: weights.clone() for name, weights in tally.weights.items()}
        losses = dict.fromkeys(plan.terms, 0.0)
        for rows in self._micro(batch, plan.forward):
            terms = self._terms(batch, plan, rows, tally)
            torch.stack(list(terms.values())).sum().backward()
            for name, value in terms.items():
                losses[name] += float(value.detach())
        if plan.forward:
            self._optimise(tally)
            tally.losses.append(losses)
        tally.ledger += [
            self._ledger_row(name, plan, (tally.weights[name] - before[name])[plan.rows].tolist(), groups)
            for name in plan.terms
        ]

    def _terms(self, batch: Batch, plan: Plan, rows: list[int], tally: Tally) -> dict[str, Tensor]:
        """Each term of the loss over one micro-batch, coefficient included."""
        objective, temperature = self.recipe.objective, self.recipe.sampling.temperature
        sequences = to_device(
            pad([batch.prompts[i] for i in rows], [batch.completions[i] for i in rows], self.policy.pad_id),
            self.policy.device,
        )
        logits = completion_logits(self.policy.model, sequences, temperature)
        logp = token_logps(logits, sequences.tokens)
        mask = sequences.mask
        omega = {name: term.omega[rows].to(logp) for name, term in plan.terms.items()}
        advantages = batch.advantages[rows].to(logp)
        if not self.several:
            tally.logp_old.update({i: logp[k, : mask[k].sum()].detach().cpu() for k, i in enumerate(rows)})
        ratio = RATIOS[objective.ratio](logp, _stack([tally.logp_old[i] for i in rows], logp))
        terms = {
            "policy": policy_term(ratio, advantages, mask, omega["policy"], objective.clip_low, objective.clip_high)
        }
        weights = {"policy": gradient_weight(terms["policy"], logp)}
        if self.reference is not None:
            reference = _stack(self._logps(self.reference, batch, rows), logp)
            kl = KL_ESTIMATORS[objective.kl_estimator](logp, reference)
            terms["kl"] = objective.beta * kl_term(kl, mask, omega["kl"])
            weights["kl"] = gradient_weight(terms["kl"], logp)
            _add(tally.kl, rows, (kl.detach() * mask).sum(-1))
        if objective.entropy_coef > 0:
            entropy = token_entropy(logits)
            terms["entropy"] = -objective.entropy_coef * entropy_term(entropy, mask, omega["entropy"])
            weights["entropy"] = objective.entropy_coef * omega["entropy"] * mask.sum(-1)
        for name, weight in weights.items():
            tally.weights[name][rows] += weight.cpu().double()
        low, high = clipped_tokens(ratio.detach(), advantages[:, None], objective.clip_low, objective.clip_high)
        _add(tally.low, rows, (low * mask).sum(-1))
        _add(tally.high, rows, (high * mask).sum(-1))
        return terms

    def _optimise(self, tally: Tally) -> None:
        parameters = list(self.policy.model.parameters())
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.recipe.optim.max_grad_norm))
        if not torch.isfinite(torch.tensor(norm)):
            self.optimizer.zero_grad()
            raise NumericalError(
                f"optimiser step {self.planned}: the gradient's norm is {norm}; the update was refused and the weights "
                "are those before it (lower optim.learning_rate, or look at the last recorded rollouts)"
            )
        rate = self.rate(self.planned)
        for parameters_group in self.optimizer.param_groups:
            parameters_group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.version += 1
        tally.grad_norms.append(norm)
        tally.learning_rates.append(rate)

    def _micro(self, batch: Batch, rows: list[int]) -> Iterator[list[int]]:
        lengths = [(len(batch.prompts[i]), len(batch.completions[i])) for i in rows]
        for chosen in micro_batches(lengths, self.recipe.optim.micro_tokens):
            yield [rows[k] for k in chosen]

    def _logps(self, model: PreTrainedModel, batch: Batch, rows: list[int]) -> list[Tensor]:
        return logprobs(
            model,
            [batch.prompts[i] for i in rows],
            [batch.completions[i] for i in rows],
            pad_id=self.policy.pad_id,
            temperature=self.recipe.sampling.temperature,
            micro_tokens=self.recipe.optim.micro_tokens,
        )

    def _ledger_row(self, name: str, plan: Plan, weights: list[float], groups: Sequence[Group]) -> dict[str, Any]:
        flat = [(rollout, group.solve_rate) for group in groups for rollout in group.rollouts]
        weighted = [
            Weighted(weight, flat[row][0].correct, flat[row][0].completion.n_tokens, flat[row][1])
            for row, weight in zip(plan.rows.tolist(), weights, strict=True)
        ]
        term = plan.terms[name]
        counts = (term.counts.rollouts, term.counts.tokens, term.counts.prompts)
        why = getattr(self.recipe.objective.why, name)
        row = ledger_row(name, term.rule, counts, self.recipe.sampling.max_tokens, term.excluded, weighted, why)
        return {
            "update": self.planned,
            **row,
            "forwarded": len(plan.forward),
            "skipped": len(plan.rows) - len(plan.forward),
        }

    def _metrics(self, batch: Batch, groups: Sequence[Group], tally: Tally) -> Metrics:
        """TRL's training keys. Clip shares run over the tokens of all scored rollouts: a skipped one cannot clip."""
        tokens = int(batch.lengths[batch.scored].sum())
        passes = self.recipe.optim.epochs
        per_row = {i: int(batch.lengths[i]) * passes for i in tally.low}
        low, high = sum(tally.low.values()), sum(tally.high.values())
        found: Metrics = {
            "loss": mean(sum(losses.values()) for losses in tally.losses),
            "grad_norm": mean(tally.grad_norms),
            "learning_rate": tally.learning_rates[-1] if tally.learning_rates else None,
            "clip_ratio/low_mean": low / (tokens * passes) if tokens else None,
            "clip_ratio/high_mean": high / (tokens * passes) if tokens else None,
            "clip_ratio/region_mean": (low + high) / (tokens * passes) if tokens else None,
            "clip_ratio/low_min": min((tally.low[i] / n for i, n in per_row.items()), default=None),
            "clip_ratio/high_max": max((tally.high[i] / n for i, n in per_row.items()), default=None),
            **_sampler_gap(groups, tally),
        }
        if len(tally.weights) > 1:
            found["policy_loss"] = mean(losses["policy"] for losses in tally.losses)
        if self.reference is not None:
            found["kl"] = sum(tally.kl.values()) / (sum(int(batch.lengths[i]) for i in tally.kl) * passes)
        return found


def _outcomes(batch: Batch, groups: Sequence[Group], tally: Tally, used: set[int]) -> dict[str, list[Outcome]]:
    weight = torch.stack(list(tally.weights.values())).sum(0)
    total = float(weight.sum())
    rows = [
        Outcome(
            advantage=float(batch.advantages[i]) if batch.scored[i] else None,
            weight_share=float(weight[i]) / total if total > 0 else None,
            logp_old=tally.logp_old[i].float().numpy() if i in tally.logp_old else None,
            used=i in used,
            discard_reason=None if i in used else _discard_reason(batch, i),
        )
        for i in range(len(batch.lengths))
    ]
    found: dict[str, list[Outcome]] = {group.id: [] for group in groups}
    for g, row in zip(batch.groups.tolist(), rows, strict=True):
        found[groups[g].id].append(row)
    return found


def _discard_reason(batch: Batch, i: int) -> str:
    if not batch.scored[i]:
        return "unscorable"
    if batch.lengths[i] == 0:
        return "no_tokens"
    return "dead_group" if batch.dead[i] else "zero_advantage"


def _sampler_gap(groups: Sequence[Group], tally: Tally) -> Metrics:
    """TRL's `sampling/sampling_logp_difference`: |trainer - sampler| in nats over the forwarded tokens."""
    flat = [rollout.completion.logps for group in groups for rollout in group.rollouts]
    gaps = [(logp.float() - torch.from_numpy(flat[i])).abs() for i, logp in tally.logp_old.items()]
    if not gaps:
        return {}
    gap = torch.cat(gaps)
    return {
        "sampling/sampling_logp_difference/mean": float(gap.mean()),
        "sampling/sampling_logp_difference/max": float(gap.max()),
    }


def _stack(values: list[Tensor], like: Tensor) -> Tensor:
    """Rows of unequal length as one (N, T) tensor of `like`'s shape; the padding is masked later."""
    out = torch.zeros_like(like, requires_grad=False)
    for row, value in enumerate(values):
        out[row, : len(value)] = value.to(like)
    return out


def _add(into: dict[int, Any], rows: list[int], values: Tensor) -> None:
    for row, value in zip(rows, values.tolist(), strict=True):
        into[row] = into.get(row, 0) + value
