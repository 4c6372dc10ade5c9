"""The run folder: created whole or not at all, parquet files atomic, prompts that grow, and what is no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from small_runs import MANIFEST, RECIPE, group, new_run, rollout

from cupola.core.records import Outcome, RunFolderError
from cupola.core.runlog import RunReader, RunWriter, read_parquet, write, write_json, write_parquet, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_new_run_has_manifest_and_recipe_and_shares_its_folder_with_none(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "deep" / "run")
    root = writer.layout.root
    assert names(root) == [".lock", "recipe.toml", "rollouts", "run.json"]
    assert RunReader(root).manifest() == MANIFEST
    assert (root / "recipe.toml").read_text(encoding="utf-8") == RECIPE
    with pytest.raises(RunFolderError, match=r"run: exists already; choose another run.name, or continue it with"):
        new_run(root)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"file/run: cannot be created: Not a directory"):
        new_run(tmp_path / "file" / "run")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    write_text(target, "old")
    target.with_name(".page.html.tmp").mkdir()  # the temporary name cannot be opened
    with pytest.raises((RunFolderError, OSError)):
        write_text(target, "new")
    assert target.read_text(encoding="utf-8") == "old"


def test_a_path_below_a_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"^\S+/file/page.html: cannot be written: \w[\w ]+$"):
        write_text(tmp_path / "file" / "page.html", "x")


def test_values_parquet_cannot_hold_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"^\S+/a.parquet: cannot be written: Could not convert 'text'"):
        write_parquet(tmp_path / "a.parquet", [{"extra.x": 1}, {"extra.x": "text"}])
    assert names(tmp_path) == []


def test_rollouts_carry_text_as_it_is_and_undefined_as_null(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    texts = ["\x1b[31mred\x07\x00", "lone \ud800 surrogate", "", "Ω – 漢字 \u202e"]
    rollouts = [rollout(texts[0]), rollout(texts[1], None), rollout(texts[2], 0.0, tokens=0), rollout(texts[3])]
    asked = group("2+2 \udfff?", rollouts)
    writer.rollouts(1, [asked], {asked.id: [Outcome(advantage=0.5, weight_share=0.25, used=True)] * 4}, "right")

    rows = RunReader(writer.layout.root).rollouts(1)

    assert [row["completion"] for row in rows] == [texts[0], "lone \\ud800 surrogate", "", texts[3]]
    assert [row["reward"] for row in rows] == [1.0, None, 0.0, 1.0]
    assert [row["correct"] for row in rows] == [True, None, False, True]
    assert [row["entropy"] for row in rows] == [0.25, 0.25, None, 0.25]
    assert [row["token_ids"] for row in rows] == [[0, 1], [0, 1], [], [0, 1]]
    assert [row["verdict.status"] for row in rows] == ["ok", "error", "ok", "ok"]
    assert rows[0]["logp_sampler"] == [-0.5, -0.5]
    assert (rows[1]["verdict.reason"], rows[0]["advantage"], rows[0]["weight_share"]) == ("broke", 0.5, 0.25)
    assert RunReader(writer.layout.root).prompts()[asked.prompt.id]["prompt"] == "2+2 \\udfff?"


def test_extra_columns_may_be_there_for_some_rollouts_only(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    trained = group("2+2", [rollout("4", note="a"), rollout("5", note=None)])
    checked = group("1+1", [rollout("2"), rollout("3", none=None)], "validation", 1)
    writer.rollouts(1, [trained, checked], {trained.id: [Outcome()] * 2}, "right")
    rows = RunReader(writer.layout.root).rollouts(1)
    assert [row["extra.note"] for row in rows] == ["a", None, None, None]
    assert [row["extra.none"] for row in rows] == [None] * 4
    assert [row["split"] for row in rows] == ["train", "train", "validation", "validation"]
    assert len(RunReader(writer.layout.root).rollouts(1, "validation", ["completion"])) == 2


def test_prompts_grow_and_stay_across_a_resume(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    asked = [group(question, [rollout("4")]) for question in ("2+2", "1+3", "2+2")]
    writer.rollouts(1, asked[:2], {}, "right")
    writer.rollouts(2, asked[2:], {}, "right")
    resumed = RunWriter(writer.layout, attempt=1)
    resumed.rollouts(2, [group("9+9", [rollout("18")])], {}, "right")
    prompts = RunReader(writer.layout.root).prompts()
    assert sorted(row["prompt"] for row in prompts.values()) == ["1+3", "2+2", "9+9"]
    assert {row["answer"] for row in prompts.values()} == {"4"}


def test_a_long_run_writes_each_prompt_a_few_times_and_not_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """400 steps of one new prompt each: rewritten at every step, the file would be written 400 times."""
    writer = new_run(tmp_path / "run")
    written: list[str] = []
    write_bytes = write.write_bytes

    def noted(path: Path, data: bytes) -> None:
        written.append(path.name)
        write_bytes(path, data)

    monkeypatch.setattr(write, "write_bytes", noted)
    for step in range(400):
        writer.rollouts(step, [group(f"{step}+0", [rollout(str(step))])], {}, "right")
        if step % 50 == 0:
            writer = RunWriter(writer.layout, attempt=step)
            assert len(RunReader(writer.layout.root).prompts()) == step + 1
    assert len(RunReader(writer.layout.root).prompts()) == 400
    assert written.count("prompts.parquet") < 60


def test_steps_beyond_the_record_are_hidden(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    for step in (0, 1, 2, 3):
        writer.rollouts(step, [group("2+2", [rollout("4")])], {}, "right")
        if step < 3:
            writer.metrics(step, "train", {})
    reader = RunReader(writer.layout.root)
    assert reader.rollout_steps() == [0, 1, 2]
    RunWriter(writer.layout, attempt=1).metrics(1, "train", {})
    assert reader.rollout_steps() == [0, 1]


def test_timeline_is_the_share_of_right_sampled_answers(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    for step, rewards in ((0, (0.0, 0.0, None)), (2, (1.0, 0.0, None))):
        sampled = group("2+2", [rollout("4", reward) for reward in rewards], "validation")
        unknown = group("1+1", [rollout("2", None)], "validation", 1)
        greedy = group("3+3", [rollout("6")], "validation", 2)
        greedy = type(greedy)(f"{greedy.id}-greedy", greedy.prompt, greedy.rollouts, "validation", "greedy")
        writer.rollouts(step, [sampled, unknown, greedy], {}, "right")
        writer.metrics(step, "validation", {})
    timeline = RunReader(writer.layout.root).timeline()
    assert timeline == {sampled.prompt.id: {0: 0.0, 2: 0.5}, unknown.prompt.id: {0: None, 2: None}}


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (lambda root: None, "no such run folder"),
        (lambda root: root.write_text("x", encoding="utf-8"), "no such run folder"),
        (lambda root: root.mkdir(), "not a run folder: neither run.json nor metrics.jsonl stands in it"),
    ],
)
def test_what_is_no_run_is_named(tmp_path: Path, made: Any, fault: str) -> None:
    root = tmp_path / "run"
    made(root)
    with pytest.raises(RunFolderError, match=f"^{root}: {fault}"):
        RunReader(root)


def test_a_folder_of_metrics_alone_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 1}\n', encoding="utf-8")
    reader = RunReader(tmp_path)
    assert (reader.manifest(), reader.prompts(), reader.rollout_steps(), reader.evals()) == ({}, {}, [], {})
    assert reader.metrics("train") == [{"step": 1, "reward": 1}]
    with pytest.raises(RunFolderError, match=r"rollouts/000001.parquet: no rollouts of step 1 are recorded"):
        reader.rollouts(1)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    reader = RunReader(writer.layout.root)
    writer.rollouts(1, [group("2+2", [rollout("4")])], {}, "right")
    writer.layout.rollouts(1).write_bytes(b"PAR1 cut")
    with pytest.raises(RunFolderError, match=r"000001.parquet: not a readable parquet file"):
        reader.rollouts(1)
    writer.layout.prompts.write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"prompts.parquet: not a readable parquet file"):
        RunWriter(writer.layout, 1).rollouts(2, [group("1+1", [rollout("2")])], {}, "right")
    for damage in (b"{", b"[]", b"\xff"):
        writer.layout.manifest.write_bytes(damage)
        with pytest.raises(RunFolderError, match=r"run.json: not a JSON object"):
            reader.manifest()


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [{"x": 1}])
    assert pq.read_table(tmp_path / "a.parquet").to_pylist() == [{"x": 1}]
    with pytest.raises(RunFolderError, match=r"a.parquet: not a readable parquet file"):
        read_parquet(tmp_path / "a.parquet", ["y"])


def test_evaluations_are_read_by_their_id_and_damage_is_named(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    reader = RunReader(writer.layout.root)
    write_json(writer.layout.evals / "one" / "summary.json", {"questions": 3})
    assert reader.evals() == {"one": {"questions": 3}}
    (writer.layout.evals / "one" / "summary.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"evals/one/summary.json: not a JSON object"):
        reader.evals()
