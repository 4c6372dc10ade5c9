"""Two real gloo processes: the gradient, the books and the loss curve of one; checkpoints that either reads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from test_resume import Cut
from tiny_run import STEPS, record, train, write_recipe

from cupola.core.config.presets import PRESETS
from cupola.core.runlog import RunReader
from cupola.workflows.train import View, resume_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

WORK = Path(__file__).with_name("rank_work.py")


def torchrun(*command: str, ranks: int = 2, **environment: str) -> subprocess.Popen[str]:
    """Start the command on so many ranks."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return subprocess.Popen(
        [*launch, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def cupola(*command: str, **environment: str) -> tuple[str, str, int]:
    """Output, errors and exit code of the command line on two ranks."""
    with torchrun("-m", "cupola", *command, **environment) as process:
        out, errors = process.communicate(timeout=300)
    return out, errors, process.returncode


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What `rank_work.py` measured."""
    with torchrun(str(WORK)) as process:
        out, errors = process.communicate(timeout=1000)
    assert process.returncode == 0, errors
    return json.loads(out)


def test_every_presets_gradient_is_one_processs(found: dict[str, Any]) -> None:
    assert found["ranks"] == 2
    assert found["presets"].keys() == PRESETS.keys()
    double, single = (max(worst[k] for worst in found["presets"].values()) for k in (0, 1))
    print(f"worst: {double:.1e} in fp64, {single:.1e} in fp32")
    assert double < 1e-9
    assert single < 1e-5


def test_cuts_masks_an_adapter_and_fewer_rows_than_ranks(found: dict[str, Any]) -> None:
    assert len(found["variants"]) == 11
    assert max(found["variants"].values()) < 1e-9, found["variants"]


def test_the_books_are_one_processs_and_every_ranks(found: dict[str, Any]) -> None:
    assert found["books"] == [True, True]


def test_a_checkpoint_of_two_goes_on_on_one_and_on_two(found: dict[str, Any]) -> None:
    assert found["optimisers"].keys() == {"sgd", "adamw", "rmsprop"}
    assert max(found["optimisers"].values()) < 1e-9, found["optimisers"]


def test_a_loss_that_is_not_finite_on_one_rank_is_refused_on_all(found: dict[str, Any]) -> None:
    """Two optimiser steps are refused; the two after them are taken."""
    assert found["refusal"] == ["row 0, version 2"] * 2


def test_the_loss_curve_on_recorded_rollouts(found: dict[str, Any]) -> None:
    curve = found["curve"]
    assert len(curve) == 20
    size = fmean(abs(alone) for alone, _ in curve)
    apart = max(abs(alone - shared) for alone, shared in curve) / size
    print(f"20 steps: at most {apart:.1e} of the mean size {size:.1e} apart")
    assert size > 1e-3
    assert apart < 1e-4


#: Of five prompts the ranks score three and two, so that a reward function leaves their generators in unlike states.
UNEVEN = "sampling.prompts_per_step=5"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks from its first step to its last."""
    folder = tmp_path_factory.mktemp("straight")
    out, errors, code = cupola("train", str(write_recipe(folder)), UNEVEN)
    assert code == 0, errors
    assert out.count(f"step {STEPS}/{STEPS}") == 1, out  # the first rank alone speaks
    return folder / "tiny"


def test_a_run_of_two_ranks_is_a_run_like_any_other(straight: Path) -> None:
    reader = RunReader(straight)
    assert [row["step"] for row in reader.metrics("train")] == list(range(1, STEPS + 1))
    rows = reader.rollouts(1)
    assert len({row["group_id"] for row in rows}) == 5
    assert len({row["completion"] for row in rows}) > 4  # the ranks draw apart
    assert all(row["used"] for row in rows)
    assert reader.manifest()["attempts"][0]["ranks"] == 2
    assert reader.manifest()["model"]["digest"] == start_digest(straight.parent)


def start_digest(folder: Path) -> str:
    """The digest that one process gives the starting model."""

    def stop(*_: object) -> None:
        raise Cut

    alone = folder / "alone"
    alone.mkdir()
    with pytest.raises(Cut):
        train(alone, view=View([stop]))
    return str(RunReader(alone / "tiny").manifest()["model"]["digest"])


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, whose second rank was killed after step 3; the first says so within seconds and records it."""
    folder = tmp_path_factory.mktemp("killed")
    root = folder / "tiny"
    with torchrun("-m", "cupola", "train", str(write_recipe(folder)), UNEVEN, PACE="0.3") as process:
        while not (root.exists() and any(row["step"] >= 3 for row in RunReader(root).metrics("train"))):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        os.kill(worker(process.pid, rank=1), signal.SIGKILL)
        started = time.monotonic()
        _, errors = process.communicate(timeout=120)
    assert time.monotonic() - started < 30
    assert process.returncode != 0
    assert errors.count("error: another rank of this run has ended; continue with `cupola resume`") == 1
    attempt = RunReader(root).manifest()["attempts"][0]
    assert (attempt["state"], attempt["error"].partition(":")[0]) == ("failed", "RankError")
    return root


def worker(launcher: int, rank: int) -> int:
    """The process of a rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    environments = {int(pid): Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in children}
    return next(pid for pid, values in environments.items() if f"RANK={rank}".encode() in values)


def test_a_killed_run_is_resumed_exactly_on_as_many_ranks(killed: Path, straight: Path, tmp_path: Path) -> None:
    root = moved(killed, tmp_path)
    _, errors, code = cupola("resume", str(root), "--accept-changes")
    assert code == 0, errors
    assert record(root) == record(straight)


def test_a_killed_run_is_resumed_on_one_process(killed: Path, tmp_path: Path) -> None:
    root = moved(killed, tmp_path)
    again = resume_run(root, accept_changes=True)
    assert (again.state, again.step) == ("finished", STEPS)
    assert "ranks" not in RunReader(root).manifest()["attempts"][1]


def test_a_run_of_one_process_is_resumed_on_two_ranks(tmp_path: Path) -> None:
    def cut(step: int, rows: object, groups: object) -> None:
        if step == 3:
            raise Cut

    with pytest.raises(Cut):
        train(tmp_path, view=View([cut]))
    _, errors, code = cupola("resume", str(tmp_path / "tiny"))
    assert code == 0, errors
    reader = RunReader(tmp_path / "tiny")
    assert reader.manifest()["state"] == "finished"
    assert reader.metrics("train")[-1]["step"] == STEPS


def moved(root: Path, folder: Path) -> Path:
    """A copy of a run to go on with."""
    return Path(shutil.copytree(root, folder / "tiny"))


def test_a_reward_function_that_fails_on_one_rank_ends_all_with_one_line(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    (tmp_path / "reward.py").write_text(
        "import os\n\ndef noise(completions, **kwargs):\n"
        "    return [1 / (1 - int(os.environ['RANK'])) for _ in completions]\n"
    )
    _, errors, code = cupola("train", str(path))
    assert code != 0
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    assert len(said) == 1
    assert "noise" in said[0]
    assert "ZeroDivisionError" in said[0]
    assert not (tmp_path / "tiny").exists()  # it failed before its first checkpoint


def test_an_error_that_every_rank_has_is_told_once(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    _, errors, code = cupola("train", str(path), "optim.name='rprop'")
    assert code != 0
    assert errors.count("error: optim.name: 'rprop' cannot step on several ranks") == 1
