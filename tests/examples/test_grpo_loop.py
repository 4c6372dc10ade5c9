"""The example runs, prints the reward of each step, moves the weights, and stays one screen long."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cupola.core.records import Completion, Group, Prompt, Rollout, Verdict
from cupola.train.models import load_policy, weights_digest

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_loop.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("grpo_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_three_steps(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    policy = load_policy("embedded")
    before = weights_digest(policy.model.state_dict())
    example.train(policy, steps=3, seed=0)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for step, line in enumerate(lines, 1):
        found = re.match(rf"step {step}: reward (0\.\d+), prompts with signal \d+%", line)
        assert found, line
        assert 0 < float(found[1]) < 1
    assert weights_digest(policy.model.state_dict()) != before


def test_the_command_line(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["grpo_loop.py", "--steps", "1", "--seed", "3"])
    threads = torch.get_num_threads()
    example.main()
    torch.set_num_threads(threads)
    assert capsys.readouterr().out.startswith("step 1: reward 0.")


def test_a_batch_of_dead_groups_has_no_gradient(example: ModuleType) -> None:
    policy = load_policy("embedded")
    completion = Completion("#3", *(torch.ones(2, dtype=kind).numpy() for kind in KINDS), "stop", 0)
    rollout = Rollout(completion, {"correct": Verdict(1.0, "ok")}, 1.0, True)
    assert not example.accumulate_gradient(policy, [Group("g", Prompt("1+2="), (rollout, rollout))])
    assert all(p.grad is None for p in policy.model.parameters())


KINDS = (torch.int64, torch.float32, torch.float32)


def test_it_stays_readable() -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 250
