"""Reading a run folder, finished or still growing. A torn last line is passed over; any other fault is named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cupola.core.records import RunFolderError
from cupola.core.runlog.folder import Layout

Row = dict[str, Any]


class RunReader:
    """Everything a run has recorded. Rows that a later attempt recomputed are left out."""

    def __init__(self, root: Path | str) -> None:
        self.layout = Layout(root)
        if not self.layout.root.is_dir():
            raise RunFolderError(f"{root}: no such run folder")
        if not self.layout.manifest.exists() and not self.layout.metrics.exists():
            raise RunFolderError(f"{root}: not a run folder: neither run.json nor metrics.jsonl stands in it")

    @property
    def name(self) -> str:
        return self.layout.root.resolve().name

    def manifest(self) -> Row:
        """run.json, or an empty mapping where the folder was made from metrics alone."""
        if not self.layout.manifest.exists():
            return {}
        return read_json(self.layout.manifest)

    def metrics(self, split: str | None = None) -> list[Row]:
        """Metrics rows by step, of one split or of all."""
        rows = self._current(self.layout.metrics)
        return [row for row in rows if split is None or row.get("split", "train") == split]

    def ledger(self) -> list[Row]:
        return self._current(self.layout.ledger)

    def findings(self) -> list[Row]:
        """What live diagnosis wrote while the run trained."""
        return self._current(self.layout.findings)

    def receipts(self) -> list[Row]:
        return self._current(self.layout.weights)

    def _current(self, path: Path) -> list[Row]:
        """The file's rows by step, without those that a later attempt has begun to recompute."""
        attempts = self.manifest().get("attempts", [])
        starts = {a["attempt"]: 0 if a["from_step"] is None else a["from_step"] + 1 for a in attempts}
        return current(read_jsonl(path), starts)

    def rollout_steps(self) -> list[int]:
        """Steps whose rollouts can be read; files that a resumed run has still to recompute are left out."""
        last = max((row["step"] for row in self.metrics()), default=None)
        return [step for step in self.layout.rollout_steps() if last is None or step <= last]

    def rollouts(self, step: int, split: str | None = None, columns: Sequence[str] | None = None) -> list[Row]:
        """Rollout rows of one step."""
        path = self.layout.rollouts(step)
        if not path.exists():
            raise RunFolderError(f"{path}: no rollouts of step {step} are recorded")
        wanted = None if columns is None else sorted({*columns, "split"})
        return [row for row in read_parquet(path, wanted) if split is None or row["split"] == split]

    def prompts(self) -> dict[str, Row]:
        """Prompt rows (`prompt`, `answer`) by prompt id."""
        return read_prompts(self.layout)

    def evals(self) -> dict[str, Row]:
        """Summaries of evaluations by their id, oldest first."""
        found = sorted(self.layout.evals.glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
        return {path.parent.name: read_json(path) for path in found}

    def timeline(self) -> dict[str, dict[int, float | None]]:
        """Share of right sampled validation answers per question and validated step, from step 0."""
        table: dict[str, dict[int, float | None]] = {}
        columns = ["prompt_id", "mode", "correct"]
        for step in sorted({row["step"] for row in self.metrics("validation")}):
            answers: dict[str, list[bool]] = {}
            for row in self.rollouts(step, "validation", columns):
                if row["mode"] == "sampled":
                    answers.setdefault(row["prompt_id"], []).extend([row["correct"]] * (row["correct"] is not None))
            for prompt, right in answers.items():
                table.setdefault(prompt, {})[step] = sum(right) / len(right) if right else None
        return table


def read_prompts(layout: Layout) -> dict[str, Row]:
    """Prompt rows by prompt id: the parquet file's, and those that came since it was written.

    The latest first: a writer moves them into the parquet file, and what is read before it moves is in either.
    """
    latest = read_jsonl(layout.latest_prompts)
    rows = read_parquet(layout.prompts) if layout.prompts.exists() else []
    return {row["prompt_id"]: row for row in [*rows, *latest]}


def read_json(path: Path) -> Row:
    """The object of a JSON file. Raises RunFolderError naming it where it holds none."""
    try:
        return _object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: not a JSON object: {error}") from error


def read_jsonl(path: Path) -> list[Row]:
    """JSON lines of a file that may still be growing. Raises RunFolderError naming the line of any other fault."""
    if not path.exists():
        return []
    rows: list[Row] = []
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()  # empty if the file ends with a newline, else a line that is still being written
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(_object(line))
        except ValueError as error:
            raise RunFolderError(f"{path}:{number}: not a JSON object: {error}") from error
    if torn.strip():
        try:
            rows.append(_object(torn))
        except ValueError:
            pass  # the documented case: a crash or a writer in the middle of its last line
    return rows


def _object(line: bytes) -> Row:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise ValueError("a JSON value of another kind")
    return value


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> list[Row]:
    """Rows of a parquet file, of the named columns alone if given."""
    try:
        rows: list[Row] = pq.read_table(path, columns=columns).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise RunFolderError(f"{path}: not a readable parquet file: {error}") from error
    return rows


def current(rows: Iterable[Mapping[str, Any]], starts: Mapping[int, int]) -> list[Row]:
    """Rows by step, without those of an attempt at or after the step where a later attempt starts.

    `starts` gives each attempt's first step; an attempt that it lacks starts at the first step it has a row of.
    """
    listed = [dict(row) for row in rows]
    first: dict[int, int] = {}
    for row in listed:
        attempt, step = row.get("attempt", 0), row.get("step", 0)
        first[attempt] = min(first.get(attempt, step), step)
    first.update(starts)
    kept = [
        row
        for row in listed
        if not any(attempt > row.get("attempt", 0) and row.get("step", 0) >= start for attempt, start in first.items())
    ]
    return sorted(kept, key=lambda row: row.get("step", 0))
