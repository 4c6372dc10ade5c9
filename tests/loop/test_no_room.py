"""A disk that is full, or a folder that nobody may write to, at any of a run's files: one line, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted import Straight, assert_finishes, assert_reads, begun, gone_on, uninterrupted
from moments import Blow, Ended, cupola, open_again
from tiny_run import write_recipe

from cupola.core.runlog import RunReader

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return uninterrupted(tmp_path_factory.mktemp("straight"))


def assert_failed(done: Ended, place: Path, reason: str) -> None:
    """One line, which names the place."""
    assert (done.code, done.err) == (1, f"error: {place}: cannot be written: {reason}\n")


def assert_nothing_half_written(root: Path) -> None:
    assert [path for path in root.rglob(".*") if path.name != ".lock"] == []


#: The file, which write of it finds the disk full, and the place that is named.
FULL = [
    ("rollouts", 3, "rollouts/000002.parquet"),
    ("prompts.parquet", 3, "prompts.parquet"),
    ("prompts.jsonl", 1, "prompts.jsonl"),
    ("ledger.jsonl", 3, "ledger.jsonl"),
    ("weights.jsonl", 3, "weights.jsonl"),
    ("metrics.jsonl", 5, "metrics.jsonl"),
    ("findings.jsonl", 1, "findings.jsonl"),
    ("config.json", 2, "checkpoints/step-000002"),
    ("generation_config.json", 2, "checkpoints/step-000002"),
    ("tokenizer_config.json", 2, "checkpoints/step-000002"),
    ("rng.pt", 50, "checkpoints/step-000002"),
    ("optimizer.pt", 100, "checkpoints/step-000002"),
    ("state.json", 2, "checkpoints/step-000002"),
    ("report.html", 1, "report.html"),
]


@pytest.mark.parametrize(("file", "n", "place"), FULL)
def test_a_disk_that_is_full_at_a_file(file: str, n: int, place: str, straight: Straight, tmp_path: Path) -> None:
    done = begun(tmp_path, blow=Blow(f"write {file}", n, "full"))
    assert_failed(done, tmp_path / "tiny" / place, "File too large")
    assert_nothing_half_written(tmp_path)
    assert_reads(tmp_path, straight)
    assert_finishes(tmp_path, straight)


#: Two libraries' own words.
WORDS = {
    "model.safetensors": "Error while serializing: I/O error: File too large (os error 27)",
    "tokenizer.json": "File too large (os error 27)",
}


@pytest.mark.parametrize("file", WORDS)
def test_a_disk_that_is_full_where_a_library_writes(file: str, straight: Straight, tmp_path: Path) -> None:
    done = begun(tmp_path, blow=Blow(f"write {file}", 2, "full"))
    assert_failed(done, tmp_path / "tiny/checkpoints/step-000002", WORDS[file])
    assert_nothing_half_written(tmp_path)
    assert_reads(tmp_path, straight)
    assert_finishes(tmp_path, straight)


@pytest.mark.parametrize("n", [2, 3])
def test_a_disk_that_is_full_when_an_attempt_is_noted(n: int, straight: Straight, tmp_path: Path) -> None:
    """The second time is when the run begins, which leaves nothing; the third when it has ended."""
    done = begun(tmp_path, blow=Blow("write run.json", n, "full"))
    assert_failed(done, tmp_path / "tiny/run.json", "File too large")
    assert_nothing_half_written(tmp_path)
    assert (tmp_path / "tiny").exists() == (n == 3)
    assert_reads(tmp_path, straight)
    assert_finishes(tmp_path, straight)


def test_a_disk_that_stays_full(straight: Straight, tmp_path: Path) -> None:
    """Neither attempt can say that it failed; both end with a line."""
    begun(tmp_path, blow=Blow("write rollouts", 5, "full"))
    before = RunReader(tmp_path / "tiny").metrics()
    assert [row["step"] for row in before] == [0, 1, 2, 2, 3]
    done = gone_on(tmp_path, blow=Blow("start", 1, "full"))
    assert_failed(done, Path("tiny/run.json"), "File too large")
    assert RunReader(tmp_path / "tiny").metrics() == before
    assert_finishes(tmp_path, straight)


#: The moment from which nobody may write, and the place that is named.
SHUT = [
    (Blow("token", 70, "shut"), "rollouts/000002.parquet"),
    (Blow("backward", 5, "shut"), "weights.jsonl"),
    (Blow("write weights.jsonl", 3, "shut"), "rollouts/000003.parquet"),
    (Blow("write prompts.parquet", 3, "shut"), "prompts.parquet"),
    (Blow("fsync", 20, "shut"), "checkpoints/step-000002"),
]


@pytest.mark.parametrize(("blow", "place"), SHUT)
def test_a_folder_that_cannot_be_written_any_more(blow: Blow, place: str, straight: Straight, tmp_path: Path) -> None:
    done = begun(tmp_path, blow=blow)
    assert_failed(done, tmp_path / "tiny" / place, "Permission denied")
    assert RunReader(tmp_path / "tiny").manifest()["state"] == "running"  # it could not say otherwise
    assert_reads(tmp_path, straight)
    open_again(tmp_path)
    assert_finishes(tmp_path, straight)


def test_a_folder_that_cannot_be_written_from_the_start(straight: Straight, tmp_path: Path) -> None:
    write_recipe(tmp_path)
    done = begun(tmp_path, blow=Blow("start", 1, "shut"))
    assert (done.code, done.err) == (1, f"error: {tmp_path / 'tiny'}: cannot be created: Permission denied\n")
    open_again(tmp_path)
    begun(tmp_path, blow=Blow("write ledger.jsonl", 4, "full"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    done = gone_on(tmp_path, blow=Blow("start", 1, "shut"))
    assert_failed(done, Path("tiny"), "Permission denied")
    open_again(tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    assert_finishes(tmp_path, straight)


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    begun(tmp_path)
    done = cupola(tmp_path, "watch", "tiny", blow=Blow("start", 1, "shut"))
    assert_failed(done, Path("tiny/report.html"), "Permission denied")
    open_again(tmp_path)
    assert cupola(tmp_path, "watch", "tiny").code == 0
