"""What the command-line tests share: the warm processes, a small recipe, and one run that all reading commands read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cupola_process import SMALL, Cupola, Ended, run, warm_context


@pytest.fixture(scope="session")
def cupola() -> Cupola:
    """Run a command line in a folder."""
    context = warm_context()
    return lambda folder, *arguments, **keywords: run(context, [str(each) for each in arguments], folder, **keywords)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory with a small recipe."""
    (tmp_path / "small.toml").write_text(SMALL, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, cupola: Cupola) -> tuple[Path, Ended]:
    """The working directory of one finished run `runs/r`, and what `train` printed. Do not write into it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "small.toml").write_text(SMALL, encoding="utf-8")
    return folder, cupola(folder, "train", "small.toml")


@pytest.fixture
def finished(trained: tuple[Path, Ended], tmp_path: Path) -> Path:
    """A copy of that working directory, to be changed at will."""
    return Path(shutil.copytree(trained[0], tmp_path / "copy"))
