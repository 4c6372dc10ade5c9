"""The run folders that the dashboard's tests share."""

from pathlib import Path

import pytest
from dashboard_run import HOSTILE, begin, outcomes, rollout, write_evaluation_of, write_run

from cupola.core.records import Group, Prompt
from cupola.core.runlog import write_text


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 60 steps with an evaluation."""
    root = write_run(tmp_path_factory.mktemp("runs") / "arithmetic-dr-grpo", 60, prompts=32, size=16)
    write_evaluation_of(root)
    return root


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step whose prompt, completions and answers try to break out of the page."""
    root = tmp_path_factory.mktemp("runs") / "hostile"
    writer = begin(root)
    write_text(writer.layout.recipe, f"# {HOSTILE}")
    answers = (rollout(HOSTILE, True), rollout("x" * 5000 + "the end", False), rollout("</style><b>", None))
    group = Group("1-0", Prompt(HOSTILE, HOSTILE), answers)
    writer.metrics(1, "train", {"reward": 0.55})
    writer.rollouts(1, [group], {group.id: outcomes(group)}, "answer")
    return root
