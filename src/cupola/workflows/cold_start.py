"""The supervised cold start: a recipe to a model folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cupola.core.config import SftRecipe
from cupola.core.records import Prompt, RunFolderError
from cupola.train.loop import seed_globals, supervised
from cupola.train.models import Policy, llama_shape, load_policy, new_policy, save_policy, set_threads, whole_folder
from cupola.train.tasks import open_examples


def cold_start(recipe: SftRecipe, report: Callable[[int, float], None]) -> Path:
    """Train from scratch or from `model.source` on every example of `data`; returns the folder written.

    Raises RunFolderError if the output exists, DataError for an example without a text in its column `target`.
    """
    output = Path(recipe.output)
    if output.exists():
        raise RunFolderError(f"{output}: exists already; choose another output")
    source = open_examples(recipe.data, recipe.run.seed)
    seed_globals(recipe.run.seed)  # a new model draws its first weights
    policy = _start(recipe)
    set_threads(policy.parameters, recipe.run.threads)

    def draw(step: int) -> list[Prompt]:
        return source.draw(step - 1, recipe.training.batch_size)

    supervised(policy, draw, recipe.training.steps, recipe.optim, report)
    with whole_folder(output) as temporary:
        save_policy(policy, temporary)
    return output


def _start(recipe: SftRecipe) -> Policy:
    start = recipe.model
    if start.source is not None:
        return load_policy(start.source)
    shape = llama_shape(**start.model_dump(exclude={"source", "alphabet"}))
    return new_policy(start.alphabet, shape)
