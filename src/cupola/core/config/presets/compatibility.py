"""Presets that reproduce other trainers: their denominators, epsilons and constants, under `trainer:name`.

A name stands for the trainer's defaults with that one setting changed, and for its group estimator where the default is
a critic. What is left out, and what must be set beside a preset, stands in docs/objectives/compatibility.md.
"""

from __future__ import annotations

from typing import Any

# TRL 1.16.0, GRPOConfig and GRPOTrainer._compute_loss. Advantages: (r - mean) / (std + 1e-4), ddof 1. Every rollout
# counts, masked ones too. The entropy bonus is the micro-batch's own token mean whatever the loss type.
_TRL: dict[str, Any] = {
    "baseline": "group_mean",
    "scale": "group_std",
    "scale_epsilon": 1e-4,
    "ratio": "token",  # importance_sampling_level; luspo's paper has "sequence", of which TRL warns
    "surrogate": {"kind": "clipped", "low": 0.2, "high": 0.2},  # epsilon; epsilon_high = None is epsilon
    "count": "nominal",
    "entropy_denominator": "token_mean",
    "entropy_scope": "micro_batch",
    "beta": 0.0,
    "kl_estimator": "k3",
    "kl_ratio": "token",  # use_bias_correction_kl, at importance_sampling_level
}
#: `/ current_gradient_accumulation_steps`: a mean within each micro-batch, then over them.
_LOCAL: dict[str, Any] = {**_TRL, "scope": "micro_batch"}
#: `/ (num_items_in_batch * gradient_accumulation_steps / steps_per_generation)`.
_GENERATION: dict[str, Any] = {**_TRL, "denominator": "token_mean", "scope": "generation"}

# verl 0.9.1, core_algos.py: compute_grpo_outcome_advantage (epsilon 1e-6, ddof 1), compute_policy_loss_vanilla and
# agg_loss; config/actor/actor.yaml: clip_ratio 0.2, clip_ratio_c 3.0, kl_loss_type low_var_kl. global_batch_size is the
# nominal ppo_mini_batch_size * n; KL and entropy are aggregated as the policy term is.
_VERL: dict[str, Any] = {
    "baseline": "group_mean",
    "scale": "group_std",
    "scale_epsilon": 1e-6,
    "ratio": "token",
    "surrogate": {"kind": "dual_clip", "low": 0.2, "high": 0.2, "c": 3.0},
    "scope": "update",
    "count": "nominal",
    "beta": 0.0,
    "kl_estimator": "k3",
}

COMPATIBLE: dict[str, dict[str, Any]] = {
    "trl:grpo": {**_LOCAL, "denominator": "sequence_mean"},
    "trl:dapo": _GENERATION,
    "trl:dr_grpo": {**_LOCAL, "denominator": "constant"},  # L_max is max_completion_length
    "trl:bnpo": {**_LOCAL, "denominator": "token_mean"},
    # The ceiling is epsilon_high itself, 0.2 unless it is set; TRL's text recommends 5.0.
    "trl:cispo": {**_GENERATION, "surrogate": {"kind": "cispo", "ceiling": 0.2, "floor": 0.0}},
    "trl:sapo": {
        **_LOCAL,
        "denominator": "sequence_mean",
        "surrogate": {"kind": "sapo", "tau_pos": 1.0, "tau_neg": 1.05},
    },
    "trl:luspo": {**_LOCAL, "denominator": "sequence_sum"},
    "trl:vespo": {
        **_GENERATION,
        "ratio": "sequence_product",
        "surrogate": {"kind": "vespo", "k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
    },
    "verl:token-mean": {**_VERL, "denominator": "token_mean"},
    "verl:seq-mean-token-sum": {**_VERL, "denominator": "sequence_sum"},
    "verl:seq-mean-token-mean": {**_VERL, "denominator": "sequence_mean"},
    "verl:seq-mean-token-sum-norm": {**_VERL, "denominator": "padded"},  # loss_scale_factor = null
    # OpenRLHF 0.11.2: estimator group_norm (experience_maker.py, epsilon 1e-9, ddof 1); PolicyLoss without dual_clip;
    # the tokens of the optimiser step on all ranks (loss_utils.py); KL k1 0.01 in the tokens' rewards (compute_reward).
    "openrlhf:token-mean": {
        "baseline": "group_mean",
        "scale": "group_std",
        "scale_epsilon": 1e-9,
        "ratio": "token",
        "surrogate": {"kind": "clipped", "low": 0.2, "high": 0.2},
        "denominator": "token_mean",
        "scope": "update",
        "count": "nominal",
        "kl_in": "token_reward",
        "beta": 0.01,
        "kl_estimator": "k1",
    },
    # prime-rl at 559b4477 (2026-08-21), default_loss_fn with DefaultLossConfig: DPPO-TV 0.2 without a ceiling, ratio to
    # the sampler, rl tokens of the step; filter_zero_advantages takes dead groups out before they are counted.
    "prime-rl:default": {
        "baseline": "group_mean",
        "scale": "none",
        "ratio": "token",
        "surrogate": {"kind": "dppo_tv", "low": 0.2, "high": 0.2, "ceiling": 1e6},
        "correction": {"level": "token", "bound": "truncate", "low": 0.0, "high": 1e6},
        "denominator": "token_mean",
        "scope": "update",
        "count_dead": False,
        "beta": 0.0,
    },
}
