"""What a run refuses: a second writer, and going on with another model, other data or another reward."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_run import train, write_recipe

from cupola.core.config import load_recipe
from cupola.core.records import DataError, RewardError, RunFolderError
from cupola.core.runlog import RunReader
from cupola.train.models import EMBEDDED, load_policy, save_policy
from cupola.workflows.evaluate import evaluate_run
from cupola.workflows.train import View, resume_run, train_recipe


def pause_at_two(step: int, rows: object, groups: object) -> str:
    return "pause" if step == 2 else "continue"


def quiet(text: str) -> None: ...


def test_one_process_trains_in_a_folder_at_a_time(tmp_path: Path) -> None:
    refused: list[str] = []

    def intrude(step: int, rows: object, groups: object) -> str:
        with pytest.raises(RunFolderError) as caught:
            resume_run(tmp_path / "tiny")
        refused.append(str(caught.value))
        return "continue"

    trained = train(tmp_path, "run.steps=1", view=View([intrude]))
    assert refused == [f"{tmp_path / 'tiny'}: another process is training in it"] * 2
    assert len(RunReader(trained.folder).manifest()["attempts"]) == 1


def test_a_changed_model_is_not_trained_on_nor_taken_as_the_base(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(EMBEDDED, model)
    run = train(tmp_path, f"model.source={model}", view=View([pause_at_two])).folder
    policy = load_policy(str(model))
    next(policy.model.parameters()).data[0, 0] += 1
    save_policy(policy, model)
    with pytest.raises(RunFolderError, match=r"the model .*model has changed since the run began"):
        resume_run(run)
    with pytest.raises(RunFolderError, match=r"the model .*model has changed since the run began"):
        evaluate_run(run, quiet)


def test_a_changed_reward_function_is_not_gone_on_with(tmp_path: Path) -> None:
    run = train(tmp_path, view=View([pause_at_two])).folder
    with open(tmp_path / "reward.py", "a") as file:
        file.write("\n# paid by another rule from here on\n")
    with pytest.raises(RunFolderError, match=r"reward\.py changed since the run began"):
        resume_run(run)
    assert resume_run(run, accept_changes=True).state == "finished"
    attempts = RunReader(run).manifest()["attempts"]
    assert ["changed" in attempt for attempt in attempts] == [False, True]
    assert attempts[1]["changed"] == [f"{tmp_path}/reward.py"]


def test_changed_questions_are_not_gone_on_with(tmp_path: Path) -> None:
    data = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = write_recipe(tmp_path)
    path.write_text(path.read_text().replace('task = "arithmetic"', f'file = "{data}"').replace("options", "# "))
    recipe, provenance = load_recipe([path])
    run = train_recipe(recipe, provenance, View([pause_at_two])).folder
    data.write_text(data.read_text().replace('"answer": "0"', '"answer": "1"'))
    with pytest.raises(RunFolderError, match=r"sums\.jsonl changed since the run began"):
        resume_run(run)


def test_a_run_killed_after_its_last_checkpoint_is_finished_by_resuming(tmp_path: Path) -> None:
    run = train(tmp_path, "run.steps=2").folder
    manifest = RunReader(run).manifest()
    manifest["attempts"][0] = {**manifest["attempts"][0], "state": "running"}
    (run / "run.json").write_text(json.dumps({**manifest, "state": "running"}))
    again = resume_run(run)
    assert (again.state, again.step) == ("finished", 2)
    assert RunReader(run).manifest()["state"] == "finished"
    with pytest.raises(RunFolderError, match="finished"):
        resume_run(run)


@pytest.mark.parametrize("name", ["reward", "loss", "step", "split", "num_tokens", "correct/mean"])
def test_a_reward_function_cannot_write_over_the_runs_own_metrics(tmp_path: Path, name: str) -> None:
    write_recipe(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def mine(completions, trainer_state, log_metric, **kwargs):\n"
        f"    log_metric({name!r}, 99.0)\n"
        "    return [1.0] * len(completions)\n"
    )
    with pytest.raises(RewardError, match=f"log_metric: '{name}' is a key of the run's own"):
        train(tmp_path, f"reward.1.path={tmp_path}/mine.py:mine")


def test_too_few_questions_for_the_final_evaluation_show_before_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="different problems in split 'dev', but 200"):
        train(tmp_path, "evaluation.at_end=true")
    assert not (tmp_path / "tiny").exists()
