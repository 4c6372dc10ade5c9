"""Masks with statistics over the whole optimiser step, and rollouts that are rejected before it."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev

import pytest
import torch
from loop_parts import difference, gradients_of, mixed_groups, plain_logps, recipe, tiny_policy, update

from cupola.core.config import Objective, validate
from cupola.core.records import Group
from cupola.train.loop import Learner
from cupola.train.loop.keep import Seen, kept_tokens
from cupola.train.loop.loss import Inputs, micro_loss
from cupola.train.models import Reference
from cupola.train.objectives import token_logps

CUTS = (1, 60, 100_000)
TWICE = {"learning_rate": 0.5, "epochs": 2}


def sampled(groups: list[Group], shifts: dict[tuple[str, int], float]) -> list[Group]:
    """The groups as the policy itself would have sampled them; `shifts` are added to a rollout's log-probabilities."""
    policy, found = tiny_policy(), []
    for one in groups:
        rollouts = []
        for i, rollout in enumerate(one.rollouts):
            ids = rollout.completion.token_ids.tolist()
            logps = plain_logps(policy.model, policy.encode(one.prompt.content), ids, 0.7).detach().float().numpy()
            said = logps + shifts.get((one.id, i), 0.0)
            rollouts.append(replace(rollout, completion=replace(rollout.completion, logps=said)))
        found.append(replace(one, rollouts=tuple(rollouts)))
    return found


def test_a_rejected_rollout_leaves_the_baseline_and_the_count() -> None:
    """Rewards 1, 0, 0, 1/4; the first is rejected (ratio e^-1 < 1/2): mean and deviation are of the other three."""
    groups = sampled(mixed_groups(), {("live", 0): 1.0})
    learner = Learner(tiny_policy(), None, recipe({"masks": {"reject": {}}}))
    updated = update(learner, groups)
    rest = [0.0, 0.0, 0.25]
    expected = [None, *((r - fmean(rest)) / (stdev(rest) + 1e-4) for r in rest)]
    assert [row.advantage for row in updated.outcomes["live"]] == [
        None if e is None else pytest.approx(e) for e in expected
    ]
    assert updated.outcomes["live"][0].discard_reason == "rejected"
    assert updated.ledger[0]["excluded"] == {"unscored": 2, "rejected": 1}
    assert updated.ledger[0]["counted"]["rollouts"] == 12
    assert updated.metrics["sampler/rejected"] == 1


def test_a_sampler_that_agrees_loses_nothing() -> None:
    updated = update(Learner(tiny_policy(), None, recipe({"masks": {"reject": {}}})), sampled(mixed_groups(), {}))
    plain = update(Learner(tiny_policy(), None, recipe()), mixed_groups())
    assert updated.ledger[0]["excluded"] == {"unscored": 2}
    assert updated.metrics["grad_norm"] == pytest.approx(plain.metrics["grad_norm"], rel=1e-9)


@pytest.mark.parametrize(
    "masks",
    [
        {"off_policy": 0.1},
        {"top_entropy": 0.5},
        {"clip_cov": {"fraction": 0.2, "low": 0.0, "high": 50.0}},
        {"kl_cov": {"fraction": 0.2}},
        {"off_policy": 0.1, "top_entropy": 0.5, "clip_cov": {"fraction": 0.2, "low": 0.0, "high": 50.0}},
    ],
    ids="+".join,
)
def test_a_mask_does_not_depend_on_the_cut(masks: dict[str, object]) -> None:
    """Two steps, so that the second sees a policy that has moved; KL on, which no mask touches."""
    groups = sampled(mixed_groups(), {("live", 1): 0.5, ("holed", 2): 0.5})
    found, left = [], []
    for cut in CUTS:
        settings = recipe({"masks": masks, "beta": 0.1}, {**TWICE, "micro_tokens": cut})
        learner = Learner(tiny_policy(), Reference(tiny_policy(seed=1).model), settings)
        found.append(gradients_of(learner))
        left.append([row.get("numerators") for row in update(learner, groups).ledger])
    worst = max(difference(a, b) for other in found[1:] for a, b in zip(other, found[0], strict=True))
    assert worst < 1e-9
    assert left[0] == left[1] == left[2]
    plain = Learner(tiny_policy(), Reference(tiny_policy(seed=1).model), recipe({"beta": 0.1}, TWICE))
    unmasked = gradients_of(plain)
    update(plain, groups)
    if "kl_cov" in masks:  # at the first step nothing has moved, so there is no |log pi - log pi_old| to pay for
        assert difference(found[0][0], unmasked[0]) < 1e-9
        assert difference(found[0][1], unmasked[1]) > 0.01
    else:
        assert min(left[0][0].values()) > 0
        assert difference(found[0][0], unmasked[0]) > 0.01


def test_kl_cov_pays_its_coefficient_per_nat() -> None:
    """One of two tokens of probability 1/2 pays 3 per nat, |log pi - log pi_old| being 1/2 there."""
    logits = torch.zeros(1, 2, 2, dtype=torch.float64, requires_grad=True)
    half = torch.tensor(0.5, dtype=torch.float64).log()
    inputs = Inputs(
        mask=torch.ones(1, 2),
        advantages=torch.zeros(1, 1, dtype=torch.float64),
        omega={"policy": torch.ones(1, dtype=torch.float64)},
        coef={},
        logp_old=torch.stack([half - 0.5, half])[None],
        pays=torch.tensor([[True, False]]),
    )
    logp = token_logps(logits, torch.zeros(1, 2, dtype=torch.long))
    loss = micro_loss(logp, None, inputs, validate({"preset": "dapo", "masks": {"kl_cov": {"coef": 3.0}}}, Objective))
    assert loss.total.item() == pytest.approx(1.5)
    loss.total.backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [[[1.5, -1.5], [0, 0]]]  # 3 (1 - p) and -3 p


