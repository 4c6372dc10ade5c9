"""Every key of a recipe is an argument of TRL's, or refused by name. Nothing here needs TRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cupola.core.config import Objective, Recipe, validate
from cupola.core.config.presets import PRESETS
from cupola.core.records import RecipeError
from cupola.integrations.trl.arguments import SECTIONS, TABLE, arguments
from cupola.integrations.trl.cut import Cut
from cupola.integrations.trl.objective import OBJECTIVE

RULE = {"name": "correct", "kind": "exact"}
FUNCTION = {"name": "mine", "kind": "function", "path": "rewards.py:mine"}


def recipe(objective: Mapping[str, Any] | None = None, **sections: Any) -> Recipe:
    """4 prompts of 4 answers, by TRL's own default objective."""
    values = {
        "data": {"task": "arithmetic"},
        "reward": [RULE],
        "sampling": {"prompts_per_step": 4, "group_size": 4, "max_tokens": 32, **sections.pop("sampling", {})},
        "objective": {"preset": "trl:dapo", **(objective or {})},
        **sections,
    }
    return validate(values, Recipe)


def refused(asked: Recipe, processes: int = 1) -> str:
    with pytest.raises(RecipeError) as caught:
        arguments(asked, processes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_field_of_the_objective_has_a_rule() -> None:
    assert set(OBJECTIVE) == set(Objective.model_fields)


def test_every_other_key_has_a_rule() -> None:
    """A section is handled whole, or key by key; of a table within, one key decides about the others."""
    decided = {"sampling.selection": "sampling.selection.kind"}
    whole = {"data", "reward", "validation", "evaluation", "objective"}
    one_of = {"sampler": "sampler.kind"}
    for section, field in Recipe.model_fields.items():
        if section in whole:
            assert section in SECTIONS or section == "objective"
        elif section in one_of:
            assert one_of[section] in SECTIONS
        else:
            assert isinstance(field.annotation, type)
            keys = {f"{section}.{key}" for key in field.annotation.model_fields}
            assert {decided.get(key, key) for key in keys} == {key for key in SECTIONS if key.startswith(f"{section}.")}


#: Of each field of the objective: a choice other than what TRL does by itself, with the arguments that it becomes.
MAPPED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("preset", {"preset": "trl:grpo"}, {"loss_type": "grpo"}),
    ("preset", {"preset": "trl:bnpo"}, {"loss_type": "bnpo"}),
    ("preset", {"preset": "trl:cispo"}, {"loss_type": "cispo", "epsilon_high": 0.2}),
    ("preset", {"preset": "trl:vespo"}, {"loss_type": "vespo", "importance_sampling_level": "token"}),
    ("scale", {"scale": "batch_std"}, {"scale_rewards": "batch"}),
    ("scale", {"scale": "none"}, {"scale_rewards": "none"}),
    ("scale_epsilon", {"scale": "none", "scale_epsilon": 0.5}, {"scale_rewards": "none"}),
    (
        "combine",
        {"combine": "apart", "whiten": "rollouts"},
        {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0]},
    ),
    ("whiten", {"whiten": "rollouts", "combine": "apart"}, {"multi_objective_aggregation": "normalize_then_sum"}),
    ("surrogate", {"surrogate": {"low": 0.1, "high": 0.3}}, {"epsilon": 0.1, "epsilon_high": 0.3}),
    (
        "surrogate",
        {"surrogate": {"kind": "two_sided", "low": 0.1, "high": 0.3, "delta": 2.5}},
        {"epsilon": 0.1, "epsilon_high": 0.3, "delta": 2.5, "loss_type": "dapo"},
    ),
    ("surrogate", {"surrogate": {"kind": "cispo", "ceiling": 5.0}}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    (
        "surrogate",
        {"surrogate": {"kind": "sapo", "tau_pos": 2.0, "tau_neg": 3.0}, "denominator": "sequence_mean"},
        {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0},
    ),
    (
        "surrogate",
        {
            "surrogate": {"kind": "vespo", "k_pos": 1.5, "lambda_pos": 2.5, "k_neg": 3.5, "lambda_neg": 4.5},
            "ratio": "sequence_product",
        },
        {"vespo_k_pos": 1.5, "vespo_lambda_pos": 2.5, "vespo_k_neg": 3.5, "vespo_lambda_neg": 4.5},
    ),
    ("ratio", {"ratio": "sequence"}, {"importance_sampling_level": "sequence"}),
    ("denominator", {"denominator": "sequence_mean"}, {"loss_type": "grpo"}),
    ("denominator", {"denominator": "constant"}, {"loss_type": "dr_grpo"}),
    ("denominator", {"denominator": "sequence_sum"}, {"loss_type": "luspo"}),
    ("scope", {"scope": "update"}, {"loss_type": "dapo"}),
    ("scope", {"scope": "batch"}, {"loss_type": "dapo"}),
    ("scope", {"scope": "update", "denominator": "constant"}, {"loss_type": "dr_grpo"}),
    ("count", {"count": "surviving"}, {"loss_type": "dapo"}),
    ("count", {"count": "surviving", "mask_truncated": True}, {"mask_truncated_completions": True}),
    (
        "masks",
        {"masks": {"off_policy": 0.5, "top_entropy": 0.2}},
        {"off_policy_mask_threshold": 0.5, "top_entropy_quantile": 0.2},
    ),
    ("mask_truncated", {"mask_truncated": True}, {"mask_truncated_completions": True}),
    ("beta", {"beta": 0.04}, {"beta": 0.04, "use_bias_correction_kl": True}),
    ("kl_ratio", {"beta": 0.04, "kl_ratio": "none"}, {"use_bias_correction_kl": False}),
    ("kl_denominator", {"beta": 0.04, "kl_denominator": "token_mean"}, {"loss_type": "dapo"}),
    (
        "reference",
        {"beta": 0.04, "reference": {"kind": "moving", "every": 7, "mixup": 0.3}},
        {"sync_ref_model": True, "ref_model_sync_steps": 7, "ref_model_mixup_alpha": 0.3},
    ),
    ("entropy_coef", {"entropy_coef": 0.01}, {"entropy_coef": 0.01}),
    ("entropy_denominator", {"entropy_coef": 0.01, "entropy_denominator": "token_mean"}, {"entropy_coef": 0.01}),
    ("entropy_scope", {"entropy_coef": 0.01, "entropy_scope": "update"}, {"entropy_coef": 0.01}),
    (
        "adaptive_entropy",
        {"adaptive_entropy": {"target": 0.3, "step": 0.01, "low": 0.0, "high": 0.5}},
        {
            "use_adaptive_entropy": True,
            "entropy_target": 0.3,
            "entropy_coef_delta": 0.01,
            "entropy_coef_min": 0.0,
            "entropy_coef_max": 0.5,
        },
    ),
    ("why", {"why": {"policy": "as TRL"}}, {"loss_type": "dapo"}),
]

