"""The supervised cold start: its loss by hand, and the gradient however the batch is cut."""

from __future__ import annotations

import math

import pytest
import torch
from loop_parts import difference, plain_logps, tiny_policy

from cupola.core.config import Optim
from cupola.core.records import DataError, NumericalError, Prompt
from cupola.train.loop import supervised
from cupola.train.models import Policy
from cupola.train.tasks import TARGET

EXAMPLES = [Prompt(f"{a}+{b}=", columns={TARGET: str(a + b)}) for a, b in [(1, 2), (10, 20), (100, 7), (5, 5)]]
SGD = {"name": "sgd", "schedule": "constant", "max_grad_norm": 1e9}


def train(policy: Policy, optim: Optim, steps: int = 1) -> list[float]:
    losses: list[float] = []
    supervised(policy, lambda step: EXAMPLES, steps, optim, lambda step, loss: losses.append(loss))
    return losses


@pytest.mark.parametrize("micro_tokens", [1, 25, 1000])
def test_the_loss_is_the_token_mean_however_the_batch_is_cut(micro_tokens: int) -> None:
    policy, still = tiny_policy(), tiny_policy()
    (loss,) = train(policy, Optim(**SGD, learning_rate=1.0, micro_tokens=micro_tokens))
    logps = []
    for example in EXAMPLES:
        target = [*still.encode(example.columns[TARGET]), 1]  # ended by the stop id
        logps.append(plain_logps(still.model, still.encode(example.content), target, 1.0))
    expected = -torch.cat(logps).mean()
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    parameters = list(still.model.parameters())
    moved = [a.detach() - b.detach() for a, b in zip(parameters, policy.model.parameters(), strict=True)]
    assert difference(moved, torch.autograd.grad(expected, parameters)) < 1e-9


def test_it_learns() -> None:
    losses = train(tiny_policy(dtype=torch.float32), Optim(name="adamw", learning_rate=0.03), steps=60)
    assert losses[-1] < 0.1 < 1 < losses[0]


def test_an_example_without_a_target_is_named() -> None:
    bad = Prompt("1+1=", columns={TARGET: ""})
    with pytest.raises(DataError, match=f"prompt {bad.id}: .* text column `target`"):
        supervised(tiny_policy(), lambda step: [bad], 1, Optim(), lambda step, loss: None)


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    policy = tiny_policy()
    with torch.no_grad():
        next(policy.model.parameters())[5, 0] = math.nan
    before = [p.detach().numpy().tobytes() for p in policy.model.parameters()]
    with pytest.raises(NumericalError, match="supervised step 1"):
        train(policy, Optim(**SGD))
    assert [p.detach().numpy().tobytes() for p in policy.model.parameters()] == before
