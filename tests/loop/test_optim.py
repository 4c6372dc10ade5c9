"""Optimisers and schedules by name."""

import pytest
import torch
from torch.nn import Parameter

from cupola.core.config import Optim
from cupola.core.records import RecipeError
from cupola.train.loop.optim import build_optimizer, learning_rate
from cupola.train.models import ONE_THREAD_PARAMETERS


def parameters() -> list[Parameter]:
    return [Parameter(torch.ones(2, 2)), Parameter(torch.ones(3))]


def test_an_optimiser_gets_the_settings_it_knows() -> None:
    settings = Optim(name="AdamW", learning_rate=0.1, betas=(0.8, 0.9), weight_decay=0.3)
    built = build_optimizer(settings, parameters())
    assert type(built) is torch.optim.AdamW
    assert {key: built.defaults[key] for key in ("lr", "betas", "weight_decay")} == {
        "lr": 0.1,
        "betas": (0.8, 0.9),
        "weight_decay": 0.3,
    }
    assert type(build_optimizer(Optim(name="sgd"), parameters())) is torch.optim.SGD


def test_an_unknown_optimiser_is_refused_with_the_list() -> None:
    with pytest.raises(RecipeError, match=r"optim\.name: no optimiser 'adamx' in torch\.optim; there are .*adamw.*sgd"):
        build_optimizer(Optim(name="adamx"), parameters())


@pytest.mark.parametrize("name", ["lbfgs", "muon", "sparseadam"])
def test_an_optimiser_that_cannot_train_a_policy_is_refused(name: str) -> None:
    """One that wants a closure, matrices alone, or sparse gradients would fail in the middle of the first update."""
    with pytest.raises(RecipeError, match=r"optim\.name"):
        build_optimizer(Optim(name=name), parameters())


def test_linear_with_warm_up_by_hand() -> None:
    """Warm-up of 2, then from the peak to where an eleventh update would have 0."""
    rate = learning_rate(Optim(learning_rate=1.0, warmup_steps=2), updates=10)
    assert [rate(update) for update in range(1, 11)] == pytest.approx(
        [1 / 2, 1, *(k / 9 for k in range(8, 0, -1))], rel=1e-12
    )


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant_with_warmup", "inverse_sqrt", "polynomial"])
@pytest.mark.parametrize("warmup", [0, 1, 5, 100])
@pytest.mark.parametrize("updates", [1, 5, 20])
def test_no_update_is_spent_at_a_rate_of_zero(schedule: str, warmup: int, updates: int) -> None:
    rate = learning_rate(Optim(learning_rate=0.1, schedule=schedule, warmup_steps=warmup), updates)
    assert all(0 < rate(update) <= 0.1 for update in range(1, updates + 1))


def test_an_unknown_schedule_is_refused_with_the_list() -> None:
    with pytest.raises(RecipeError, match=r"optim\.schedule: .*linaer.*'linear', 'cosine'"):
        learning_rate(Optim(schedule="linaer"), 10)


@pytest.mark.parametrize("schedule", ["reduce_lr_on_plateau", "warmup_stable_decay", "cosine_with_min_lr"])
def test_a_schedule_that_needs_more_than_the_step_is_refused(schedule: str) -> None:
    with pytest.raises(RecipeError, match=r"optim\.schedule"):
        learning_rate(Optim(schedule=schedule), 10)


def test_a_large_model_is_stepped_in_one_pass() -> None:
    """Fused and plain AdamW take the same step; which one is taken depends on the size alone."""
    stepped = []
    for size in (ONE_THREAD_PARAMETERS, ONE_THREAD_PARAMETERS + 1):
        parameter = Parameter(torch.linspace(-1, 1, size))
        optimizer = build_optimizer(Optim(learning_rate=0.1, weight_decay=0.1), [parameter])
        assert bool(optimizer.defaults["fused"]) == (size > ONE_THREAD_PARAMETERS)
        parameter.grad = torch.linspace(1, 2, size)
        optimizer.step()
        stepped.append(parameter.detach())
    torch.testing.assert_close(stepped[0], stepped[1][:-1], atol=1e-5, rtol=1e-5)


def test_a_warm_up_that_a_schedule_does_not_have_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"^optim.warmup_steps: schedule 'constant' has no warm-up; take 'constant_w"):
        learning_rate(Optim(schedule="constant", warmup_steps=5), 10)
