"""A recipe's denominators: where each KL goes, what each mask does to each count, how each scope changes the number."""

from typing import Any

import pytest

from cupola.core.config import Recipe, validate
from cupola.train.ledger import Denominator, Explanation, explain_training, legend


def explained(objective: dict[str, Any], **sections: dict[str, Any]) -> Explanation:
    """4 prompts of 6 answers, at most 10 tokens."""
    values = {
        "data": {"task": "arithmetic"},
        "sampling": {"prompts_per_step": 4, "group_size": 6, "max_tokens": 10},
        "reward": [{"name": "correct", "kind": "exact"}],
        "objective": {"preset": "dr_grpo", **objective},
        **sections,
    }
    return explain_training("r.toml", validate(values, Recipe), {})


def row(found: Explanation, term: str) -> Denominator:
    return next(row for row in found.denominators if row.term == term)


def words(found: Explanation, term: str) -> str:
    return " ".join(row(found, term).words)


CRITIC = {"baseline": "critic", "whiten": "tokens"}


def test_a_critic_brings_a_term_and_takes_the_scale() -> None:
    found = explained({**CRITIC, "value_denominator": "sequence_mean"})
    assert row(found, "value").numbers == "omega_i = 1 / (24 * |o_i|)"
    assert row(found, "policy").numbers == "omega = 1 / (24 * 10)"
    assert "values that moved by more than 0.2" in words(found, "value")
    assert "cancels coef = 1" in words(found, "value")
    assert found.absent["scale"].endswith("A is what GAE makes of rewards and values")
    assert row(found, "whiten").rule == "tokens"
    assert any(notice.startswith("critic: value_clip 0.2") for notice in found.notices)


def test_the_value_term_follows_the_policys_rule_and_leaves_out_what_was_not_scored() -> None:
    found = row(explained({**CRITIC, "critic": {"value_clip": 0.5}}), "value")
    assert found.value == 240
    assert "unscored answers, answers without a token are not" in found.scope
    assert explained({}).absent["value"] == "objective.baseline is group_mean: there is no critic"


def test_where_the_kl_went() -> None:
    assert explained({}).absent["kl"] == "objective.beta is 0"
    assert row(explained({"beta": 0.1}), "kl").value == 240
    for place in ("reward", "token_reward"):
        found = explained({"beta": 0.1, "kl_in": place})
        assert found.absent["kl"].startswith(f"objective.kl_in is {place}: beta * KL")
        assert "its weight is the advantage's" in found.absent["kl"]


@pytest.mark.parametrize(
    ("objective", "what"),
    [
        ({}, "clipped tokens"),
        ({"preset": "gspo"}, "clipped answers"),
        ({"surrogate": {"kind": "dppo_tv"}}, "tokens whose probability moved too far"),
        ({"masks": {"off_policy": 0.5}}, "answers with A < 0 that the policy left by more than 0.5 nats per token"),
        ({"masks": {"top_entropy": 0.2}}, "all but the 20% of the tokens with the highest entropy"),
        ({"masks": {"clip_cov": {}}}, "tokens drawn by Clip-Cov"),
        (
            {"correction": {"level": "token", "bound": "mask"}},
            "tokens whose weight from sampler to trainer is outside 0",
        ),
        ({"correction": {"level": "sequence", "bound": "mask"}}, "answers whose weight from sampler to trainer is"),
        ({}, "dead groups, whose A is 0"),
    ],
)
def test_what_leaves_the_policys_numerator_and_stays_in_its_count(objective: dict[str, Any], what: str) -> None:
    found = explained({**objective, "beta": 0.1, "entropy_coef": 0.1})
    (said,) = [sentence for sentence in row(found, "policy").words if "stay in the count" in sentence]
    assert what in said
    for term in ("kl", "entropy"):
        assert what not in words(found, term)
        assert "masks of the policy term do not touch it" in words(found, term)


def test_nothing_leaves_where_nothing_is_clipped_or_masked() -> None:
    found = explained({"preset": "rloo_reinforce", "count_dead": False})
    assert "stay in the count" not in words(found, "policy")
    assert "dead groups, whose A is 0" not in words(explained({"baseline": "batch_mean"}), "policy")
    assert "dead groups, whose A is 0" not in words(explained(CRITIC), "policy")


def test_kl_cov_pays_inside_the_policy_term() -> None:
    found = explained({"masks": {"kl_cov": {}}}, optim={"minibatches": 2})
    assert "pay a penalty inside this term" in words(found, "policy")
    assert any(notice.startswith("kl_cov: fraction") for notice in found.notices)


@pytest.mark.parametrize("bound", ["truncate", "mask"])
def test_a_weight_of_tokens_scales_the_answer_whose_gradient_they_share(bound: str) -> None:
    correction = {"level": "token", "bound": bound}
    for objective in ({"preset": "gspo"}, {"surrogate": {"kind": "gmpo"}}):
        said = words(explained({**objective, "correction": correction}), "policy")
        assert "the mean weight of an answer scales the answer" in said
        assert "tokens whose weight from sampler to trainer" not in said
    for objective in ({}, {"preset": "cispo", "ratio": "sequence"}):
        assert "scales the answer" not in words(explained({**objective, "correction": correction}), "policy")
    assert "scales the answer" not in words(explained({"preset": "gspo"}), "policy")


@pytest.mark.parametrize(
    ("kind", "lora", "off"), [("start", True, True), ("adapter_off", True, True), ("start", False, False)]
)
def test_the_reference_of_an_adapter_is_the_policy_without_it(kind: str, lora: bool, off: bool) -> None:
    model = {"lora": {}} if lora else {}
    said = words(explained({"beta": 0.1, "reference": {"kind": kind}}, model=model), "kl")
    assert ("The reference is the policy without its adapter." in said) == off


