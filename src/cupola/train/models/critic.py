"""The critic of PPO: a model of its own that says what an unfinished answer is worth."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cupola.train.models.policy import Policy
from cupola.train.models.scoring import Sequences, read


class Critic(torch.nn.Module):
    """V(s_t) of every completion token, s_t being the prompt and the tokens before it.

    The body is a language model without its head; a linear head of one output stands in its place and starts at 0, so
    that the first advantages are returns.
    """

    def __init__(self, body: PreTrainedModel, hidden_size: int) -> None:
        super().__init__()
        self.body = body
        self.head = torch.nn.Linear(hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, sequences: Sequences) -> Tensor:
        """Values (N, T) in at least float32; a value stands at its token and has seen only what precedes it."""
        hidden = torch.cat(read(self.body, sequences, head=False), 1)
        values: Tensor = self.head(hidden.to(self.head.weight)).squeeze(-1)
        return values


def critic_of(policy: Policy) -> Critic:
    """A critic whose body is a copy of the policy's, on the same device and of the same type.

    It trains its head and what the policy trains of its own body: all of it, or an adapter.
    """
    body: Any = copy.deepcopy(policy.model.base_model)
    critic = Critic(body, policy.model.config.hidden_size)
    wide = torch.promote_types(policy.model.dtype, torch.float32)  # a value's small moves are lost in bfloat16
    critic.head.to(device=policy.device, dtype=wide)
    return critic.eval()
