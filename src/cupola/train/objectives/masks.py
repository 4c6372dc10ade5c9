"""The fourth decision: which tokens keep their gradient, and detached weights between sampler and old policy.

What leaves here leaves the numerator only: multiply the per-token loss by it, and omega stays as it was. Statistics
over tokens are taken over whatever is passed: pass a whole update, from a forward pass without gradient, or the result
depends on how the batch is cut. Where a function says `keep`, False takes the token's policy gradient away and leaves
its KL and entropy terms alone, as in TRL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cupola.train.objectives.checks import masked_mean, require
from cupola.train.objectives.ratios import RATIOS


@dataclass(frozen=True)
class ClipCov:
    """Share of tokens, and the covariances between which they are drawn; the values are verl's."""

    fraction: float = 2e-4
    low: float = 1.0
    high: float = 5.0

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, f"fraction = {self.fraction} must lie in (0, 1]")
        require(self.low < self.high, f"low = {self.low} must be < high = {self.high}")


def token_covariance(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean A) * (logp - mean logp), means over all counted tokens, (N, T); -inf where masked.

    Its mean is what drives the policy's entropy down. Source: arXiv 2505.22617.
    """
    counted = mask.bool()
    spread = advantages.expand_as(logp)
    covariance = (spread - spread[counted].mean()) * (logp - logp[counted].mean())
    return torch.where(counted, covariance, -torch.inf)


def clip_cov(
    logp: Tensor, advantages: Tensor, mask: Tensor, limited: Tensor, constants: ClipCov, generator: torch.Generator
) -> Tensor:
    """Keep all but a few tokens drawn at random from those of high covariance, (N, T) bool.

    Left out: at most max(1, fraction * tokens) of the tokens with low < covariance < high that the surrogate does not
    limit already.

    Args:
        logp: (N, T) of the whole update, detached.
        advantages: (N, 1) or (N, T).
        mask: (N, T).
        limited: (N, T) bool, the surrogate's `limits`.
        constants: see `ClipCov`.
        generator: draws the tokens.

    Source: Clip-Cov, arXiv 2505.22617; verl's `clip_cov`, which draws anew in every micro-batch.
    """
    covariance = token_covariance(logp, advantages, mask)
    candidates = ((covariance > constants.low) & (covariance < constants.high) & ~limited).nonzero()
    drawn = torch.randperm(len(candidates), generator=generator)[: _some(constants.fraction, mask)]
    keep = torch.ones_like(limited)
    keep[tuple(candidates[drawn.to(candidates.device)].T)] = False
    return keep


def kl_cov(logp: Tensor, advantages: Tensor, mask: Tensor, fraction: float = 2e-4) -> Tensor:
    """The max(1, fraction * tokens) tokens of highest covariance, (N, T) bool: nothing is left out, these pay a KL.

    To their plain importance-weighted loss is added coefficient * |logp - logp_old| (`kl.absolute`, coefficient 1 in
    the paper, 0.1 in verl's configuration), which has no gradient before the policy has moved.

    Source: KL-Cov, arXiv 2505.22617; verl's `kl_cov`, which ranks within every micro-batch.
    """
    require(0 < fraction <= 1, f"fraction = {fraction} must lie in (0, 1]")
    covariance = token_covariance(logp, advantages, mask)
    chosen = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
    chosen[covariance.flatten().topk(_some(fraction, mask)).indices] = True
    return chosen.view(mask.shape) & mask.bool()


def on_policy_sequences(logp: Tensor, logp_sampler: Tensor, advantages: Tensor, mask: Tensor, delta: float) -> Tensor:
    """Keep a rollout where A >= 0 or where the policy is still near the sampler, (N, 1) or, with A, (N, T) bool.

        keep = A >= 0 or (1/|o_i|) sum_t (logp_sampler - logp)_it <= delta

    Left out: bad answers that the policy no longer gives. A token that the sampler did not score (NaN) adds 0.

    Args:
        logp: (N, T), detached.
        logp_sampler: (N, T), of the sampler, or of the old policy where the sampler gives none.
        advantages: (N, 1) or (N, T).
        mask: (N, T).
        delta: nats per token.

    Source: off-policy sequence masking, DeepSeek-V3.2, arXiv 2512.02556, eq. 9; TRL's `off_policy_mask_threshold`.
    """
    drift = masked_mean((logp_sampler - logp).nan_to_num(nan=0.0), mask)
    return (advantages >= 0) | (drift <= delta)


#: Entropies this close, in nats, are told apart by nothing but rounding.
SAME_ENTROPY = 1e-6


def high_entropy_tokens(entropy: Tensor, mask: Tensor, share: float = 0.2) -> Tensor:
    """Keep the tokens at or above the (1 - share) quantile of all counted entropies, (N, T) bool.

    The quantile interpolates between neighbours, as torch's; what is within `SAME_ENTROPY` of it is at it, since the
    first tokens of a prompt's answers have one entropy, but for rounding. Left out: tokens that were nearly certain.

    Source: arXiv 2506.01939; TRL's `top_entropy_quantile`, whose quantile is of the micro-batch over all ranks and
    whose entropy bonus it restricts too.
    """
    require(0 < share <= 1, f"share = {share} must lie in (0, 1]")
    counted = mask.bool()
    if not counted.any():
        return counted
    ordered = entropy[counted].sort().values
    place = (len(ordered) - 1) * (1 - share)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    quantile = torch.lerp(ordered[below], ordered[above], place - below)
    return (entropy >= quantile - SAME_ENTROPY) & counted


#: What becomes of a weight outside [low, high]: moved to the bound, or 0.
BOUNDS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "truncate": lambda weight, low, high: weight.clamp(low, high),
    "mask": lambda weight, low, high: torch.where(within(weight, low, high), weight, 0.0),
}


def importance_weights(
    logp_old: Tensor,
    logp_sampler: Tensor,
    mask: Tensor,
    level: str = "token",
    bound: str = "truncate",
    low: float = 0.0,
    high: float = 2.0,
) -> Tensor:
    """Detached weights w = pi_old / sampler at a ratio level, bounded, (N, T); multiply the per-token loss by them.

    A token that the sampler did not score (NaN) has ratio 1. A sampler that cuts its distribution off (top-p) makes
    the ratio the mass it kept: that is a setting, not staleness.

    Args:
        logp_old: (N, T) of the trainer before the update.
        logp_sampler: (N, T) as the sampler reported them.
        mask: (N, T).
        level: key of `ratios.RATIOS`. TRL's sequence modes are `sequence_product`, which grows with the length.
        bound: key of `BOUNDS`: "truncate" is TIS, "mask" MIS and IcePop.
        low: smallest weight (TRL and verl 0, OpenRLHF and IcePop 0.5).
        high: largest weight (verl 2, TRL 3, OpenRLHF and IcePop 5).
    """
    require(0 <= low <= 1 <= high, f"[{low}, {high}] must hold 1, the weight where sampler and trainer agree")
    scored = mask.bool() & ~logp_sampler.isnan()
    sampler = torch.where(scored, logp_sampler, logp_old)
    return BOUNDS[bound](RATIOS[level](logp_old, sampler, mask), low, high).detach()


def within(ratio: Tensor, low: float, high: float) -> Tensor:
    """Keep where low <= ratio <= high, of the ratio's shape, bool: rejection by a band, at the ratio's level.

    With the `sequence` ratio of trainer and sampler it is OpenRLHF's and NeMo-RL's gate, which lets a rollout's tokens
    keep their own weights.
    """
    return (ratio >= low) & (ratio <= high)


def _some(fraction: float, mask: Tensor) -> int:
    """fraction * tokens, rounded down, but one at least where there is any."""
    tokens = int(mask.bool().sum())
    return min(tokens, max(1, int(fraction * tokens)))
