"""Built-in tasks by name. A task makes problems; which split a problem belongs to, the hash of its family decides."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Mapping
from typing import Protocol

from cupola.core.records import DataError, Prompt, RecipeError, Split
from cupola.train.tasks.arithmetic import Arithmetic
from cupola.train.tasks.splits import derive, split_of
from cupola.train.tasks.sums import Sums

Option = bool | int | float | str | list[int]

#: Problems drawn in vain, one after the other, before a split is taken to be exhausted.
PATIENCE = 10_000


class Task(Protocol):
    """An endless supply of problems."""

    def problem(self, rng: random.Random) -> Prompt:
        """One problem with its answer, a function of `rng` alone."""
        ...

    def family(self, prompt: Prompt) -> str:
        """What the problem shares with those whose solution gives its own away; a family lies in one split."""
        ...


#: Name to a maker, which takes `data.options` and raises RecipeError for one it does not know.
TASKS: dict[str, Callable[[Mapping[str, Option]], Task]] = {"arithmetic": Arithmetic.of, "sums": Sums.of}


def make_task(name: str, options: Mapping[str, Option]) -> Task:
    """The task of `data.task` with `data.options`. Raises RecipeError for an unknown name."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(TASKS))}"
        raise RecipeError(f"data.task: unknown task {name!r}; {hint}")
    return TASKS[name](options)


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

    Raises DataError if the task has too few families there.
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
                f"the task has about {len(found)} different problems in split {split!r}, but {count} were asked for"
            )
        index += 1
    return list(found.values())
