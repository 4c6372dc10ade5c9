"""Questions for training and for holding out: the user's files, built-in tasks, splits by hash. No torch."""

from cupola.train.tasks.dataset import TARGET, Questions, load_questions
from cupola.train.tasks.registry import TASKS, make_task
from cupola.train.tasks.sources import (
    FileSource,
    PromptSource,
    TaskSource,
    draw_problem,
    held_out,
    open_examples,
    open_source,
)
from cupola.train.tasks.splits import bucket, derive, refuse_overlap, split_of
from cupola.train.tasks.task import Task

__all__ = [
    "TARGET",
    "TASKS",
    "FileSource",
    "PromptSource",
    "Questions",
    "Task",
    "TaskSource",
    "bucket",
    "derive",
    "draw_problem",
    "held_out",
    "load_questions",
    "make_task",
    "open_examples",
    "open_source",
    "refuse_overlap",
    "split_of",
]
