"""Surrogates whose gradient goes through log pi, with a weight that carries none: l = -sg(weight) * A * log pi.

Signatures as in `ratio_form`. The value of such a loss says nothing; its gradient is weight * A * grad log pi.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.train.objectives.checks import require


@dataclass(frozen=True)
class Reinforce:
    """No constants."""


@dataclass(frozen=True)
class Cispo:
    """Bounds of the weight itself, not of its distance from 1.

    MiniMax-M1 writes 1 + eps_high for `ceiling`, without giving its value, and has no lower bound; TRL's
    `epsilon_high` is `ceiling`, not `ceiling` - 1 (its text recommends 5.0, after ScaleRL; left unset it is 0.2, which
    weighs every on-policy token by 0.2); verl bounds on both sides, from 1 - clip_ratio_low to 1 + clip_ratio_high (its
    script: no lower bound and 1.2).
    """

    ceiling: float = 5.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.floor <= self.ceiling > 0, f"{self}: 0 <= floor <= ceiling must hold, and ceiling > 0")


@dataclass(frozen=True)
class DppoTv:
    """Largest change of probability that is followed, down and up, and the ceiling of the weight.

    0.15 is the authors' script in verl, which sets the ceiling to 1e4; verl's code falls back to 20, its actor
    configuration to 3. prime-rl has 0.2 and no ceiling.
    """

    low: float = 0.15
    high: float = 0.15
    ceiling: float = 20.0

    def __post_init__(self) -> None:
        _check_divergence(self.low, self.high, self.ceiling)


@dataclass(frozen=True)
class DppoKl:
    """Largest binary KL divergence in nats that is followed, down and up, and the ceiling of the weight (0.05)."""

    low: float = 0.05
    high: float = 0.05
    ceiling: float = 20.0

    def __post_init__(self) -> None:
        _check_divergence(self.low, self.high, self.ceiling)


@dataclass(frozen=True)
class Vespo:
    """Shape of the kernel phi where A >= 0 and where A < 0; the values are those of TRL 1.16."""

    k_pos: float = 2.0
    lambda_pos: float = 3.0
    k_neg: float = 3.0
    lambda_neg: float = 2.0

    def __post_init__(self) -> None:
        require(min(self.k_pos, self.lambda_pos, self.k_neg, self.lambda_neg) > 0, f"{self}: all must be > 0")


def reinforce(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Reinforce) -> Tensor:
    """l = -A * log pi. The ratio plays no part. Source: Williams, 1992; RLOO's form, arXiv 2402.14740, section 2."""
    return -advantages * logp


def cispo(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Cispo) -> Tensor:
    """l = -sg(clip(rho, floor, ceiling)) * A * log pi: the weight is bounded, no token loses its gradient.

    Source: CISPO in MiniMax-M1, arXiv 2506.13585, eq. 4 and 5; see `Cispo` for what others call the bounds.
    """
    return -ratio.clamp(constants.floor, constants.ceiling).detach() * advantages * logp


def cispo_limits(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Cispo) -> Tensor:
    """Where the weight is truncated. TRL's `cispo_clip_ratio` counts the part above the ceiling where A > 0."""
    return (ratio < constants.floor) | (ratio > constants.ceiling)


def dppo_tv(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: DppoTv) -> Tensor:
    """l = -sg(min(rho, ceiling)) * A * log pi, and 0 where `dppo_tv_limits`.

    A rare token may change its ratio much without moving the policy, a common one may move it much at a ratio near 1:
    the region is bounded in probability instead.

    Source: DPPO with binary total variation, arXiv 2602.04879; verl's `dppo_tv`. prime-rl's default has the gradient
    of rho * A without a ceiling, which is this with `ceiling` = inf.
    """
    weight = ratio.clamp(max=constants.ceiling) * ~dppo_tv_limits(logp, ratio, advantages, mask, constants)
    return -weight.detach() * advantages * logp


def dppo_tv_limits(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: DppoTv) -> Tensor:
    """p - p_old > high where A > 0, p - p_old < -low elsewhere; from the token ratio, p_old = p / rho."""
    change = logp.detach().exp() - _old_logp(logp, ratio).exp()
    return torch.where(advantages > 0, change > constants.high, change < -constants.low)


def dppo_kl(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: DppoKl) -> Tensor:
    """l = -sg(min(rho, ceiling)) * A * log pi, and 0 where `dppo_kl_limits`.

    Source: DPPO with binary KL, arXiv 2602.04879; verl's `dppo_kl`.
    """
    weight = ratio.clamp(max=constants.ceiling) * ~dppo_kl_limits(logp, ratio, advantages, mask, constants)
    return -weight.detach() * advantages * logp


def dppo_kl_limits(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: DppoKl) -> Tensor:
    """KL > high with p > p_old where A > 0, KL > low with p < p_old elsewhere.

        KL = p_old * log(p_old / p) + (1 - p_old) * log((1 - p_old) / (1 - p))

    As in verl, 1e-8 is added to 1 - p_old and to 1 - p.
    """
    new, old = logp.detach(), _old_logp(logp, ratio)
    p, p_old = new.exp(), old.exp()
    kl = p_old * (old - new) + (1 - p_old) * ((1 - p_old + 1e-8) / (1 - p + 1e-8)).log()
    up, down = (kl > constants.high) & (p > p_old), (kl > constants.low) & (p < p_old)
    return torch.where(advantages > 0, up, down)


def vespo(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Vespo) -> Tensor:
    """l = -sg(phi(W)) * A * log pi with phi(W) = exp(lambda) * W^k * exp(-lambda * W), so phi(1) = 1.

    `ratio` is W, the `sequence_product` ratio; log W is held within [log 1e-8, 20]. A correction for the sampler goes
    into W and not before the loss: give logp_old - log max(w, 1e-8) as the old log-probabilities, with w the token
    weights of `masks.importance_weights`. A token of weight 0 then silences its whole rollout.

    Source: VESPO, arXiv 2602.10693. TRL also holds each token's log-ratio within 20 before it sums them.
    """
    positive = advantages >= 0
    k = torch.where(positive, ratio.new_tensor(constants.k_pos), ratio.new_tensor(constants.k_neg))
    decay = torch.where(positive, ratio.new_tensor(constants.lambda_pos), ratio.new_tensor(constants.lambda_neg))
    log_w = ratio.detach().log().clamp(math.log(1e-8), 20.0)
    return -(decay + k * log_w - decay * log_w.exp()).exp() * advantages * logp


def _old_logp(logp: Tensor, ratio: Tensor) -> Tensor:
    """log pi_old from the token ratio; rounding must not make it a probability above 1."""
    return (logp.detach() - ratio.detach().log()).clamp(max=0.0)


def _check_divergence(low: float, high: float, ceiling: float) -> None:
    require(min(low, high) >= 0, f"low = {low} and high = {high} bound a divergence and must not be < 0")
    require(ceiling >= 1, f"ceiling = {ceiling} must be >= 1, or it truncates on-policy tokens")
