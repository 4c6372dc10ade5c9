"""What an update does to the weights, and what it says about each rollout."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace

import pytest
import torch
from loop_parts import (
    PlainLoss,
    difference,
    gradients_of,
    group,
    mixed_groups,
    plain_logps,
    recipe,
    tiny_policy,
    update,
)

from cupola.train.loop import Learner
from cupola.train.models import Reference

ADAMW = {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.1}


def weights(learner: Learner) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in learner.policy.model.parameters()]


def dead_groups() -> list:
    return [g for g in mixed_groups() if g.id in ("dead", "unscorable")]


def test_the_first_update_on_policy_moves_the_weights_though_the_loss_is_zero() -> None:
    learner = Learner(tiny_policy(), None, recipe(optim=ADAMW))
    before = weights(learner)
    updated = update(learner, mixed_groups()[:1])
    assert updated.metrics["loss"] == pytest.approx(0, abs=1e-12)
    assert updated.metrics["grad_norm"] > 0
    assert updated.metrics["learning_rate"] == 0.01
    assert all(a != b for a, b in zip(before, weights(learner), strict=True))
    assert (learner.planned, learner.version) == (1, 1)


def test_without_a_gradient_momentum_and_weight_decay_stand_still() -> None:
    learner = Learner(tiny_policy(), None, recipe(optim=ADAMW))
    update(learner, mixed_groups())  # gives AdamW momentum
    before = weights(learner)
    updated = update(learner, dead_groups())
    assert weights(learner) == before
    assert (learner.planned, learner.version) == (2, 1)
    assert [updated.metrics[key] for key in ("loss", "grad_norm", "learning_rate")] == [None] * 3
    assert all(row.weight_share is None for rows in updated.outcomes.values() for row in rows)


def test_a_gradient_of_exactly_zero_is_no_gradient() -> None:
    """At its reference a policy's k3 has no gradient: with dead groups alone, weight decay would move the weights."""
    policy = tiny_policy()
    reference = Reference(copy.deepcopy(policy.model))
    learner = Learner(policy, reference, recipe({"beta": 0.1}, ADAMW))
    before = weights(learner)
    update(learner, dead_groups())
    assert weights(learner) == before
    assert learner.version == 0


@pytest.mark.parametrize("minibatches", [1, 2])
def test_a_gradient_that_is_not_finite_is_refused(minibatches: int) -> None:
    learner = Learner(tiny_policy(), None, recipe(optim={**ADAMW, "minibatches": minibatches}))
    with torch.no_grad():
        next(learner.policy.model.parameters())[5, 0] = math.nan
    before = weights(learner)
    updated = update(learner, mixed_groups())
    said = r"optimiser step 1: the log-probability of rollout \d+ is not finite.*weights are those before"
    assert re.search(said, updated.ledger[0]["refused"])
    assert updated.metrics["ledger/refused"] == minibatches
    assert {value for key, value in updated.metrics.items() if key.startswith("clip_ratio/")} == {None}
    assert {row.discard_reason for row in updated.outcomes["live"]} == {"update_refused"}
    assert weights(learner) == before
    assert learner.version == 0
    assert not learner.optimizer.state
    assert all(p.grad is None for p in learner.policy.model.parameters())


@pytest.mark.parametrize("rule", ["sequence_mean", "token_mean"])
def test_shares_of_the_gradients_weight_by_hand(rule: str) -> None:
    """On-policy a rollout weighs |A| omega |o|: |A| under sequence_mean, |A| |o| under token_mean."""
    one = group("g", "1+2=", [(3, 1.0, True), (7, 0.0, False), (1, 0.0, False), (5, 0.0, False)])  # A: 3, -1, -1, -1
    expected = {
        "sequence_mean": [3 / 6, 1 / 6, 1 / 6, 1 / 6],
        "token_mean": [9 / 22, 7 / 22, 1 / 22, 5 / 22],
    }[rule]
    updated = update(Learner(tiny_policy(), None, recipe({"denominator": rule})), [one])
    shares = [row.weight_share for row in updated.outcomes["g"]]
    assert shares == pytest.approx(expected, rel=1e-9)
    assert updated.ledger[0]["shares"]["correctness"] == pytest.approx(
        {"right": expected[0], "wrong": 1 - expected[0]}, rel=1e-9
    )


