"""`attach` on a GRPOTrainer that a user built, with TRL-style rewards of theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cupola.core.records import RecipeError
from cupola.core.runlog import RunReader
from cupola.watch.diagnosis import diagnose_run
from cupola.workflows.answers import read_groups

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("default")]

SUMS = [(a, b) for a in range(11, 35, 3) for b in (12, 27)]


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    found = [re.search(r"#(\d+)$", text) for text in completions]
    return [float(match is not None and match[1] == str(gold)) for match, gold in zip(found, answer, strict=True)]


def brief(completions: list[str], **_: Any) -> list[float | None]:
    """Half a point for an answer of even length; of another it says nothing."""
    return [0.5 if len(text) % 2 == 0 else None for text in completions]


def hand_built(folder: Path, **changed: Any) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from cupola.train.models import EMBEDDED

    rows = {"prompt": [f"{a}+{b}=" for a, b in SUMS], "answer": [str(a + b) for a, b in SUMS]}
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 32,
        "max_steps": 4,
        "logging_steps": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    return GRPOTrainer(
        model=str(EMBEDDED),
        reward_funcs=[right, brief],
        args=GRPOConfig(**{**settings, **changed}),
        train_dataset=Dataset.from_dict(rows),
    )


def attached(folder: Path, **changed: Any) -> tuple[RunReader, list[str]]:
    from cupola.integrations.trl import attach

    said: list[str] = []
    trainer = hand_built(folder, **changed)
    root = attach(trainer, say=said.append)
    assert not root.exists()
    trainer.train()
    return RunReader(root), said


def test_a_step_for_each_generation(tmp_path: Path) -> None:
    reader, _ = attached(tmp_path)
    manifest = reader.manifest()
    assert (manifest["engine"], manifest["state"], manifest["correctness"]) == ("trl", "finished", "right")
    assert manifest["recipe"]["sampling"]["group_size"] == 4
    rows = reader.metrics("train")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert ["loss" in row for row in rows] == [False, True, False, True]  # as often as its user has TRL log
    for row in rows:
        rollouts = reader.rollouts(row["step"])
        assert len(rollouts) == 8
        assert len({each["group_id"] for each in rollouts}) == 2
        for each in rollouts:
            text, gold = each["completion"], reader.prompts()[each["prompt_id"]]["answer"]
            score, extra = right([text], [gold])[0], brief([text])[0]
            assert (each["reward.right"], each["reward.brief"]) == (score, extra)
            assert each["reward"] == score + (extra or 0.0)
            assert each["correct"] == (score == 1)
        assert row["reward"] == pytest.approx(sum(each["reward"] for each in rollouts) / 8)
        assert row["verify/skipped"] == sum(each["reward.brief"] is None for each in rollouts)


def test_several_updates_of_one_generation_are_one_step(tmp_path: Path) -> None:
    """Two optimiser steps to a pass and two passes: `global_step` 4 ends the first generation."""
    changed = {"steps_per_generation": 2, "num_iterations": 2, "max_steps": 6, "logging_steps": 1}
    reader, _ = attached(tmp_path, **changed)
    assert [row["step"] for row in reader.metrics("train")] == [4, 6]
    first, rest = reader.rollouts(4), reader.rollouts(6)
    assert len(first) == len(rest) == 16
    assert all(len(row["logp_old"]) == row["n_tokens"] for row in first)


def test_judging_reads_it(tmp_path: Path) -> None:
    reader, _ = attached(tmp_path)
    assert diagnose_run(reader).gaps
    shown = read_groups(reader.layout.root, None, "train", 2)
    assert shown["step"] == 4
    assert len(shown["groups"]) == 2


def test_training_itself_is_left_alone(tmp_path: Path) -> None:
    """The same weights, to the bit, as without."""
    import torch

    alone = hand_built(tmp_path / "alone")
    alone.train()
    seen = hand_built(tmp_path / "seen")
    from cupola.integrations.trl import attach

    attach(seen)
    seen.train()
    for one, other in zip(alone.model.parameters(), seen.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_finding_is_told_and_written(tmp_path: Path) -> None:
    """Every answer is cut at 6 tokens."""
    reader, said = attached(tmp_path, max_completion_length=6, max_steps=8)
    assert any(row["name"] == "high_truncation" for row in reader.findings())
    assert any(re.match(r"step \d+: (warning|error): ", line) for line in said)


def test_an_unknown_reward_function_is_refused(tmp_path: Path) -> None:
    from cupola.integrations.trl import attach

    with pytest.raises(RecipeError, match=r"no reward function 'accuracy'; it has right, brief$"):
        attach(hand_built(tmp_path), correctness="accuracy")


def by_place(values: tuple[float, ...], name: str) -> Any:
    def paid(completions: list[str], **_: Any) -> list[float]:
        return [values[place % len(values)] for place in range(len(completions))]

    paid.__name__ = name
    return paid


def test_equal_totals_of_parts_normalised_apart_are_not_silent(tmp_path: Path) -> None:
    """The parts of each answer sum to 1, but not once each is divided by its own deviation."""
    from cupola.integrations.trl import attach

    trainer = hand_built(tmp_path, multi_objective_aggregation="normalize_then_sum", max_steps=1, logging_steps=1)
    parts = {"a": (0.0, 0.0, 1.0, 1.0), "b": (0.0, 1.0, 0.0, -1.0), "c": (1.0, 0.0, 0.0, 1.0)}
    trainer.reward_funcs = [by_place(values, name) for name, values in parts.items()]
    trainer.reward_func_names = list(parts)
    trainer.reward_processing_classes = [None] * 3
    trainer.reward_weights = trainer.reward_weights.new_ones(3)
    root = attach(trainer)
    trainer.train()
    rows = RunReader(root).rollouts(1)
    assert [row["reward"] for row in rows] == [1.0] * 8
    assert {row["group_state"] for row in rows} == {"dead"}
    assert any(abs(row["advantage"]) > 0.1 for row in rows)
    for row in rows:
        assert (row["weight_share"] is None) == (row["advantage"] != 0)
