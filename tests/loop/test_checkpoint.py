"""Checkpoints: complete or absent, and exact."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from loop_parts import mixed_groups, recipe, tiny_policy, update

from cupola.core.records import RunFolderError
from cupola.train.loop import Learner, Position, load_checkpoint, save_checkpoint

ADAMW = {"name": "adamw", "learning_rate": 0.01, "schedule": "linear"}


def learner(seed: int = 0) -> Learner:
    return Learner(tiny_policy(seed, torch.float32), None, recipe(optim=ADAMW))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "step-000001"
    one = learner()
    update(one, mixed_groups())
    save_checkpoint(folder, one, Position(1, 99))
    return folder


def test_an_update_after_loading_is_the_one_that_would_have_come(saved: Path) -> None:
    straight, resumed = learner(), learner(seed=5)
    update(straight, mixed_groups())
    assert load_checkpoint(saved, resumed) == Position(1, 99)
    assert (resumed.planned, resumed.version) == (1, 1)
    for one in (straight, resumed):
        update(one, mixed_groups())
    for a, b in zip(straight.policy.model.parameters(), resumed.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_global_generators_are_put_back(tmp_path: Path) -> None:
    one = learner()
    save_checkpoint(tmp_path / "c", one, Position())
    drawn = random.random(), np.random.normal(), float(torch.rand(()))
    load_checkpoint(tmp_path / "c", one)
    assert (random.random(), np.random.normal(), float(torch.rand(()))) == drawn


def test_a_checkpoint_replaces_an_older_one_of_its_step(saved: Path) -> None:
    save_checkpoint(saved, learner(), Position(1, 7))
    assert load_checkpoint(saved, learner()).num_tokens == 7
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize("file", ["state.json", "model.safetensors", "optimizer.pt", "rng.pt"])
@pytest.mark.parametrize("harm", ["missing", "torn", "empty"])
def test_a_checkpoint_that_cannot_be_read_is_named(saved: Path, file: str, harm: str) -> None:
    path = saved / file
    data = path.read_bytes()
    path.unlink()
    if harm != "missing":
        path.write_bytes(data[: len(data) // 2] if harm == "torn" else b"")
    with pytest.raises(RunFolderError, match=rf"{saved}: checkpoint cannot be read"):
        load_checkpoint(saved, learner())


@pytest.mark.parametrize("states", [{"python": [], "numpy": [], "torch": []}, []])
def test_random_states_that_are_no_list_of_ranks_are_refused(saved: Path, states: object) -> None:
    torch.save(states, saved / "rng.pt")
    with pytest.raises(RunFolderError, match=f"^{saved}: checkpoint cannot be read: rng.pt holds no list of ranks"):
        load_checkpoint(saved, learner())


def test_a_checkpoint_of_another_model_is_refused(saved: Path) -> None:
    one = learner()
    one.policy.model.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(RunFolderError, match="another model"):
        load_checkpoint(saved, one)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        save_checkpoint(tmp_path / "file" / "step-000001", learner(), Position())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: what a full disk does, at a place of our choosing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("full_at", ["config.json", "model.safetensors", "optimizer.pt"])
def test_a_full_disk_leaves_the_older_checkpoint(saved: Path, full_at: str) -> None:
    """The files are written in this order, and each is larger than the one before."""
    one = learner()
    load_checkpoint(saved, one)
    room = {path.name: path.stat().st_size - 1 for path in saved.iterdir()}[full_at]
    with room_for(room), pytest.raises(RunFolderError, match="cannot be written"):
        save_checkpoint(saved, one, Position(1, 7))
    assert load_checkpoint(saved, one).num_tokens == 99
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
