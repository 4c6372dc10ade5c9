"""The gradient is that of the loss as it is written down, however the batch is cut."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from loop_parts import (
    PlainLoss,
    difference,
    gradients_of,
    mixed_groups,
    plain_logps,
    recipe,
    rows_forwarded,
    tiny_policy,
    update,
)

from cupola.core.config import Recipe
from cupola.train.loop import Learner
from cupola.train.models import Reference

RULES = ("sequence_mean", "token_mean", "constant", "prompt_mean")
CUTS = {"rows": 1, "some": 60, "whole": 100_000}
EXTRAS: dict[str, dict[str, Any]] = {
    "policy": {},
    "kl": {"beta": 0.3},
    "entropy": {"entropy_coef": 0.2},
    "all": {"beta": 0.3, "entropy_coef": 0.2, "kl_denominator": "token_mean", "entropy_denominator": "constant"},
}


def learner_of(settings: Recipe, dtype: torch.dtype = torch.float64) -> Learner:
    reference = Reference(tiny_policy(seed=1, dtype=dtype).model) if settings.objective.beta else None
    return Learner(tiny_policy(dtype=dtype), reference, settings)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_is_the_same_however_the_batch_is_cut(rule: str, extra: str) -> None:
    groups = mixed_groups()
    exact = learner_of(recipe({"denominator": rule, **EXTRAS[extra]}))
    plain = PlainLoss(exact.policy, exact.reference, exact.recipe, groups)
    expected = plain.gradient(plain.rows, plain.rows)
    for cut in CUTS.values():
        learner = learner_of(recipe({"denominator": rule, **EXTRAS[extra]}, {"micro_tokens": cut}))
        found = gradients_of(learner)
        update(learner, groups)
        assert len(found) == 1
        assert difference(found[0], expected) < 1e-9


@pytest.mark.parametrize("rule", RULES)
def test_the_gradient_in_single_precision(rule: str) -> None:
    groups = mixed_groups()
    exact = learner_of(recipe({"denominator": rule, **EXTRAS["all"]}))
    plain = PlainLoss(exact.policy, exact.reference, exact.recipe, groups)
    expected = plain.gradient(plain.rows, plain.rows)
    for cut in CUTS.values():
        learner = learner_of(recipe({"denominator": rule, **EXTRAS["all"]}, {"micro_tokens": cut}), torch.float32)
        found = gradients_of(learner)
        update(learner, groups)
        assert difference(found[0], expected) < 1e-5


@pytest.mark.parametrize("scope", ["update", "batch"])
@pytest.mark.parametrize("rule", RULES)
def test_minibatches_are_weighed_over_their_scope(rule: str, scope: str) -> None:
    """`update`: each step counts its own rollouts; `batch`: the steps' gradients add up to the whole batch's."""
    groups = mixed_groups()
    settings = recipe({"denominator": rule, "scope": scope, **EXTRAS["all"]}, {"minibatches": 2, "micro_tokens": 60})
    learner = learner_of(settings)
    found = gradients_of(learner)
    update(learner, groups)
    plain = PlainLoss(learner.policy, learner.reference, settings, groups)
    halves = plain.rows[:8], plain.rows[8:]  # 15 rollouts: 8 and 7, the border inside the no-signal group
    for gradient, rows in zip(found, halves, strict=True):
        assert difference(gradient, plain.gradient(rows, rows if scope == "update" else plain.rows)) < 1e-9
    if scope == "batch":
        total = [first + second for first, second in zip(*found, strict=True)]
        assert difference(total, plain.gradient(plain.rows, plain.rows)) < 1e-9


@pytest.mark.parametrize("rule", RULES)
def test_dead_groups_can_leave_the_counts(rule: str) -> None:
    groups = mixed_groups()
    learner = learner_of(recipe({"denominator": rule, "count_dead": False}))
    found = gradients_of(learner)
    updated = update(learner, groups)
    plain = PlainLoss(learner.policy, None, learner.recipe, groups)
    assert difference(found[0], plain.gradient(plain.rows, plain.rows)) < 1e-9
    assert updated.ledger[0]["counted"]["rollouts"] == 10  # 15, less 3 dead and 2 without a reward
    assert updated.ledger[0]["excluded"] == {"unscored": 2, "dead": 3}


def test_dead_groups_stay_in_the_counts_by_default() -> None:
    updated = update(learner_of(recipe()), mixed_groups())
    assert updated.ledger[0]["counted"] == {"rollouts": 13, "tokens": 75, "prompts": 5}
    assert updated.ledger[0]["excluded"] == {"unscored": 2}


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_every_kl_estimator(estimator: str) -> None:
    groups = mixed_groups()
    learner = learner_of(recipe({"beta": 0.5, "kl_estimator": estimator}))
    found = gradients_of(learner)
    updated = update(learner, groups)
    plain = PlainLoss(learner.policy, learner.reference, learner.recipe, groups)
    assert difference(found[0], plain.gradient(plain.rows, plain.rows)) < 1e-9
    assert updated.metrics["loss"] == pytest.approx(plain(plain.rows, plain.rows).item(), rel=1e-9)


def test_padding_cannot_overflow_into_the_gradient() -> None:
    """At a low temperature a padding token is so unlikely that exp(-log p) overflows; it is masked, and stays so."""
    settings = recipe({"beta": 0.1}, sampling={"group_size": 4, "max_tokens": 12, "temperature": 0.01})
    policy = tiny_policy(dtype=torch.float32)
    learner = Learner(policy, Reference(copy.deepcopy(policy.model)), settings)
    found = gradients_of(learner)
    updated = update(learner, mixed_groups()[:1])
    assert all(gradient.isfinite().all() for gradient in found[0])
    assert sum(row.weight_share or 0 for row in updated.outcomes["live"]) == pytest.approx(1)
    assert updated.metrics["kl"] == 0


def test_only_what_has_a_gradient_is_forwarded() -> None:
    """Of 15 rollouts 4 + 2 + 3 are in live groups and scored; none of them has advantage 0."""
    learner = learner_of(recipe())
    rows = rows_forwarded(learner.policy.model)
    updated = update(learner, mixed_groups())
    assert sum(rows) == 9
    assert updated.ledger[0]["forwarded"] == 9
    assert updated.ledger[0]["skipped"] == 6


@pytest.mark.parametrize("extra", ["kl", "entropy"])
def test_a_term_on_every_rollout_forwards_every_rollout(extra: str) -> None:
    learner = learner_of(recipe(EXTRAS[extra]))
    rows = rows_forwarded(learner.policy.model)
    update(learner, mixed_groups())
    assert sum(rows) == 15


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_product"])
@pytest.mark.parametrize("bound", ["truncate", "mask"])
def test_a_correction_does_not_depend_on_the_cut(level: str, bound: str) -> None:
    """The sampler says log p = 0 of every token, so each weight is the policy's own probability, held in [1/2, 2]."""
    objective = {"correction": {"level": level, "bound": bound, "low": 0.5}, "beta": 0.3}
    found, ledgers = [], []
    for cut in CUTS.values():
        learner = learner_of(recipe(objective, {"micro_tokens": cut}))
        gradients = gradients_of(learner)
        ledgers.append(update(learner, mixed_groups()).ledger[0])
        found.append(gradients[0])
    assert max(difference(found[0], other) for other in found[1:]) < 1e-9
    plain = learner_of(recipe({"beta": 0.3}))
    uncorrected = gradients_of(plain)
    update(plain, mixed_groups())
    assert difference(found[0], uncorrected[0]) > 0.01
    assert (ledgers[0]["numerators"]["correction"] > 0) == (bound == "mask")
    assert all(each["numerators"] == ledgers[0]["numerators"] for each in ledgers)
    assert ledgers[0]["counted"]["tokens"] == 75


def test_a_sampler_that_agrees_is_weighed_1() -> None:
    learner = learner_of(recipe({"correction": {"level": "token"}}))
    logps = learner.policy
    groups = []
    for one in mixed_groups():
        rollouts = []
        for rollout in one.rollouts:
            ids = rollout.completion.token_ids.tolist()
            said = plain_logps(logps.model, logps.encode(one.prompt.content), ids, 0.7).detach().float().numpy()
            rollouts.append(replace(rollout, completion=replace(rollout.completion, logps=said)))
        groups.append(replace(one, rollouts=tuple(rollouts)))
    metrics = update(learner, groups).metrics
    for part in ("min", "mean", "max"):
        assert metrics[f"sampling/importance_sampling_ratio/{part}"] == pytest.approx(1, abs=1e-5)
