"""Optimisers by torch's name, schedules by transformers' name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable

import torch
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import Optimizer
from transformers import get_scheduler

from cupola.core.config import Optim
from cupola.core.records import NumericalError, RecipeError
from cupola.train.models import ONE_THREAD_PARAMETERS

#: The abstract one, and those that want a closure, matrices alone, or sparse gradients.
UNFIT = ("Optimizer", "LBFGS", "Muon", "SparseAdam")

#: Those that compute over a whole weight at once in ways that torch's sharded tensors lack.
WHOLE = ("adafactor", "rprop")

#: Those whose fused step sharded tensors have too: a checkpoint made by one process says so to many ranks.
FUSED = ("adam", "adamw")


def build_optimizer(settings: Optim, parameters: Iterable[Parameter]) -> Optimizer:
    """The optimiser class of torch.optim with this name in any case; it gets the settings its signature knows.

    Raises RecipeError for a name that there is not, or that cannot step on sharded parameters where these are.
    """
    parameters = list(parameters)
    classes: dict[str, Callable[..., Optimizer]] = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and name not in UNFIT
    }
    kind = classes.get(settings.name.lower())
    if kind is None:
        names = ", ".join(sorted(classes))
        raise RecipeError(f"optim.name: no optimiser {settings.name!r} in torch.optim; there are {names}")
    if settings.name.lower() in WHOLE and any(isinstance(parameter, DTensor) for parameter in parameters):
        raise RecipeError(f"optim.name: {settings.name!r} cannot step on several ranks; use 'adamw', or one process")
    known = inspect.signature(kind).parameters
    # One pass over weights and moments in place of ten: a fifth of the time, and no temporaries of the model's size.
    large = sum(parameter.numel() for parameter in parameters) > ONE_THREAD_PARAMETERS
    fused = (large and settings.name.lower() in FUSED) or None
    wanted = {"betas": settings.betas, "weight_decay": settings.weight_decay, "fused": fused}
    return kind(parameters, lr=settings.learning_rate, **{k: v for k, v in wanted.items() if k in known})


def learning_rate(settings: Optim, updates: int) -> Callable[[int], float]:
    """Learning rate of the u-th of `updates` optimiser steps, u from 1.

    The schedule is transformers'; it is read one step later than transformers' own trainer does, so that neither
    warm-up nor decay spends an update at a learning rate of 0.
    """
    if settings.schedule == "constant" and settings.warmup_steps:
        raise RecipeError("optim.warmup_steps: schedule 'constant' has no warm-up; take 'constant_with_warmup', or 0")
    dummy = torch.optim.SGD([Parameter(torch.zeros(1))], lr=settings.learning_rate)
    try:
        scheduler = get_scheduler(settings.schedule, dummy, settings.warmup_steps, updates + 1)
    except (ValueError, TypeError) as error:
        raise RecipeError(f"optim.schedule: {error}") from error
    factors = getattr(scheduler, "lr_lambdas", None)
    if factors is None:
        raise RecipeError(f"optim.schedule: {settings.schedule!r} depends on a metric, not on the step; choose another")
    return lambda update: settings.learning_rate * float(factors[0](update))


def take_step(optimizer: Optimizer, rate: float, max_norm: float, where: str) -> float:
    """Clip the gradient, set the learning rate, step and clear; returns the norm before clipping.

    Errors: see `clipped_norm`.
    """
    norm = clipped_norm(optimizer, max_norm, where)
    step_at(optimizer, rate, norm)
    return norm


def clipped_norm(optimizer: Optimizer, max_norm: float, where: str, key: str = "optim.learning_rate") -> float:
    """Clip the gradient; returns its norm before.

    Raises NumericalError naming `where`, and `key` as what to lower, for a norm that is not finite; the gradient is
    then cleared and the weights are untouched.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_norm))
    if not math.isfinite(norm):
        optimizer.zero_grad()
        raise NumericalError(
            f"{where}: the gradient's norm is {norm}; the update was refused and the weights are those before it "
            f"(lower {key}, or look at the last recorded rollouts)"
        )
    return norm


def step_at(optimizer: Optimizer, rate: float, norm: float) -> None:
    """Step at this learning rate and clear the gradient.

    Where its norm is exactly 0 the weights stay as they are: momentum and weight decay would move them.
    """
    if norm > 0:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    optimizer.zero_grad()