def test_rejected_answers_leave_baseline_and_count() -> None:
    found = explained({"masks": {"reject": {}}, "beta": 0.1, "scale": "group_std"})
    assert "Rejected answers, which leave the baseline too, leave numerator and count" in words(found, "policy")
    assert "rejected ones" in row(found, "policy").scope.partition("are counted; ")[2]
    assert "rejected ones are counted" in row(found, "kl").scope
    assert "or rejected, is left out" in row(found, "scale").scope
    without = explained({"masks": {"reject": {}}, "denominator": "token_sum"})
    assert "this rule divides by no count" in words(without, "policy")


def test_truncated_answers_leave_every_term_and_stay_in_the_baseline() -> None:
    found = explained({"mask_truncated": True, "beta": 0.1, "entropy_coef": 0.1})
    for term in ("policy", "kl", "entropy"):
        said = words(found, term)
        assert (
            "Answers cut at max_tokens, which stay in the baseline, leave numerator and count: the others weigh" in said
        )
        assert "cut at max_tokens are not" in row(found, term).scope


def test_the_nominal_count_keeps_what_leaves() -> None:
    found = explained({"mask_truncated": True, "count": "nominal", "masks": {"reject": {}}})
    assert "which is nominal: the others weigh what they did" in words(found, "policy")
    assert "leave numerator and count" not in words(found, "policy")
    assert row(found, "policy").scope.endswith(
        "every answer is counted, whatever became of it, and every token that is not masked"
    )


def test_entropy_and_reference_in_words() -> None:
    found = explained({"adaptive_entropy": {"target": 0.3}, "beta": 0.1, "kl_ratio": "token"})
    assert "is 0 while the entropy is above 0.3" in words(found, "entropy")
    assert "entropy" not in found.absent
    assert "multiplied by its importance ratio" in words(found, "kl")
    moving = explained({"beta": 0.1, "reference": {"kind": "moving", "every": 7}})
    assert "moves after the policy every 7 optimiser steps" in words(moving, "kl")


@pytest.mark.parametrize(
    ("objective", "optim", "numbers", "value", "cut"),
    [
        ({}, {"minibatches": 2}, "omega = 1 / (12 * 10)", 120, "yes"),
        ({"scope": "batch"}, {"minibatches": 2}, "omega = 1 / (24 * 10)", 240, "yes"),
        ({"scope": "generation"}, {"minibatches": 3}, "omega = 1 / (24 * 10), times 3", 80, "yes"),
        ({"scope": "micro_batch"}, {}, "omega = 1 / (N * 10), divided by K", None, "no"),
        ({"scope": "micro_batch"}, {"micro_rollouts": 6}, "omega = 1 / (6 * 10), divided by 4", 240, "no"),
        ({"scope": "micro_batch"}, {"micro_rollouts": 7}, "omega = 1 / (N * 10), divided by K", None, "no"),
        ({"denominator": "prompt_mean"}, {"minibatches": 2}, "omega_g = 1 / (2 * sum_{j in g} |o_j|)", 2, "yes"),
        ({"denominator": "token_mean"}, {}, "omega = 1 / sum_i |o_i|", None, "yes"),
        ({"denominator": "token_sum"}, {"minibatches": 5}, "omega = 1", 1, "yes"),
        ({"denominator": "padded"}, {}, "omega_i = 1 / (24 * width_i)", 24, "no"),
    ],
)
def test_scopes_by_hand(
    objective: dict[str, Any], optim: dict[str, Any], numbers: str, value: float | None, cut: str
) -> None:
    found = row(explained(objective, optim=optim), "policy")
    assert found.numbers == numbers
    assert found.value == (None if value is None else pytest.approx(value))
    assert found.cut.startswith(cut)


def test_entropy_may_count_by_micro_batch_alone() -> None:
    found = explained({"entropy_coef": 0.1, "entropy_denominator": "token_mean", "entropy_scope": "micro_batch"})
    assert row(found, "entropy").numbers == "omega = 1 / sum_i |o_i|, divided by K"
    assert row(found, "entropy").cut.startswith("no")
    assert row(found, "policy").cut == "yes"


def test_averages_have_their_reasons_and_ways_of_counting() -> None:
    found = explained({"why": {"policy": "as Dr.GRPO"}}, evaluation={"samples": 8})
    rules = {mean.term: (mean.rule, mean.counted.get("unparsed")) for mean in found.averages}
    assert rules == {
        "validation correct/mean": ("macro", "wrong"),
        "validation correct/greedy": ("macro", "wrong"),
        "validation reward": ("micro", None),
        "validation rewards/*/mean": ("micro", None),
        "validation entropy": ("token", None),
        "evaluation greedy": ("macro", "wrong"),
        "evaluation pass@1": ("macro", "wrong"),
        "evaluation pass@8": ("pass_at_k", "wrong"),
        "evaluation maj@8": ("vote", "abstain"),
    }
    assert all(mean.why for mean in found.averages)
    assert found.unreasoned == []
    assert set(legend(found.averages)) == {"judged", "wrong", "left_out", "abstain", "shared"}


def test_only_the_validation_that_is_done_is_listed() -> None:
    found = explained({}, validation={"samples": 0, "greedy": False}, evaluation={"samples": 1})
    assert [mean.term for mean in found.averages] == ["evaluation greedy", "evaluation pass@1", "evaluation maj@1"]


def test_denominators_without_a_reason_by_the_key_to_set() -> None:
    found = explained({"beta": 0.1, "scale": "group_std", "why": {"kl": "near the start"}})
    assert found.unreasoned == ["objective.why.policy", "objective.why.scale"]
