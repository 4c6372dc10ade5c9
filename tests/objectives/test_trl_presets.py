"""Each `trl:` preset against TRL's own `_compute_loss`: the recipe's plan and the loop's loss, on the same tensors.

Both depend on how a batch is cut in the same cases, and agree in every cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from trl_side import ADVANTAGES, LENGTHS, MASK, MAX_TOKENS, ROWS, assert_same, tensors, trl_loss

from cupola.core.config import Recipe, validate
from cupola.core.config.presets.compatibility import COMPATIBLE
from cupola.train.loop import Batch, plan_steps
from cupola.train.loop.loss import Inputs, micro_loss
from cupola.train.objectives import token_entropy, token_logps

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("default")]

PRESETS = sorted(name for name in COMPATIBLE if name.startswith("trl:"))
#: The row that TRL masks from end to end is one that was cut at the limit, at 4 tokens.
CUT_AT_LIMIT = 2
HELD_BY_TRL = torch.where(torch.arange(ROWS) == CUT_AT_LIMIT, 4, LENGTHS)

#: A part of a recipe's objective, and TRL's arguments for it.
TERMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "policy": ({}, {}),
    "kl": ({"beta": 0.3}, {"beta": 0.3, "use_bias_correction_kl": True}),
    "unweighted kl": ({"beta": 0.3, "kl_ratio": "none"}, {"beta": 0.3, "use_bias_correction_kl": False}),
    "entropy": ({"entropy_coef": 0.1}, {"_entropy_bonus_enabled": True, "entropy_coef": 0.1}),
}


def recipe(preset: str, objective: Mapping[str, Any], rows: int, minibatches: int = 1) -> Recipe:
    values = {
        "data": {"task": "arithmetic"},
        "reward": [{"name": "correct", "kind": "exact"}],
        "sampling": {"prompts_per_step": 3, "group_size": 2, "max_tokens": MAX_TOKENS},
        "objective": {"preset": preset, "mask_truncated": True, **objective},
        "optim": {"minibatches": minibatches, "micro_rollouts": rows},
    }
    return validate(values, Recipe)


def batch(data: Mapping[str, Tensor]) -> Batch:
    everyone = torch.ones(ROWS, dtype=torch.bool)
    return Batch(
        prompts=[[0]] * ROWS,
        completions=[row[:n].tolist() for row, n in zip(data["tokens"], HELD_BY_TRL.tolist(), strict=True)],
        sampler_logps=[torch.zeros(n) for n in HELD_BY_TRL.tolist()],
        lengths=HELD_BY_TRL,
        groups=torch.arange(ROWS) // 2,
        rewards=torch.zeros(ROWS, dtype=torch.float64),
        scored=everyone,
        rejected=~everyone,
        dead=~everyone,
        truncated=torch.arange(ROWS) == CUT_AT_LIMIT,
        parts=torch.zeros(ROWS, 1, dtype=torch.float64),
    )


def our_losses(settings: Recipe, data: Mapping[str, Tensor]) -> list[tuple[float, Tensor]]:
    """Loss and gradient at the logits of each optimiser step: the plan's micro-batches, one after the other."""
    found = []
    for plan in plan_steps(batch(data), ADVANTAGES[:, None], settings):
        leaf, total = data["logits"].clone().requires_grad_(), 0.0
        for rows in plan.micro:
            inputs = Inputs(
                mask=(torch.arange(data["tokens"].shape[1]) < HELD_BY_TRL[rows, None]).long(),
                advantages=ADVANTAGES[rows, None],
                omega={name: term.omega[rows] for name, term in plan.terms.items()},
                coef={"kl": settings.objective.beta, "entropy": settings.objective.entropy_coef},
                logp_old=data["old"][rows],
                logp_ref=data["reference"][rows],
            )
            logits, tokens = leaf[rows], data["tokens"][rows]
            entropy = token_entropy(logits) if "entropy" in inputs.omega else None
            loss = micro_loss(token_logps(logits, tokens), entropy, inputs, settings.objective)
            loss.total.backward()
            total += float(loss.total.detach())
        assert leaf.grad is not None
        found.append((total, leaf.grad))
    return found


