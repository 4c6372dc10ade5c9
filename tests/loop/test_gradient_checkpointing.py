"""Gradient checkpointing: the same gradient, and less held for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from loop_parts import difference, gradients_of, recipe, tiny_policy, update
from test_gradient_of_presets import batch
from test_lora import adapted_policy
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from cupola.train.loop import Learner
from cupola.train.models import AdapterOff, Reference, completion_scores, critic_of, in_float64, pad, recompute, unpack

CASES: dict[str, dict[str, Any]] = {
    "all terms": {"objective": {"beta": 0.3, "entropy_coef": 0.2}},
    "two steps, cut": {"objective": {"beta": 0.3}, "optim": {"epochs": 2, "micro_tokens": 60, "learning_rate": 0.1}},
    "critic": {"objective": {"preset": "ppo"}},
    "adapter": {"objective": {"beta": 0.3}, "model": {"lora": {}}},
}


def learner_for(case: str, checkpointing: bool) -> Learner:
    given = dict(CASES[case])
    settings = recipe(
        given.pop("objective"), {**given.pop("optim", {}), "gradient_checkpointing": checkpointing}, **given
    )
    policy = tiny_policy() if settings.model.lora is None else adapted_policy(learnt=True)
    reference = Reference(tiny_policy(1).model) if policy.adapter is None else AdapterOff(policy.model, policy.adapter)
    critic = critic_of(policy) if settings.objective.baseline == "critic" else None
    return Learner(policy, reference, settings, critic)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_the_same(case: str) -> None:
    found = {}
    for checkpointing in (False, True):
        learner = learner_for(case, checkpointing)
        gradients = [gradients_of(learner)] + ([gradients_of(learner, True)] if learner.critic else [])
        update(learner, batch())
        found[checkpointing] = [each for model in gradients for step in model for each in step]
    assert len(found[True]) == len(found[False]) > 0
    assert difference(found[True], found[False]) < 1e-12


@pytest.mark.parametrize("packed", [True, False])
def test_less_is_held_until_the_backward_pass(packed: bool) -> None:
    """Bytes that autograd holds for a forward pass over answers that share prompts, in one pass or over a cache."""
    prompts, completions = [[3, 4, 5]] * 3 + [[6, 7]] * 3, [[8, 9, 10, 11]] * 6
    held = {}
    for checkpointing in (False, True):
        policy = tiny_policy()
        if not packed:
            unpack(policy.model)
        if checkpointing:
            recompute(policy.model)
        sizes: list[int] = []

        def note(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            completion_scores(policy.model, pad(prompts, completions, policy.pad_id), 1.0)
        held[checkpointing] = sum(sizes)
    assert held[True] < 0.3 * held[False]


SHAPE = {"vocab_size": 16, "initializer_range": 0.4}
TWO = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
OTHERS: dict[str, Callable[[], PreTrainedModel]] = {
    "its cache by position": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, **SHAPE)),
    "its cache by another name": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**TWO, **SHAPE)),
    "sliding layers": lambda: Gemma2ForCausalLM(
        Gemma2Config(**TWO, **SHAPE, num_key_value_heads=1, head_dim=8, sliding_window=4)
    ),
    "llama, not packed": lambda: LlamaForCausalLM(LlamaConfig(**TWO, **SHAPE)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_over_a_cache_too(name: str) -> None:
    """Models that read prompts first and completions over their keys and values, in float64."""
    torch.manual_seed(0)
    model = in_float64(OTHERS[name]().eval())
    sequences = pad([[3, 4, 5]] * 3 + [[6, 7, 2]] * 2, [[8, 9, 10, 11, 12], [9], [1, 2], [3, 3, 3], [4, 5]], 0)
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            recompute(model)
        model.zero_grad()
        logp, _ = completion_scores(model, sequences, 1.0)
        logp[sequences.mask.bool()].sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert difference(gradients[1], gradients[0]) < 1e-12
