"""All detectors over a run's rows, live or afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.core.records import Action, Finding, Group, Severity
from cupola.core.runlog import RunReader
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import CannotJudge, Series
from cupola.watch.diagnosis.table import DETECTORS

Row = Mapping[str, Any]

RANK: Mapping[Severity, int] = {"info": 0, "warning": 1, "error": 2}
EXIT_FINDING = 3
ACTIONS: Mapping[str, Action] = {"warn": "continue", "pause": "pause", "stop": "stop"}


@dataclass(frozen=True)
class Gap:
    """A detector that could not judge: the metric it lacked, how many points there were, how many it needs."""

    detector: str
    key: str
    found: int
    needed: int


@dataclass(frozen=True)
class Diagnosis:
    """Findings, the gravest first, and the detectors that could not judge."""

    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]


def diagnose_rows(rows: Iterable[Row], recipe: Mapping[str, Any] | None = None) -> Diagnosis:
    """Every detector over metrics rows; `recipe` is the resolved recipe as nested mappings, where it is known."""
    series = Series(rows)
    context = Context.of(recipe, series.keys() | series.keys("validation"))
    findings: list[Finding] = []
    gaps: list[Gap] = []
    for name, detect in DETECTORS.items():
        try:
            found = detect(series, context)
        except CannotJudge as lack:
            gaps.append(Gap(name, lack.key, lack.found, lack.needed))
        else:
            findings.extend([found] if found else [])
    findings.sort(key=lambda finding: -RANK[finding.severity])
    return Diagnosis(tuple(findings), tuple(gaps))


def diagnose(rows: Iterable[Row], recipe: Mapping[str, Any] | None = None) -> list[Finding]:
    """The findings alone."""
    return list(diagnose_rows(rows, recipe).findings)


def coverage(rows: Iterable[Row], recipe: Mapping[str, Any] | None = None) -> tuple[Gap, ...]:
    """The detectors that could not judge these rows, and what they lacked."""
    return diagnose_rows(rows, recipe).gaps


def diagnose_run(reader: RunReader) -> Diagnosis:
    """The diagnosis of a run folder, finished or still growing."""
    return diagnose_rows(reader.metrics(), reader.manifest().get("recipe"))


def exit_code(findings: Iterable[Finding]) -> int:
    """3 with a finding of severity warning or above, else 0."""
    return EXIT_FINDING if any(RANK[finding.severity] >= RANK["warning"] for finding in findings) else 0


class LiveDiagnosis:
    """An observer that diagnoses after each step.

    `report(step, finding)` is called once for each finding, and again if its severity rises. A new warning or error
    asks the loop for what `diagnosis.on_warning` says. `history` are the rows of a resumed run so far; what they show
    has been reported before.
    """

    def __init__(
        self, recipe: Mapping[str, Any], report: Callable[[int, Finding], None], history: Sequence[Row] = ()
    ) -> None:
        self._recipe = recipe
        self._report = report
        self._rows: list[Row] = list(history)
        self._reported = {finding.name: finding.severity for finding in diagnose(self._rows, recipe)}
        self._action = ACTIONS[recipe.get("diagnosis", {}).get("on_warning", "warn")]

    def __call__(self, step: int, rows: Sequence[Row], groups: Sequence[Group]) -> Action:
        """`rows` are those the step has added."""
        self._rows.extend(rows)
        new = [finding for finding in diagnose(self._rows, self._recipe) if self._is_new(finding)]
        for finding in new:
            self._reported[finding.name] = finding.severity
            self._report(step, finding)
        return self._action if exit_code(new) else "continue"

    def _is_new(self, finding: Finding) -> bool:
        before = self._reported.get(finding.name)
        return before is None or RANK[finding.severity] > RANK[before]
