"""Questions for training and for holding out: the user's files, built-in tasks, splits by hash. No torch."""

from cupola.train.tasks.dataset import Questions, load_questions
from cupola.train.tasks.registry import TASKS, Option, Task, draw_problem, held_out, make_task
from cupola.train.tasks.sources import FileSource, PromptSource, TaskSource, open_source
from cupola.train.tasks.splits import bucket, derive, refuse_overlap, split_of

__all__ = [
    "TASKS",
    "FileSource",
    "Option",
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
    "open_source",
    "refuse_overlap",
    "split_of",
]
