"""Diagnosis: from a run's metrics to findings, one detector a file. Wording lives in `core.catalogue`."""

from cupola.core.catalogue import Gap
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.judge import Diagnosis, LiveDiagnosis, diagnose_rows, diagnose_run, exit_code
from cupola.watch.diagnosis.series import CannotJudge, Points, Series
from cupola.watch.diagnosis.table import DETECTORS

__all__ = [
    "DETECTORS",
    "CannotJudge",
    "Context",
    "Diagnosis",
    "Gap",
    "LiveDiagnosis",
    "Points",
    "Series",
    "diagnose_rows",
    "diagnose_run",
    "exit_code",
]
