"""Small records for run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cupola.core.records import Completion, Group, Prompt, Rollout, Verdict
from cupola.core.runlog import RunWriter

MANIFEST = {"schema": 1, "state": "running", "attempts": []}
RECIPE = '[data]\ntask = "arithmetic"\n'


def new_run(root: Path) -> RunWriter:
    return RunWriter.create(root, MANIFEST, RECIPE)


def rollout(text: str, reward: float | None = 1.0, tokens: int = 2, **extra: Any) -> Rollout:
    zeros = np.zeros(tokens, dtype=np.float32)
    completion = Completion(text, np.arange(tokens), zeros - 0.5, zeros + 0.25, "stop", 3)
    verdict = Verdict(reward, "ok", extracted=text) if reward is not None else Verdict(None, "error", reason="broke")
    return Rollout(completion, {"right": verdict}, reward, None if reward is None else reward >= 1, extra)


def group(question: str, rollouts: Sequence[Rollout], split: Any = "train", index: int = 0) -> Group:
    return Group(f"000001-{split}-{index:04d}", Prompt(question, "4"), tuple(rollouts), split)
