"""After training: evaluate if the recipe asks, diagnose, write the page, and say where everything is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cupola.cli import show
from cupola.core.runlog import RunReader
from cupola.dashboard import export
from cupola.watch.diagnosis import Diagnosis, diagnose_run, exit_code

if TYPE_CHECKING:  # its module loads torch, and `cupola watch` needs none
    from cupola.workflows.train import Trained


def finish(trained: Trained, evaluate: bool, as_json: bool) -> int:
    """Judge and print what training left; the exit code that the process should end with."""
    summary = None
    if evaluate and trained.state == "finished":
        from cupola.workflows.evaluate import evaluate_run

        summary = evaluate_run(trained.folder, show.say(as_json))
    found = diagnose_run(RunReader(trained.folder))
    page = report(trained.folder, None, found)
    if as_json:
        ended = {"run": str(trained.folder), "state": trained.state, "step": trained.step, "report": str(page)}
        show.as_json({**ended, "evaluation": summary, **show.diagnosis_record(found)})
    else:
        if summary:
            show.evaluation(summary, False)
        show.diagnosis(found, False)
        show.lines(f"\n{trained.state} at step {trained.step}", f"run folder: {trained.folder}", f"report: {page}")
        if trained.state != "finished":
            show.lines(f"continue with: cupola resume {trained.folder}")
    return 1 if trained.state == "interrupted" else 3 if trained.state != "finished" else exit_code(found.findings)


def report(run: Path, out: Path | None, found: Diagnosis | None = None) -> Path:
    """Write the HTML report with the run's findings in words."""
    found = found or diagnose_run(RunReader(run))
    return export(run, out, found.findings)
