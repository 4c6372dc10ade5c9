"""Where a run's prompts come from. A draw depends on (seed, step) alone, so that a resumed run draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from cupola.core.config import Data, Reward
from cupola.core.records import DataError, Prompt, Split
from cupola.train.tasks.dataset import Questions, load_questions
from cupola.train.tasks.messages import as_asked
from cupola.train.tasks.registry import Task, draw_problem, held_out, make_task
from cupola.train.tasks.splits import derive


class PromptSource(Protocol):
    """The prompts of a run."""

    @property
    def size(self) -> int | None:
        """Training prompts per epoch, or `None` where the supply is endless."""
        ...

    def draw(self, step: int, count: int) -> list[Prompt]:
        """The `count` training prompts of a step; steps count from 0 here, and `count` is the same for all of them."""
        ...

    def held_out(self, split: Split, count: int) -> list[Prompt]:
        """Fixed prompts that no step draws, the same for every seed. Raises DataError where the source has none."""
        ...


def open_source(data: Data, parts: Sequence[Reward], seed: int) -> PromptSource:
    """The recipe's source: a built-in task or the user's files. Errors: see `make_task` and `load_questions`."""
    if data.task is not None:
        return TaskSource(make_task(data.task, data.options), data, seed)
    return FileSource(load_questions(data, parts), seed)


@dataclass(frozen=True)
class TaskSource:
    """Problems from a task: the one of each draw is made from the hash of (seed, step, index)."""

    task: Task
    data: Data
    seed: int

    @property
    def size(self) -> None:
        return None

    def draw(self, step: int, count: int) -> list[Prompt]:
        return [self._asked(draw_problem(self.task, "train", self.seed, step, index)) for index in range(count)]

    def held_out(self, split: Split, count: int) -> list[Prompt]:
        return [self._asked(prompt) for prompt in held_out(self.task, split, count)]

    def _asked(self, prompt: Prompt) -> Prompt:
        return replace(prompt, content=as_asked(prompt.content, self.data), id="")


@dataclass(frozen=True, eq=False)
class FileSource:
    """A finite set: each epoch is an order of its own, by the hash of (seed, epoch, prompt).

    Draws walk through the epochs, so a prompt comes once in each, and a draw may lie across a border. The order of
    the file's rows plays no part.
    """

    questions: Questions
    seed: int
    _epochs: dict[int, list[Prompt]] = field(default_factory=dict, init=False, repr=False)

    @property
    def size(self) -> int:
        return len(self.questions.train)

    def draw(self, step: int, count: int) -> list[Prompt]:
        places = range(step * count, (step + 1) * count)
        return [self._epoch(place // self.size)[place % self.size] for place in places]

    def held_out(self, split: Split, count: int) -> list[Prompt]:
        """At most `count` validation questions, by hash; a file gives no other split."""
        if split != "validation":
            raise DataError(f"a data file holds out validation questions only, so there is no split {split!r}")
        return sorted(self.questions.validation, key=lambda prompt: derive("held_out", prompt.id))[:count]

    def _epoch(self, epoch: int) -> list[Prompt]:
        """The epoch's order; the last two are kept, which changes nothing but time."""
        if epoch not in self._epochs:
            self._epochs.pop(epoch - 2, None)
            train = self.questions.train
            self._epochs[epoch] = sorted(train, key=lambda prompt: derive(self.seed, epoch, prompt.id))
        return self._epochs[epoch]
