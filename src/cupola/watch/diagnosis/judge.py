"""All detectors over a run's rows, live or afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.core.catalogue import Gap, entry
from cupola.core.records import Action, Finding, Group, Severity
from cupola.core.runlog import RunReader
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.series import CannotJudge, Series
from cupola.watch.diagnosis.table import DETECTORS, EXPLAINED

Row = Mapping[str, Any]

RANK: Mapping[Severity, int] = {"info": 0, "warning": 1, "error": 2}
EXIT_FINDING = 3
ACTIONS: Mapping[str, Action] = {"warn": "continue", "pause": "pause", "stop": "stop"}


@dataclass(frozen=True)
class Diagnosis:
    """Findings, the gravest first, and the detectors that could not judge. What does not apply is in neither."""

    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]


def diagnose_rows(rows: Iterable[Row], recipe: Row | None = None, evaluation: Row | None = None) -> Diagnosis:
    """Every detector over metrics rows.

    `recipe` is the resolved recipe as nested mappings, where it is known; `evaluation` the summary that compares the
    last checkpoint with its start, where there is one.
    """
    series = Series(rows)
    context = Context.of(recipe, series.keys() | series.keys("validation"), evaluation)
    findings: list[Finding] = []
    gaps: list[Gap] = []
    for name, detect in DETECTORS.items():
        try:
            found = detect(series, context)
        except CannotJudge as lack:
            gaps.append(Gap(name, lack.key, lack.found, lack.needed))
        else:
            findings.extend([found] if found else [])
    told = [finding for finding in findings if not _is_explained(finding, findings)]
    told.sort(key=lambda finding: -RANK[finding.severity])
    return Diagnosis(tuple(told), tuple(gaps))


def _is_explained(finding: Finding, findings: Iterable[Finding]) -> bool:
    """Whether another finding, at least as grave, is the reason of this one."""
    reasons = EXPLAINED.get(entry(finding.name, finding.values), frozenset())
    return any(other.name in reasons and RANK[other.severity] >= RANK[finding.severity] for other in findings)


def diagnose_run(reader: RunReader) -> Diagnosis:
    """The diagnosis of a run folder, finished or still growing."""
    return diagnose_rows(reader.metrics(), reader.manifest().get("recipe"), _last_evaluation(reader))


def _last_evaluation(reader: RunReader) -> Row | None:
    """The newest comparison of the last checkpoint with the policy that the run started from."""
    for summary in reversed(reader.evals().values()):
        if summary["verdict"] and summary.get("step") in reader.layout.checkpoint_steps()[-1:]:
            return summary
    return None


def exit_code(findings: Iterable[Finding]) -> int:
    """3 with a finding of severity warning or above, else 0."""
    return EXIT_FINDING if any(RANK[finding.severity] >= RANK["warning"] for finding in findings) else 0


class LiveDiagnosis:
    """An observer that diagnoses after each step.

    `report(step, finding)` is called once for each finding, and again if its severity rises. A new warning or error
    asks the loop for what `diagnosis.on_warning` says; at the last step nothing is left to stop. `history` are the rows
    of a resumed run so far, `findings` what was reported of them: one that has passed since is not reported again.
    """

    def __init__(
        self,
        recipe: Mapping[str, Any],
        report: Callable[[int, Finding], None],
        history: Sequence[Row] = (),
        findings: Sequence[Row] = (),
    ) -> None:
        self._recipe = recipe
        self._report = report
        self._rows: list[Row] = list(history)
        self._reported: dict[str, Severity] = {row["name"]: row["severity"] for row in findings}
        self._last = recipe.get("run", {}).get("steps")
        self._action = ACTIONS[recipe.get("diagnosis", {}).get("on_warning", "warn")]

    def __call__(self, step: int, rows: Sequence[Row], groups: Sequence[Group]) -> Action:
        """`rows` are those the step has added."""
        self._rows.extend(rows)
        new = [finding for finding in diagnose_rows(self._rows, self._recipe).findings if self._is_new(finding)]
        for finding in new:
            self._reported[finding.name] = finding.severity
            self._report(step, finding)
        return self._action if exit_code(new) and step != self._last else "continue"

    def _is_new(self, finding: Finding) -> bool:
        before = self._reported.get(finding.name)
        return before is None or RANK[finding.severity] > RANK[before]
