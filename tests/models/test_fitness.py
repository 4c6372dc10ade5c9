"""Models that the update would read otherwise than their own forward pass are refused when they are loaded."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_policy
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
    RobertaConfig,
    RobertaForCausalLM,
)

from cupola.core.records import ModelError
from cupola.train.models import Policy, require_fit


def policy_of(model: PreTrainedModel) -> Policy:
    return Policy("./model", model.eval(), None, (1,), 0, 64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_decoders_fit(dtype: torch.dtype) -> None:
    policy = tiny_policy()
    torch.nn.Module.to(policy.model, dtype)
    require_fit(policy)
    torch.manual_seed(0)
    gpt2 = policy_of(GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=16, initializer_range=0.4)))
    require_fit(gpt2)
    assert policy.model.dtype == dtype


def test_an_encoder_that_numbers_its_positions_otherwise_is_refused() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = RobertaForCausalLM(RobertaConfig(**shape, vocab_size=16, is_decoder=True, initializer_range=0.6))
    with pytest.raises(ModelError, match=r"^\./model: its log-probabilities change by .* nats with padding or cache"):
        require_fit(policy_of(model))


def test_a_model_without_keys_and_values_is_refused() -> None:
    model = MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=16, state_size=4))
    with pytest.raises(ModelError, match=r"^\./model: "):
        require_fit(policy_of(model))
