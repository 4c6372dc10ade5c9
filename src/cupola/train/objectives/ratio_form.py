"""Surrogates whose gradient goes through the ratio.

Every loss has the signature (logp, ratio, advantages, mask, constants) -> (N, T): the negated objective of each token
before mask and denominator. `logp` and `mask` are (N, T), `ratio` (N, T) comes from `ratios.RATIOS`, `advantages` are
(N, 1) or (N, T). Beside each loss stands where it limits: the tokens whose gradient it takes away or whose weight it
truncates, (N, T) bool, from the same arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.train.objectives.checks import masked_mean, require


@dataclass(frozen=True)
class Clip:
    """Bounds of the ratio, 1 - low and 1 + high. PPO 0.2 and 0.2; DAPO 0.2 and 0.28; GSPO 3e-4 and 4e-4.

    `low` = 1 and `high` = inf clip nothing: the plain importance-weighted objective.
    """

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        require(0 <= self.low <= 1, f"low = {self.low}: 1 - low bounds a ratio, so low must lie in [0, 1]")
        require(self.high >= 0, f"high = {self.high}: 1 + high bounds the ratio from above, so high must not be < 0")


@dataclass(frozen=True)
class TwoSided(Clip):
    """`Clip` and delta, the largest ratio where A < 0. INTELLECT-2: 0.2, 0.2 and 4."""

    delta: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.delta > 1 + self.high, f"delta = {self.delta} must be > 1 + high = {1 + self.high}: it is for A < 0"
        )


@dataclass(frozen=True)
class DualClip(Clip):
    """`Clip` and c, the multiple of A at which the loss stops where A < 0. Dual-clip PPO: 0.2, 0.2 and 3."""

    c: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.c > 1, f"c = {self.c} must be > 1: it bounds the ratio of tokens that became likelier")


@dataclass(frozen=True)
class Sapo:
    """Temperatures of the gate where A > 0 and elsewhere; the higher, the faster it closes. SAPO: 1.0 and 1.05."""

    tau_pos: float = 1.0
    tau_neg: float = 1.05

    def __post_init__(self) -> None:
        require(min(self.tau_pos, self.tau_neg) > 0, f"{self}: temperatures must be > 0")


@dataclass(frozen=True)
class Gmpo:
    """Bounds of the log-ratio, -low and high. GMPO: 0.4 and 0.4, so the ratio lies within (0.67, 1.49)."""

    low: float = 0.4
    high: float = 0.4

    def __post_init__(self) -> None:
        require(min(self.low, self.high) >= 0, f"{self}: bounds of the log-ratio must not be < 0")


def clipped(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Clip) -> Tensor:
    """l = -min(rho * A, clip(rho, 1 - low, 1 + high) * A).

    Equal bounds are PPO's (arXiv 1707.06347, eq. 7) and GRPO's; high > low is DAPO's clip-higher (arXiv 2503.14476,
    eq. 8). On a sequence ratio it is GSPO's, and RLOO's as TRL has it.
    """
    return -torch.minimum(ratio * advantages, _clip(ratio, constants) * advantages)


def clipped_limits(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Clip) -> Tensor:
    """Below 1 - low where A < 0, above 1 + high where A > 0: TRL's `clip_ratio/low_*` and `clip_ratio/high_*`."""
    below, above = ratio < 1 - constants.low, ratio > 1 + constants.high
    return (below & (advantages < 0)) | (above & (advantages > 0))


def two_sided(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: TwoSided) -> Tensor:
    """l = -min(min(rho, delta) * A, clip(rho, 1 - low, 1 + high) * A).

    Where A < 0 the loss stops at delta * |A| instead of growing with rho without end.

    Source: INTELLECT-2, arXiv 2505.07291, section 4.1; TRL's `delta`.
    """
    return -torch.minimum(ratio.clamp(max=constants.delta) * advantages, _clip(ratio, constants) * advantages)


def two_sided_limits(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: TwoSided) -> Tensor:
    """`clipped_limits`, and above delta where A < 0, which TRL's clip metrics leave out."""
    beyond = (ratio > constants.delta) & (advantages < 0)
    return clipped_limits(logp, ratio, advantages, mask, constants) | beyond


def dual_clip(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: DualClip) -> Tensor:
    """l = -min(rho A, clip(rho) A) where A >= 0, -max(min(rho A, clip(rho) A), c A) where A < 0.

    The same function as `two_sided` with delta = c, where c > 1 + high.

    Source: dual-clip PPO, arXiv 1912.09729; verl's `vanilla` always has it, with c = 3; OpenRLHF's is off by default.
    """
    loss = clipped(logp, ratio, advantages, mask, constants)
    return torch.where(advantages < 0, torch.minimum(loss, -constants.c * advantages), loss)


def dual_clip_limits(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: DualClip) -> Tensor:
    """`clipped_limits`, and above c where A < 0."""
    beyond = (ratio > constants.c) & (advantages < 0)
    return clipped_limits(logp, ratio, advantages, mask, constants) | beyond


def sapo(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Sapo) -> Tensor:
    """l = -(4 / tau) * sigmoid(tau * (rho - 1)) * A, with tau_pos where A > 0 and tau_neg elsewhere.

    At rho = 1 the gradient is that of rho * A; away from it on either side the gate closes softly, so the value is
    2 A / tau there and not A: only gradients compare with the other surrogates.

    Source: SAPO, arXiv 2511.20347. verl holds the log-ratio within 20.
    """
    tau = torch.where(advantages > 0, ratio.new_tensor(constants.tau_pos), ratio.new_tensor(constants.tau_neg))
    return -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages


def gmpo(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Gmpo) -> Tensor:
    """l = -A * exp( (1/|o_i|) sum_t c_it ), at every token, from the token ratio.

        c_it = min(log rho, clip(log rho, -low, high)) where A > 0, max(...) where A < 0

    The geometric mean of ratios that are clipped token by token; with `sequence_mean` as the denominator it is the
    paper's objective. Where the advantages of a rollout's tokens differ there is no such objective.

    Source: GMPO, arXiv 2507.20673; verl's `geo_mean`, which averages over the micro-batch, and TRL's GMPOTrainer.
    """
    log = ratio.log()
    bounded = log.clamp(-constants.low, constants.high)
    one_sided = torch.where(advantages > 0, torch.minimum(log, bounded), torch.maximum(log, bounded))
    return -advantages * masked_mean(one_sided, mask).exp().expand_as(ratio)


def gmpo_limits(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Gmpo) -> Tensor:
    """Log-ratio below -low where A < 0, above high where A > 0."""
    log = ratio.log()
    return ((log < -constants.low) & (advantages < 0)) | ((log > constants.high) & (advantages > 0))


def _clip(ratio: Tensor, constants: Clip) -> Tensor:
    return ratio.clamp(1 - constants.low, 1 + constants.high)
