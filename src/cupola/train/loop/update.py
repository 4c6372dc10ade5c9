"""The update: from a step's groups to optimiser steps, exact however the batch is cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cupola.core.config import Recipe
from cupola.core.records import Group, NumericalError, Outcome
from cupola.train.loop.account import Tally, add, ledger_rows, outcomes, update_metrics
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
from cupola.train.rollout import Metrics


@dataclass(frozen=True)
class Updated:
    """What a step's update did: each group's outcomes, metrics, and ledger rows."""

    outcomes: dict[str, list[Outcome]]
    metrics: Metrics
    ledger: list[dict[str, Any]]


class Learner:
    """Owns the optimiser.

    `planned` counts the optimiser steps the schedule has passed, taken or not; `version` counts those taken.
    """

    def __init__(self, policy: Policy, reference: PreTrainedModel | None, recipe: Recipe) -> None:
        self.policy, self.reference, self.recipe = policy, reference, recipe
        self.optimizer = build_optimizer(recipe.optim, policy.model.parameters())
        per_step = recipe.optim.minibatches * recipe.optim.epochs
        self.rate = learning_rate(recipe.optim, recipe.run.steps * per_step)
        #: With one optimiser step per batch the old log-probabilities are the current ones, and need no pass.
        self.on_policy = per_step == 1
        self.planned = 0
        self.version = 0

    def update(self, groups: Sequence[Group]) -> Updated:
        """Take every optimiser step of one batch and say what each rollout weighed."""
        optim = self.recipe.optim
        batch = Batch.of(groups, [self.policy.encode(group.prompt.content) for group in groups], self.recipe.objective)
        n = len(batch.lengths)
        pieces = torch.arange(n).tensor_split(optim.minibatches)
        plans = [plan(batch, rows, self.recipe.objective, self.recipe.sampling.max_tokens) for rows in pieces]
        forwarded = sorted({row for each in plans for row in each.forward})
        tally = Tally({name: torch.zeros(n, dtype=torch.float64) for name in plans[0].terms})
        if not self.on_policy:
            tally.logp_old = dict(zip(forwarded, self._logps(self.policy.model, batch, forwarded), strict=True))
        for each in plans * optim.epochs:
            self._step(batch, each, tally, groups)
        metrics = update_metrics(batch, groups, tally, optim.epochs)
        return Updated(outcomes(batch, groups, tally, set(forwarded)), metrics, tally.ledger)

    def _step(self, batch: Batch, plan: Plan, tally: Tally, groups: Sequence[Group]) -> None:
        """One optimiser step on a sum of micro-batch losses. Without any gradient the optimiser stands still."""
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
        weights = {name: tally.weights[name] - before[name] for name in plan.terms}
        tally.ledger += ledger_rows(self.planned, plan, weights, groups, self.recipe)

    def _terms(self, batch: Batch, plan: Plan, rows: list[int], tally: Tally) -> dict[str, Tensor]:
        """The terms of the loss over one micro-batch, coefficients included; their sum is what is differentiated."""
        objective = self.recipe.objective
        prompts, completions = [batch.prompts[i] for i in rows], [batch.completions[i] for i in rows]
        sequences = to_device(pad(prompts, completions, self.policy.pad_id), self.policy.device)
        logits = completion_logits(self.policy.model, sequences, self.recipe.sampling.temperature)
        mask = sequences.mask
        # Padding is 0 before anything is computed from it: exp of its log-probability may overflow, and 0 * inf is NaN.
        logp = torch.where(mask.bool(), token_logps(logits, sequences.tokens), 0.0)
        if self.on_policy:
            tally.logp_old.update({i: logp[k, : len(batch.completions[i])].detach().cpu() for k, i in enumerate(rows)})
        advantages = batch.advantages[rows].to(logp)
        omega = {name: term.omega[rows].to(logp) for name, term in plan.terms.items()}

        ratio = RATIOS[objective.ratio](logp, _padded([tally.logp_old[i] for i in rows], logp))
        clip = (objective.clip_low, objective.clip_high)
        terms = {"policy": policy_term(ratio, advantages, mask, omega["policy"], *clip)}
        if "kl" in plan.terms:
            kl = KL_ESTIMATORS[objective.kl_estimator](logp, self._reference_logps(batch, rows, logp))
            terms["kl"] = objective.beta * kl_term(kl, mask, omega["kl"])
            add(tally.kl, rows, (kl.detach() * mask).sum(-1))
        for name, term in terms.items():
            tally.weights[name][rows] += gradient_weight(term, logp).cpu().double()
        if "entropy" in plan.terms:
            terms["entropy"] = -objective.entropy_coef * entropy_term(token_entropy(logits), mask, omega["entropy"])
            # The entropy depends on all logits, not on logp alone: its weight is coefficient * omega * m.
            tally.weights["entropy"][rows] += (objective.entropy_coef * omega["entropy"] * mask.sum(-1)).cpu().double()

        low, high = clipped_tokens(ratio.detach(), advantages[:, None], *clip)
        add(tally.low, rows, (low * mask).sum(-1))
        add(tally.high, rows, (high * mask).sum(-1))
        return terms

    def _optimise(self, tally: Tally) -> None:
        norm = float(torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.recipe.optim.max_grad_norm))
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise NumericalError(
                f"optimiser step {self.planned}: the gradient's norm is {norm}; the update was refused and the weights "
                "are those before it (lower optim.learning_rate, or look at the last recorded rollouts)"
            )
        tally.grad_norms.append(norm)
        if norm > 0:
            rate = self.rate(self.planned)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.version += 1
            tally.learning_rates.append(rate)
        self.optimizer.zero_grad()

    def _micro(self, batch: Batch, rows: list[int]) -> Iterator[list[int]]:
        lengths = [(len(batch.prompts[i]), len(batch.completions[i])) for i in rows]
        for chosen in micro_batches(lengths, self.recipe.optim.micro_tokens):
            yield [rows[k] for k in chosen]

    def _reference_logps(self, batch: Batch, rows: list[int], like: Tensor) -> Tensor:
        assert self.reference is not None  # a plan has a KL term only where beta > 0, and then there is a reference
        return _padded(self._logps(self.reference, batch, rows), like)

    def _logps(self, model: PreTrainedModel, batch: Batch, rows: list[int]) -> list[Tensor]:
        return logprobs(
            model,
            [batch.prompts[i] for i in rows],
            [batch.completions[i] for i in rows],
            pad_id=self.policy.pad_id,
            temperature=self.recipe.sampling.temperature,
            micro_tokens=self.recipe.optim.micro_tokens,
        )


def _padded(values: list[Tensor], like: Tensor) -> Tensor:
    """Rows of unequal length as one (N, T) tensor of `like`'s shape, without gradient; the padding is masked later."""
    out = torch.zeros_like(like)
    for row, value in enumerate(values):
        out[row, : len(value)] = value.to(like)
    return out
