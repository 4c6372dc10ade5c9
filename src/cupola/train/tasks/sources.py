"""Where a run's prompts come from. A draw depends on (seed, step) alone, so that a resumed run draws the same."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cupola.core.config import Data, Reward, Source
from cupola.core.records import DataError, Prompt, Split
from cupola.train.tasks.dataset import Questions, load_examples, load_questions
from cupola.train.tasks.messages import as_asked
from cupola.train.tasks.registry import make_task
from cupola.train.tasks.splits import derive, split_of
from cupola.train.tasks.task import Task

#: Problems drawn in vain, one after the other, before a split is taken to be exhausted.
PATIENCE = 10_000

#: What sets how many problems of a held-out split are asked for.
COUNTS: Mapping[Split, str] = {
    "validation": "validation.questions",
    "dev": "evaluation.dev_questions",
    "test": "evaluation.questions",
}


class PromptSource(Protocol):
    """The prompts of a run."""

    @property
    def size(self) -> int | None:
        """Training prompts per epoch, or `None` where the supply is endless."""
        ...

    def prompts(self) -> Sequence[Prompt] | None:
        """All training prompts, or `None` where the supply is endless."""
        ...

    def draw(self, step: int, count: int) -> list[Prompt]:
        """The `count` training prompts of a step; steps count from 0 here, and `count` is the same for all of them."""
        ...

    def held_out(self, split: Split, count: int) -> list[Prompt]:
        """Fixed prompts that no step draws, the same for every seed. Raises DataError where the source has none."""
        ...

    def digests(self) -> Mapping[str, str]:
        """SHA-256 of each data file by its path as the recipe has it; empty for a built-in task."""
        ...

    def notes(self) -> Mapping[str, Any]:
        """What a manifest says of the prompts: sizes (`None` where endless), and which rows were left out."""
        ...

    def notices(self) -> list[str]:
        """What a person should know of the prompts before training: how many rows were left out, and why."""
        ...


def open_source(data: Data, parts: Sequence[Reward], seed: int) -> PromptSource:
    """The recipe's source: a built-in task or the user's files. Errors: see `make_task` and `load_questions`."""
    if data.task is not None:
        return TaskSource(make_task(data.task, data.options), data, seed)
    files = [file for file in (data.file, data.validation_file) if file is not None]
    return FileSource(load_questions(data, parts), seed, tuple(files))


def open_examples(data: Source, seed: int) -> PromptSource:
    """The supervised recipe's source: a built-in task, or every row of a file. Errors: see `load_examples`."""
    if data.file is not None:
        return FileSource(Questions(load_examples(data.file, data), (), 0, ()), seed, (data.file,))
    return TaskSource(make_task(str(data.task), data.options), data, seed)


@dataclass(frozen=True)
class TaskSource:
    """Problems from a task: the one of each draw is made from the hash of (seed, step, index)."""

    task: Task
    data: Source
    seed: int

    @property
    def size(self) -> None:
        return None

    def prompts(self) -> None:
        return None

    def draw(self, step: int, count: int) -> list[Prompt]:
        return [self._asked(draw_problem(self.task, "train", self.seed, step, index)) for index in range(count)]

    def held_out(self, split: Split, count: int) -> list[Prompt]:
        return [self._asked(prompt) for prompt in held_out(self.task, split, count)]

    def digests(self) -> Mapping[str, str]:
        return {}

    def notes(self) -> Mapping[str, Any]:
        return {"train": None}

    def notices(self) -> list[str]:
        return []

    def _asked(self, prompt: Prompt) -> Prompt:
        return Prompt(as_asked(prompt.content, self.data), prompt.answer, prompt.columns)


def draw_problem(task: Task, split: Split, *key: str | int) -> Prompt:
    """The problem of `split` that the key leads to: the same key gives the same problem.

    Raises DataError if none of PATIENCE problems belongs to the split.
    """
    rng = random.Random(derive(split, *key))
    for _ in range(PATIENCE):
        prompt = task.problem(rng)
        if split_of(task.family(prompt)) == split:
            return prompt
    raise DataError(f"the task has no problem in split {split!r} among {PATIENCE} draws; widen data.options")


def held_out(task: Task, split: Split, count: int) -> list[Prompt]:
    """`count` problems of a split, no two of a family, the same for every run whatever its seed.

    Raises DataError, naming the key that asks for so many, if the task has too few families there.
    """
    found: dict[str, Prompt] = {}
    index = last_new = 0
    while len(found) < count:
        prompt = draw_problem(task, split, index)
        family = task.family(prompt)
        if family not in found:
            found[family], last_new = prompt, index
        elif index - last_new > PATIENCE:
            raise DataError(
                f"the task has about {len(found)} different problems in split {split!r}, but {count} were asked for; "
                f"lower {COUNTS[split]} or widen data.options"
            )
        index += 1
    return list(found.values())


@dataclass(frozen=True, eq=False)
class FileSource:
    """A finite set: each epoch is an order of its own, by the hash of (seed, epoch, prompt).

    Draws walk through the epochs, so a row comes once in each, and a draw may lie across a border. Rows of one prompt
    are numbered, and spread over the epoch like any others; apart from that, the file's order plays no part.
    """

    questions: Questions
    seed: int
    files: tuple[str, ...] = ()
    _epochs: dict[int, list[Prompt]] = field(default_factory=dict, init=False, repr=False)

    @property
    def size(self) -> int:
        return len(self.questions.train)

    def prompts(self) -> Sequence[Prompt]:
        return self.questions.train

    def draw(self, step: int, count: int) -> list[Prompt]:
        places = range(step * count, (step + 1) * count)
        return [self._epoch(place // self.size)[place % self.size] for place in places]

    def held_out(self, split: Split, count: int) -> list[Prompt]:
        """At most `count` validation questions, by hash; a file gives no other split."""
        if split != "validation":
            raise DataError(f"a data file holds out validation questions only, so there is no split {split!r}")
        return sorted(self.questions.validation, key=lambda prompt: derive("held_out", prompt.id))[:count]

    def digests(self) -> Mapping[str, str]:
        return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in self.files}

    def notes(self) -> Mapping[str, Any]:
        return {
            "train": self.size,
            "validation": len(self.questions.validation),
            "dropped_duplicates": self.questions.dropped_duplicates,
            "bad_gold": list(self.questions.bad_gold),
        }

    def notices(self) -> list[str]:
        dropped, bad = self.questions.dropped_duplicates, self.questions.bad_gold
        found = [f"{self.size} training and {len(self.questions.validation)} validation questions"]
        if dropped:
            found.append(f"{dropped} rows repeat a question and were left out")
        if bad:
            listed = "; ".join(bad[:5]) + ("; ..." if len(bad) > 5 else "")
            found.append(f"{len(bad)} rows were left out because a reward part cannot read their answer: {listed}")
        return found

    def _epoch(self, epoch: int) -> list[Prompt]:
        """The epoch's order; the last two are kept, which changes nothing but time."""
        if epoch not in self._epochs:
            self._epochs.pop(epoch - 2, None)
            self._epochs[epoch] = self._order(epoch)
        return self._epochs[epoch]

    def _order(self, epoch: int) -> list[Prompt]:
        met: Counter[str] = Counter()
        places = []
        for row, prompt in enumerate(self.questions.train):
            met[prompt.id] += 1
            places.append((derive(self.seed, epoch, prompt.id, met[prompt.id]), row))
        return [self.questions.train[row] for _, row in sorted(places)]