def seen(**given: torch.Tensor) -> Seen:
    """Two rollouts of two tokens: A = 1 and -1."""
    zeros = torch.zeros(2, 2)
    values = {"logp": zeros, "entropy": zeros, "logp_old": zeros, "logp_sampler": zeros, **given}
    return Seen(**values, advantages=torch.tensor([[1.0], [-1.0]]), mask=torch.ones(2, 2, dtype=torch.bool))


def test_off_policy_drops_a_bad_answer_that_the_policy_no_longer_gives() -> None:
    """The sampler found each token 0.3 nats likelier: both rollouts drifted, only the one with A < 0 goes."""
    found = kept_tokens(
        seen(logp_sampler=torch.full((2, 2), 0.3)),
        validate({"masks": {"off_policy": 0.2}}, Objective),
        torch.Generator(),
    )
    assert found.keep is not None
    assert found.keep.tolist() == [[True, True], [False, False]]
    assert found.left == {"off_policy": 2}


def test_top_entropy_keeps_the_uncertain_tokens() -> None:
    """Entropies 1, 2, 3, 4; the upper half is at or above their quantile of 1/2, 2.5."""
    entropy = torch.tensor([[1.0, 4.0], [2.0, 3.0]])
    found = kept_tokens(seen(entropy=entropy), validate({"masks": {"top_entropy": 0.5}}, Objective), torch.Generator())
    assert found.keep is not None
    assert found.keep.tolist() == [[False, True], [False, True]]
    assert found.left == {"low_entropy": 2}


def test_a_token_is_booked_to_the_first_mask_that_takes_it() -> None:
    entropy = torch.tensor([[1.0, 4.0], [2.0, 3.0]])
    found = kept_tokens(
        seen(logp_sampler=torch.full((2, 2), 0.3), entropy=entropy),
        validate({"masks": {"off_policy": 0.2, "top_entropy": 0.5}}, Objective),
        torch.Generator(),
    )
    assert found.left == {"off_policy": 2, "low_entropy": 1}


def test_kl_cov_pays_where_the_covariance_is_highest() -> None:
    """A = (1, -1), log p = (-1, -3), (-4, 0), mean -2: covariances 1, -1, 2, -2; a quarter of four tokens is one."""
    found = kept_tokens(
        seen(logp=torch.tensor([[-1.0, -3.0], [-4.0, 0.0]])),
        validate({"masks": {"kl_cov": {"fraction": 0.25}}}, Objective),
        torch.Generator(),
    )
    assert found.keep is None
    assert found.pays is not None
    assert found.pays.tolist() == [[False, False], [True, False]]


def test_clip_cov_spares_what_the_surrogate_limits_already() -> None:
    """Covariances 1, -1, 2, -2; the third token's ratio e^-1 with A < 0 is clipped already, so the first is drawn."""
    logp = torch.tensor([[-1.0, -3.0], [-4.0, 0.0]])
    masks = {"clip_cov": {"fraction": 0.25, "low": 0.0, "high": 5.0}}
    old = logp + torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    found = kept_tokens(seen(logp=logp, logp_old=old), validate({"masks": masks}, Objective), torch.Generator())
    assert found.keep is not None
    assert found.keep.tolist() == [[False, True], [True, True]]


def test_masks_keep_the_types_of_a_step_whose_first_row_is_elsewhere() -> None:
    """Of two minibatches the second begins in the middle of the batch; in float64 its statistics are too."""
    found = []
    for cut in CUTS:
        settings = recipe({"masks": {"top_entropy": 0.5}}, {**TWICE, "minibatches": 2, "micro_tokens": cut})
        learner = Learner(tiny_policy(), None, settings)
        found.append(gradients_of(learner))
        update(learner, mixed_groups())
    assert max(difference(a, b) for other in found[1:] for a, b in zip(other, found[0], strict=True)) < 1e-9


def test_clip_cov_draws_the_same_tokens_again() -> None:
    """A step that is done again after a resume leaves out the same tokens."""
    settings = recipe({"masks": {"clip_cov": {"fraction": 0.1, "low": 0.0, "high": 50.0}}})
    first, again = Learner(tiny_policy(), None, settings), Learner(tiny_policy(), None, settings)
    one, other = gradients_of(first), gradients_of(again)
    update(first, mixed_groups())
    update(again, mixed_groups())
    assert difference(one[0], other[0]) == 0


def test_kl_cov_pays_nothing_before_the_policy_has_moved() -> None:
    """Of two minibatches the first is on-policy: its old log-probabilities come from other forward passes."""
    masked = recipe({"masks": {"kl_cov": {"fraction": 0.3}}}, {"minibatches": 2, "micro_tokens": 40})
    plain = recipe(optim={"minibatches": 2, "micro_tokens": 40})
    found = []
    for settings in (masked, plain):
        learner = Learner(tiny_policy(dtype=torch.float32), None, settings)
        found.append(gradients_of(learner))
        update(learner, mixed_groups())
    assert difference(found[0][0], found[1][0]) < 1e-5


def test_under_a_nominal_count_rejected_tokens_are_not_counted() -> None:
    """The rejected answer has 3 of the 82 tokens; it stays in the count of rollouts."""
    groups = sampled(mixed_groups(), {("live", 0): 1.0})
    settings = recipe({"preset": "verl:token-mean", "masks": {"reject": {}}})
    row = update(Learner(tiny_policy(), None, settings), groups).ledger[0]
    assert row["counted"]["rollouts"] == 15
    assert row["counted"]["tokens"] == 82 - 3
    assert row["numerators"]["rejected"] == 3
