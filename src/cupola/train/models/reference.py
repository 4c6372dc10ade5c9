"""The reference: the policy that a KL term holds the trained one near."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from transformers import PreTrainedModel


class Reference:
    """A model of its own. With `every`, it moves after the policy, as TRL's `sync_ref_model` does.

        ref <- mixup * policy + (1 - mixup) * ref        after each `every` optimiser steps

    Source: TR-DPO, arXiv 2404.09656.
    """

    def __init__(self, model: PreTrainedModel, every: int | None = None, mixup: float = 0.6) -> None:
        self.model, self.every, self.mixup = model, every, mixup

    @contextmanager
    def speaking(self) -> Iterator[PreTrainedModel]:
        """The model as it is to be asked."""
        yield self.model

    @torch.no_grad()
    def follow(self, policy: PreTrainedModel, version: int) -> None:
        """Move where optimiser step `version` is due."""
        if self.every is None or version % self.every:
            return
        for own, other in zip(self.model.parameters(), policy.parameters(), strict=True):
            own.lerp_(other.to(own), self.mixup)


class AdapterOff(Reference):
    """The policy itself with its adapter switched off: the policy before training, without a second model in memory."""

    def __init__(self, model: PreTrainedModel, adapter: PeftModel) -> None:
        super().__init__(model)
        self.adapter = adapter

    @contextmanager
    def speaking(self) -> Iterator[PreTrainedModel]:
        """The policy's model, which answers without its adapter until the block ends."""
        with self.adapter.disable_adapter():
            yield self.model
