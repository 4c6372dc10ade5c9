"""Objectives as five decisions: advantages, ratio level, surrogate, masks and weights, denominator. Torch alone.

    A     = (r - b) / s                              advantages.BASELINES, advantages.SCALES; critic.gae
    rho   = pi / pi_old                              ratios.RATIOS
    l_it  = surrogate(logp, rho, A, m, constants)    surrogates.SURROGATES
    w_it  = keep * weight                            masks
    L     = sum_it omega_it m_it w_it l_it           denominators.RULES

A variant is a composition of table entries. KL (`kl.KL_ESTIMATORS`), entropy and value loss are terms of their own,
each with its own omega.
"""

from cupola.train.objectives.advantages import (
    BASELINES,
    BATCH_WIDE,
    DIVISORS,
    SCALES,
    advantages,
    dead_groups,
    decoupled_advantages,
    group_mean,
    group_std,
    spread,
    whiten,
)
from cupola.train.objectives.checks import require_finite
from cupola.train.objectives.critic import gae, token_rewards, value_loss
from cupola.train.objectives.denominators import BY_CUT, RULES, Counts, count, omega, omega_by_cut, padded_widths
from cupola.train.objectives.kl import KL_ESTIMATORS, drift, importance_corrected
from cupola.train.objectives.masks import (
    BOUNDS,
    ClipCov,
    clip_cov,
    high_entropy_tokens,
    importance_weights,
    kl_cov,
    on_policy_sequences,
    token_covariance,
    within,
)
from cupola.train.objectives.ratio_form import Clip, DualClip, Gmpo, Sapo, TwoSided
from cupola.train.objectives.ratios import RATIOS, log_ratio
from cupola.train.objectives.rewards import best_only, pass_at_k, soft_overlong_punishment
from cupola.train.objectives.score_form import Cispo, DppoKl, DppoTv, Reinforce, Vespo
from cupola.train.objectives.surrogates import SURROGATES, Surrogate, constants_of
from cupola.train.objectives.terms import gradient_weight, token_entropy, token_logps, weighted_sum

__all__ = [
    "BASELINES",
    "BATCH_WIDE",
    "BOUNDS",
    "BY_CUT",
    "DIVISORS",
    "KL_ESTIMATORS",
    "RATIOS",
    "RULES",
    "SCALES",
    "SURROGATES",
    "Cispo",
    "Clip",
    "ClipCov",
    "Counts",
    "DppoKl",
    "DppoTv",
    "DualClip",
    "Gmpo",
    "Reinforce",
    "Sapo",
    "Surrogate",
    "TwoSided",
    "Vespo",
    "advantages",
    "best_only",
    "clip_cov",
    "constants_of",
    "count",
    "dead_groups",
    "decoupled_advantages",
    "drift",
    "gae",
    "gradient_weight",
    "group_mean",
    "group_std",
    "high_entropy_tokens",
    "importance_corrected",
    "importance_weights",
    "kl_cov",
    "log_ratio",
    "omega",
    "omega_by_cut",
    "on_policy_sequences",
    "padded_widths",
    "pass_at_k",
    "require_finite",
    "soft_overlong_punishment",
    "spread",
    "token_covariance",
    "token_entropy",
    "token_logps",
    "token_rewards",
    "value_loss",
    "weighted_sum",
    "whiten",
    "within",
]
