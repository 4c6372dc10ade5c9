"""Objective presets as data: the five decisions of each algorithm, its constants, and where they come from."""

from __future__ import annotations

from typing import Any

#: Values a recipe's `[objective]` takes from its preset unless it sets them itself.
PRESETS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024, arXiv 2402.03300, eq. 3 and 4; the paper's beta is 0.04.
    "grpo": {
        "baseline": "group_mean",
        "scale": "group_std",
        "ratio": "token",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "denominator": "sequence_mean",
        "kl_estimator": "k3",
        "beta": 0.04,
    },
    # Liu et al. 2025, arXiv 2503.20783, section 3.2: no length term and no standard deviation; beta is 0 there.
    "dr_grpo": {
        "baseline": "group_mean",
        "scale": "none",
        "ratio": "token",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "denominator": "constant",
        "kl_estimator": "k3",
        "beta": 0.0,
    },
}
