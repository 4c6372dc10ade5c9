"""A run that was cut off continues as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_run import STEPS, record, train, write_recipe

from cupola.core.runlog import RunReader
from cupola.workflows.train import View, resume_run


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return record(train(tmp_path_factory.mktemp("straight")).folder)


class Cut(BaseException):
    """Ends a run without giving it the time to do anything about it."""


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_run_cut_off_anywhere_is_recomputed_exactly(straight: dict, tmp_path: Path, at: int) -> None:
    """At step 1 there is only the checkpoint of step 0, which stands behind the first validation."""

    def cut(step: int, rows: object, groups: object) -> None:
        if step == at:
            raise Cut

    with pytest.raises(Cut):
        train(tmp_path, view=View([cut]))
    root = tmp_path / "tiny"
    with open(root / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "split": "tra')  # the line it was writing
    again = resume_run(root)
    assert (again.state, again.step) == ("finished", STEPS)
    assert record(root) == straight
    manifest = RunReader(root).manifest()
    assert [attempt["state"] for attempt in manifest["attempts"]] == ["failed", "finished"]
    assert manifest["attempts"][1]["from_step"] == (at - 1) // 2 * 2  # validation and its checkpoint every 2 steps


def start(folder: Path, *command: str) -> subprocess.Popen:
    """The command line in a process of its own, slow enough to be caught in the middle."""
    environment = {**os.environ, "PACE": "0.3", "OMP_NUM_THREADS": "1"}
    code = "from cupola.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *command], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )


def wait_for_step(process: subprocess.Popen, root: Path, step: int) -> None:
    for _ in range(1200):
        assert process.poll() is None, process.communicate()
        if root.exists() and any(row["step"] >= step for row in RunReader(root).metrics("train")):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{root}: no step {step}")


@pytest.mark.slow
def test_a_killed_process_is_resumed_exactly(straight: dict, tmp_path: Path) -> None:
    process = start(tmp_path, "train", str(write_recipe(tmp_path)))
    root = tmp_path / "tiny"
    wait_for_step(process, root, 3)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert RunReader(root).manifest()["state"] == "running"  # nothing had the time to say otherwise
    assert RunReader(root).layout.checkpoint_steps()[-1] < STEPS
    assert resume_run(root).state == "finished"
    assert record(root) == straight


@pytest.mark.slow
def test_an_interrupted_process_finishes_its_record(straight: dict, tmp_path: Path) -> None:
    process = start(tmp_path, "train", str(write_recipe(tmp_path)))
    root = tmp_path / "tiny"
    wait_for_step(process, root, 2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"cupola resume {root}" in out
    reader = RunReader(root)
    assert reader.manifest()["state"] == "interrupted"
    last = reader.metrics("train")[-1]["step"]
    assert 2 <= last < STEPS
    assert reader.layout.checkpoint_steps()[-1] == last == reader.rollout_steps()[-1]

    resumed = start(tmp_path, "resume", str(root))
    resumed.communicate(timeout=120)
    assert resumed.returncode in (0, 3)  # 3: a finding
    assert record(root) == straight
