"""The objectives from a foreign loop: the script runs for every preset, and its loss is the one worked by hand."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cupola.core.config.presets import PRESETS

EXAMPLE = Path(__file__).parents[2] / "examples" / "foreign_loop.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("foreign_loop", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Presets whose advantages are baseline and scale alone, counted over one optimiser step.
MORE = {"transform", "combine", "whiten", "count", "correction", "masks"}
PLAIN = [name for name, preset in PRESETS.items() if not MORE & set(preset)]


@pytest.mark.parametrize("preset", PLAIN)
def test_the_script_runs(
    example: ModuleType, preset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["foreign_loop.py", preset])
    example.main()
    found = re.fullmatch(rf"{preset}: loss -?\d+\.\d{{4}}, gradient norm (\d+\.\d{{4}})\n", capsys.readouterr().out)
    assert found
    assert float(found[1]) > 0


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in PLAIN])
def test_other_presets_are_refused(example: ModuleType, preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(example, [preset], rf"{preset}: sets ({'|'.join([*MORE, 'scope'])});", capsys)


def test_no_preset_and_an_unknown_one_are_refused(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(example, [], "the following arguments are required: preset", capsys)
    assert_refused(example, ["nothing"], r".*unknown preset 'nothing'; there are ", capsys)


def assert_refused(example: ModuleType, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        example.main(arguments)
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(rf"error: {text}", last)


def test_dr_grpo_by_hand(example: ModuleType) -> None:
    """Four rollouts, L_max 4: omega = 1/16. A = +-1/2 in the first group, 0 in the second; on-policy the ratio is 1.

    L = -(3 * 1/2 - 2 * 1/2) / 16 = -1/32, and each counted token's gradient is -A / 16.
    """
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0]])
    logp = torch.full((4, 3), -1.0, dtype=torch.float64, requires_grad=True)
    rewards, groups = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    loss = example.policy_loss("dr_grpo", logp, logp.detach(), mask, rewards, groups, 4)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert loss.item() == pytest.approx(-1 / 32, abs=1e-15)
    assert gradient.tolist() == [[-1 / 32] * 3, [1 / 32, 1 / 32, 0.0], [0.0] * 3, [0.0] * 3]


def test_unscored_and_empty_rollouts_leave_the_count(example: ModuleType) -> None:
    """Of four rollouts one has no reward and one no token: N = 2, omega = 1 / (2 * 2); A = 1/2 and -1/2.

    The empty rollout's reward, 0.5, stays in its group's mean, which is 1/2 with or without it.
    """
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [0, 0]])
    logp = torch.full((4, 2), -1.0, dtype=torch.float64, requires_grad=True)
    rewards, groups = torch.tensor([1.0, 0.0, torch.nan, 0.5]), torch.tensor([0, 0, 0, 0])
    loss = example.policy_loss("dr_grpo", logp, logp.detach(), mask, rewards, groups, 2)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert gradient.tolist() == [[-1 / 8, -1 / 8], [1 / 8, 0.0], [0.0, 0.0], [0.0, 0.0]]
