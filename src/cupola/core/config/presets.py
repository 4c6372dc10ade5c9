"""Objective presets as data: the five decisions of each algorithm, its constants, and where they come from.

Where a preset departs from its paper the comment says so. Pages: docs/objectives/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.core.config.compatibility import COMPATIBLE

PPO_CLIP = {"kind": "clipped", "low": 0.2, "high": 0.2}

#: The project's own: their gradient does not depend on how a batch is cut.
OWN: dict[str, dict[str, Any]] = {
    # Schulman et al. 2017, arXiv 1707.06347, as language models are trained with it (Ziegler et al., arXiv 1909.08593):
    # a critic of its own, GAE with gamma 1 and lambda 0.95, k1 in each token's reward. The paper neither whitens the
    # advantages nor clips the value loss; its implementations do. beta is OpenRLHF's.
    "ppo": {
        "baseline": "critic",
        "scale": "none",
        "whiten": "tokens",
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "token_mean",
        "beta": 0.01,
        "kl_in": "token_reward",
    },
    # Shao et al. 2024, arXiv 2402.03300, eq. 3 and 4; the paper's beta is 0.04.
    "grpo": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "sequence_mean",
        "kl_estimator": "k3",
        "beta": 0.04,
    },
    # Liu et al. 2025, arXiv 2503.20783, section 3.2: no length term and no standard deviation; beta is 0 there.
    "dr_grpo": {
        "baseline": "group_mean",
        "scale": "none",
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "constant",
        "beta": 0.0,
    },
    # Yu et al. 2025, arXiv 2503.14476, eq. 8: clip-higher, and each prompt's tokens pooled. Not here: dynamic sampling
    # and the overlong punishment, which are decisions about rollouts and rewards.
    "dapo": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "token",
        "surrogate": {"kind": "clipped", "low": 0.2, "high": 0.28},
        "denominator": "prompt_mean",
        "beta": 0.0,
    },
    # The same as DAPO's released code has it: all tokens of the mini-batch pooled.
    "dapo_code": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "token",
        "surrogate": {"kind": "clipped", "low": 0.2, "high": 0.28},
        "denominator": "token_mean",
        "beta": 0.0,
    },
    # Zheng et al. 2025, arXiv 2507.18071: the ratio of a sequence is the geometric mean of its tokens'.
    "gspo": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "sequence",
        "surrogate": {"kind": "clipped", "low": 3e-4, "high": 4e-4},
        "denominator": "sequence_mean",
        "beta": 0.0,
    },
    # The same paper's token variant: the sequence's value, the token's gradient.
    "gspo_token": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "sequence_token",
        "surrogate": {"kind": "clipped", "low": 3e-4, "high": 4e-4},
        "denominator": "sequence_mean",
        "beta": 0.0,
    },
    # MiniMax 2025, arXiv 2506.13585: the clipped weight is detached, so every token keeps its gradient. The paper gives
    # no upper bound; 5 is the value in TRL's documentation.
    "cispo": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "token",
        "surrogate": {"kind": "cispo", "ceiling": 5.0, "floor": 0.0},
        "denominator": "prompt_mean",
        "beta": 0.0,
    },
    # Ahmadian et al. 2024, arXiv 2402.14740, with the clipped sequence ratio that TRL adds, and TRL's beta.
    "rloo": {
        "baseline": "leave_one_out",
        "scale": "none",
        "ratio": "sequence_product",
        "surrogate": PPO_CLIP,
        "denominator": "sequence_mean",
        "beta": 0.05,
        "kl_in": "reward",
    },
    # The paper's own form: no ratio, and each sequence's log-probabilities summed. Its KL stands in the reward too.
    "rloo_reinforce": {
        "baseline": "leave_one_out",
        "scale": "none",
        "ratio": "none",
        "surrogate": {"kind": "reinforce"},
        "denominator": "sequence_sum",
        "beta": 0.0,
        "kl_in": "reward",
    },
    # arXiv 2602.04879: no clip; a token whose probability moved too far loses its gradient. Bounds, denominator and the
    # missing scale are the authors' script in verl, where a ceiling of 1e4 limits no weight. Not here: their ratio to
    # the sampler instead of the old policy.
    "dppo_tv": {
        "baseline": "group_mean",
        "scale": "none",
        "ratio": "token",
        "surrogate": {"kind": "dppo_tv", "low": 0.15, "high": 0.15, "ceiling": 1e4},
        "denominator": "constant",
        "beta": 0.0,
    },
    # The same with the binary KL divergence as the distance.
    "dppo_kl": {
        "baseline": "group_mean",
        "scale": "none",
        "ratio": "token",
        "surrogate": {"kind": "dppo_kl", "low": 0.05, "high": 0.05, "ceiling": 1e4},
        "denominator": "constant",
        "beta": 0.0,
    },
    # Gao et al. 2025, arXiv 2511.20347: a smooth gate in place of the clip.
    "sapo": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "token",
        "surrogate": {"kind": "sapo", "tau_pos": 1.0, "tau_neg": 1.05},
        "denominator": "sequence_mean",
        "beta": 0.0,
    },
    # Hu et al. 2025, arXiv 2501.03262: no group; k1 in each token's reward, advantages whitened over all tokens. beta
    # is OpenRLHF's.
    "reinforce_pp": {
        "baseline": "none",
        "scale": "none",
        "whiten": "tokens",
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "token_mean",
        "beta": 0.01,
        "kl_in": "token_reward",
    },
    # The same paper's variant with the group's mean as baseline.
    "reinforce_pp_baseline": {
        "baseline": "group_mean",
        "scale": "none",
        "whiten": "tokens",
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "token_mean",
        "beta": 0.0,
    },
    # arXiv 2601.05242: each reward part normalised apart, then all advantages divided by their spread. The centring of
    # the last step is left out: its mean is 0 but for rounding, and without it a dead group keeps exactly 0.
    "gdpo": {
        "baseline": "group_mean",
        "scale": "group_std",
        "combine": "apart",
        "whiten": "rollouts",
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "sequence_mean",
        "beta": 0.0,
    },
    # arXiv 2602.02710: the group's mean reward is the scale. The paper is on-policy; the clip is for further updates.
    "maxrl": {
        "baseline": "group_mean",
        "scale": "group_mean",
        "scale_epsilon": 0.0,
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "token_mean",
        "beta": 0.0,
    },
    # arXiv 2505.15201: the reward's pass@k transform under a group baseline; set pass_k.
    "pass_at_k": {
        "baseline": "group_mean",
        "scale": "none",
        "transform": "pass_at_k",
        "pass_k": 4,
        "ratio": "token",
        "surrogate": PPO_CLIP,
        "denominator": "constant",
        "beta": 0.0,
    },
}

#: Values a recipe's `[objective]` takes from its preset unless it sets them itself.
PRESETS: dict[str, dict[str, Any]] = {**OWN, **COMPATIBLE}


def with_preset(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's values with those given in their place, tables key by key, but for a surrogate of another kind."""
    preset = dict(PRESETS[name])
    surrogate = given.get("surrogate")
    if (
        isinstance(surrogate, Mapping)
        and surrogate.get("kind", preset["surrogate"]["kind"]) != preset["surrogate"]["kind"]
    ):
        del preset["surrogate"]
    return _merged(preset, given)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables as one; where both have a key, `over` has the say, key by key in a table."""
    both = {key: _merged(under[key], over[key]) for key in under if _is_table(under[key]) and _is_table(over.get(key))}
    return {**under, **over, **both}


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)