#: The same with what TRL has no counterpart for: how the line begins, and a part of what it says TRL can do.
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("baseline", {"baseline": "leave_one_out"}, "objective.baseline: 'leave_one_out'", "'group_mean'"),
    ("critic", {"preset": "ppo"}, "objective.baseline: 'critic'", "'group_mean'"),
    (
        "value_denominator",
        {"preset": "ppo", "value_denominator": "constant"},
        "objective.baseline: 'critic'",
        "group_mean",
    ),
    ("scale", {"scale": "group_mean"}, "objective.scale: 'group_mean'", "'batch_std'"),
    ("scale_epsilon", {"scale_epsilon": 1e-6}, "objective.scale_epsilon: 1e-06", "0.0001"),
    ("combine", {"combine": "apart", "scale": "none"}, "objective.combine: 'apart'", "'group_std'"),
    ("transform", {"transform": "pass_at_k", "pass_k": 2}, "objective.transform: 'pass_at_k'", "'none'"),
    ("pass_k", {"transform": "pass_at_k", "pass_k": 3}, "objective.transform: 'pass_at_k'", "'none'"),
    ("whiten", {"whiten": "tokens"}, "objective.whiten: 'tokens'", "combine = 'apart'"),
    ("whiten", {"combine": "apart"}, "objective.whiten: 'none'", "'rollouts'"),
    ("surrogate", {"surrogate": {"kind": "dual_clip"}}, "objective.surrogate.kind: 'dual_clip'", "'two_sided'"),
    ("surrogate", {"surrogate": {"kind": "cispo", "floor": 0.5}}, "objective.surrogate.floor: 0.5", "'trl:cispo'"),
    ("ratio", {"ratio": "sequence_token"}, "objective.ratio: 'sequence_token'", "'sequence'"),
    ("denominator", {"denominator": "prompt_mean"}, "objective.denominator: 'prompt_mean'", "'trl:dapo'"),
    ("denominator", {"denominator": "token_sum"}, "objective.denominator: 'token_sum'", "'trl:luspo'"),
    ("denominator", {"denominator": "padded"}, "objective.denominator: 'padded'", "'trl:dr_grpo'"),
    (
        "denominator",
        {"surrogate": {"kind": "cispo"}, "denominator": "constant"},
        "objective.denominator: 'constant'",
        "'token_mean'",
    ),
    (
        "kl_denominator",
        {"beta": 0.1, "kl_denominator": "constant"},
        "objective.kl_denominator: 'constant'",
        "'token_mean'",
    ),
    ("kl_estimator", {"beta": 0.1, "kl_estimator": "k2"}, "objective.kl_estimator: 'k2'", "'k3'"),
    ("kl_in", {"beta": 0.1, "kl_in": "token_reward"}, "objective.kl_in: 'token_reward'", "'loss'"),
    ("kl_ratio", {"beta": 0.1, "kl_ratio": "sequence"}, "objective.kl_ratio: 'sequence'", "'token'"),
    (
        "count",
        {"count": "surviving", "mask_truncated": True, "denominator": "constant"},
        "objective.count: 'surviving'",
        "'nominal'",
    ),
    ("count_dead", {"count": "surviving", "count_dead": False}, "objective.count_dead: False", "true"),
    ("correction", {"correction": {"level": "token"}}, "objective.correction.level: 'token'", "run.trl.use_vllm"),
    ("masks", {"masks": {"reject": {}}}, "objective.masks.reject: this", "masks.off_policy"),
    ("masks", {"masks": {"clip_cov": {}}}, "objective.masks.clip_cov: this", "masks.top_entropy"),
    (
        "masks",
        {"entropy_coef": 0.1, "masks": {"top_entropy": 0.5}},
        "objective.masks.top_entropy: 0.5",
        "entropy bonus",
    ),
    (
        "entropy_denominator",
        {"entropy_coef": 0.1, "entropy_denominator": "constant"},
        "objective.entropy_denominator: 'constant'",
        "'token_mean'",
    ),
]

