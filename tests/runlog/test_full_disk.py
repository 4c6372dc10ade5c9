"""A full disk: the file is named, nothing is half-written, and the run goes on once there is room."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_runs import group, new_run, rollout

from cupola.core.records import RunFolderError
from cupola.core.runlog import RunReader, RunWriter, append, write_parquet


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes: writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_device_without_room_is_named() -> None:
    with pytest.raises(RunFolderError, match=r"^/dev/full: cannot be written: No space left on device$"):
        append(Path("/dev/full"), [{"step": 1}])


def test_a_torn_append_costs_that_row_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, [{"step": 1}])
    with files_up_to(40), pytest.raises(RunFolderError, match=rf"^{path}: cannot be written: File too large$"):
        append(path, [{"step": 2, "text": "x" * 100}])
    assert path.stat().st_size == 40  # the beginning of the row did reach the disk
    append(path, [{"step": 3}])
    assert path.read_text(encoding="utf-8") == '{"step": 1}\n{"step": 3}\n'


def test_parquet_that_does_not_fit_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "prompts.parquet"
    write_parquet(path, [{"x": 1}])
    before = path.read_bytes()
    with files_up_to(100), pytest.raises(RunFolderError, match=rf"^{path}: cannot be written: File too large$"):
        write_parquet(path, [{"x": number} for number in range(1000)])
    assert [each.name for each in tmp_path.iterdir()] == ["prompts.parquet"]
    assert path.read_bytes() == before


def test_a_run_that_cannot_be_begun_leaves_no_folder(tmp_path: Path) -> None:
    with files_up_to(20), pytest.raises(RunFolderError, match=r"run/recipe.toml: cannot be written: File too large"):
        new_run(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_once_there_is_room(tmp_path: Path) -> None:
    writer = new_run(tmp_path / "run")
    writer.rollouts(1, [group("2+2", [rollout("4")])], {}, "right")
    writer.metrics(1, "train", {"reward": 1.0})
    with files_up_to(150):
        with pytest.raises(RunFolderError, match=r"rollouts/000002.parquet: cannot be written"):
            writer.rollouts(2, [group("1+1", [rollout("2")])], {}, "right")
        with pytest.raises(RunFolderError, match=r"metrics.jsonl: cannot be written"):
            writer.metrics(2, "train", {"reward": 1.0, "text": "y" * 100})
    assert RunReader(writer.layout.root).rollout_steps() == [1]

    resumed = RunWriter(writer.layout, attempt=1)
    resumed.rollouts(2, [group("1+1", [rollout("2")])], {}, "right")
    resumed.metrics(2, "train", {"reward": 0.5})

    reader = RunReader(writer.layout.root)
    assert [(row["step"], row["attempt"]) for row in reader.metrics()] == [(1, 0), (2, 1)]
    assert sorted(row["prompt"] for row in reader.prompts().values()) == ["1+1", "2+2"]
