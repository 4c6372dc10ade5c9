"""Small real runs: what stands in the folder, and how a run ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_run import STEPS, record, train, write_recipe
from torch import Tensor
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from cupola.cli.app import app
from cupola.core.config import COMMAND_LINE, Recipe, validate
from cupola.core.records import CupolaError, Group, NumericalError, RewardError, RunFolderError
from cupola.core.runlog import RunReader
from cupola.train.loop import loss as loss_module
from cupola.train.loop import update as update_module
from cupola.train.loop.loss import Loss
from cupola.workflows.train import Trained, View, resume_run, undone


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("finished"))


@pytest.fixture(scope="module")
def reader(finished: Trained) -> RunReader:
    return RunReader(finished.folder)


def test_the_run_says_that_it_finished(finished: Trained, reader: RunReader) -> None:
    assert (finished.state, finished.step) == ("finished", STEPS)
    manifest = reader.manifest()
    assert manifest["state"] == "finished"
    assert [(a["attempt"], a["from_step"], a["state"]) for a in manifest["attempts"]] == [(0, None, "finished")]
    assert manifest["correctness"] == "correct"
    assert manifest["model"]["source"] == "embedded"


def test_a_row_per_step_and_split(reader: RunReader) -> None:
    assert [row["step"] for row in reader.metrics("train")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in reader.metrics("validation")] == [0, 2, 4, 6]
    assert [row["num_tokens"] for row in reader.metrics("train")] == sorted(
        {row["num_tokens"] for row in reader.metrics("train")}
    )


TRAIN_KEYS = """
    reward reward_std frac_reward_zero_std entropy kl loss policy_loss grad_norm learning_rate num_tokens step_time
    rewards/correct/mean rewards/correct/std rewards/noise/mean rewards/noise/std correct/mean
    completions/mean_length completions/min_length completions/max_length completions/clipped_ratio
    completions/mean_terminated_length completions/min_terminated_length completions/max_terminated_length
    clip_ratio/low_mean clip_ratio/low_min clip_ratio/high_mean clip_ratio/high_max clip_ratio/region_mean
    groups/with_signal groups/no_signal groups/unscorable groups/dead groups/dead_right groups/dead_wrong
    groups/distinct_answers tokens/spent tokens/wasted used/reward used/entropy used/completions/mean_length
    sampling/sampling_logp_difference/mean sampling/sampling_logp_difference/max sampler/version
