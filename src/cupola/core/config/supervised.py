"""The supervised recipe (`cupola sft`): the cold start."""

from __future__ import annotations

from pydantic import Field, model_validator

from cupola.core.config.section import Misfit, NotNegative, PositiveInt, Section, Text
from cupola.core.config.shared import Optim, Seed, Source, Threads


class SftRun(Section):
    seed: Seed = 0
    threads: Threads = 0


class Start(Section):
    """The model to train: one that exists, or a new one of a shape."""

    source: Text | None = Field(None, description="Model to start from; without it a new one of the shape below.")
    hidden_size: PositiveInt = Field(48, description="Width of a new Llama-shaped model.")
    layers: PositiveInt = Field(2, description="Layers of a new model.")
    heads: PositiveInt = Field(4, description="Attention heads of a new model.")
    intermediate_size: PositiveInt = Field(128, description="Feed-forward width of a new model.")
    context: PositiveInt = Field(128, description="Longest sequence of a new model in tokens.")
    initializer_range: NotNegative = Field(0.02, description="Standard deviation of a new model's initial weights.")
    alphabet: Text = Field("0123456789", description="Characters of a new model, one token each.")

    @model_validator(mode="after")
    def _one_model(self) -> Start:
        shape = self.model_fields_set - {"source"}
        if self.source is not None and shape:
            raise Misfit(min(shape), "describes a new model, but `source` names one that exists; give one of the two")
        return self


class Training(Section):
    steps: PositiveInt = Field(600, description="Optimiser steps.")
    batch_size: PositiveInt = Field(64, description="Examples per step.")


class SftRecipe(Section):
    """Train on every example of `data`: its prompt and the text in its column `target`."""

    run: SftRun = Field(default_factory=SftRun)
    model: Start = Field(default_factory=Start)
    data: Source
    training: Training = Field(default_factory=Training)
    optim: Optim = Field(default_factory=Optim)
    output: Text = Field(description="Folder the model is written to; it must not exist.")
