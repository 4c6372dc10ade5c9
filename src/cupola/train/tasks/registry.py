"""Built-in tasks by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from cupola.core.config import validate
from cupola.core.records import RecipeError
from cupola.train.tasks.arithmetic import Arithmetic
from cupola.train.tasks.sums import Sums
from cupola.train.tasks.task import Task

TASKS: dict[str, type[Task]] = {"arithmetic": Arithmetic, "sums": Sums}


def make_task(name: str, options: Mapping[str, Any]) -> Task:
    """The task of `data.task` with `data.options`. Raises RecipeError for a name or an option that it does not know."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(TASKS))}"
        raise RecipeError(f"data.task: unknown task {name!r}; {hint}")
    return validate(options, TASKS[name], at="data.options")
