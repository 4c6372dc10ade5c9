"""Sections that a training recipe and a supervised one have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from cupola.core.config.section import Count, Decay, Int63, Misfit, NotNegative, Positive, PositiveInt, Section, Text

Seed = Annotated[Int63, Field(description="Seed of the order of prompts and of everything that is sampled.")]
Threads = Annotated[int, Field(ge=0, le=1024, description="CPU threads of torch; 0 takes what `doctor` advises.")]


class Source(Section):
    """Where prompts come from, and how they are asked."""

    task: Text | None = Field(None, description="A built-in task, `arithmetic` or `sums`; excludes `file`.")
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of the built-in task.")
    file: Text | None = Field(None, description="Rows of your own: .jsonl, .parquet or .csv with prompt or question.")
    chat: bool = Field(False, description="Wrap plain questions as a user message of the model's chat template.")
    system: str | None = Field(None, description="System message put before each chat.")

    @model_validator(mode="after")
    def _one_source(self) -> Source:
        if self.task is None and self.file is None:
            raise ValueError("names no prompts; give a `task` or a `file`")
        if self.task is not None and self.file is not None:
            raise Misfit("file", "stands beside `task`; give one of the two")
        if self.file is not None and self.options:
            raise Misfit("options", "are settings of a built-in task, but the prompts come from `file`")
        if self.system is not None and not self.chat and (self.task or str(self.file).lower().endswith(".csv")):
            raise Misfit("system", "needs chat messages, but the prompts are plain text; set data.chat = true")
        return self


class Optim(Section):
    """The optimiser and its schedule."""

    name: str = Field("adamw", description="Optimiser: a class of torch.optim, by name in any case.")
    learning_rate: Annotated[Positive, Field(le=10)] = Field(1e-6, description="Peak learning rate.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), strict=False, description="Adam's decay rates.")
    weight_decay: NotNegative = Field(0.0, description="Decoupled weight decay.")
    schedule: str = Field("linear", description="Schedule by transformers' name (linear, cosine, constant, ...).")
    warmup_steps: Count = Field(0, description="Optimiser steps of linear warm-up.")
    max_grad_norm: Positive = Field(1.0, description="Gradient clipping norm.")
    micro_tokens: PositiveInt = Field(
        16384,
        description="Padded tokens per forward; changes memory, and the gradient only of a denominator of another "
        "trainer that counts by micro-batch.",
    )
