"""Runs with TRL as the engine, and the same update made by cupola's own loop on what they recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cupola.core.config import Recipe, validate
from cupola.core.records import Completion, Group, Prompt, Rollout, Verdict
from cupola.core.runlog import RunReader
from cupola.train.loop import Batch, batch_advantages, plan_steps
from cupola.train.models import base_weights, load_policy, merged_weights
from cupola.workflows.assemble import assemble

EXTRACT = r"#(\d+)$"


def small(folder: Path, **sections: Any) -> Recipe:
    """Two steps of 4 prompts with 4 answers each by the embedded policy, with plain gradient descent."""
    values: dict[str, Any] = {
        "run": {"name": "r", "folder": str(folder), "steps": 2, "engine": "trl", "threads": 1},
        "data": {"task": "arithmetic"},
        "reward": [{"name": "correct", "kind": "exact", "extract": EXTRACT}],
        "sampling": {"prompts_per_step": 4, "group_size": 4, "max_tokens": 44},
        "objective": {"preset": "dr_grpo"},
        "optim": {"name": "sgd", "learning_rate": 0.05, "max_grad_norm": 100.0},
        "validation": {"every": 1, "questions": 4, "samples": 2},
        "evaluation": {"questions": 4, "samples": 2, "dev_questions": 4, "dev_samples": 1, "temperatures": [1.0]},
    }
    return validate(
        {
            key: {**values.get(key, {}), **sections.get(key, {})} if key != "reward" else sections.get(key, values[key])
            for key in {**values, **sections}
        },
        Recipe,
    )


def recorded_groups(reader: RunReader, step: int) -> list[Group]:
    """A step's groups from its rollout file alone: what the update needs is in the record."""
    prompts = {key: Prompt(row["prompt"], row["answer"]) for key, row in reader.prompts().items()}
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in reader.rollouts(step, "train"):
        rows.setdefault(row["group_id"], []).append(row)
    return [Group(id, prompts[of[0]["prompt_id"]], tuple(map(_rollout, of))) for id, of in rows.items()]


def _rollout(row: dict[str, Any]) -> Rollout:
    unknown = np.full(row["n_tokens"], np.nan, dtype=np.float32)
    ids = np.array(row["token_ids"], dtype=np.int64)
    completion = Completion(row["completion"], ids, unknown, None, row["finish_reason"], row["policy_version"])
    parts = {key.removeprefix("reward."): value for key, value in row.items() if key.startswith("reward.")}
    verdicts = {name: Verdict(score, "skipped" if score is None else "ok") for name, score in parts.items()}
    return Rollout(completion, verdicts, row["reward"], row["correct"])


def own_update(recipe: Recipe, groups: list[Group]) -> tuple[dict[str, Tensor], dict[str, Tensor], list[float]]:
    """The weights before and after the first step of cupola's own loop on these groups, and its advantages."""
    learner = assemble(recipe).learner()
    model = learner.policy.model
    before = {name: weight.clone() for name, weight in base_weights(model).items()}
    batch = Batch.of(groups, learner.policy.encode)
    seen = learner.before(batch)
    advantages = batch_advantages(batch, seen, recipe)
    learner.update(batch, seen, advantages, plan_steps(batch, advantages.values, recipe))
    return before, merged_weights(model), advantages.values[:, 0].tolist()


def relative_gap(recipe: Recipe, reader: RunReader) -> float:
    """How far TRL's first update is from the own loop's on the same rollouts, by the length of the latter."""
    before, own, advantages = own_update(recipe, recorded_groups(reader, 1))
    theirs = base_weights(load_policy(str(reader.layout.checkpoint(1))).model)
    recorded = [row["advantage"] or 0.0 for row in reader.rollouts(1, "train")]
    assert np.allclose(recorded, advantages, rtol=1e-5, atol=1e-6)
    moved = torch.cat([(own[name] - before[name]).flatten() for name in before])
    apart = torch.cat([(own[name] - theirs[name]).flatten() for name in before])
    assert float(moved.norm()) > 1e-4
    return float(apart.norm() / moved.norm())
