"""The lean step against the model's own, for every architecture that it knows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from cupola.core.config import Lora
from cupola.train.models import decoder as module
from cupola.train.models.adapter import adapt
from cupola.train.models.decoder import Cached, Decoder, Lean, LeanWeights, agree, is_lean
from cupola.train.models.packed import LLAMA_LIKE

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama, biased and tied": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    ),
    "llama, long context": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4})
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
}
IDS = torch.tensor([[0, 0, 5, 9], [3, 4, 8, 7], [0, 6, 1, 2]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
NEXT = torch.tensor([[7, 11, 30], [1, 2, 3], [8, 8, 9]])


def made(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = MODELS[name]().eval()
    for parameter in model.parameters():  # biases and norms start at 0 and 1, where a mistake would not show
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def prefilled(model: PreTrainedModel) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    positions = (MASK.cumsum(-1) - 1).clamp(min=0)
    model(input_ids=IDS, attention_mask=MASK, position_ids=positions, cache=cache, use_cache=True)
    return cache


def continued(decoder: Decoder) -> list[Tensor]:
    """Two steps of three rows, then one of the last two."""
    found, mask, position = [], MASK, MASK.sum(-1)
    for token in NEXT[:2]:
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        found.append(decoder.step(token, position, mask))
        position = position + 1
    kept = torch.tensor([1, 2])
    decoder.keep(kept)
    mask = torch.cat([mask[kept], mask.new_ones(2, 1)], 1)
    return [*found, decoder.step(NEXT[2][kept], position[kept], mask)]


@pytest.mark.parametrize("small", [0, 2**16], ids=["packed", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_both_steps_give_the_same_logits(name: str, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", small)
    model = made(name)
    assert is_lean(model)
    with torch.inference_mode():
        own = continued(Cached(model, prefilled(model)))
        lean = continued(Lean(LeanWeights(model, 3), prefilled(model), columns=7))
    for expected, found in zip(own, lean, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_every_architecture_is_tried_here() -> None:
    assert {type(made(name)).__name__ for name in MODELS} == set(LLAMA_LIKE)


def test_an_adapter_is_merged() -> None:
    model = made("llama")
    adapt(model, Lora(rank=4), seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    with torch.inference_mode():
        own = continued(Cached(model, prefilled(model)))
        lean = continued(Lean(LeanWeights(model, 3), prefilled(model), columns=7))
    torch.testing.assert_close(lean[-1], own[-1], atol=1e-4, rtol=1e-4)


def test_what_it_does_not_know_decodes_as_transformers_does() -> None:
    shape = {"n_embd": 24, "n_layer": 2, "n_head": 4, "vocab_size": 32}
    assert not is_lean(GPT2LMHeadModel(GPT2Config(**shape)))
    assert not is_lean(made("llama").to(torch.float64))
    assert not is_lean(MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4)))


def test_a_model_that_computes_otherwise_is_found_out() -> None:
    """Twice the attention's output: the class is Llama's, the arithmetic is not."""
    model = made("llama")
    with torch.inference_mode():
        assert agree(model)
        model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda module, args, out: 2 * out)
        assert not agree(model)
