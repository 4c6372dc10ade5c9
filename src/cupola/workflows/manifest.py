"""run.json: what a run is, what it ran on, and how each attempt at it ended."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cupola.core.config import Provenance, Recipe
from cupola.core.records import SCHEMA_VERSION
from cupola.core.runlog import RunReader, RunWriter

PACKAGES = ("cupola", "torch", "transformers", "peft", "numpy", "pyarrow", "pydantic")


def new_manifest(
    recipe: Recipe, provenance: Provenance, data: Mapping[str, Any], model: Mapping[str, Any], files: Mapping[str, str]
) -> dict[str, Any]:
    """The manifest of a run that is about to begin."""
    return {
        "schema": SCHEMA_VERSION,
        "name": recipe.run.name,
        "state": "running",
        "created": round(time.time(), 3),
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
        "provenance": provenance,
        "correctness": recipe.correctness_part(),
        "model": dict(model),
        "data": dict(data),
        "files": dict(files),
        "versions": versions(),
        "git": git_revision(),
        "attempts": [],
    }


def attempt_started(writer: RunWriter, from_step: int | None, changed: Sequence[str] = (), ranks: int = 1) -> None:
    """Add an attempt that goes on from the checkpoint of `from_step`, or from nothing where that is `None`.

    `changed` are the files that are not what the run began with, `ranks` the number of processes that train together.
    """
    manifest = RunReader(writer.layout.root).manifest()
    begun: dict[str, Any] = {"attempt": writer.attempt, "from_step": from_step, "started": round(time.time(), 3)}
    begun |= {"state": "running"}
    begun |= {"changed": list(changed)} if changed else {}
    begun |= {"ranks": ranks} if ranks > 1 else {}
    writer.manifest({**manifest, "state": "running", "attempts": [*manifest["attempts"], begun]})


def attempt_ended(writer: RunWriter, state: str, error: str | None) -> None:
    """Say how the current attempt ended."""
    manifest = RunReader(writer.layout.root).manifest()
    ended = {"ended": round(time.time(), 3), "state": state, **({"error": error} if error else {})}
    attempts = [{**each, **ended} if each["attempt"] == writer.attempt else each for each in manifest["attempts"]]
    writer.manifest({**manifest, "state": state, "attempts": attempts})


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages a run depends on; `None` for one that is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def git_revision() -> str | None:
    """The revision of the working folder, `-dirty` if it has changes, or `None` outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
