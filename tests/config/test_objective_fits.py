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
            "objective.whiten: 'rollouts' takes one advantage per answer, but baseline = \"critic\" gives each token "
            "its own; take 'tokens' or 'none'",
        ),
        (
            {"preset": "gdpo", "beta": 0.1, "kl_in": "token_reward"},
            "objective.whiten: 'rollouts' takes one advantage per answer, but kl_in = \"token_reward\" gives each "
            "token its own; take 'tokens' or 'none'",
        ),
        (
            {"preset": "gdpo", "transform": "pass_at_k"},
            "objective.transform: 'pass_at_k' is of the summed reward, but combine = 'apart' sums none",
        ),
        (
            {"preset": "rloo", "beta": 0.0, "transform": "best_only"},
            "objective.baseline: 'leave_one_out' does not go with transform = 'best_only': the best's lead is measured "
            "from the second best already; take 'none'",
        ),
        (
            {"preset": "rloo", "kl_estimator": "k3"},
            "objective.kl_estimator: 'k3' is of a KL in the loss; with kl_in = 'reward' it is 'k1': take that, or "
            "leave this out",
        ),
        (
            {"preset": "gspo", "masks": {"top_entropy": 0.2}},
            "objective.masks.top_entropy: takes single tokens, but with ratio 'sequence' the gradient of each stands "
            "in all entries of its answer; take ratio 'token' or 'sequence_token'",
        ),
        (
            {"preset": "rloo", "masks": {"clip_cov": {}}},
            "objective.masks.clip_cov: takes single tokens, but with ratio 'sequence_product' the gradient of each "
            "stands in all entries of its answer; take ratio 'token' or 'sequence_token'",
        ),
        (
            {"surrogate": {"kind": "gmpo"}, "masks": {"top_entropy": 0.2}},
            "objective.masks.top_entropy: takes single tokens, but with surrogate 'gmpo' the gradient of each stands "
            "in all entries of its answer; take another surrogate",
        ),
        (
            {"masks": {"clip_cov": {}, "kl_cov": {}}},
            "objective.masks.kl_cov: stands beside clip_cov: the same tokens cannot lose their gradient and pay; keep "
            "one",
        ),
        (
            {"entropy_coef": 0.5, "adaptive_entropy": {"high": 0.1}},
            "objective.entropy_coef: is where c_H begins, so it must lie within low and high of adaptive_entropy",
        ),
        (
            {"adaptive_entropy": {"low": 0.1}},
            "objective.entropy_coef: is where c_H begins, so it must lie within low and high of adaptive_entropy",
        ),
        (
            {"surrogate": {"kind": "two_sided", "high": 0.5, "delta": 1.5}},
            "objective.surrogate.delta: must be above 1 + high = 1.5: it bounds what the clip leaves",
        ),
        (
            {"surrogate": {"kind": "dual_clip", "c": 1.0}},
            "objective.surrogate.c: input should be greater than 1, got 1.0",
        ),
        (
            {"preset": "cispo", "surrogate": {"floor": 6.0}},
            "objective.surrogate.floor: must not be above ceiling = 5",
        ),
        (
            {"preset": "dppo_kl", "surrogate": {"ceiling": 0.5}},
            "objective.surrogate.ceiling: input should be greater than or equal to 1, got 0.5",
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
        (
            {"preset": "trl:vespo", "correction": {"level": "token"}},
            "objective.correction.level: weighs the loss from outside, but vespo's weight is of the ratio to the "
            "sampler itself; take 'none'",
        ),
        ({"why": {"policy": ""}}, "objective.why.policy: string should have at least 1 character, got ''"),
        (
            {"preset": "ppo", "critic": {"learning_rate": 1e300}},
            "objective.critic.learning_rate: input should be less than or equal to 10, got 1e+300",
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


@pytest.mark.parametrize("ratio", ["sequence", "sequence_product"])
def test_a_mask_of_tokens_goes_where_the_gradient_is_each_tokens_own(ratio: str) -> None:
    """CISPO weighs log pi of each token by a detached ratio, whatever its level."""
    found = validate({"preset": "cispo", "ratio": ratio, "masks": {"top_entropy": 0.2}}, Objective)
    assert found.masks.top_entropy == 0.2
    assert validate({"ratio": "sequence_token", "masks": {"clip_cov": {}}}, Objective).masks.clip_cov is not None


BONUS = "entropy_coef or adaptive_entropy"
IN_LOSS = 'a KL in the loss (beta above 0, kl_in = "loss")'


@pytest.mark.parametrize(
    ("objective", "key", "without"),
    [
        ({"critic": {"lam": 0.5}}, "critic.lam", 'baseline = "critic"'),
        ({"value_denominator": "token_mean"}, "value_denominator", 'baseline = "critic"'),
        ({"reference": {"every": 9}}, "reference.every", 'reference.kind = "moving"'),
        ({"reference": {"mixup": 0.5}}, "reference.mixup", 'reference.kind = "moving"'),
        ({"preset": "dapo", "reference": {"kind": "moving"}}, "reference.kind", "beta above 0"),
        ({"entropy_denominator": "token_mean"}, "entropy_denominator", BONUS),
        ({"preset": "trl:grpo", "entropy_scope": "batch"}, "entropy_scope", BONUS),
        ({"correction": {"bound": "mask"}}, "correction.bound", "a correction.level"),
        ({"correction": {"low": 0.5}}, "correction.low", "a correction.level"),
        (
            {"preset": "prime-rl:default", "correction": {"level": "none", "high": 5.0}},
            "correction.high",
            "a correction.",
        ),
        ({"pass_k": 2}, "pass_k", 'transform = "pass_at_k"'),
        ({"preset": "dapo", "kl_ratio": "token"}, "kl_ratio", IN_LOSS),
        ({"preset": "rloo", "kl_denominator": "token_mean"}, "kl_denominator", IN_LOSS),
    ],
)
def test_what_would_be_ignored_is_refused(objective: dict[str, Any], key: str, without: str) -> None:
    with pytest.raises(RecipeError) as refused:
        validate(objective, Objective, at="objective")
    assert str(refused.value).startswith(f"objective.{key}: is of no use without {without}")
    assert str(refused.value).endswith("; set that, or leave this out")


@pytest.mark.parametrize(
    "objective",
    [
        {"preset": "trl:grpo"},  # kl_ratio, entropy_denominator and entropy_scope, without KL and bonus
        {"preset": "rloo_reinforce"},  # kl_in, without KL
        {"preset": "pass_at_k", "transform": "none"},
        {"preset": "prime-rl:default", "correction": {"level": "none"}},
        {"preset": "trl:grpo", "beta": 0.1, "kl_in": "token_reward"},
        {"critic": {"lam": 0.95}, "pass_k": 1, "correction": {"low": 0.0}, "kl_ratio": "none"},  # written out
    ],
)
def test_what_a_preset_brings_and_what_is_a_default_is_not_refused(objective: dict[str, Any]) -> None:
    found = validate(objective, Objective)
    assert validate(found.model_dump(), Objective) == found


def test_the_terms_with_rule_and_scope() -> None:
    assert validate({"preset": "dapo"}, Objective).terms == {"policy": ("prompt_mean", "update")}
    found = validate(
        {
            "preset": "ppo",
            "kl_in": "loss",
            "kl_denominator": "constant",
            "entropy_coef": 0.1,
            "entropy_scope": "micro_batch",
            "value_denominator": "sequence_mean",
        },
        Objective,
    )
    assert found.terms == {
        "policy": ("token_mean", "update"),
        "kl": ("constant", "update"),
        "entropy": ("token_mean", "micro_batch"),
        "value": ("sequence_mean", "update"),
    }
    assert list(validate({"preset": "ppo"}, Objective).terms) == ["policy", "value"]
    assert list(validate({"adaptive_entropy": {}, "beta": 0.0}, Objective).terms) == ["policy", "entropy"]
