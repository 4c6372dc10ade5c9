"""Diagnosis: from a run's metrics to findings, one detector a file. Wording lives in `core.catalogue`."""

from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.judge import (
    Diagnosis,
    Gap,
    LiveDiagnosis,
    coverage,
    diagnose,
    diagnose_rows,
    diagnose_run,
    exit_code,
)
from cupola.watch.diagnosis.series import CannotJudge, Points, Series
from cupola.watch.diagnosis.table import DETECTORS, Detector

__all__ = [
    "DETECTORS",
    "CannotJudge",
    "Context",
    "Detector",
    "Diagnosis",
    "Gap",
    "LiveDiagnosis",
    "Points",
    "Series",
    "coverage",
    "diagnose",
    "diagnose_rows",
    "diagnose_run",
    "exit_code",
]
