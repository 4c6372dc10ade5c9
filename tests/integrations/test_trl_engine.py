"""`run.engine = "trl"`: real steps of GRPOTrainer on the embedded policy, and the run folder that they leave."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trl_runs import relative_gap, small
from typer.testing import CliRunner

from cupola.cli.app import app
from cupola.core.config import Recipe, dump, load_recipe
from cupola.core.records import NumericalError, RunFolderError
from cupola.core.runlog import RunReader
from cupola.workflows.train import View

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("default")]


def trained(recipe: Recipe) -> RunReader:
    from cupola.integrations.trl.engine import train_with_trl

    done = train_with_trl(recipe, {}, View())
    assert done is not None
    assert (done.state, done.step) == ("finished", recipe.run.steps)
    return RunReader(done.folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    """By the command line, as a user would."""
    folder = tmp_path_factory.mktemp("trl")
    (folder / "r.toml").write_text(dump(small(folder)), encoding="utf-8")
    done = CliRunner().invoke(app, ["train", str(folder / "r.toml"), "run.engine=trl", "evaluation.at_end=true"])
    assert done.exit_code in (0, 3), done.output
    assert "step 2/2  reward" in done.output
    return RunReader(folder / "r")


def test_the_folder_is_a_run(run: RunReader) -> None:
    manifest = run.manifest()
    assert (manifest["state"], manifest["engine"]) == ("finished", "trl")
    assert manifest["trl"]["arguments"]["loss_type"] == "dr_grpo"
    assert manifest["versions"]["trl"].startswith("1.16")
    assert [(row["step"], row["split"]) for row in run.metrics()] == [
        (0, "validation"),
        *((step, split) for step in (1, 2) for split in ("train", "validation")),
    ]
    assert run.layout.checkpoint_steps() == [0, 1, 2]
    assert load_recipe([run.layout.recipe])[0].run.engine == "trl"


def test_rows_hold_trls_keys_and_what_the_groups_tell(run: RunReader) -> None:
    for row in run.metrics("train"):
        assert {"loss", "grad_norm", "entropy", "clip_ratio/region_mean", "num_tokens", "groups/dead"} <= set(row)
        assert not [key for key in row if key.startswith("rewards/total/")]
        rollouts = run.rollouts(row["step"], "train")
        assert len(rollouts) == 16
        assert row["reward"] == sum(each["reward"] for each in rollouts) / 16
        assert row["tokens/spent"] == sum(each["n_tokens"] for each in rollouts)
        dead = [each for each in rollouts if each["group_state"] == "dead"]
        assert row["groups/dead"] == len(dead) / 16
        assert row["tokens/wasted"] == sum(each["n_tokens"] for each in dead)
    first, second = run.metrics("train")
    assert second["num_tokens"] > first["num_tokens"] > first["tokens/spent"]
    assert (first["learning_rate"], second["learning_rate"]) == (pytest.approx(0.1 / 3), pytest.approx(0.05 / 3))


def test_rollouts_are_whole(run: RunReader) -> None:
    rows = run.rollouts(2, "train")
    assert len({row["group_id"] for row in rows}) == 4
    assert {row["policy_version"] for row in rows} == {1}
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"}
    for row in rows:
        assert row["n_tokens"] == len(row["token_ids"]) <= 44
        assert (row["reward"] == 1) == (row["verdict.status"] == "ok") == row["correct"]
        assert row["entropy"] is None
    of_group = [row["advantage"] for row in rows if row["group_id"] == rows[0]["group_id"]]
    assert sum(of_group) == pytest.approx(0, abs=1e-6)


def test_prompts_are_those_of_the_own_loop(run: RunReader) -> None:
    from cupola.train.tasks import open_source

    recipe, _ = load_recipe([run.layout.recipe])
    source = open_source(recipe.data, recipe.reward, recipe.run.seed)
    for step in (1, 2):
        asked = list(dict.fromkeys(row["prompt_id"] for row in run.rollouts(step, "train")))
        assert asked == [prompt.id for prompt in source.draw(step - 1, 4)]


@pytest.mark.parametrize("command", [["diagnose"], ["groups"], ["watch"]])
def test_judging_commands_read_it(run: RunReader, command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, str(run.layout.root)])
    assert done.exit_code == 0, done.output


def test_the_last_checkpoint_was_evaluated(run: RunReader) -> None:
    assert list(run.evals()) == ["step-000002"]


def test_it_is_not_resumed(run: RunReader) -> None:
    done = CliRunner().invoke(app, ["resume", str(run.layout.root)])
    assert isinstance(done.exception, RunFolderError)
    assert str(done.exception) == (
        f"{run.layout.root}: a run of TRL's is not resumed; start another with a checkpoint as model.source"
    )


#: What changes the gradient, with a cut of several pieces and a second pass, in recipes of our own and of TRL's.
UPDATES: dict[str, dict[str, Any]] = {
    "dr_grpo": {},
    "grpo with KL": {"objective": {"preset": "grpo", "beta": 0.5}, "optim": {"micro_rollouts": 4, "epochs": 2}},
    "trl:dapo": {"objective": {"preset": "trl:dapo", "beta": 0.5}, "optim": {"micro_rollouts": 2, "epochs": 3}},
    "gspo": {"objective": {"preset": "gspo"}, "optim": {"micro_rollouts": 8, "epochs": 2}},
    "trl:cispo": {"objective": {"preset": "trl:cispo"}, "optim": {"epochs": 2}},
    "trl:vespo": {"objective": {"preset": "trl:vespo"}, "optim": {"epochs": 2}},
    "batch_std and cut answers": {
        "objective": {"preset": "trl:grpo", "scale": "batch_std", "mask_truncated": True},
        "sampling": {"max_tokens": 22},
    },
    "entropy": {"objective": {"preset": "trl:dapo", "entropy_coef": 0.1}, "optim": {"epochs": 2}},
    "top entropy": {"objective": {"preset": "trl:dapo", "masks": {"top_entropy": 0.3}}},
    "temperature": {"sampling": {"temperature": 1.5}},
    "clipped by norm": {"optim": {"max_grad_norm": 0.01}},
    "gdpo": {
        "objective": {"preset": "gdpo"},
        "reward": [
            {"name": "correct", "kind": "exact", "extract": r"#(\d+)$"},
            {"name": "short", "kind": "overlong", "cache": 40, "weight": 0.5},
        ],
    },
    "lora with KL": {
        "model": {"lora": {"rank": 4}},
        "objective": {"preset": "grpo", "beta": 0.5},
        "optim": {"epochs": 2, "learning_rate": 0.2},
    },
    "warm-up": {"optim": {"schedule": "cosine", "warmup_steps": 3, "epochs": 2}},
    "adamw": {"optim": {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.1}},
}


@pytest.mark.parametrize("case", UPDATES)
def test_the_update_is_the_one_of_the_own_loop(case: str, tmp_path: Path) -> None:
    """On the same rollouts the weights move alike: advantages, loss, cut, optimiser and schedule are all mapped."""
    recipe = small(tmp_path, **UPDATES[case])
    reader = trained(recipe)
    assert relative_gap(recipe, reader) < (2e-2 if case == "adamw" else 1e-4)


def test_another_update_is_told_apart(tmp_path: Path) -> None:
    reader = trained(small(tmp_path, **UPDATES["grpo with KL"]))
    other = {**UPDATES["grpo with KL"], "objective": {"preset": "grpo", "beta": 0.4}}
    assert relative_gap(small(tmp_path, **other), reader) > 0.01


def test_a_batch_without_gradient_leaves_the_weights(tmp_path: Path) -> None:
    """All answers are cut and so wrong; weight decay alone would move what AdamW steps on."""
    cut = {"sampling": {"max_tokens": 3}, "optim": {"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.5}}
    reader = trained(small(tmp_path, **cut))
    assert [row["groups/dead_wrong"] for row in reader.metrics("train")] == [1.0, 1.0]
    first, last = (load_file(reader.layout.checkpoint(step) / "model.safetensors") for step in (0, 2))
    assert all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_refused(value: float) -> None:
    """The trainer's own hook, on an optimiser that is about to step."""
    from cupola.integrations.trl.engine import Trainer

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    trainer = SimpleNamespace(state=SimpleNamespace(global_step=6))
    optimizer.register_step_pre_hook(partial(Trainer._before_update, trainer))
    weight.grad = torch.tensor([1.0, value])
    with pytest.raises(NumericalError, match=r"^optimiser step 7: the gradient's norm is (nan|inf); the update was"):
        optimizer.step()
    assert weight.tolist() == [1.0, 1.0]


