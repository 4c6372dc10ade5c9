"""A tiny random policy, and its log-probabilities without cache, batch or padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig

from cupola.train.models import Policy, new_policy

ALPHABET = "0123456789+="


def tiny_policy(context: int = 64, seed: int = 0) -> Policy:
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return new_policy(ALPHABET, LlamaConfig(**shape, max_position_embeddings=context, initializer_range=0.4))


@torch.no_grad()
def distributions(policy: Policy, prompt: str, completion: Sequence[int], temperature: float) -> Tensor:
    """log softmax(logits / temperature) before each completion token, (T, V)."""
    ids = [*policy.encode(prompt), *completion]
    logits: Tensor = policy.model(input_ids=torch.tensor([ids])).logits[0, -len(completion) - 1 : -1]
    return (logits / temperature).log_softmax(-1)