#: TRL's own default of these is what a recipe's default means: nothing differs, nothing is to map or refuse.
EITHER = {field for field, *_ in (*MAPPED, *REFUSED)}


def test_the_cases_cover_every_field() -> None:
    assert set(Objective.model_fields) == EITHER


@pytest.mark.parametrize(("field", "objective", "expected"), MAPPED)
def test_a_choice_becomes_its_arguments(field: str, objective: dict[str, Any], expected: dict[str, Any]) -> None:
    found = arguments(recipe(objective))
    assert field in Objective.model_fields
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(("field", "objective", "begins", "tells"), REFUSED)
def test_a_choice_that_trl_lacks_is_refused(field: str, objective: dict[str, Any], begins: str, tells: str) -> None:
    line = refused(recipe(objective))
    assert field in Objective.model_fields
    assert line.startswith(f"{begins} has no counterpart in TRL; ")
    assert tells in line


#: Our own presets whose every decision TRL has, for rules as reward and one optimiser step to a batch.
OWN = {
    "grpo": "grpo",
    "dr_grpo": "dr_grpo",
    "dapo_code": "dapo",
    "gspo": "grpo",
    "sapo": "sapo",
    "gdpo": "grpo",
    "two_sided": "dapo",
}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets(preset: str) -> None:
    asked = recipe({"preset": preset}, optim={"epochs": 2} if preset == "kl_cov" else {})
    if preset.startswith("trl:"):
        assert arguments(asked)["loss_type"] == preset.removeprefix("trl:")
    elif preset in OWN:
        assert arguments(asked)["loss_type"] == OWN[preset]
    else:
        assert refused(asked).startswith("objective.")


