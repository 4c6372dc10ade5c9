"""Which tokens of an optimiser step keep their policy gradient, from statistics over the whole step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cupola.core.config import Objective
from cupola.train.objectives import (
    RATIOS,
    SURROGATES,
    ClipCov,
    clip_cov,
    constants_of,
    high_entropy_tokens,
    kl_cov,
    on_policy_sequences,
)


@dataclass(frozen=True, eq=False)
class Kept:
    """`keep` and `pays` (N, T) bool: the tokens that keep their policy gradient, and those that pay KL-Cov's penalty.

    `None` is all of them, and none. `left` counts the tokens that each mask took, a token once.
    """

    keep: Tensor | None = None
    pays: Tensor | None = None
    left: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Seen:
    """The step's rows as the current policy sees them without gradient, (N, T); `mask` is False outside the step."""

    logp: Tensor
    entropy: Tensor
    logp_old: Tensor
    logp_sampler: Tensor
    advantages: Tensor
    mask: Tensor


def kept_tokens(seen: Seen, objective: Objective, generator: torch.Generator) -> Kept:
    """Apply the recipe's masks one after the other; `generator` draws Clip-Cov's tokens."""
    masks, counted = objective.masks, seen.mask.bool()
    found: dict[str, Tensor] = {}
    if masks.off_policy is not None:
        found["off_policy"] = on_policy_sequences(
            seen.logp, seen.logp_sampler, seen.advantages, seen.mask, masks.off_policy
        )
    if masks.top_entropy < 1:
        found["low_entropy"] = high_entropy_tokens(seen.entropy, seen.mask, masks.top_entropy)
    if masks.clip_cov is not None:
        constants = ClipCov(**masks.clip_cov.model_dump())
        limited = _limited(seen, objective)
        found["clip_cov"] = clip_cov(seen.logp, seen.advantages, seen.mask, limited, constants, generator)
    pays = None
    if masks.kl_cov is not None:
        pays = kl_cov(seen.logp, seen.advantages, seen.mask, masks.kl_cov.fraction)
    keep, left = counted, dict[str, int]()
    for reason, kept in found.items():
        left[reason] = int((keep & ~kept).sum())
        keep = keep & kept
    return Kept(keep if found else None, pays, left)


def _limited(seen: Seen, objective: Objective) -> Tensor:
    """The tokens that the surrogate limits already, (N, T) bool."""
    surrogate = SURROGATES[objective.surrogate.kind]
    constants = constants_of(objective.surrogate.model_dump())
    ratio = RATIOS[objective.ratio](seen.logp, seen.logp_old, seen.mask)
    limited: Tensor = surrogate.limits(seen.logp, ratio, seen.advantages, seen.mask, constants)
    return limited.bool().expand_as(seen.logp)
