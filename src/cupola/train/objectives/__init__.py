"""Objectives as five decisions: baseline, scale, ratio, clip rule, denominator. Pure tensor functions; torch alone."""

from cupola.train.objectives.advantages import BASELINES, SCALES, advantages, dead_groups, group_mean, group_std
from cupola.train.objectives.denominators import RULES, Counts, count, omega
from cupola.train.objectives.terms import (
    KL_ESTIMATORS,
    RATIOS,
    clipped_surrogate,
    clipped_tokens,
    entropy_term,
    gradient_weight,
    kl_term,
    policy_term,
    token_entropy,
    token_logps,
    token_ratio,
)

__all__ = [
    "BASELINES",
    "KL_ESTIMATORS",
    "RATIOS",
    "RULES",
    "SCALES",
    "Counts",
    "advantages",
    "clipped_surrogate",
    "clipped_tokens",
    "count",
    "dead_groups",
    "entropy_term",
    "gradient_weight",
    "group_mean",
    "group_std",
    "kl_term",
    "omega",
    "policy_term",
    "token_entropy",
    "token_logps",
    "token_ratio",
]