@pytest.mark.parametrize(
    ("sections", "begins"),
    [
        ({"sampling": {"max_batches": 3}}, "sampling.max_batches: 3 has"),
        ({"sampling": {"stop": ["\n"]}}, "sampling.stop: this has"),
        ({"model": {"dtype": "float64"}}, "model.dtype: 'float64' has"),
        ({"model": {"device": "cuda:1"}}, "model.device: 'cuda:1' has"),
        ({"diagnosis": {"exact_share_every": 5}}, "diagnosis.exact_share_every: 5 has"),
        ({"run": {"engine": "trl", "trl": {"loss_type": "grpo"}}}, "run.trl.loss_type: says what TRL trains"),
        ({"run": {"engine": "trl", "trl": {"min_p": 0.1}}}, "run.trl.min_p: says what TRL trains"),
        ({"reward": [FUNCTION], "objective": {"preset": "grpo"}}, "objective.count: 'surviving' has"),
        ({"objective": {"preset": "dr_grpo", "mask_truncated": True}}, "objective.count: 'surviving' has"),
        ({"optim": {"minibatches": 3}}, "optim.minibatches: TRL takes equal pieces, but 16 rollouts"),
        (
            {"optim": {"micro_rollouts": 3}},
            "optim.micro_rollouts: TRL takes equal pieces, but 3 does not divide the 16",
        ),
        (
            {"objective": {"preset": "dapo_code"}, "optim": {"minibatches": 2, "micro_rollouts": 4}},
            "objective.scope: 'update'",
        ),
        (
            {"objective": {"preset": "dr_grpo", "scope": "batch"}, "optim": {"minibatches": 2}},
            "objective.scope: 'batch'",
        ),
        ({"objective": {"preset": "trl:bnpo"}, "optim": {"micro_tokens": 64}}, "optim.micro_rollouts: is needed"),
        (
            {"objective": {"preset": "trl:dapo", "masks": {"top_entropy": 0.2}}, "optim": {"micro_rollouts": 4}},
            "objective.masks.top_entropy: 0.2 has",
        ),
        (
            {"objective": {"preset": "trl:dapo", "entropy_coef": 0.1}, "optim": {"micro_tokens": 64}},
            "optim.micro_rollouts: is needed",
        ),
    ],
)
def test_other_refusals(sections: dict[str, Any], begins: str) -> None:
    assert refused(recipe(sections.pop("objective", None), **sections)).startswith(begins)


def test_two_processes_are_two_pieces() -> None:
    """A denominator that counts by micro-batch means another thing on two processes than on one."""
    asked = recipe({"preset": "trl:bnpo"})
    assert arguments(asked)["loss_type"] == "bnpo"
    assert refused(asked, processes=2).startswith("optim.micro_rollouts: is needed")


def test_vllm_is_corrected_as_the_recipe_says() -> None:
    vllm = {"engine": "trl", "trl": {"use_vllm": True, "vllm_mode": "server"}}
    plain = arguments(recipe(run=vllm))
    assert (plain["use_vllm"], plain["vllm_mode"]) == (True, "server")
    assert plain["vllm_importance_sampling_correction"] is False
    weighed = {"level": "sequence_product", "bound": "mask", "high": 3.0}
    found = arguments(recipe({"correction": weighed}, run=vllm))
    assert found["vllm_importance_sampling_correction"] is True
    assert found["vllm_importance_sampling_mode"] == "sequence_mask"
    assert (found["vllm_importance_sampling_clip_min"], found["vllm_importance_sampling_clip_max"]) == (None, 3.0)
    assert refused(recipe({"correction": {"level": "sequence"}}, run=vllm)).startswith("objective.correction.level")


def test_further_arguments_need_the_engine() -> None:
    with pytest.raises(RecipeError, match=r"^run.trl: are arguments of TRL's trainer; set run.engine = 'trl'"):
        recipe(run={"trl": {"use_vllm": True}})


def test_the_cut_by_hand() -> None:
    """16 rollouts, 2 optimiser steps, 2 processes: 4 rollouts each; 64 tokens hold 2 of 32."""
    asked = recipe(optim={"minibatches": 2, "epochs": 3, "micro_tokens": 64}, run={"steps": 10})
    cut = Cut.of(asked, 2)
    assert (cut.rows, cut.accumulated, cut.pieces, cut.updates) == (2, 2, 4, 6)
    found = arguments(asked, 2)
    assert found["per_device_train_batch_size"] == 2
    assert found["gradient_accumulation_steps"] == 2
    assert found["steps_per_generation"] == 4
    assert found["num_iterations"] == 3
    assert (found["max_steps"], found["logging_steps"]) == (60, 6)


@pytest.mark.parametrize(
    ("rule", "minibatches", "rows", "scope", "equal"),
    [
        ("token_mean", 1, 4, "update", {"update", "batch", "generation"}),
        ("token_mean", 2, 8, "update", {"update", "micro_batch"}),
        ("token_mean", 2, 4, "update", {"update"}),
        ("token_mean", 1, 16, "micro_batch", {"update", "batch", "generation", "micro_batch"}),
        ("constant", 2, 4, "generation", {"update", "generation", "micro_batch"}),
        ("constant", 2, 4, "batch", {"batch"}),
    ],
)
def test_scopes_that_count_the_same(rule: str, minibatches: int, rows: int, scope: str, equal: set[str]) -> None:
    cut = Cut.of(recipe(optim={"minibatches": minibatches, "micro_rollouts": rows}), 1)
    assert cut.equal_scopes(scope, rule) == equal


def test_the_table_is_one() -> None:
    assert len(TABLE) == len(SECTIONS) + len(OBJECTIVE)
