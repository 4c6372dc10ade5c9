"""The fake server as a process, and a recipe that trains the embedded policy against it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from cupola.core.config import Recipe, load_recipe
from cupola.train.models import EMBEDDED
from cupola.workflows.assemble import Assembly, assemble
from cupola.workflows.train import Trained, train_recipe

RECIPE = """
[run]
name = "served"
folder = "{folder}"
steps = 3

[model]
source = "{model}"

[data]
task = "arithmetic"
options = {{ levels = [1] }}

[sampling]
prompts_per_step = 4
group_size = 4
max_tokens = 12
temperature = 1.5

[sampler]
kind = "vllm"
url = "{url}"
transfer = "gloo"
timeout = 20
retries = 0

[[reward]]
name = "correct"
kind = "exact"
extract = '#(\\d+)$'

[[reward]]
name = "turns"
kind = "function"
path = "{folder}/reward.py:turns"

[optim]
learning_rate = 1e-3

[validation]
every = 2
questions = 4
samples = 2
"""

#: In place of the broadcast: the adapter alone, through a folder.
LORA = ("sampler.transfer=files", "model.lora.rank=4", "model.lora.alpha=8")

#: Draw while the update before runs, until the last step is validated.
AHEAD = ("sampling.one_step_off=true", "objective.correction.level=token", "validation.every=3")


@contextmanager
def serving(*options: str, model: Path = EMBEDDED) -> Iterator[str]:
    """The address of a fake server that holds `model`."""
    command = [sys.executable, str(Path(__file__).with_name("fake_vllm.py")), str(model), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def restart(url: str) -> None:
    """As if the server were ended and started again: it well behaves, and holds what is on disk."""
    httpx.post(f"{url}/restart").raise_for_status()


def misbehave(url: str, how: str, times: int = 1) -> None:
    """Let the server do so at its next occasions."""
    httpx.post(f"{url}/misbehave", json={"how": how, "times": times}).raise_for_status()


def recipe_for(url: str, folder: Path, *overrides: str, model: str = "embedded") -> tuple[Recipe, Any]:
    (folder / "reward.py").write_text(
        "def turns(completions, **_):\n    return [i % 3 for i in range(len(completions))]\n"
    )
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(folder=folder, url=url, model=model))
    return load_recipe([path], overrides)


def parts_for(url: str, folder: Path, *overrides: str) -> Assembly:
    return assemble(recipe_for(url, folder, *overrides)[0])


def train_against(url: str, folder: Path, *overrides: str, model: str = "embedded", **kwargs: Any) -> Trained:
    recipe, provenance = recipe_for(url, folder, *overrides, model=model)
    return train_recipe(recipe, provenance, **kwargs)
