"""What comes after training: the evaluation that the recipe asks for, and the diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cupola.core.config import load_recipe
from cupola.core.runlog import RunReader
from cupola.watch.diagnosis import Diagnosis, diagnose_run
from cupola.workflows.evaluate import evaluate_run
from cupola.workflows.train import Trained


@dataclass(frozen=True)
class Concluded:
    """A run judged: the evaluation's summary, `None` where none was asked for, and the diagnosis."""

    evaluation: dict[str, Any] | None
    diagnosis: Diagnosis


def conclude(trained: Trained, say: Callable[[str], None]) -> Concluded:
    """Evaluate a finished run if its recipe has `evaluation.at_end`, and diagnose it."""
    reader = RunReader(trained.folder)
    recipe, _ = load_recipe([reader.layout.recipe])
    asked = trained.state == "finished" and recipe.evaluation.at_end
    return Concluded(evaluate_run(trained.folder, say) if asked else None, diagnose_run(reader))
