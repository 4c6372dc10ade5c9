"""The validation timeline: what became of each fixed question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cupola.core.runlog import RunReader

#: Classes in the order shown, with what each means.
CLASSES = {
    "improving": "right more often at the last validation than at the first",
    "stuck wrong": "never right at any validation",
    "lost": "right less often at the last validation than at the first",
    "unchanged": "as often right at the last validation as at the first, neither always nor never",
    "always right": "right every time at every validation",
}


@dataclass(frozen=True)
class Question:
    """One question's share of right sampled answers, a value per validated step (`None`: not judged there)."""

    prompt: str
    shares: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        return [share for share in self.shares if share is not None]

    @property
    def kind(self) -> str:
        """Its class, a key of CLASSES."""
        first, last = self.known[0], self.known[-1]
        if set(self.known) == {1.0}:
            return "always right"
        if set(self.known) == {0.0}:
            return "stuck wrong"
        return "improving" if last > first else "lost" if last < first else "unchanged"


@dataclass(frozen=True)
class Timeline:
    """Questions by class, and how many of them were never judged."""

    steps: tuple[int, ...]
    classes: Mapping[str, tuple[Question, ...]]
    unjudged: int

    @property
    def total(self) -> int:
        return sum(len(questions) for questions in self.classes.values())


def timeline(reader: RunReader) -> Timeline:
    """The timeline of a run; within a class the largest change comes first."""
    shares = reader.timeline()
    prompts: Mapping[str, Mapping[str, Any]] = reader.prompts()
    steps = tuple(sorted({step for by_step in shares.values() for step in by_step}))
    questions = [
        Question(str(prompts.get(key, {}).get("prompt", key)), tuple(by_step.get(step) for step in steps))
        for key, by_step in shares.items()
    ]
    judged = sorted((q for q in questions if q.known), key=lambda q: (-abs(q.known[-1] - q.known[0]), q.prompt))
    classes = {kind: tuple(question for question in judged if question.kind == kind) for kind in CLASSES}
    return Timeline(steps, classes, len(questions) - len(judged))
