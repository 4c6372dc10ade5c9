"""After training: have the run judged, write its page, and say where everything is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cupola.cli import show
from cupola.core.runlog import RunReader
from cupola.dashboard import export
from cupola.watch.diagnosis import diagnose_run, exit_code

if TYPE_CHECKING:  # its module loads torch, and `cupola watch` needs none
    from cupola.workflows.train import Trained

#: How the process ends where the run did not get to its last step.
ENDED_EARLY = {"interrupted": 1, "paused": 3, "stopped": 3}


def finish(trained: Trained, as_json: bool) -> int:
    """Judge and print what training left; the exit code that the process should end with."""
    from cupola.workflows.conclude import conclude

    judged = conclude(trained, show.say(as_json))
    page = export(trained.folder, None, judged.diagnosis.findings, judged.diagnosis.gaps)
    if as_json:
        ended = {"run": str(trained.folder), "state": trained.state, "step": trained.step, "report": str(page)}
        show.as_json({**ended, "evaluation": judged.evaluation, **show.diagnosis_record(judged.diagnosis)})
    else:
        if judged.evaluation:
            show.evaluation(judged.evaluation, False)
        show.diagnosis(judged.diagnosis, False)
        show.lines(f"\n{trained.state} at step {trained.step}", f"run folder: {trained.folder}", f"report: {page}")
        if trained.state in ENDED_EARLY:
            show.lines(f"continue with: cupola resume {trained.folder}")
    return ENDED_EARLY.get(trained.state, exit_code(judged.diagnosis.findings))


def report(run: Path, out: Path | None) -> Path:
    """Write the HTML report, diagnosed afresh."""
    found = diagnose_run(RunReader(run))
    return export(run, out, found.findings, found.gaps)
