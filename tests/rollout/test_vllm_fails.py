"""A server that fails in the middle of a run: so many attempts, one line, exit code 1, and the run goes on exactly."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_process import recipe_for, restart, serving, train_against

from cupola.cli import main
from cupola.core.config import dump
from cupola.core.runlog import RunReader
from cupola.train.rollout.vllm import GENERATE
from cupola.workflows.train import resume_run

#: Once `wrong` names it, the server misbehaves from the moment that the second step's answers are scored.
REWARD = """
import httpx, pathlib

def turns(completions, trainer_state, **_):
    wrong = pathlib.Path(__file__).with_name("wrong")
    if wrong.exists() and trainer_state.global_step == 1:
        httpx.post({url!r} + "/misbehave", json={{"how": wrong.read_text(), "times": 99}}).raise_for_status()
        wrong.unlink()
    return [i % 3 for i in range(len(completions))]
"""

HANG = f"hang at {GENERATE}"

#: What the server does, and what is said of it after the second attempt, or at once where another would change nothing.
FAILURES = {
    f"500 at {GENERATE}": ": error 500 (EngineCore encountered an issue.); look into the server's log (2 attempts)",
    "garbage": ": the answer is no JSON object, it begins with '<html>502 Bad Gateway</html>'; is sampler.url a vLLM "
    "server's address? (2 attempts)",
    "half an answer": "; look into the server's log (2 attempts)",
    "other version": "`cupola resume` publishes anew",
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


def without_times(root: Path) -> list[dict[str, Any]]:
    """The run's metrics but for times, and for the seconds of the machine."""
    rows = RunReader(root).metrics()
    return [{k: v for k, v in row.items() if "time" not in k and k != "attempt"} for row in rows]


@pytest.fixture(scope="module")
def straight(url: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return without_times(train_against(url, tmp_path_factory.mktemp("straight")).folder)


@pytest.fixture
def recipe(url: str, straight: object, tmp_path: Path) -> Path:
    """The recipe with a server in its first state, which is given a second and two attempts."""
    restart(url)
    settings, _ = recipe_for(url, tmp_path, "sampler.timeout=1", "sampler.retries=1")
    (tmp_path / "reward.py").write_text(REWARD.format(url=url))
    path = tmp_path / "resolved.toml"
    path.write_text(dump(settings))
    return path


def assert_goes_on(folder: Path, url: str, straight: list[dict[str, Any]]) -> None:
    """It reads, says that it failed, and with the server in order ends as it would have."""
    root = folder / "served"
    assert not (folder / "wrong").exists()
    reader = RunReader(root)
    assert (reader.manifest()["state"], reader.layout.checkpoint_steps()) == ("failed", [0])
    assert without_times(root) == straight[:2]  # step 0's validation and step 1
    restart(url)
    assert resume_run(root).state == "finished"
    assert without_times(root) == straight
    assert [row["version"] for row in reader.receipts()] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("how", FAILURES)
def test_a_server_that_fails(
    how: str,
    recipe: Path,
    url: str,
    straight: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (recipe.parent / "wrong").write_text(how)
    monkeypatch.setattr(sys, "argv", ["cupola", "train", str(recipe)])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (1, 1)
    assert said.startswith(f"error: {url}")
    assert said.endswith(f"{FAILURES[how]}\n")
    assert_goes_on(recipe.parent, url, straight)


@pytest.mark.slow
def test_a_server_that_hangs_ends_the_process_in_time(recipe: Path, url: str, straight: list[dict[str, Any]]) -> None:
    """Two attempts of a second each, a wait between them, and no thread that outlives them; the server hangs 30 s."""
    (recipe.parent / "wrong").write_text(HANG)
    command = [sys.executable, "-m", "cupola", "train", str(recipe)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (recipe.parent / "served/weights.jsonl").exists():
            time.sleep(0.01)  # until step 1 is trained
        started = time.monotonic()
        _, said = process.communicate(timeout=60)
    seconds = time.monotonic() - started
    print(f"ended {seconds:.1f} s after step 1")
    assert (process.returncode, seconds < 20) == (1, True)
    assert said.decode() == (
        f"error: {url}{GENERATE}: no answer within 1 s; look into the server's log, or raise sampler.timeout "
        "(2 attempts)\n"
    )
    assert_goes_on(recipe.parent, url, straight)
