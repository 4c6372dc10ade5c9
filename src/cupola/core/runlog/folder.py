"""The run folder's file names. No other module of the project knows them."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cupola.core.records import RunFolderError


class Layout:
    """Paths inside one run folder."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self.manifest = self.root / "run.json"
        self.recipe = self.root / "recipe.toml"
        self.metrics = self.root / "metrics.jsonl"
        self.ledger = self.root / "ledger.jsonl"
        self.findings = self.root / "findings.jsonl"
        self.weights = self.root / "weights.jsonl"
        self.prompts = self.root / "prompts.parquet"
        self.latest_prompts = self.root / "prompts.jsonl"
        self.checkpoints = self.root / "checkpoints"
        self.evals = self.root / "evals"
        self.report = self.root / "report.html"

    def rollouts(self, step: int) -> Path:
        return self.root / "rollouts" / f"{step:06d}.parquet"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:06d}"

    def rollout_steps(self) -> list[int]:
        """Steps that have a rollout file, ascending."""
        return sorted(int(p.stem) for p in (self.root / "rollouts").glob("*.parquet") if p.stem.isdigit())

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a complete checkpoint, ascending."""
        return sorted(int(p.name[5:]) for p in self.checkpoints.glob("step-*") if p.name[5:].isdigit())


@contextmanager
def only_writer(layout: Layout) -> Iterator[None]:
    """Hold the folder while training writes it; the lock ends with the process, however that ends.

    Raises RunFolderError where another process holds it: two writers would overtake each other's rows.
    """
    try:
        held = os.open(layout.root / ".lock", os.O_CREAT | os.O_WRONLY)
    except OSError as error:
        raise RunFolderError(f"{layout.root}: cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunFolderError(f"{layout.root}: another process is training in it") from None
    finally:
        os.close(held)


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: temporary name, fsync, rename."""
    write_bytes(path, text.encode("utf-8", "surrogatepass"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing: temporary name, fsync, rename."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):  # a folder that became unwritable keeps it; the first error is the one to report
            temporary.unlink()
        raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file, written whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
