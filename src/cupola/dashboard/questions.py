"""The validation timeline: what became of each fixed question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
class Course:
    """One question's share of right sampled answers, a value per validated step (`None`: not judged there)."""

    prompt: str
    shares: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        return [share for share in self.shares if share is not None]

    @property
    def kind(self) -> str:
        """Its class, a key of CLASSES."""
        if set(self.known) == {1.0}:
            return "always right"
        if set(self.known) == {0.0}:
            return "stuck wrong"
        if self.change == 0:
            return "unchanged"
        return "improving" if self.change > 0 else "lost"

    @property
    def change(self) -> float:
        """From the first judged validation to the last."""
        return self.known[-1] - self.known[0]


@dataclass(frozen=True)
class Timeline:
    """Questions by class, and how many of them were never judged."""

    steps: tuple[int, ...]
    classes: Mapping[str, tuple[Course, ...]]
    unjudged: int

    @property
    def total(self) -> int:
        return sum(len(courses) for courses in self.classes.values())


def timeline(reader: RunReader) -> Timeline:
    """The timeline of a run; within a class the largest change comes first."""
    shares = reader.timeline() if reader.rollout_steps() else {}
    prompts = reader.prompts()
    steps = tuple(sorted({step for by_step in shares.values() for step in by_step}))
    courses = [
        Course(prompts[key]["prompt"], tuple(by_step.get(step) for step in steps)) for key, by_step in shares.items()
    ]
    judged = sorted((each for each in courses if each.known), key=lambda each: (-abs(each.change), each.prompt))
    classes = {kind: tuple(course for course in judged if course.kind == kind) for kind in CLASSES}
    return Timeline(steps, classes, len(courses) - len(judged))
