"""The rank that writes the run is killed: the other ends by itself, and the run goes on from its last checkpoint."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from test_ranks import torchrun, worker
from tiny_run import STEPS, write_recipe

from cupola.core.runlog import RunReader
from cupola.workflows.train import resume_run


@pytest.mark.slow
def test_a_killed_writer_ends_the_run_which_goes_on_on_one_process(tmp_path: Path) -> None:
    root = tmp_path / "tiny"
    with torchrun("-m", "cupola", "train", str(write_recipe(tmp_path)), PACE="0.3") as process:
        while not (root.exists() and any(row["step"] >= 3 for row in RunReader(root).metrics("train"))):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        first, other = (worker(process.pid, rank) for rank in (0, 1))
        os.kill(first, signal.SIGKILL)
        started = time.monotonic()
        _, errors = process.communicate(timeout=120)
    assert time.monotonic() - started < 30
    assert not Path(f"/proc/{other}").exists()
    assert process.returncode != 0
    assert "Signal 9 (SIGKILL)" in errors  # torchrun's word: the rank that speaks is dead
    reader = RunReader(root)
    assert reader.manifest()["state"] == "running"  # so is the one that writes
    assert reader.layout.checkpoint_steps() == [0, 2]
    before = reader.metrics()
    again = resume_run(root)
    assert (again.state, again.step) == ("finished", STEPS)
    kept = [row for row in before if row["step"] <= 2]
    assert reader.metrics()[: len(kept)] == kept
    assert [row["step"] for row in reader.metrics("train")] == list(range(1, STEPS + 1))
