"""Other trainers' denominators: the weights a recipe's plan gives, by hand, and what they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from loop_parts import difference, gradients_of, group, mixed_groups, plain_advantages, plain_logps, recipe, tiny_policy
from loop_parts import update as updated
from torch import Tensor

from cupola.core.config import Objective, validate
from cupola.core.config.presets import OWN
from cupola.core.config.presets.compatibility import COMPATIBLE
from cupola.core.records import RecipeError
from cupola.train.loop import Batch, Learner, batch_advantages, plan_steps
from cupola.train.loop.batch import Before
from cupola.train.loop.plan import Plan

#: 2, 4, 1, 3, 10 and 5 tokens in three groups; the fourth is cut at the limit and masked, the last has no reward.
LENGTHS = (2, 4, 1, 3, 10, 5)
MASKED, UNSCORED = 3, 5
ONES = torch.ones(6, 1, dtype=torch.float64)


def batch() -> Batch:
    """What is masked counts as a rollout without tokens: 2 + 4 + 1 + 10 + 5 = 22 tokens of 6 rollouts."""
    groups = [
        group("first", "1=", [(2, 1.0, True), (4, 0.0, False)]),
        group("second", "2=", [(1, 0.0, False), (3, 1.0, True)]),
        group("third", "3=", [(10, 1.0, True), (5, None, None)]),
    ]
    return replace(Batch.of(groups, lambda _: [0]), truncated=torch.arange(6) == MASKED)


def plans(preset: str, rows: int, minibatches: int = 1, **objective: Any) -> list[Plan]:
    """The first epoch's plans in micro-batches of so many rows, all of advantage 1."""
    settings = recipe(
        {"preset": preset, "mask_truncated": True, **objective},
        {"minibatches": minibatches, "micro_rollouts": rows, "epochs": 2},  # kl_cov refuses a single step
    )
    both = plan_steps(batch(), ONES, settings)
    return both[: len(both) // 2]


def weights(preset: str, rows: int, minibatches: int = 1, term: str = "policy", **objective: Any) -> list[float]:
    """omega of each row in the step that it belongs to."""
    found = [plan.terms[term].omega for plan in plans(preset, rows, minibatches, **objective)]
    return torch.stack(found).sum(0).tolist()


# Micro-batches of rows 0 to 3 and of rows 4 and 5: 4 rollouts with 7 tokens, padded to 4; 2 with 15, padded to 10.
MEAN_BY_CUT = [1 / 16, 1 / 32, 1 / 8, 0, 1 / 40, 1 / 20]
TOKENS = [1 / 22, 1 / 22, 1 / 22, 0, 1 / 22, 1 / 22]
BY_HAND = {
    "trl:grpo": MEAN_BY_CUT,
    "trl:sapo": MEAN_BY_CUT,
    "trl:bnpo": [1 / 14, 1 / 14, 1 / 14, 0, 1 / 30, 1 / 30],
    "trl:dr_grpo": [1 / 96, 1 / 96, 1 / 96, 0, 1 / 48, 1 / 48],  # L_max is 12
    "trl:luspo": [1 / 8, 1 / 8, 1 / 8, 0, 1 / 4, 1 / 4],
    "trl:dapo": TOKENS,
    "trl:cispo": TOKENS,
    "trl:vespo": TOKENS,
    "verl:token-mean": TOKENS,
    "verl:seq-mean-token-sum": [1 / 6, 1 / 6, 1 / 6, 0, 1 / 6, 1 / 6],
    "verl:seq-mean-token-mean": [1 / 12, 1 / 24, 1 / 6, 0, 1 / 60, 1 / 30],
    "verl:seq-mean-token-sum-norm": [1 / 24, 1 / 24, 1 / 24, 0, 1 / 60, 1 / 60],
    "openrlhf:token-mean": TOKENS,
    "prime-rl:default": [1 / 17, 1 / 17, 1 / 17, 0, 1 / 17, 0],  # what has no reward is not there
}


def test_every_preset_is_worked_here() -> None:
    assert set(BY_HAND) == set(COMPATIBLE)


@pytest.mark.parametrize("preset", COMPATIBLE)
def test_one_optimiser_step_by_hand(preset: str) -> None:
    assert weights(preset, 4) == pytest.approx(BY_HAND[preset], rel=1e-14)


# Steps of rows 0 to 2 (7 tokens, padded to 4) and of rows 3 to 5 (15 tokens, padded to 10), each one micro-batch.
HALVES = {
    "trl:grpo": [1 / 6, 1 / 12, 1 / 3, 0, 1 / 30, 1 / 15],
    "trl:bnpo": [1 / 7, 1 / 7, 1 / 7, 0, 1 / 15, 1 / 15],
    "trl:dapo": [1 / 11, 1 / 11, 1 / 11, 0, 1 / 11, 1 / 11],
    "verl:token-mean": [1 / 7, 1 / 7, 1 / 7, 0, 1 / 15, 1 / 15],
    "verl:seq-mean-token-sum": [1 / 3, 1 / 3, 1 / 3, 0, 1 / 3, 1 / 3],
    "verl:seq-mean-token-sum-norm": [1 / 12, 1 / 12, 1 / 12, 0, 1 / 30, 1 / 30],
    "openrlhf:token-mean": [1 / 7, 1 / 7, 1 / 7, 0, 1 / 15, 1 / 15],
    "prime-rl:default": [1 / 7, 1 / 7, 1 / 7, 0, 1 / 10, 0],
}


@pytest.mark.parametrize("preset", HALVES)
def test_two_optimiser_steps_by_hand(preset: str) -> None:
    assert weights(preset, 3, minibatches=2) == pytest.approx(HALVES[preset], rel=1e-14)


@pytest.mark.parametrize("preset", ["trl:dapo", "trl:cispo", "trl:vespo"])
def test_where_generation_and_accumulation_differ_a_steps_tokens_do_not_weigh_1(preset: str) -> None:
    found = weights(preset, 3, minibatches=2)
    assert [7 * found[0], 15 * found[4]] == pytest.approx([7 / 11, 15 / 11])
    exact = weights(preset, 3, minibatches=2, scope="update")
    assert [7 * exact[0], 15 * exact[4]] == pytest.approx([1, 1])


@pytest.mark.parametrize("preset", [name for name in COMPATIBLE if name.startswith("trl:")])
def test_trl_weighs_the_kl_as_the_policy_and_the_entropy_by_each_micro_batch(preset: str) -> None:
    both = {"beta": 0.1, "entropy_coef": 0.1}
    assert weights(preset, 4, term="kl", **both) == pytest.approx(BY_HAND[preset], rel=1e-14)
    assert weights(preset, 4, term="entropy", **both) == pytest.approx(BY_HAND["trl:bnpo"], rel=1e-14)


#: Whether the weights move when the uncut step is cut into 4 and 2 rows, and into 3 and 3.
MOVED = {
    "trl:bnpo": (True, True),
    **dict.fromkeys(("trl:grpo", "trl:sapo", "trl:dr_grpo", "trl:luspo"), (True, False)),
    "verl:seq-mean-token-sum-norm": (True, True),
}


@pytest.mark.parametrize("preset", [*OWN, *COMPATIBLE])
def test_what_depends_on_the_cut(preset: str) -> None:
    whole, unequal, equal = (weights(preset, rows) for rows in (6, 4, 3))
    moved = tuple(found != pytest.approx(whole, rel=1e-12) for found in (unequal, equal))
    assert moved == MOVED.get(preset, (False, False))


@pytest.mark.parametrize("preset", [*OWN, *COMPATIBLE])
def test_an_entropy_bonus_depends_on_the_cut_in_trl(preset: str) -> None:
    whole, equal = (weights(preset, rows, term="entropy", entropy_coef=0.1) for rows in (6, 3))
    assert (equal != pytest.approx(whole, rel=1e-12)) == (
        preset.startswith("trl:") or preset == "verl:seq-mean-token-sum-norm"
    )


@pytest.mark.parametrize(
    ("preset", "advantage"),
    [
        ("trl:dapo", 5e-5 / (5e-5 * 2**0.5 + 1e-4)),
        ("verl:token-mean", 5e-5 / (5e-5 * 2**0.5 + 1e-6)),
        ("openrlhf:token-mean", 5e-5 / (5e-5 * 2**0.5 + 1e-9)),
        ("prime-rl:default", 5e-5),
    ],
)
def test_each_trainers_epsilon(preset: str, advantage: float) -> None:
    """Rewards of 0.0001 and 0: mean 5e-5, Bessel-corrected deviation 5e-5 * sqrt 2."""
    made = Batch.of([group("close", "1=", [(2, 1e-4, None), (3, 0.0, None)])], lambda _: [0])
    found = batch_advantages(made, Before(), recipe({"preset": preset})).values
    assert found.flatten().tolist() == pytest.approx([advantage, -advantage], rel=1e-12)


def micro(advantages: Tensor, optim: Mapping[str, Any], **objective: Any) -> list[list[int]]:
    settings = recipe({"mask_truncated": True, **objective}, optim)
    return plan_steps(batch(), advantages, settings)[0].micro


def test_rows_without_a_gradient_leave_their_micro_batch_and_its_weights_stand() -> None:
    advantages = ONES.clone()
    advantages[0] = advantages[2] = 0
    assert micro(advantages, {"micro_rollouts": 3}, preset="trl:grpo") == [[1], [4, 5]]
    assert micro(advantages, {"micro_rollouts": 3}, preset="trl:grpo", beta=0.1) == [[0, 1, 2], [4, 5]]
    assert micro(advantages, {"micro_rollouts": 2}, preset="trl:grpo") == [[1], [4, 5]]  # 0-1, 2-3 and 4-5
    settings = recipe({"preset": "trl:grpo", "mask_truncated": True}, {"micro_rollouts": 4})
    plan = plan_steps(batch(), advantages, settings)[0]
    assert plan.forward == [1, 4, 5]
    assert plan.terms["policy"].omega.tolist() == pytest.approx(MEAN_BY_CUT, rel=1e-14)


def test_where_no_weight_depends_on_the_cut_only_what_is_forwarded_is_cut() -> None:
    """The row without a reward counts in none of our presets, and is in none of their micro-batches."""
    advantages = ONES.clone()
    advantages[0] = 0
    assert micro(advantages, {"micro_rollouts": 2}, beta=0.0) == [[1, 2], [4]]
    assert micro(advantages, {"micro_tokens": 22}, beta=0.0) == [[2, 1], [4]]  # 1 + 4 and 1 + 10 padded tokens


def test_kl_cov_may_charge_a_row_of_advantage_0_so_it_is_forwarded() -> None:
    advantages = ONES.clone()
    advantages[0] = 0
    assert micro(advantages, {"micro_rollouts": 6}) == [[1, 2, 4]]
    assert micro(advantages, {"micro_rollouts": 6, "epochs": 2}, masks={"kl_cov": {}}) == [[0, 1, 2, 4]]


def test_a_cut_by_tokens_is_of_the_whole_step() -> None:
    """Similar lengths together, a prompt being 1 token: rows of 1, 2 and 3, then of 4 and 5, then of 10."""
    advantages = ONES.clone()
    advantages[0] = 0
    assert micro(advantages, {"micro_tokens": 12}, preset="trl:bnpo") == [[2], [1, 5], [4]]
    settings = recipe({"preset": "trl:bnpo", "mask_truncated": True}, {"micro_tokens": 12})
    found = plan_steps(batch(), advantages, settings)[0].terms["policy"].omega.tolist()
    assert found == pytest.approx([1 / 9, 1 / 27, 1 / 9, 0, 1 / 30, 1 / 27], rel=1e-14)  # 3, 9 and 10 tokens


def test_a_rejected_row_leaves_the_count_but_not_the_nominal_one() -> None:
    made = replace(batch(), rejected=torch.arange(6) == 0)
    for count, expected in {"surviving": 1 / 15, "nominal": 1 / 20}.items():
        objective = {"denominator": "token_mean", "count": count, "beta": 0.1, "mask_truncated": True}
        plan = plan_steps(made, ONES, recipe(objective))[0]
        policy = plan.terms["policy"]
        assert float(policy.omega[1]) == pytest.approx(expected)
        left = {"no_tokens": 0, "truncated": 1, "unscored": 1, "rejected": 1} if count == "surviving" else {}
        assert policy.excluded == left
        assert float(plan.terms["kl"].omega[0]) == pytest.approx(1 / 22)  # all but the masked have a KL


def test_a_dead_group_leaves_the_count_only_where_its_advantages_are_0() -> None:
    made = replace(batch(), dead=torch.arange(6) < 2)
    settings = recipe({"denominator": "token_mean", "count_dead": False, "mask_truncated": True})
    alive = plan_steps(made, ONES, settings)[0].terms["policy"]
    assert (alive.excluded["dead"], alive.counts.tokens) == (0, 17)
    silent = ONES.clone()
    silent[:2] = 0
    left = plan_steps(made, silent, settings)[0].terms["policy"]
    assert (left.excluded["dead"], left.counts.tokens) == (2, 11)


def test_the_terms_are_those_the_objective_has() -> None:
    def terms(**objective: Any) -> list[str]:
        return list(plan_steps(batch(), ONES, recipe(objective))[0].terms)

    assert terms() == ["policy"]
    assert terms(beta=0.1) == ["policy", "kl"]
    assert terms(beta=0.1, kl_in="token_reward") == ["policy"]
    assert terms(adaptive_entropy={}) == ["policy", "entropy"]
    assert terms(baseline="critic", scale="none") == ["policy", "value"]


def test_the_nominal_count_keeps_dead_groups() -> None:
    with pytest.raises(
        RecipeError, match='count_dead: false takes dead groups out of the count, but count = "nominal"'
    ):
        validate({"count": "nominal", "count_dead": False}, Objective)


@pytest.mark.parametrize("preset", ["trl:grpo", "trl:bnpo", "trl:dapo", "verl:seq-mean-token-sum-norm"])
@pytest.mark.parametrize("rows", [15, 4])
def test_the_update_takes_the_gradient_of_the_plan(preset: str, rows: int) -> None:
    """On-policy the gradient is - sum_i omega_i A_i sum_t grad log pi_it, one rollout at a time."""
    groups, settings = mixed_groups(), recipe({"preset": preset}, {"micro_rollouts": rows})
    learner = Learner(tiny_policy(), None, settings)
    found = gradients_of(learner)
    updated(learner, groups)
    made = Batch.of(groups, learner.policy.encode)
    advantages = [a for each in groups for a in plain_advantages(each, True, settings.objective.scale_epsilon)]
    omega = plan_steps(made, torch.tensor(advantages)[:, None], settings)[0].terms["policy"].omega
    total = torch.zeros((), dtype=torch.float64)
    for row, (prompt, completion) in enumerate(zip(made.prompts, made.completions, strict=True)):
        logps = plain_logps(learner.policy.model, prompt, completion, settings.sampling.temperature)
        total = total - omega[row] * advantages[row] * logps.sum()
    expected = torch.autograd.grad(total, list(learner.policy.model.parameters()))
    assert difference(found[0], expected) < 1e-9


@pytest.mark.parametrize(
    ("preset", "moves"), [("trl:bnpo", True), ("trl:grpo", True), ("trl:dapo", False), ("verl:token-mean", False)]
)
def test_the_updates_gradient_moves_with_the_cut_where_the_originals_does(preset: str, moves: bool) -> None:
    found = []
    for rows in (15, 4):  # 4 does not divide 15
        learner = Learner(tiny_policy(), None, recipe({"preset": preset}, {"micro_rollouts": rows}))
        gradients = gradients_of(learner)
        updated(learner, mixed_groups())
        found.append(gradients[0])
    assert difference(found[1], found[0]) > 0.01 if moves else difference(found[1], found[0]) < 1e-9
