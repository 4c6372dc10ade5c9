"""Every preset's gradient is the same however the batch is cut and padded.

The batch has unequal lengths, a sequence that is masked from end to end, one without a token, dead groups, groups
without signal, unscorable ones and a rejected rollout; KL, entropy bonus and the correction of the sampler are on.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loop_parts import (
    difference,
    gradients_of,
    group,
    mixed_groups,
    plain_logps,
    recipe,
    rows_forwarded,
    tiny_policy,
    update,
)
from torch import Tensor
from transformers import PreTrainedModel

from cupola.core.config.presets import OWN
from cupola.core.records import Group
from cupola.train.loop import Learner
from cupola.train.loop import update as update_module
from cupola.train.models import Policy, Reference, Sequences, critic_of, pad

#: Rollouts in a micro-batch, by the number of micro-batches that this cuts the 16 forwarded rollouts into.
CUTS = {1: 16, 2: 8, 3: 6, 8: 2, 16: 1}


def batch() -> list[Group]:
    """As the policy itself would have sampled it, but for one rollout: its sampler was 2 nats surer of each token."""
    policy, found = tiny_policy(), []
    odd = group("odd", "12+3=", [(5, 1.0, True), (0, 0.0, False), (12, 0.5, False)])
    for one in [*mixed_groups(), odd]:
        rollouts = []
        for i, rollout in enumerate(one.rollouts):
            ids = rollout.completion.token_ids.tolist()
            said = plain_logps(policy.model, policy.encode(one.prompt.content), ids, 0.7).detach().float().numpy()
            shift = 2.0 if (one.id, i) == ("holed", 2) else 0.1
            truncated = (one.id, i) == ("odd", 2)
            completion = replace(
                rollout.completion,
                logps=(said + shift).astype(np.float32),
                finish_reason="length" if truncated else "stop",
            )
            rollouts.append(replace(rollout, completion=completion))
        found.append(replace(one, rollouts=tuple(rollouts)))
    return found


def learner_of(preset: str, cut: int, dtype: torch.dtype) -> Learner:
    """Two passes over the batch: the second step sees ratios that are not 1."""
    objective: dict[str, Any] = {"preset": preset, "beta": 0.3, "entropy_coef": 0.2, "mask_truncated": True}
    objective["masks"] = {"reject": {"low": 0.5, "high": 2.0}}
    if "vespo" not in preset:  # its own weight is of the ratio to the sampler
        objective["correction"] = {"level": "token"}
    optim = {"learning_rate": 2e-4, "epochs": 2, "micro_rollouts": cut}
    settings = recipe(objective, optim)
    policy = tiny_policy(dtype=dtype)
    critic = None
    if settings.objective.baseline == "critic":
        critic = critic_of(policy)
        torch.manual_seed(5)
        torch.nn.init.normal_(critic.head.weight, std=0.3)
    return Learner(policy, Reference(nearby(policy)), settings, critic)


def nearby(policy: Policy) -> PreTrainedModel:
    """The policy with a tenth of its weights' size as noise: far enough for a KL, near enough for k3 to stay small."""
    torch.manual_seed(1)
    model = copy.deepcopy(policy.model)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, dtype=torch.float64).to(weight)
            weight.add_(0.1 * noise * weight.std() if weight.numel() > 1 else 0.1 * noise)
    return model


def gradients(preset: str, pieces: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """Of each of the two optimiser steps, the critic's behind the policy's."""
    learner = learner_of(preset, CUTS[pieces], dtype)
    found = gradients_of(learner)
    of_critic = gradients_of(learner, critic=True) if learner.critic is not None else [[]] * 2
    forwarded = rows_forwarded(learner.policy.model)
    updated = update(learner, batch())
    assert forwarded[-1] == 16 - CUTS[pieces] * (pieces - 1)  # of the last step's last micro-batch
    assert updated.metrics["sampler/rejected"] == 1
    assert len(found) == 2
    return [[*step, *critic] for step, critic in zip(found, of_critic, strict=True)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["fp64", "fp32"])
@pytest.mark.parametrize("preset", OWN)
def test_one_gradient_however_the_batch_is_cut(preset: str, dtype: torch.dtype, bound: float) -> None:
    """Each rollout alone has no padding; all together are padded to the longest."""
    whole = gradients(preset, 1, dtype)
    worst = 0.0
    for pieces in CUTS:
        found = gradients(preset, pieces, dtype)
        worst = max([worst, *(difference(step, same) for step, same in zip(found, whole, strict=True))])
    print(f"{preset}: {worst:.1e}")
    assert worst < bound


@pytest.mark.parametrize("preset", OWN)
def test_padding_adds_nothing(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five more columns of padding before every micro-batch's prompts."""
    plain = gradients(preset, 3, torch.float64)

    def wider(prompts: list[list[int]], completions: list[list[int]], pad_id: int) -> Sequences:
        made = pad([*prompts, [pad_id] * (max(map(len, prompts)) + 5)], [*completions, completions[0]], pad_id)
        return Sequences(*(tensor[:-1] for tensor in vars(made).values()))

    monkeypatch.setattr(update_module, "pad", wider)
    padded = gradients(preset, 3, torch.float64)
    assert max(difference(step, same) for step, same in zip(padded, plain, strict=True)) < 1e-9
