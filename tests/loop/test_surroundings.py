"""What changes beside the policy: the entropy coefficient and the reference; and what is measured beside the loss."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from loop_parts import difference, gradients_of, group, mixed_groups, plain_logps, recipe, tiny_policy, update

from cupola.core.config import Objective
from cupola.train.loop import Learner, load_checkpoint, save_checkpoint
from cupola.train.loop.checkpoint import Position
from cupola.train.loop.steer import EntropyBonus
from cupola.train.models import Reference

MOVING = {"name": "sgd", "learning_rate": 0.5}


def test_a_fixed_entropy_coefficient_stays() -> None:
    entropy = EntropyBonus(Objective(entropy_coef=0.1))
    entropy.steer(0.01)
    assert (entropy.coef, entropy.applied) == (0.1, 0.1)


def test_an_adaptive_coefficient_rises_below_its_target_and_falls_above() -> None:
    """Target 1, steps of 0.25 between 0 and 0.5; applied only where the last entropy was at or below the target."""
    adaptive = {"target": 1.0, "step": 0.25, "high": 0.5}
    entropy = EntropyBonus(Objective(entropy_coef=0.25, adaptive_entropy=adaptive))
    assert entropy.applied == 0
    seen = []
    for found in (1.0, 0.9, 0.8, 1.5, 1.5, 1.5):
        entropy.steer(found)
        seen.append((entropy.coef, entropy.applied))
    assert seen == [(0.5, 0.5), (0.5, 0.5), (0.5, 0.5), (0.25, 0), (0.0, 0), (0.0, 0)]


def test_an_adaptive_bonus_acts_from_the_second_step_on() -> None:
    adaptive = {"target": 100.0, "step": 0.25}
    learner = Learner(tiny_policy(), None, recipe({"adaptive_entropy": adaptive}, MOVING))
    found = gradients_of(learner)
    first = update(learner, mixed_groups())
    plain = Learner(tiny_policy(), None, recipe(optim=MOVING))
    expected = gradients_of(plain)
    update(plain, mixed_groups())
    assert difference(found[0], expected[0]) < 1e-12
    assert first.metrics["entropy_coef"] == 0.25
    update(learner, mixed_groups())
    update(plain, mixed_groups())
    assert difference(found[1], expected[1]) > 0.01


def test_a_moving_reference_moves_when_due() -> None:
    """Every second step by 3/4 of the way."""
    policy = tiny_policy()
    reference = Reference(copy.deepcopy(policy.model), every=2, mixup=0.75)
    learner = Learner(policy, reference, recipe({"beta": 0.1}, MOVING))
    start = [p.clone() for p in reference.model.parameters()]
    update(learner, mixed_groups())
    assert all(torch.equal(a, b) for a, b in zip(start, reference.model.parameters(), strict=True))
    update(learner, mixed_groups())
    for before, after, now in zip(start, reference.model.parameters(), policy.model.parameters(), strict=True):
        assert torch.allclose(after, 0.75 * now + 0.25 * before, atol=1e-12)


def test_a_checkpoint_holds_the_reference_that_moved_and_the_coefficient(tmp_path: Path) -> None:
    adaptive = {"target": 100.0}
    settings = recipe({"beta": 0.1, "adaptive_entropy": adaptive}, MOVING)

    def made() -> Learner:
        policy = tiny_policy()
        return Learner(policy, Reference(copy.deepcopy(policy.model), every=1), settings)

    learner, other = made(), made()
    update(learner, mixed_groups())
    save_checkpoint(tmp_path / "c", learner, Position(1, 10))
    load_checkpoint(tmp_path / "c", other)
    assert other.reference is not None
    assert learner.reference is not None
    theirs, ours = other.reference.model.parameters(), learner.reference.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert other.bonus.state() == learner.bonus.state()
    assert other.bonus.coef == 0.005


def test_k1_in_the_reward_is_taken_before_the_baseline() -> None:
    """A = r - beta * sum_t k1 against the mean of the others, here of two answers."""
    policy, reference = tiny_policy(), tiny_policy(seed=1)
    one = group("live", "1+2=", [(3, 1.0, True), (7, 0.0, False)])
    settings = recipe({"baseline": "leave_one_out", "scale": "none", "beta": 0.2, "kl_in": "reward"})
    learner = Learner(policy, Reference(reference.model), settings)
    updated = update(learner, [one])
    shaped = []
    for rollout in one.rollouts:
        ids = rollout.completion.token_ids.tolist()
        of = [plain_logps(model, policy.encode("1+2="), ids, 0.7) for model in (policy.model, reference.model)]
        shaped.append(float(rollout.reward or 0) - 0.2 * float((of[0] - of[1]).detach().sum()))
    found = [row.advantage for row in updated.outcomes["live"]]
    assert found == [pytest.approx(shaped[0] - shaped[1]), pytest.approx(shaped[1] - shaped[0])]
    assert [row["term"] for row in updated.ledger] == ["policy"]
    assert updated.metrics["kl"] is not None


def test_k1_of_each_token_is_taken_from_the_advantage_up_to_it() -> None:
    """A_it = A_i - beta * sum_{k >= t} k1_k: the last token pays for itself, the first for all."""
    policy, reference = tiny_policy(), tiny_policy(seed=1)
    one = group("live", "1+2=", [(2, 1.0, True), (2, 0.0, False)])
    settings = recipe({"scale": "none", "beta": 0.2, "kl_in": "token_reward"})
    learner = Learner(policy, Reference(reference.model), settings)
    found = gradients_of(learner)
    update(learner, [one])
    loss = torch.zeros((), dtype=torch.float64)
    for rollout, advantage in zip(one.rollouts, (0.5, -0.5), strict=True):
        ids = rollout.completion.token_ids.tolist()
        logp = plain_logps(policy.model, policy.encode("1+2="), ids, 0.7)
        k1 = (logp - plain_logps(reference.model, policy.encode("1+2="), ids, 0.7)).detach()
        loss = loss - ((advantage - 0.2 * (k1[0] + k1[1])) * logp[0] + (advantage - 0.2 * k1[1]) * logp[1]) / 4
    expected = torch.autograd.grad(loss, list(policy.model.parameters()))
    assert difference(found[0], expected) < 1e-9


def test_the_exact_share_is_the_norm_of_each_rollouts_own_gradient() -> None:
    policy = tiny_policy()
    one = group("live", "1+2=", [(3, 1.0, True), (7, 0.0, False), (1, 0.0, False)])
    settings = recipe({"scale": "none", "denominator": "constant"}, diagnosis={"exact_share_every": 1})
    learner = Learner(policy, None, settings)
    updated = update(learner, [one])
    norms = []
    for rollout, advantage in zip(one.rollouts, (2 / 3, -1 / 3, -1 / 3), strict=True):
        logp = plain_logps(policy.model, policy.encode("1+2="), rollout.completion.token_ids.tolist(), 0.7)
        gradient = torch.autograd.grad(-advantage * logp.sum() / 36, list(policy.model.parameters()))
        norms.append(float(sum(g.square().sum() for g in gradient) ** 0.5))
    right = updated.ledger[0]["exact_shares"]["correctness"]["right"]
    assert right == pytest.approx(norms[0] / sum(norms))
    predicted = [3 * 2 / 3, 7 / 3, 1 / 3]
    distance = sum(abs(n / sum(norms) - p / sum(predicted)) for n, p in zip(norms, predicted, strict=True)) / 2
    assert updated.metrics["ledger/exact_distance"] == pytest.approx(distance)
    ranks = [sorted(values).index(value) for values in (norms, predicted) for value in values]
    apart = sum((a - b) ** 2 for a, b in zip(ranks[:3], ranks[3:], strict=True))
    assert updated.metrics["ledger/exact_rank_correlation"] == pytest.approx(1 - 6 * apart / (3 * 8))


def test_measuring_the_exact_share_changes_nothing_else() -> None:
    plain = Learner(tiny_policy(), None, recipe())
    measured = Learner(tiny_policy(), None, recipe(diagnosis={"exact_share_every": 1}))
    one, other = gradients_of(plain), gradients_of(measured)
    update(plain, mixed_groups())
    update(measured, mixed_groups())
    assert difference(one[0], other[0]) == 0
