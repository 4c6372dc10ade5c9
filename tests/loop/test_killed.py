"""A run that is killed at random moments, inside a file's write too: it always reads, and goes on exactly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from interrupted import VARIANTS, Straight, assert_finishes, assert_reads, begun, gone_on, told, uninterrupted
from moments import CALLS, LIBRARY_WRITES, PYTHON_WRITES, WORK, Blow
from tiny_run import write_recipe

from cupola.core.runlog import RunReader

pytestmark = pytest.mark.slow

#: What the moments are drawn from; another number draws others.
SEED = 1

KINDS = (*WORK, *CALLS, *(f"write {name}" for name in (*PYTHON_WRITES, *LIBRARY_WRITES)))

#: Each kind of moment in one of the variants; only where checkpoints are let go is each of the calls made.
MOMENTS = [(kind, "keep" if kind in CALLS else list(VARIANTS)[index % 3]) for index, kind in enumerate(KINDS)]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Straight]:
    uninterrupted(tmp_path_factory.mktemp("first"))  # what runs for the first time is slow
    return {variant: uninterrupted(tmp_path_factory.mktemp(variant), variant) for variant in VARIANTS}


@pytest.mark.parametrize(("kind", "variant"), MOMENTS)
def test_a_run_killed_at_a_moment(kind: str, variant: str, straight: dict[str, Straight], tmp_path: Path) -> None:
    """Drawn from all the moments of the kind that the uninterrupted run has."""
    rng, count = random.Random(f"{SEED} {variant} {kind}"), straight[variant].counts[kind]
    blow = Blow(kind, rng.randint(1, count), share=rng.random())
    print(f"seed {SEED}, {variant}: killed at {blow} of {count}")
    assert begun(tmp_path, variant, blow=blow).code == -signal.SIGKILL
    assert_reads(tmp_path, straight[variant])
    assert_finishes(tmp_path, straight[variant], variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kinds", [("backward", "token"), ("write state.json", "replace")])
def test_a_run_killed_twice(
    kinds: tuple[str, str], variant: str, straight: dict[str, Straight], tmp_path: Path
) -> None:
    rng = random.Random(f"{SEED} {variant} {kinds}")
    first, second = (Blow(kind, rng.randint(1, 3), share=rng.random()) for kind in kinds)
    print(f"seed {SEED}, {variant}: killed at {first}, then at {second}")
    for blow in (first, second):
        assert gone_on(tmp_path, variant, blow=blow).code == -signal.SIGKILL
        assert_reads(tmp_path, straight[variant])
    assert_finishes(tmp_path, straight[variant], variant)


@pytest.mark.parametrize("number", range(4))
def test_a_run_killed_by_the_clock(number: int, straight: dict[str, Straight], tmp_path: Path) -> None:
    variant = list(VARIANTS)[number % 3]
    seconds = random.Random(f"{SEED} {number}").uniform(0.1, 0.9) * straight[variant].seconds
    print(f"seed {SEED}, {variant}: killed after {seconds:.3f} s of about {straight[variant].seconds:.3f}")
    begun(tmp_path, variant, seconds=seconds)  # on a machine that has become faster it has ended by itself
    assert_reads(tmp_path, straight[variant])
    assert_finishes(tmp_path, straight[variant], variant)


def test_processes_that_share_nothing_make_the_same_run(straight: dict[str, Straight], tmp_path: Path) -> None:
    """Each with hashes of its own, and so with its own order of sets."""
    folders, started = [tmp_path / "one", tmp_path / "other"], []
    for number, folder in enumerate(folders, 1):
        folder.mkdir()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-m", "cupola", "train", write_recipe(folder).name]
        started.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL))
    assert {process.wait(120) for process in started} <= {0, 3}
    assert [told(folder / "tiny") == straight["plain"].told for folder in folders] == [True, True]
    one, other = (RunReader(folder / "tiny").layout.checkpoints for folder in folders)
    files = [path.relative_to(one) for path in sorted(one.rglob("*")) if path.is_file()]
    assert len(files) == 4 * 8
    assert [path for path in files if (one / path).read_bytes() != (other / path).read_bytes()] == []
