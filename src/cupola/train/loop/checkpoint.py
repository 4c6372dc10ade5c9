"""Checkpoints: a model folder that plain transformers loads, with what an exact resume needs beside it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch.nn import Module
from torch.optim import Optimizer

from cupola.core.records import RunFolderError
from cupola.train.loop.update import Learner
from cupola.train.models import (
    gathered,
    restore_policy,
    save_policy,
    saved_weights,
    scattered,
    whole,
    whole_folder,
)


@dataclass
class Position:
    """Where a run stands: the last finished step, what has been counted until then, and the selector's state."""

    step: int = 0
    num_tokens: int = 0
    selection: dict[str, list[float]] = field(default_factory=dict)


def save_checkpoint(folder: Path, learner: Learner, position: Position) -> None:
    """Write the checkpoint whole or not at all. Raises RunFolderError naming it.

    All ranks call it and the first writes, the same files on any number of ranks.
    """
    ranks = learner.ranks
    states = {name: whole(each.state_dict(), ranks.is_first) for name, each in _stateful(learner).items()}
    states["rng"] = ranks.gather(_rng_state())
    with gathered(learner.policy.model):
        ranks.first(lambda: _write(folder, learner, position, states))


def _write(folder: Path, learner: Learner, position: Position, states: Mapping[str, Any]) -> None:
    with whole_folder(folder) as temporary:
        save_policy(learner.policy, temporary)
        for name, values in states.items():
            _save(values, temporary / f"{name}.pt")
        counts = {"planned": learner.planned, "version": learner.version}
        state = {**asdict(position), **counts, "bonus": learner.bonus.state()}
        (temporary / "state.json").write_text(json.dumps(state) + "\n", encoding="utf-8")


def _save(values: Any, path: Path) -> None:
    """torch.save; of a full disk it says `unexpected pos 640 vs 598`, so that the system's own words are raised."""
    try:
        with open(path, "wb") as file:
            torch.save(values, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_checkpoint(folder: Path, learner: Learner) -> Position:
    """Put weights, optimiser and random states back; returns the position."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        weights = saved_weights(learner.policy, folder)
        bonus, planned, version = (state.pop(key) for key in ("bonus", "planned", "version"))
        position, generators = Position(**state), _load(folder / "rng.pt")
        if not isinstance(generators, list) or not generators:
            raise ValueError("rng.pt holds no list of ranks; an earlier version wrote it, and can resume it")
        for name, stateful in _stateful(learner).items():
            stateful.load_state_dict(scattered(_load(folder / f"{name}.pt"), stateful))
    except (
        OSError,
        EOFError,
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        UnpicklingError,
        SafetensorError,
    ) as error:
        raise RunFolderError(f"{folder}: checkpoint cannot be read: {_first_line(error)}") from error
    if wrong := restore_policy(learner.policy, weights):
        raise RunFolderError(f"{folder}: checkpoint is of another model: {wrong[:3]}")
    learner.bonus.restore(bonus)
    learner.planned, learner.version = planned, version
    _restore_rng(generators[learner.ranks.rank if len(generators) == learner.ranks.world else 0])
    return position


def _first_line(error: Exception) -> str:
    """What an error says, or its kind where it says nothing."""
    return str(error).partition("\n")[0] or type(error).__name__


def _load(file: Path) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)


def _stateful(learner: Learner) -> dict[str, Module | Optimizer]:
    """What changes during a run beside the policy, by the name of its file."""
    found: dict[str, Module | Optimizer] = {"optimizer": learner.optimizer}
    if learner.critic is not None and learner.critic_optimizer is not None:
        found |= {"critic": learner.critic, "critic_optimizer": learner.critic_optimizer}
    if learner.reference is not None and learner.reference.every is not None:
        found["reference"] = learner.reference.model
    return found


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
