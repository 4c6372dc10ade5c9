"""The metrics of an update: TRL's training keys, and what a critic and the exact gradient share add."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.stats import spearmanr
from torch import Tensor

from cupola.core.config import Objective
from cupola.core.records import Group
from cupola.train.loop.account import StepBook, UpdateBook
from cupola.train.loop.advantage import Advantages
from cupola.train.loop.batch import Batch, Before
from cupola.train.loop.plan import Plan
from cupola.train.rollout import Metrics, mean


def update_metrics(batch: Batch, groups: Sequence[Group], plans: Sequence[Plan], book: UpdateBook) -> Metrics:
    """TRL's training keys. Clip shares run over the tokens of all counted rollouts: a skipped one cannot clip."""
    steps = [step for step in book.steps if step.grad_norm is not None]
    # A refused step accounts for nothing: its rows are no data, not rows that did not clip.
    accounted = [plan for plan, step in zip(plans, book.steps, strict=True) if step.refused is None]
    passes = torch.zeros(len(batch), dtype=torch.float64)
    for plan in accounted:
        passes[plan.rows] += 1
    tokens = passes * batch.lengths * batch.counted
    own = torch.tensor(sorted({row for plan in accounted for row in plan.forward}), dtype=torch.long)
    low, high = book.total("low"), book.total("high")
    found: Metrics = {
        "ledger/refused": sum(step.refused is not None for step in book.steps),
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
        **_critic_metrics(steps),
    }
    if len(plans[0].terms) > 1:
        found["policy_loss"] = mean(step.losses["policy"] for step in steps)
    if "kl" in plans[0].terms:
        found["kl"] = _share(book.total("kl").sum(), (passes * batch.lengths)[own].sum())
    if "entropy" in plans[0].terms:
        found["entropy_coef"] = book.entropy_coef
    return {**found, **_exact_share(book.steps)}


def before_metrics(batch: Batch, before: Before, advantages: Advantages, objective: Objective) -> Metrics:
    """Who was rejected, the KL where it stands in the reward (k1, token mean), how well the critic knew the returns.

    critic/vf_explained_var = 1 - Var(R - V) / Var(R)        over the counted rollouts' tokens
    """
    found: Metrics = {} if objective.masks.reject is None else {"sampler/rejected": int(batch.rejected.sum())}
    mask = batch.mask & batch.counted[:, None]
    if before.kl is not None:
        found["kl"] = _share(before.kl[mask].sum(), mask.sum())
    if advantages.returns is not None and advantages.values_old is not None:
        returns, values = advantages.returns[mask], advantages.values_old[mask].double()
        found["critic/values/mean"] = _share(values.sum(), mask.sum())
        unexplained = _share((returns - values).var(correction=0), returns.var(correction=0)) if len(returns) else None
        found["critic/vf_explained_var"] = None if unexplained is None else 1 - unexplained
    return found


def _critic_metrics(steps: Sequence[StepBook]) -> Metrics:
    """TRL's `loss/value_avg`, with the coefficient, and the critic's own gradient norm."""
    if not any("value" in step.losses for step in steps):
        return {}
    norms = [step.critic_grad_norm for step in steps if step.critic_grad_norm is not None]
    return {"loss/value_avg": mean(step.losses["value"] for step in steps), "critic/grad_norm": mean(norms)}


def _exact_share(steps: Sequence[StepBook]) -> Metrics:
    """How well the weight at the log-probabilities predicts the share of the rows' own gradient norms.

    `ledger/exact_rank_correlation` is Spearman's over the rows that have either; `ledger/exact_distance` the total
    variation between the two shares, 0 where they agree and 1 where they have no row in common. The value term is left
    out: it moves the critic alone.
    """
    measured = [(step.exact, step.weight(but="value")) for step in steps if step.exact is not None]
    if not measured:
        return {}
    norms, weights = (torch.stack(each).sum(0) for each in zip(*measured, strict=True))
    rows = (norms > 0) | (weights > 0)
    if int(rows.sum()) < 2 or not norms.sum() > 0 or not weights.sum() > 0:
        return {"ledger/exact_distance": None, "ledger/exact_rank_correlation": None}
    exact, predicted = norms[rows] / norms.sum(), weights[rows] / weights.sum()
    apart = len(exact.unique()) > 1 and len(predicted.unique()) > 1
    return {
        "ledger/exact_distance": float((exact - predicted).abs().sum() / 2),
        "ledger/exact_rank_correlation": float(spearmanr(exact, predicted).statistic) if apart else None,
    }


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