"""


def test_the_metrics_of_a_step(reader: RunReader) -> None:
    for row in reader.metrics("train"):
        assert set(TRAIN_KEYS.split()) <= set(row)
        assert row["sampling/sampling_logp_difference/max"] < 1e-4
        assert row["tokens/wasted"] == 0  # a KL and an entropy term forward everything
        assert row["learning_rate"] > 0
    assert [row["sampler/version"] for row in reader.metrics("train")] == [2, 4, 6, 8, 10, 12]
    for row in reader.metrics("validation"):
        assert {"correct/mean", "correct/mean_low", "correct/mean_high", "correct/greedy"} <= set(row)


def test_headline_metrics_are_those_of_the_recorded_rollouts(reader: RunReader) -> None:
    for row in reader.metrics("train"):
        rollouts = reader.rollouts(row["step"], "train")
        assert len(rollouts) == 16
        assert row["reward"] == pytest.approx(sum(r["reward"] for r in rollouts) / 16)
        assert row["tokens/spent"] == sum(r["n_tokens"] for r in rollouts)
        assert sum(r["weight_share"] for r in rollouts) == pytest.approx(1)
        assert all(r["used"] and len(r["logp_old"]) == r["n_tokens"] for r in rollouts)


def test_the_timeline_follows_every_question_from_the_start(reader: RunReader) -> None:
    timeline = reader.timeline()
    assert len(timeline) == 4
    for steps in timeline.values():
        assert list(steps) == [0, 2, 4, 6]
        assert set(steps.values()) <= {0.0, 0.5, 1.0}
    assert set(timeline) <= set(reader.prompts())
    for step in (0, 2, 4, 6):
        validated = reader.rollouts(step, "validation")
        assert len(validated) == 4 * 2 + 4
        assert sum(row["mode"] == "greedy" for row in validated) == 4


def test_the_ledger_has_a_row_per_update_and_term(reader: RunReader) -> None:
    assert [(row["step"], row["update"], row["term"]) for row in reader.ledger()] == [
        (step, 2 * step - 1 + half, term)
        for step in range(1, STEPS + 1)
        for half in (0, 1)
        for term in ("policy", "kl", "entropy", *(["scale"] if half else []))
    ]


def test_checkpoints_are_models_that_plain_transformers_loads(reader: RunReader) -> None:
    assert reader.layout.checkpoint_steps() == [0, 2, 4, 6]
    first, last = (reader.layout.checkpoint(step) for step in (0, 6))
    for folder in (first, last):
        assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == 16
    assert (first / "model.safetensors").read_bytes() != (last / "model.safetensors").read_bytes()


def test_the_same_recipe_gives_the_same_run(finished: Trained, tmp_path: Path) -> None:
    assert record(train(tmp_path).folder) == record(finished.folder)


def test_another_seed_gives_another_run(finished: Trained, tmp_path: Path) -> None:
    other = record(train(tmp_path, "run.seed=1").folder)
    assert other["weights"] != record(finished.folder)["weights"]


def test_a_finished_run_has_nothing_to_resume(finished: Trained) -> None:
    with pytest.raises(RunFolderError, match="finished: its last checkpoint is step 6 of 6"):
        resume_run(finished.folder)


def test_a_run_folder_that_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "precious").write_text("mine")
    with pytest.raises(RunFolderError, match="exists already"):
        train(tmp_path)
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("optim.name=adamx", r"optim\.name"),
        ("optim.schedule=linaer", r"optim\.schedule"),
        ("model.source=nowhere", "no such model folder"),
        ("sampling.max_tokens=200", "do not fit the model's context"),
        ("reward.1.path=nowhere.py:noise", "nowhere.py"),
    ],
)
def test_what_cannot_be_run_leaves_no_folder(tmp_path: Path, override: str, fault: str) -> None:
    with pytest.raises(CupolaError, match=fault):
        train(tmp_path, override)
    assert not (tmp_path / "tiny").exists()


def ask(action: str, at: int) -> Any:
    """An observer that asks for `action` at one step."""

    def observe(step: int, rows: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> Any:
        return action if step == at else "continue"

    return observe


@pytest.mark.parametrize(("action", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_an_observer_ends_a_run_that_resumes_as_if_it_had_not(
    finished: Trained, tmp_path: Path, action: str, state: str
) -> None:
    trained = train(tmp_path, view=View([ask(action, 3)]))
    assert (trained.state, trained.step) == (state, 3)
    assert RunReader(trained.folder).manifest()["state"] == state
    again = resume_run(trained.folder)
    assert (again.state, again.step) == ("finished", STEPS)
    resumed, straight = record(trained.folder), record(finished.folder)
    assert resumed == straight


def test_a_run_stopped_at_its_last_step_is_finished(tmp_path: Path) -> None:
    assert train(tmp_path, "run.steps=1", view=View([ask("stop", 1)])).state == "finished"


@pytest.mark.parametrize(("action", "state"), [("warn", "finished"), ("pause", "paused"), ("stop", "stopped")])
def test_a_live_warning_does_what_the_recipe_says(tmp_path: Path, action: str, state: str) -> None:
    """With two tokens no answer is ever finished: diagnosis warns of truncation as soon as it has seen enough steps."""
    heard: list[tuple[int, str]] = []
    trained = train(
        tmp_path,
        f"diagnosis.on_warning={action}",
        "sampling.max_tokens=2",
        "run.steps=23",
        "validation.every=23",
        view=View(finding=lambda step, finding: heard.append((step, finding.name))),
    )
    assert trained.state == state
    assert "high_truncation" in [name for _, name in heard]
    assert (trained.step < 23) == (action != "warn")
    findings = RunReader(trained.folder).findings()
    assert [(row["step"], row["name"]) for row in findings] == heard
    if action == "pause":
        assert resume_run(trained.folder).step > trained.step


def test_a_reward_that_fails_midway_fails_the_run_and_says_so(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    (tmp_path / "late.py").write_text(
        "def late(completions, trainer_state, **kwargs):\n"
        "    return [1.0 / (3 - trainer_state.global_step)] * len(completions)\n"
    )
    with pytest.raises(RewardError, match="late"):
        train(tmp_path, f"reward.1.path={tmp_path}/late.py:late")
    reader = RunReader(tmp_path / "tiny")
    assert reader.manifest()["state"] == "failed"
    assert "RewardError" in reader.manifest()["attempts"][0]["error"]
    assert [row["step"] for row in reader.metrics("train")] == [
        1,
        2,
        3,
    ]  # three steps are finished when the fourth samples


def test_a_run_without_validation_still_saves_its_policy(tmp_path: Path) -> None:
    """Neither sampled nor greedy answers: checkpoints come all the same, or the training would be lost."""
    trained = train(tmp_path, "validation.samples=0", "validation.greedy=false", "run.steps=2")
    assert trained.step == 2


def test_the_checkpoint_of_step_0_stays(tmp_path: Path) -> None:
    trained = train(tmp_path, "validation.keep=1")
    assert RunReader(trained.folder).layout.checkpoint_steps() == [0, STEPS]


def test_old_rollouts_go_where_the_recipe_says_so(tmp_path: Path) -> None:
    """The newest two stay, and those of steps 0, 3 and 6, which were validated. What the steps came to stays too."""
    folder = train(tmp_path, "run.keep_rollouts=2", "validation.every=3").folder
    run = RunReader(folder)
    assert run.rollout_steps() == [0, 3, 5, 6]
    assert [row["step"] for row in run.metrics("train")] == [1, 2, 3, 4, 5, 6]
    for command in (["diagnose"], ["watch"], ["groups", "--step", "5"]):
        assert CliRunner().invoke(app, [command[0], str(folder), *command[1:]]).exit_code in (0, 3)


def test_dynamic_sampling_records_what_it_drew_in_vain(tmp_path: Path) -> None:
    trained = train(tmp_path, "sampling.max_batches=3", "run.steps=3", "reward.1.weight=0.0")
    reader = RunReader(trained.folder)
    for row in reader.metrics("train"):
        rows = reader.rollouts(row["step"], "train")
        vain = [each for each in rows if each["discard_reason"] == "dynamic_sampling"]
        assert len(rows) == row["groups/drawn"] * 4
        assert row["tokens/spent"] == sum(each["n_tokens"] for each in rows)
        assert all(each["weight_share"] is None and not each["used"] for each in vain)
        assert row["groups/drawn"] in (4, 8, 12)
    assert {row["groups/drawn"] for row in reader.metrics("train")} != {4}


def broken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fifth optimiser step's loss is not a number, whatever the model says."""
    calls = []

    def micro_loss(logp: Tensor, *args: Any) -> Loss:
        calls.append(1)
        return loss_module.micro_loss(logp * torch.nan if len(calls) == 5 else logp, *args)

    monkeypatch.setattr(update_module, "micro_loss", micro_loss)