def test_unscored_answers_have_no_reward(tmp_path: Path) -> None:
    """A function that says nothing of odd lengths: TRL leaves those out of the baseline, and so does the own loop."""
    source = "def even(completions, **_):\n    return [len(c) / 20 if len(c) % 2 == 0 else None for c in completions]\n"
    (tmp_path / "even.py").write_text(source, encoding="utf-8")
    part = {"name": "even", "kind": "function", "path": f"{tmp_path}/even.py:even", "correct_at": 0.5}
    recipe = small(tmp_path, reward=[part], objective={"preset": "dr_grpo", "count": "nominal"})
    reader = trained(recipe)
    rows = reader.rollouts(1, "train")
    for row in rows:
        known = len(row["completion"]) % 2 == 0
        assert row["reward"] == (len(row["completion"]) / 20 if known else None)
        assert (row["advantage"] is None) == (not known)
    assert 0 < sum(row["reward"] is None for row in rows) < 16
    assert relative_gap(recipe, reader) < 1e-4


@pytest.mark.slow
def test_two_processes_make_the_same_update(tmp_path: Path) -> None:
    """gloo, on the CPU: one folder, whose groups span both processes, and the update of all of them."""
    recipe = small(tmp_path, model={"device": "cpu"}, optim={"micro_rollouts": 4}, objective={"preset": "trl:dapo"})
    (tmp_path / "r.toml").write_text(dump(recipe), encoding="utf-8")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "cupola", "train"]
    done = subprocess.run(
        [sys.executable, *command, "r.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("step 2/2  reward") == 1
    reader = RunReader(tmp_path / "r")
    assert reader.manifest()["trl"]["processes"] == 2
    assert [row["step"] for row in reader.metrics("train")] == [1, 2]
    assert len(reader.rollouts(1, "train")) == 16
    assert relative_gap(recipe, reader) < 1e-4


def test_a_refusal_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(dump(small(tmp_path)), encoding="utf-8")
    done = CliRunner().invoke(app, ["train", str(tmp_path / "r.toml"), "objective.denominator=prompt_mean"])
    assert str(done.exception).startswith("objective.denominator: 'prompt_mean' has no counterpart in TRL; 'trl:dapo'")
    assert not (tmp_path / "r").exists()


def test_defaults_of_the_preset_are_trls_own() -> None:
    """`trl:dapo` says of the objective what GRPOConfig says by itself."""
    from trl import GRPOConfig

    from cupola.integrations.trl.cut import Cut
    from cupola.integrations.trl.objective import OBJECTIVE
    from cupola.integrations.trl.rules import Asked

    recipe = small(Path("."), objective={"preset": "trl:dapo"})
    asked, default = Asked(recipe, Cut.of(recipe, 1), False), GRPOConfig(output_dir="unused", bf16=False)
    for key, rule in OBJECTIVE.items():
        for name, value in rule(asked, f"objective.{key}", getattr(recipe.objective, key)).items():
            meant = default.epsilon if name == "epsilon_high" else getattr(default, name)
            assert value == meant, name


def test_trl_trains_a_model_with_an_attention_that_transformers_knows(tmp_path: Path) -> None:
    from cupola.integrations.trl.engine import _parts

    assert _parts(small(tmp_path)).policy.model.config._attn_implementation == "sdpa"


def test_everything_is_json(run: RunReader) -> None:
    assert json.loads(json.dumps(run.manifest())) == run.manifest()
