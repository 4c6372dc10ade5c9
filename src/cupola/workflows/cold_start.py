"""The supervised cold start: a recipe to a model folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig

from cupola.core.config import SftRecipe
from cupola.core.records import Prompt, RunFolderError
from cupola.train.loop import supervised
from cupola.train.models import Policy, choose_threads, load_policy, new_policy, save_policy
from cupola.train.tasks import open_source


def cold_start(recipe: SftRecipe, report: Callable[[int, float], None]) -> Path:
    """Train from scratch or from `model.source` on (prompt, target) pairs; returns the folder written.

    Raises RunFolderError if the output exists, DataError for an example without a `target` column.
    """
    output = Path(recipe.output)
    if output.exists():
        raise RunFolderError(f"{output}: exists already; choose another output")
    torch.manual_seed(recipe.run.seed)
    policy = _start(recipe)
    torch.set_num_threads(choose_threads(policy.parameters, recipe.run.threads))
    source = open_source(recipe.data, [], recipe.run.seed)

    def draw(step: int) -> list[Prompt]:
        return source.draw(step - 1, recipe.training.batch_size)

    supervised(policy, draw, recipe.training.steps, recipe.optim, report)
    save_policy(policy, output)
    return output


def _start(recipe: SftRecipe) -> Policy:
    start = recipe.model
    if start.source is not None:
        return load_policy(start.source)
    shape = LlamaConfig(
        hidden_size=start.hidden_size,
        intermediate_size=start.intermediate_size,
        num_hidden_layers=start.layers,
        num_attention_heads=start.heads,
        num_key_value_heads=start.heads,
        max_position_embeddings=start.context,
        initializer_range=start.initializer_range,
        tie_word_embeddings=True,
    )
    return new_policy(start.alphabet, shape)