def test_an_update_that_is_not_finite_stops_the_run_after_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_once(monkeypatch)
    with pytest.raises(NumericalError, match=r"^step 3, optimiser step 5: the log-probability of rollout \d+"):
        train(tmp_path)
    reader = RunReader(tmp_path / "tiny")
    assert reader.manifest()["state"] == "failed"
    assert [row["ledger/refused"] for row in reader.metrics("train")] == [0, 0, 1]
    (refused, *_) = [row for row in reader.ledger() if "refused" in row]
    assert (refused["step"], refused["update"]) == (3, 5)
    assert "is not finite" in refused["refused"]
    reasons = [row["discard_reason"] for row in reader.rollouts(3) if row["split"] == "train"]
    assert reasons.count("update_refused") == 8  # one of two minibatches


def test_an_update_that_is_not_finite_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_once(monkeypatch)
    trained = train(tmp_path, "optim.on_nonfinite=skip")
    assert (trained.state, trained.step) == ("finished", STEPS)
    rows = RunReader(tmp_path / "tiny").metrics("train")
    assert [row["ledger/refused"] for row in rows] == [0, 0, 1, 0, 0, 0]
    assert [row["sampler/version"] for row in rows] == [2, 4, 5, 7, 9, 11]


def test_a_preset_that_the_recipes_own_keys_undo_is_told() -> None:
    objective = {"preset": "dapo", "denominator": "constant", "beta": 0.1}
    given = {"data": {"task": "arithmetic"}, "reward": [{"name": "c", "kind": "exact"}], "objective": objective}
    recipe = validate(given, Recipe)
    origins = {"objective.preset": COMMAND_LINE, "objective.denominator": "r.toml:9", "objective.beta": COMMAND_LINE}
    assert undone(recipe, origins) == [
        "preset dapo, but objective.denominator = constant (r.toml:9); take that out to have the preset's own"
    ]
    assert undone(recipe, {**origins, "objective.preset": "r.toml:8"}) == []