def their_losses(
    preset: str, data: dict[str, Tensor], rows: int, minibatches: int, **changed: Any
) -> list[tuple[float, Tensor]]:
    """TRL's loss and gradient of each optimiser step; TRL cuts in order, into equal micro-batches where they fit."""
    low = {"epsilon_low": 0.2, "epsilon_high": 0.2}
    steps = [step.tolist() for step in torch.arange(ROWS).tensor_split(minibatches)]
    cuts = [[step[at : at + rows] for at in range(0, len(step), rows)] for step in steps]
    whole = sum(map(len, cuts))
    return [
        trl_loss(preset.removeprefix("trl:"), data, cut, **low, steps_per_generation=whole, **changed) for cut in cuts
    ]


@pytest.mark.parametrize(("rows", "minibatches"), [(6, 1), (3, 1), (4, 1), (1, 1), (3, 2), (2, 2), (1, 2)])
@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("preset", PRESETS)
def test_preset(preset: str, term: str, rows: int, minibatches: int) -> None:
    """One micro-batch, equal ones, unequal ones, single rows; then two optimiser steps to a generation."""
    data = tensors(11)
    objective, arguments = TERMS[term]
    ours = our_losses(recipe(preset, objective, rows, minibatches), data)
    theirs = their_losses(preset, data, rows, minibatches, **arguments)
    assert len(ours) == len(theirs) == minibatches
    for one, other in zip(ours, theirs, strict=True):
        assert_same(other, one)


def unlike(one: Tensor, other: Tensor) -> bool:
    apart = float((one - other).norm() / other.norm())
    assert apart < 1e-9 or apart > 1e-4
    return apart > 1e-4


#: By which cut TRL's gradient moves away from that of the uncut step: 4 + 2 rows, 3 + 3 rows.
MOVED = {
    "trl:bnpo": (True, True),
    **dict.fromkeys(("trl:grpo", "trl:sapo", "trl:dr_grpo", "trl:luspo"), (True, False)),
    **dict.fromkeys(("trl:dapo", "trl:cispo", "trl:vespo"), (False, False)),
}


@pytest.mark.parametrize("preset", PRESETS)
def test_both_depend_on_the_cut_alike(preset: str) -> None:
    data = tensors(12)
    ours = {rows: our_losses(recipe(preset, {}, rows), data)[0][1] for rows in (6, 4, 3)}
    theirs = {rows: their_losses(preset, data, rows, 1)[0][1] for rows in (6, 4, 3)}
    for found in (ours, theirs):
        assert (unlike(found[4], found[6]), unlike(found[3], found[6])) == MOVED[preset]


@pytest.mark.parametrize("preset", PRESETS)
def test_with_an_entropy_bonus_all_depend_on_the_cut(preset: str) -> None:
    data, (objective, arguments) = tensors(13), TERMS["entropy"]
    ours = [our_losses(recipe(preset, objective, rows), data)[0][1] for rows in (6, 3)]
    theirs = [their_losses(preset, data, rows, 1, **arguments)[0][1] for rows in (6, 3)]
    assert unlike(*ours)
    assert unlike(*theirs)


@pytest.mark.parametrize("preset", ["trl:dapo", "trl:cispo", "trl:vespo"])
def test_a_generation_of_two_steps_is_divided_in_expectation_only(preset: str) -> None:
    """Steps of 10 and 12 tokens are both divided by 11; `scope = "update"` divides each by its own."""
    data = tensors(14)
    assert [int(MASK[:3].sum()), int(MASK[3:].sum())] == [10, 12]
    ours = our_losses(recipe(preset, {}, 3, 2), data)
    exact = our_losses(recipe(preset, {"scope": "update"}, 3, 2), data)
    for (_, one), (_, other), ratio in zip(ours, exact, (10 / 11, 12 / 11), strict=True):
        torch.testing.assert_close(one, other * ratio, rtol=1e-12, atol=0)
