"""The loss of one micro-batch: its terms as plain sums, and what they were computed from."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cupola.core.config import Objective
from cupola.train.objectives import (
    KL_ESTIMATORS,
    RATIOS,
    SURROGATES,
    constants_of,
    drift,
    gradient_weight,
    importance_corrected,
    importance_weights,
    value_loss,
    weighted_sum,
)


@dataclass(frozen=True)
class Inputs:
    """What the loss of n rows needs beside the policy's log-probabilities.

    `mask` is (n, T), `advantages` (n, 1) or (n, T); `omega` (n,) and the coefficient of each term by its
    name. (n, T) or `None`: `logp_old` (on a batch's only update the old log-probabilities are the current ones),
    `logp_ref` (without a KL term), `logp_sampler` (without a correction), `keep` and `pays` (see
    `loop.keep`), and of the critic `values`, `values_old` and `returns`.
    """

    mask: Tensor
    advantages: Tensor
    omega: dict[str, Tensor]
    coef: dict[str, float]
    logp_old: Tensor | None = None
    logp_ref: Tensor | None = None
    logp_sampler: Tensor | None = None
    keep: Tensor | None = None
    pays: Tensor | None = None
    values: Tensor | None = None
    values_old: Tensor | None = None
    returns: Tensor | None = None


@dataclass(frozen=True)
class Loss:
    """The terms with their coefficients; `total` is what is differentiated.

    Per row, (n,): `weights` is sum_t |d term / d logp_it| of each term, `sums` what is counted or summed over the row's
    tokens: clipped ones (`low`, `high`), the KL estimator, the entropy. `logp` (n, T) and `correction` (n, T), the
    weights from sampler to trainer, are detached.
    """

    terms: dict[str, Tensor]
    weights: dict[str, Tensor]
    logp: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    correction: Tensor | None = None

    @property
    def total(self) -> Tensor:
        return torch.stack(list(self.terms.values())).sum()


def micro_loss(logp: Tensor, entropy: Tensor | None, inputs: Inputs, objective: Objective) -> Loss:
    """L = policy + beta * KL - c_H * entropy + c_V * value over one micro-batch, plain sums of omega * m * value.

    `logp` and `entropy` (n, T) are the policy's at the sampling temperature, with gradient; the entropy is there where
    the objective has its term.
    """
    mask, omega, coef = inputs.mask, inputs.omega, inputs.coef
    # Padding is 0 before anything is computed from it: exp of its log-probability may overflow, and 0 * inf is NaN.
    logp = torch.where(mask.bool(), logp, 0.0)
    logp_old = logp.detach() if inputs.logp_old is None else inputs.logp_old
    ratio = RATIOS[objective.ratio](logp, logp_old, mask)
    per_token, sums = policy_loss(logp, ratio, logp_old, inputs, objective)
    correction = None
    if inputs.logp_sampler is not None:
        correction = importance_weights(logp_old, inputs.logp_sampler, mask, **objective.correction.model_dump())
        per_token = per_token * correction

    terms = {"policy": weighted_sum(per_token, mask, omega["policy"])}
    if "kl" in omega and inputs.logp_ref is not None:
        kl = KL_ESTIMATORS[objective.kl_estimator](logp, inputs.logp_ref)
        kl = importance_corrected(kl, RATIOS[objective.kl_ratio](logp, logp_old, mask))
        terms["kl"] = coef["kl"] * weighted_sum(kl, mask, omega["kl"])
        sums["kl"] = (kl.detach() * mask).sum(-1)
    weights = {name: gradient_weight(term, logp) for name, term in terms.items()}
    if entropy is not None:
        terms["entropy"] = -coef["entropy"] * weighted_sum(entropy, mask, omega["entropy"])
        sums["entropy"] = (entropy.detach() * mask).sum(-1)
    if inputs.values is not None and inputs.values_old is not None and inputs.returns is not None:
        clip = objective.critic.value_clip or torch.inf
        losses = value_loss(inputs.values, inputs.values_old, inputs.returns, clip)
        terms["value"] = coef["value"] * weighted_sum(losses, mask, omega["value"])
    # Entropy and value depend on more than logp: their weight is coefficient * omega * m.
    for name in [name for name in terms if name not in weights]:
        weights[name] = coef[name] * omega[name] * mask.sum(-1)
    return Loss(terms, weights, logp.detach(), sums, correction)


def policy_loss(
    logp: Tensor, ratio: Tensor, logp_old: Tensor, inputs: Inputs, objective: Objective
) -> tuple[Tensor, dict[str, Tensor]]:
    """The surrogate of each token under the step's masks, (n, T), and how many tokens of each row it clips."""
    mask, advantages = inputs.mask, inputs.advantages
    surrogate = SURROGATES[objective.surrogate.kind]
    constants = constants_of(objective.surrogate.model_dump())
    per_token = surrogate.loss(logp, ratio, advantages, mask, constants)
    if inputs.keep is not None:
        per_token = per_token * inputs.keep
    if inputs.pays is not None and objective.masks.kl_cov is not None:
        moved = torch.where(inputs.pays.bool(), drift(logp, logp_old), 0.0)
        per_token = per_token + objective.masks.kl_cov.coef * moved
    limited = surrogate.limits(logp.detach(), ratio.detach(), advantages, mask, constants) * mask
    below, above = limited * (advantages < 0), limited * (advantages > 0)
    return per_token, {"low": below.sum(-1), "high": above.sum(-1)}
