"""The loss of one micro-batch: its terms as plain sums, and what they were computed from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.core.config import Objective
from cupola.train.objectives import (
    KL_ESTIMATORS,
    RATIOS,
    SURROGATES,
    gradient_weight,
    importance_weights,
    token_entropy,
    token_logps,
    weighted_sum,
)


@dataclass(frozen=True)
class Inputs:
    """What the loss of n rows needs beside the logits.

    `tokens` and `mask` are (n, T); `logp_old` and `logp_ref` (n, T) or `None` (on a batch's only update the old
    log-probabilities are the current ones; without a KL term there is no reference), `logp_sampler` likewise without a
    correction; `advantages` and each `omega` (n,).
    """

    tokens: Tensor
    mask: Tensor
    logp_old: Tensor | None
    logp_ref: Tensor | None
    logp_sampler: Tensor | None
    advantages: Tensor
    omega: dict[str, Tensor]


@dataclass(frozen=True)
class Loss:
    """The terms with their coefficients; `total` is what is differentiated.

    Per row, (n,): `weights` is sum_t |d term / d logp_it| of each term, `low` and `high` count clipped tokens, `kl`
    sums the estimator. `logp` (n, T) and `correction` (n, T), the weights from sampler to trainer, are detached.
    """

    terms: dict[str, Tensor]
    weights: dict[str, Tensor]
    logp: Tensor
    low: Tensor
    high: Tensor
    kl: Tensor | None
    correction: Tensor | None

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()


def micro_loss(logits: Tensor, inputs: Inputs, objective: Objective) -> Loss:
    """L = policy + beta * KL - c_H * entropy over one micro-batch, each term a sum over tokens of omega * m * value.

    `logits` (n, T, V) predict the completion tokens and are divided by the sampling temperature.
    """
    mask, omega, advantages = inputs.mask, inputs.omega, inputs.advantages
    # Padding is 0 before anything is computed from it: exp of its log-probability may overflow, and 0 * inf is NaN.
    logp = torch.where(mask.bool(), token_logps(logits, inputs.tokens), 0.0)
    logp_old = logp.detach() if inputs.logp_old is None else inputs.logp_old
    ratio = RATIOS[objective.ratio](logp, logp_old, mask)
    surrogate = SURROGATES[objective.surrogate.kind]
    constants = surrogate.constants(**objective.surrogate.model_dump(exclude={"kind"}))
    per_token = surrogate.loss(logp, ratio, advantages[:, None], mask, constants)

    correction = None
    if inputs.logp_sampler is not None:
        correction = importance_weights(logp_old, inputs.logp_sampler, mask, **objective.correction.model_dump())
        per_token = per_token * correction

    terms = {"policy": weighted_sum(per_token, mask, omega["policy"])}
    kl = None
    if inputs.logp_ref is not None:
        kl = KL_ESTIMATORS[objective.kl_estimator](logp, inputs.logp_ref)
        terms["kl"] = objective.beta * weighted_sum(kl, mask, omega["kl"])
    weights = {name: gradient_weight(term, logp) for name, term in terms.items()}
    if "entropy" in omega:
        terms["entropy"] = -objective.entropy_coef * weighted_sum(token_entropy(logits), mask, omega["entropy"])
        # The entropy depends on all logits, not on logp alone: its weight is coefficient * omega * m.
        weights["entropy"] = objective.entropy_coef * omega["entropy"] * mask.sum(-1)

    limited = surrogate.limits(logp.detach(), ratio.detach(), advantages[:, None], mask, constants) * mask
    below, above = limited * (advantages < 0)[:, None], limited * (advantages > 0)[:, None]
    return Loss(
        terms=terms,
        weights=weights,
        logp=logp.detach(),
        low=below.sum(-1),
        high=above.sum(-1),
        kl=None if kl is None else (kl.detach() * mask).sum(-1),
        correction=correction,
    )
