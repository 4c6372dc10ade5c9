"""One step off: answers are drawn while the update before them runs, and carry the version that drew them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_run import STEPS, record, train

from cupola.core.config import Recipe, validate
from cupola.core.records import Action, RecipeError, RewardError
from cupola.core.runlog import RunReader
from cupola.workflows.train import View, resume_run

AHEAD = (
    "sampling.one_step_off=true",
    "objective.correction.level=token",
    "optim.minibatches=1",
    "validation.every=3",
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("straight"), *AHEAD).folder


def test_answers_are_one_step_old_but_after_a_validation(straight: Path) -> None:
    """A step is validated and saved after 3 and 6; the step that follows draws with the weights that were saved."""
    run = RunReader(straight)
    drawn_by = {
        step: {row["policy_version"] for row in run.rollouts(step) if row["split"] == "train"}
        for step in range(1, STEPS + 1)
    }
    assert drawn_by == {1: {0}, 2: {0}, 3: {1}, 4: {3}, 5: {3}, 6: {4}}
    rows = {row["step"]: row for row in run.metrics("train")}
    assert [rows[step]["sampler/staleness"] for step in rows] == [0, 1, 1, 0, 1, 1]
    assert [rows[step]["sampler/version"] for step in rows] == [1, 2, 3, 4, 5, 6]


def test_stale_answers_are_weighed_by_what_the_trainer_now_says(straight: Path) -> None:
    rows = {row["step"]: row for row in RunReader(straight).metrics("train")}
    for step, row in rows.items():
        apart = abs(row["sampling/importance_sampling_ratio/min"] - 1)
        assert (apart > 1e-3) == (step not in (1, 4)), (step, apart)


def test_the_columns_that_a_reward_function_logs_stay_with_their_step(tmp_path: Path) -> None:
    """It is called for step 2 before step 1 is recorded."""
    (tmp_path / "told.py").write_text(
        "def told(completions, trainer_state, log_metric, **_):\n"
        "    log_metric('told/finished', trainer_state.global_step)\n"
        "    return [i % 2 for i in range(len(completions))]\n"
    )
    path = f"{tmp_path}/told.py:told"
    run = RunReader(train(tmp_path, *AHEAD, f"reward.1.path={path}", "reward.1.name=told").folder)
    assert [row["told/finished"] for row in run.metrics("train")] == [0, 1, 2, 3, 4, 5]
    assert [row["told/finished"] for row in run.metrics("validation")] == [0, 3, 6]


def test_a_draw_that_fails_ahead_leaves_the_record_of_the_step_before_it(tmp_path: Path) -> None:
    """The answers of step 3 are scored before the update of step 2, and cannot be."""
    (tmp_path / "boom.py").write_text(
        "def boom(completions, trainer_state, **_):\n"
        "    assert trainer_state.global_step < 2, 'out of order'\n"
        "    return [i % 2 for i in range(len(completions))]\n"
    )
    with pytest.raises(RewardError, match="out of order"):
        train(tmp_path, *AHEAD, f"reward.1.path={tmp_path}/boom.py:boom", "reward.1.name=boom")
    run = RunReader(tmp_path / "tiny")
    assert [row["step"] for row in run.metrics("train")] == [1, 2]
    assert run.rollout_steps() == [0, 1, 2]


@pytest.mark.parametrize("at", [2, 4, 5])
def test_a_run_cut_off_anywhere_is_recomputed_exactly(straight: Path, tmp_path: Path, at: int) -> None:
    def cut(step: int, rows: object, groups: object) -> Action:
        if step == at:
            raise KeyboardInterrupt
        return "continue"

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, *AHEAD, view=View([cut]))
    assert resume_run(tmp_path / "tiny").state == "finished"
    assert record(tmp_path / "tiny") == record(straight)


def test_a_paused_run_draws_anew_what_was_under_way(tmp_path: Path) -> None:
    def pause(step: int, rows: object, groups: object) -> Action:
        return "pause" if step == 2 else "continue"

    assert train(tmp_path, *AHEAD, view=View([pause])).state == "paused"
    assert resume_run(tmp_path / "tiny").state == "finished"
    rows = {row["step"]: row["sampler/staleness"] for row in RunReader(tmp_path / "tiny").metrics("train")}
    assert rows == {1: 0, 2: 1, 3: 0, 4: 0, 5: 1, 6: 1}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"sampling": {"one_step_off": True}},
            "sampling.one_step_off: trains on answers of weights one step old, whose weight has to be corrected; set "
            "objective.correction.level to 'token' or 'sequence'",
        ),
        (
            {"sampling": {"one_step_off": True, "selection": {"kind": "aimed"}}},
            "sampling.one_step_off: draws before the answers of the step before are known, by which selection.kind "
            "'aimed' chooses; take 'uniform'",
        ),
    ],
)
def test_what_cannot_be_drawn_ahead_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        validate({"data": {"task": "arithmetic"}, "reward": [{"name": "r", "kind": "exact"}], **settings}, Recipe)
    assert str(refused.value) == said
