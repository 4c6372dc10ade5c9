"""Two ranks and one server: the first rank sends the gathered weights and asks for all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_process import AHEAD, LORA, recipe_for, restart, serving

from cupola.core.config import dump
from cupola.core.runlog import RunReader

SAME = 1e-4  # nats between two forward passes in float32 of the same weights


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("--lora") as address:
        yield address


@pytest.mark.slow
@pytest.mark.parametrize("way", ["gloo", "files", "lora", "one step off"])
def test_two_ranks_train_against_one_server(way: str, url: str, tmp_path: Path) -> None:
    restart(url)
    folder = f"sampler.folder={tmp_path}/handed"
    ways = {"gloo": (), "files": ("sampler.transfer=files", folder), "lora": (*LORA, folder), "one step off": AHEAD}
    recipe, _ = recipe_for(url, tmp_path, *ways[way])
    path = tmp_path / "resolved.toml"
    path.write_text(dump(recipe))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*launch, "-m", "cupola", "train", str(path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = RunReader(tmp_path / "served")
    receipts = run.receipts()
    assert [row["version"] for row in receipts] == [1, 2, 3]
    for row in receipts:
        assert 0 <= row["difference"] < SAME < row["moved"]
    train = [row for row in run.metrics() if row["split"] == "train"]
    if way == "one step off":
        assert [row["sampler/staleness"] for row in train] == [0, 1, 1]
    else:
        assert all(row["sampling/sampling_logp_difference/max"] < SAME for row in train)
