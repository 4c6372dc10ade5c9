"""TRL beside cupola: `attach` records and diagnoses a GRPOTrainer; with `run.engine = "trl"` one trains a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["attach"]


def attach(
    trainer: Any,
    folder: str | Path | None = None,
    correctness: str | None = None,
    correct_at: float = 1.0,
    say: Callable[[str], None] = print,
) -> Path:
    """Write a run folder while the GRPOTrainer `trainer` trains, and diagnose the run live; `say` is told each finding.

    The folder, `cupola` in the trainer's `output_dir` unless given, is made when training begins; it must not exist.
    The reward function named `correctness` (the first, unless given) decides right and wrong: a score of at least
    `correct_at` is right. Steps are the trainer's `global_step` after the updates of a generation. On several processes
    call it on all; the first writes. Returns the folder. Raises RecipeError for a reward function that is not there.
    """
    from cupola.integrations.trl.attached import Attached  # loads torch, which reading a recipe's arguments does not

    return Attached.to(trainer, folder, correctness, correct_at, say).root