def test_outcomes_tell_the_kinds_of_rollouts_apart() -> None:
    learner = Learner(tiny_policy(), None, recipe())
    updated = update(learner, mixed_groups())
    rows = updated.outcomes
    assert sum(row.weight_share for group in rows.values() for row in group) == pytest.approx(1)
    assert [row.used for row in rows["live"]] == [True] * 4
    assert {row.discard_reason for row in rows["live"]} == {None}
    assert {(row.used, row.discard_reason, row.advantage, row.weight_share) for row in rows["dead"]} == {
        (False, "dead_group", 0.0, 0.0)
    }
    assert [row.advantage for row in rows["unscorable"]] == [0.0, None]
    assert [row.advantage is None for row in rows["holed"]] == [False, True, False, False]
    assert [row.discard_reason for row in rows["holed"]] == [None, "unscored", None, None]
    assert all(row.logp_old is None for row in rows["dead"])


def test_a_lone_reward_does_not_make_its_group_dead() -> None:
    """One reward of two: nothing to compare with. `unscorable` and `dead` are told apart, in the counts too."""
    updated = update(Learner(tiny_policy(), None, recipe({"count_dead": False})), mixed_groups())
    assert [row.discard_reason for row in updated.outcomes["unscorable"]] == ["unscorable_group", "unscored"]
    assert updated.ledger[0]["excluded"]["dead"] == 3


def test_an_average_reward_has_no_gradient_and_is_not_forwarded() -> None:
    one = group("g", "1+2=", [(3, 1.0, True), (4, 0.5, False), (5, 0.0, False)])
    rows = update(Learner(tiny_policy(), None, recipe()), [one]).outcomes["g"]
    assert [(row.used, row.discard_reason) for row in rows] == [(True, None), (False, "zero_advantage"), (True, None)]


def test_a_completion_without_tokens_is_left_out() -> None:
    one = group("g", "1+2=", [(3, 1.0, True), (0, 0.0, False), (5, 0.0, False)])
    updated = update(Learner(tiny_policy(), None, recipe()), [one])
    assert updated.outcomes["g"][1].discard_reason == "no_tokens"
    assert updated.ledger[0]["counted"]["rollouts"] == 2
    assert updated.ledger[0]["excluded"] == {"no_tokens": 1}


def test_old_log_probabilities_are_those_before_the_update() -> None:
    for minibatches in (1, 2):
        policy = tiny_policy()
        before = copy.deepcopy(policy)
        groups = mixed_groups()
        learner = Learner(policy, None, recipe(optim={"learning_rate": 1.0, "minibatches": minibatches}))
        rows = update(learner, groups).outcomes["live"]
        prompt = policy.encode(groups[0].prompt.content)
        for row, rollout in zip(rows, groups[0].rollouts, strict=True):
            expected = plain_logps(before.model, prompt, rollout.completion.token_ids.tolist(), 0.7)
            assert row.logp_old == pytest.approx(expected.detach().numpy(), abs=1e-6)


def test_later_updates_see_the_ratio_and_clipping_binds() -> None:
    """Two passes at a large step: the second one's gradient and clip shares are those of the moved policy."""
    groups = mixed_groups()
    settings = recipe({"surrogate": {"high": 0.28}}, {"learning_rate": 2.0, "epochs": 2})
    learner = Learner(tiny_policy(), None, settings)
    plain = PlainLoss(learner.policy, None, settings, groups)
    encoded = {(g, i): (learner.policy.encode(groups[g].prompt.content), groups[g].rollouts[i]) for g, i in plain.rows}

    def logps() -> dict:
        with torch.no_grad():
            return {
                row: plain_logps(learner.policy.model, prompt, rollout.completion.token_ids.tolist(), 0.7)
                for row, (prompt, rollout) in encoded.items()
            }

    old = logps()
    seen: list[tuple[list[torch.Tensor], dict]] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: seen.append((plain.gradient(plain.rows, plain.rows, old), logps()))
    )
    found = gradients_of(learner)
    updated = update(learner, groups)

    assert len(found) == 2
    for gradient, (expected, _) in zip(found, seen, strict=True):
        assert difference(gradient, expected) < 1e-9
    low = high = 0
    for (g, i), logp in seen[1][1].items():
        ratio, advantage = (logp - old[g, i]).exp(), plain.advantages[g][i]
        low += int((ratio < 0.8).sum()) if advantage < 0 else 0
        high += int((ratio > 1.28).sum()) if advantage > 0 else 0
    assert low > 0
    assert high > 0
    assert updated.metrics["clip_ratio/low_mean"] == low / (75 * 2)  # 75 tokens of scored rollouts, twice
    assert updated.metrics["clip_ratio/high_mean"] == high / (75 * 2)
    assert updated.metrics["clip_ratio/region_mean"] == (low + high) / (75 * 2)


