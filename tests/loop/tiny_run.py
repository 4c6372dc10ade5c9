"""A small real run: the embedded policy, single-digit sums, and a reward function that draws from global generators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cupola.core.config import load_recipe
from cupola.core.runlog import RunReader
from cupola.workflows.train import Trained, train_recipe

STEPS = 6

REWARD = """
import os, random, time
import numpy

def noise(completions, **kwargs):
    time.sleep(float(os.environ.get("PACE", 0)))
    return [random.random() + numpy.random.random() for _ in completions]
"""

RECIPE = """
[run]
name = "tiny"
folder = "{folder}"
steps = {steps}

[data]
task = "arithmetic"
options = {{ levels = [1] }}

[sampling]
prompts_per_step = 4
group_size = 4
max_tokens = 16

[[reward]]
name = "correct"
kind = "exact"
extract = '#(\\d+)$'

[[reward]]
name = "noise"
kind = "function"
path = "{folder}/reward.py:noise"
weight = 0.1

[objective]
beta = 0.05
entropy_coef = 0.01

[optim]
learning_rate = 1e-3
warmup_steps = 2
minibatches = 2

[validation]
every = 2
questions = 4
samples = 2
"""


def write_recipe(folder: Path) -> Path:
    """The recipe and its reward function in `folder`; the run folder will be `folder/tiny`."""
    (folder / "reward.py").write_text(REWARD)
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(folder=folder, steps=STEPS))
    return path


def train(folder: Path, *overrides: str, **kwargs: Any) -> Trained:
    """Train the recipe in this process."""
    recipe, provenance = load_recipe([write_recipe(folder)], overrides)
    return train_recipe(recipe, provenance, **kwargs)


VOLATILE = {"time", "step_time", "time/sampling", "time/update", "attempt", "seconds", "verdict.seconds"}


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without times and attempts."""
    return [{key: value for key, value in row.items() if key not in VOLATILE} for row in rows]


def record(root: Path) -> dict[str, Any]:
    """Everything a run folder says, but for times and attempts, and the bytes of its last weights."""
    reader = RunReader(root)
    last = reader.layout.checkpoint(reader.layout.checkpoint_steps()[-1])
    return {
        "metrics": plain(reader.metrics()),
        "ledger": plain(reader.ledger()),
        "receipts": plain(reader.receipts()),
        "rollouts": {step: plain(reader.rollouts(step)) for step in reader.rollout_steps()},
        "prompts": reader.prompts(),
        "weights": (last / "model.safetensors").read_bytes(),
    }
