"""Writing a run: append-only JSON lines, immutable parquet files, one writer per file."""

from __future__ import annotations

import io
import json
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cupola.core.records import EvalSample, Finding, Group, Outcome, Prompt, Receipt, RunFolderError
from cupola.core.runlog.folder import Layout, only_writer, write_bytes, write_json, write_text
from cupola.core.runlog.read import read_prompts
from cupola.core.runlog.rows import rollout_rows


class RunWriter:
    """The one writer of a run folder; `attempt` counts starts and resumptions from 0."""

    def __init__(self, layout: Layout, attempt: int) -> None:
        self.layout = layout
        self.attempt = attempt
        self._prompts: dict[str, Mapping[str, Any]] = {}
        self._latest = 0

    @classmethod
    def create(cls, root: Path, manifest: Mapping[str, Any], recipe_toml: str) -> RunWriter:
        """A new run folder: made under a temporary name, so that `root` is a run or is not there.

        Raises RunFolderError if it exists, or leaves none behind if it cannot be written.
        """
        begun = Layout(root.with_name(f".{root.name}.tmp"))
        if root.exists():
            raise _exists(root)
        try:
            (begun.root / "rollouts").mkdir(parents=True, exist_ok=True)  # a process that was killed may have left it
        except OSError as error:
            raise RunFolderError(f"{root}: cannot be created: {error.strerror or error}") from error
        with only_writer(begun):
            try:
                write_text(begun.recipe, recipe_toml)
                cls(begun, attempt=0).manifest(manifest)
                begun.root.rename(root)
            except OSError as error:
                shutil.rmtree(begun.root)
                if root.exists():
                    raise _exists(root) from error
                raise RunFolderError(str(error).replace(str(begun.root), str(root))) from error
        return cls(Layout(root), attempt=0)

    def manifest(self, manifest: Mapping[str, Any]) -> None:
        write_json(self.layout.manifest, manifest)

    def metrics(self, step: int, split: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append one metrics row and return it as written."""
        stamp = {"step": step, "split": split, "attempt": self.attempt, "time": round(time.time(), 3)}
        row = {**stamp, **values, **stamp}
        append(self.layout.metrics, [row])
        return row

    def ledger(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        append(self.layout.ledger, [{"step": step, "attempt": self.attempt, **row} for row in rows])

    def finding(self, step: int, finding: Finding) -> None:
        row = {"step": step, "attempt": self.attempt, "time": round(time.time(), 3), **vars(finding)}
        append(self.layout.findings, [row])

    def receipt(self, step: int, receipt: Receipt) -> None:
        append(self.layout.weights, [{"step": step, "attempt": self.attempt, **vars(receipt)}])

    def rollouts(
        self, step: int, groups: Sequence[Group], outcomes: Mapping[str, Sequence[Outcome]], part: str
    ) -> None:
        """One parquet file with every rollout of the step; `part` names the reward part that decides correctness."""
        rows = rollout_rows(step, self.attempt, groups, outcomes, part)
        write_parquet(self.layout.rollouts(step), rows)
        self._add_prompts([group.prompt for group in groups])

    def forget_rollouts(self, step: int) -> None:
        """Remove a step's rollouts, if they are there; its metrics and ledger rows stay."""
        path = self.layout.rollouts(step)
        with _named(path):
            path.unlink(missing_ok=True)

    def forget_checkpoints(self, keep: int) -> None:
        """Remove all checkpoints but step 0's and the newest `keep`; 0 keeps all.

        What a process that was killed has left of one that it saved or removed goes in any case.
        """
        folder = self.layout.checkpoints
        with _named(folder):
            for step in self.layout.checkpoint_steps()[1:-keep] if keep else []:
                old = self.layout.checkpoint(step)
                old.rename(old.with_name(f".{old.name}.old"))  # half a checkpoint must not look whole
            for hidden in folder.glob(".step-*"):
                shutil.rmtree(hidden)

    def _add_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Each prompt once. The parquet file is rewritten when an eighth is new; until then that stands beside it."""
        if not self._prompts:
            self._prompts = dict(read_prompts(self.layout))
        rows = {p.id: {"prompt_id": p.id, "prompt": _clean(p.text), "answer": _clean(p.answer)} for p in prompts}
        new = [row for id, row in rows.items() if id not in self._prompts]
        if not new:
            return
        self._prompts.update({row["prompt_id"]: row for row in new})
        self._latest += len(new)
        if self._latest < len(self._prompts) / 8:
            append(self.layout.latest_prompts, new)
            return
        write_parquet(self.layout.prompts, list(self._prompts.values()))
        self.layout.latest_prompts.unlink(missing_ok=True)
        self._latest = 0


def _exists(root: Path) -> RunFolderError:
    return RunFolderError(
        f"{root}: exists already; choose another run.name, or continue it with `cupola resume {root}`"
    )


def write_evaluation(
    layout: Layout, id: str, samples: Sequence[EvalSample], summary: Mapping[str, Any]
) -> dict[str, Any]:
    """samples.parquet (a row per sample) and summary.json under evals/<id>/; returns the summary with the id first."""
    folder = layout.evals / id
    write_parquet(folder / "samples.parquet", [asdict(sample) for sample in samples])
    written = {"id": id, **summary}
    write_json(folder / "summary.json", written)
    return written


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a zstd parquet file, written whole or not at all. Text that is not valid Unicode is escaped."""
    buffer = io.BytesIO()
    try:
        table = pa.table({key: [_clean(row.get(key)) for row in rows] for key in rows[0]} if rows else {})
    except pa.ArrowException as error:
        raise RunFolderError(f"{path}: cannot be written: {' '.join(str(error).split())}") from error
    pq.write_table(table, buffer, compression="zstd")
    write_bytes(path, buffer.getvalue())


def append(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON lines. A line torn by an earlier crash is cut off first; a number that is not finite is null."""
    text = "".join(json.dumps(_finite(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with _named(path), open(path, "a+b") as file:
        _cut_torn_line(file)
        file.write(text.encode("utf-8", "backslashreplace"))
        file.flush()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """The system's refusal to change a file, as an error that names it."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written: {error.strerror or error}") from error


def _cut_torn_line(file: Any) -> None:
    size = file.seek(0, 2)
    if size == 0:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    file.seek(0, 2)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value.item() if hasattr(value, "item") else value


def _clean(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
