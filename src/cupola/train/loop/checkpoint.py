"""Checkpoints: a model folder that plain transformers loads, with what an exact resume needs beside it."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from cupola.core.records import RunFolderError
from cupola.train.loop.update import Learner
from cupola.train.models import save_policy, whole_folder


@dataclass
class Position:
    """Where a run stands: the last finished step and what has been counted until then."""

    step: int = 0
    num_tokens: int = 0


def save_checkpoint(folder: Path, learner: Learner, position: Position) -> None:
    """Write the checkpoint whole or not at all. Raises RunFolderError naming it."""
    with whole_folder(folder) as temporary:
        save_policy(learner.policy, temporary)
        torch.save(learner.optimizer.state_dict(), temporary / "optimizer.pt")
        torch.save(_rng_state(), temporary / "rng.pt")
        state = {**asdict(position), "planned": learner.planned, "version": learner.version}
        (temporary / "state.json").write_text(json.dumps(state) + "\n", encoding="utf-8")


def load_checkpoint(folder: Path, learner: Learner) -> Position:
    """Put weights, optimiser and random states back; returns the position."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
        optimizer = torch.load(folder / "optimizer.pt", weights_only=True)
        rng = torch.load(folder / "rng.pt", weights_only=True)
    except (OSError, EOFError, ValueError, RuntimeError, UnpicklingError, SafetensorError) as error:
        raise RunFolderError(f"{folder}: checkpoint cannot be read: {error}") from error
    missing, unexpected = learner.policy.model.load_state_dict(weights, strict=False)
    if unexpected or any(name not in _tied(learner) for name in missing):
        raise RunFolderError(f"{folder}: checkpoint is of another model: {[*missing, *unexpected][:3]}")
    learner.optimizer.load_state_dict(optimizer)
    learner.planned, learner.version = state.pop("planned"), state.pop("version")
    _restore_rng(rng)
    return Position(**state)


def _tied(learner: Learner) -> set[str]:
    """Names that share their tensor with another and are therefore stored once."""
    return set(getattr(learner.policy.model, "all_tied_weights_keys", None) or ())


def seed_globals(seed: int) -> None:
    """Seed the global generators, for the sake of reward functions that draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _rng_state() -> dict[str, Any]:
    """The global generators: cupola draws from none of them, but a user's reward function may."""
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)  # the legacy form, by the argument above
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, keys.tolist(), *rest],
        "torch": torch.get_rng_state(),
    }


def _restore_rng(state: dict[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
