"""An objective whose decisions contradict each other is refused, with the key and the reason."""

from __future__ import annotations

from typing import Any

import pytest

from cupola.core.config import Objective, validate
from cupola.core.records import RecipeError


@pytest.mark.parametrize(
    ("objective", "text"),
    [
        (
            {"ratio": "sequence", "surrogate": {"kind": "dppo_tv"}},
            "objective.ratio: 'sequence' does not go with surrogate 'dppo_tv', which is defined on 'token'",
        ),
        (
            {"preset": "ppo", "ratio": "sequence"},
            "objective.ratio: 'sequence' clips a whole answer, but baseline = \"critic\" gives each token its own "
            "advantage",
        ),
        (
            {"preset": "reinforce_pp", "ratio": "sequence_product"},
            "objective.ratio: 'sequence_product' clips a whole answer, but kl_in = \"token_reward\" gives each token "
            "its own advantage",
        ),
        (
            {"preset": "ppo", "surrogate": {"kind": "gmpo"}},
            'objective.surrogate: gmpo takes one advantage per answer, but baseline = "critic" gives one per token',
        ),
        (
            {"preset": "ppo", "scale": "group_std"},
            "objective.scale: the critic's advantages know no scale but 'none'; `whiten` divides them",
        ),
        (
            {"preset": "ppo", "whiten": "rollouts"},
            "objective.whiten: the critic's advantages are per token: 'tokens' or 'none'",
        ),
        (
            {"preset": "rloo", "kl_denominator": "token_mean"},
            "objective.kl_denominator: belongs to a KL in the loss, but kl_in is 'reward'",
        ),
        (
            {"preset": "rloo", "combine": "apart"},
            "objective.kl_in: 'reward' is taken from the summed reward, but combine = 'apart' sums none",
        ),
        (
            {"preset": "rloo", "scale": "group_std"},
            "objective.kl_in: 'reward' with scale 'group_std' makes a full-size advantage of the KL alone in a group "
            "of equal rewards; take 'token_reward' or 'loss', or scale 'none'",
        ),
        (
            {"surrogate": {"kind": "clipped", "low": 1.5}},
            "objective.surrogate.low: input should be less than or equal to 1, got 1.5",
        ),
        (
            {"masks": {"clip_cov": {"low": 5.0, "high": 1.0}}},
            "objective.masks.clip_cov.low: must be below high = 1",
        ),
        (
            {"adaptive_entropy": {"low": 1.0, "high": 0.5}},
            "objective.adaptive_entropy.low: must be below high = 0.5",
        ),
        ({"masks": {"top_entropy": 0.0}}, "objective.masks.top_entropy: input should be greater than 0, got 0.0"),
    ],
)
def test_it_is_refused_by_key(objective: dict[str, Any], text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        validate(objective, Objective, at="objective")
    assert str(refused.value) == text


def test_a_kl_in_the_reward_goes_with_any_scale_while_beta_is_0() -> None:
    found = validate({"preset": "grpo", "beta": 0.0, "kl_in": "reward"}, Objective)
    assert found.scale == "group_std"