def test_kl_metric_is_the_token_mean() -> None:
    groups = mixed_groups()
    reference = tiny_policy(seed=1).model
    learner = Learner(tiny_policy(), Reference(reference), recipe({"beta": 0.1, "kl_estimator": "k1"}))
    total, tokens = 0.0, 0
    for each in groups:
        prompt = learner.policy.encode(each.prompt.content)
        for rollout in each.rollouts:
            ids = rollout.completion.token_ids.tolist()
            apart = plain_logps(learner.policy.model, prompt, ids, 0.7) - plain_logps(reference, prompt, ids, 0.7)
            total, tokens = total + apart.sum().item(), tokens + len(ids)
    updated = update(learner, groups)
    assert updated.metrics["kl"] == pytest.approx(total / tokens, rel=1e-9)
    assert updated.metrics["loss"] != updated.metrics["policy_loss"]


def test_the_ledger_has_a_row_per_term_and_update() -> None:
    reference = tiny_policy(seed=1).model
    why = {"policy": "as the paper", "entropy": "none better"}
    settings = recipe({"beta": 0.1, "entropy_coef": 0.1, "why": why}, {"minibatches": 3, "epochs": 2})
    updated = update(Learner(tiny_policy(), Reference(reference), settings), mixed_groups())
    assert [(row["update"], row["term"]) for row in updated.ledger] == [
        (update, term) for update in range(1, 7) for term in ("policy", "kl", "entropy")
    ]
    assert [row["why"] for row in updated.ledger[:3]] == ["as the paper", None, "none better"]
    for row in updated.ledger:
        for shares in (row["shares"] or {}).values():
            assert sum(shares.values()) == pytest.approx(1)


def test_the_sampler_gap_is_that_of_the_forwarded_tokens() -> None:
    """The groups made by hand claim log-probability 0 for every token, so the gap is the mean of -log p."""
    groups = mixed_groups()[:1]
    learner = Learner(tiny_policy(), None, recipe())
    prompt = learner.policy.encode(groups[0].prompt.content)
    logps = torch.cat(
        [plain_logps(learner.policy.model, prompt, r.completion.token_ids.tolist(), 0.7) for r in groups[0].rollouts]
    )
    metrics = update(learner, groups).metrics
    assert metrics["sampling/sampling_logp_difference/mean"] == pytest.approx(-logps.mean().item(), rel=1e-5)
    assert metrics["sampling/sampling_logp_difference/max"] == pytest.approx(-logps.min().item(), rel=1e-5)


def test_truncated_rollouts_can_leave_every_term_and_its_counts() -> None:
    """They stay in the baseline: the group's mean is 1/4 with and without the mask."""
    one = group("g", "1+2=", [(3, 1.0, True), (12, 0.0, False), (4, 0.0, False), (5, 0.0, False)])
    cut = replace(one.rollouts[1].completion, finish_reason="length")
    rollouts = (one.rollouts[0], replace(one.rollouts[1], completion=cut), *one.rollouts[2:])
    updated = update(Learner(tiny_policy(), None, recipe({"mask_truncated": True})), [replace(one, rollouts=rollouts)])
    rows = updated.outcomes["g"]
    assert [row.discard_reason for row in rows] == [None, "truncated", None, None]
    assert rows[1].advantage == rows[2].advantage
    assert updated.ledger[0]["counted"] == {"rollouts": 3, "tokens": 12, "prompts": 1}
    assert updated.ledger[0]["excluded"] == {"truncated": 1}
    kept = update(Learner(tiny_policy(), None, recipe()), [replace(one, rollouts=rollouts)])
    assert kept.ledger[0]["counted"]["rollouts"] == 4
