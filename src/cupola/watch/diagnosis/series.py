"""Metrics rows as numeric series, and the error of a detector that lacks one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cupola.core.records import CupolaError

LEVEL_POINTS = 5  # a median of fewer steps is decided by two batches of prompts
_LARGEST = 1e300  # sums and differences of such numbers are still finite; beyond it nothing is measured any more


class CannotJudge(CupolaError):
    """A detector's series is missing or too short. Coverage lists it; it is never taken for a good sign."""

    def __init__(self, key: str, found: int, needed: int) -> None:
        super().__init__(f"{key}: {found} of the {needed} points needed")
        self.key, self.found, self.needed = key, found, needed


@dataclass(frozen=True, eq=False)
class Points:
    """One metric at the steps where it is a number: `steps` (n,), `values` (n,), ascending in step."""

    key: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def span(self) -> tuple[int, int]:
        """First and last step."""
        return int(self.steps[0]), int(self.steps[-1])

    def cut(self, part: slice) -> Points:
        return Points(self.key, self.steps[part], self.values[part])


class Series:
    """The series of a run, by metric key and split. A row without a split is a training row."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            self._rows.setdefault(row.get("split", "train"), []).append(row)
        self._points: dict[tuple[str, str], Points] = {}

    def keys(self, split: str = "train") -> set[str]:
        """Metric keys that occur in any row of the split."""
        return set().union(*self._rows.get(split, ()))

    def points(self, key: str, split: str = "train") -> Points:
        """The numbers recorded of one metric; empty where it was never recorded."""
        if (key, split) not in self._points:
            pairs = [(row["step"], row[key]) for row in self._rows.get(split, ()) if _is_number(row.get(key))]
            steps = np.array([step for step, _ in pairs], dtype=np.int64)
            values = np.array([value for _, value in pairs], dtype=np.float64) + 0.0  # no negative zero
            self._points[key, split] = Points(key, steps, values)
        return self._points[key, split]

    def defined(self, key: str) -> Points:
        """Of the training steps that record a metric: 1 where it is a number, else 0."""
        rows = [row for row in self._rows.get("train", ()) if key in row]
        known = np.array([_is_number(row[key]) for row in rows], dtype=np.float64)
        return Points(key, np.array([row["step"] for row in rows], dtype=np.int64), known)

    def lapsed(self, key: str, split: str = "train") -> bool:
        """Whether a metric was recorded to the end, but lately as no number: what stood before is not its level now.

        Lately is as many rows as make a level: LEVEL_POINTS steps of training, one validation.
        """
        recorded = [row[key] for row in self._rows.get(split, ()) if key in row]
        recent = recorded[-(LEVEL_POINTS if split == "train" else 1) :]
        return bool(recent) and not any(map(_is_number, recent))

    def find(self, *keys: str, points: int, split: str = "train") -> Points | None:
        """The first of `keys` that has at least `points` values and has not lapsed, or `None`."""
        usable = (key for key in keys if not self.lapsed(key, split))
        return next((found for key in usable if len(found := self.points(key, split)) >= points), None)

    def need(self, *keys: str, points: int, split: str = "train") -> Points:
        """As `find`, but raises CannotJudge for the best-filled key where none has enough values."""
        found = self.find(*keys, points=points, split=split)
        if found is None:
            best = max((self.points(key, split) for key in keys), key=len)
            name = best.key if split == "train" else f"{split} {best.key}"
            if len(best) >= points:
                raise CannotJudge(f"latest {name}", 0, LEVEL_POINTS if split == "train" else 1)
            raise CannotJudge(name, len(best), points)
        return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
