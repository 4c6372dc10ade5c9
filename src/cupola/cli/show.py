"""Printing: results as tables for people, or as JSON."""

from __future__ import annotations

import json as json_module
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cupola.cli.progress import number
from cupola.core.catalogue import wording
from cupola.core.records import Finding, RunFolderError
from cupola.core.runlog import RunReader
from cupola.watch.diagnosis import Diagnosis, diagnose_run, exit_code

console = Console(highlight=False, soft_wrap=True)


def result(value: Mapping[str, Any], text: str, as_json: bool) -> None:
    """One JSON object or one line."""
    print(json_module.dumps(value, ensure_ascii=False, indent=1, default=str) if as_json else text)


def say(quiet: bool) -> Callable[[str], None]:
    """Where a workflow tells what it is doing."""
    return (lambda text: None) if quiet else lambda text: console.print(text, markup=False)


def finish(trained: Any, evaluate: bool, as_json: bool) -> None:
    """After training: evaluate if the recipe asks, diagnose, write the report, and say where everything is."""
    from cupola.workflows.evaluate import evaluate_run

    if trained.state == "finished" and evaluate:
        summary = evaluate_run(trained.folder, say(as_json))
        if not as_json:
            evaluation(summary, False)
    found = diagnose_run(RunReader(trained.folder))
    path = report(trained.folder, None)
    value = {"run": str(trained.folder), "state": trained.state, "step": trained.step, "report": str(path)}
    if as_json:
        result({**value, "findings": [vars(finding) for finding in found.findings]}, "", True)
    else:
        diagnosis(found, False)
        console.print(f"{trained.state} at step {trained.step}; run folder: {trained.folder}", markup=False)
        console.print(f"report: {path}", markup=False)
    if trained.state != "finished":
        hint = f"continue with: cupola resume {trained.folder}"
        raise SystemExit(_stopped(trained.state, hint, as_json))
    raise SystemExit(exit_code(found.findings))


def _stopped(state: str, hint: str, as_json: bool) -> int:
    if not as_json:
        console.print(hint, markup=False)
    return 3 if state in ("paused", "stopped") else 1


def report(run: Path, out: Path | None) -> Path:
    """Write the HTML report with the run's findings in words."""
    from cupola.dashboard import FindingText, export

    found = diagnose_run(RunReader(run)).findings
    texts = []
    for finding in found:
        words = wording(finding.name, finding.values, finding.steps)
        texts.append(FindingText(words.title, finding.severity, finding.steps, words.see, words.means, words.do))
    return export(run, out, texts)


def diagnosis(found: Diagnosis, as_json: bool) -> None:
    """Findings, gravest first: what you see, what it probably means, what to do."""
    if as_json:
        print(json_module.dumps({"findings": [_finding(f) for f in found.findings]}, ensure_ascii=False, indent=1))
        return
    if not found.findings:
        console.print("no finding", markup=False)
    for finding in found.findings:
        words = wording(finding.name, finding.values, finding.steps)
        first, last = finding.steps
        console.print(f"\n{finding.severity}: {words.title} (steps {first} to {last})", markup=False, style="bold")
        for label, text in (("you see", words.see), ("it means", words.means), ("do", words.do)):
            console.print(f"  {label + ':':<9} {text}", markup=False)
    if found.gaps:
        lacking = "; ".join(f"{gap.detector} ({gap.key}: {gap.found} of {gap.needed} points)" for gap in found.gaps)
        console.print(f"\ncould not judge: {lacking}", markup=False, style="dim")


def _finding(finding: Finding) -> dict[str, Any]:
    words = wording(finding.name, finding.values, finding.steps)
    return {**vars(finding), "title": words.title, "see": words.see, "means": words.means, "do": words.do}


def evaluation(summary: Mapping[str, Any], as_json: bool) -> None:
    """The arms side by side, their differences with intervals, and the verdict on the gain."""
    from cupola.prove.evaluation import points, table

    if as_json:
        print(json_module.dumps(summary, ensure_ascii=False, indent=1))
        return
    rows = table(summary)
    shown = Table(title=f"{summary['questions']} {summary['split']} questions", title_justify="left")
    for heading in ["", *summary["arms"]]:
        shown.add_column(heading)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    for difference in summary["differences"]:
        console.print(f"{difference['name']}: {points(difference)} points", markup=False)
    if verdict := summary["verdict"]:
        console.print(f"verdict: {verdict['word'] or 'undecided'}: {verdict['reason']}", markup=False, style="bold")


def groups(found: Mapping[str, Any], as_json: bool) -> None:
    """A step's groups: the prompt once, then its answers, best paid first. Control characters are shown escaped."""
    if as_json:
        print(json_module.dumps(found, ensure_ascii=False, indent=1))
        return
    for group in found["groups"]:
        console.print(f"\nstep {found['step']} {found['split']}, {group['state']}", style="bold", markup=False)
        console.print(f"prompt: {_plain(group['prompt'])}", markup=False)
        console.print(f"answer: {_plain(group['answer'] or 'none')}", markup=False)
        for row in group["rollouts"]:
            head = (
                f"  reward {number(row['reward'], '.3g'):>5}  advantage {number(row['advantage'], '+.2f'):>6}  "
                f"{row['n_tokens']:>4} tokens, {row['finish_reason']}, {row['verdict.status']}"
            )
            console.print(Text(head), Text(_plain(row["completion"])))


def _plain(text: str) -> str:
    """Text that cannot command the terminal: all but printable characters and spaces are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def ledger(rows: Sequence[Mapping[str, Any]], title: str, as_json: bool) -> None:
    """Every update's terms, then in words what they say and which denominators have no stated reason."""
    if not rows:
        raise RunFolderError(f"{title}: the ledger has no row")
    if as_json:
        print(json_module.dumps(rows, ensure_ascii=False, indent=1))
        return
    shown = Table(title=title, title_justify="left")
    for heading in ("update", "term", "formula", "value", "rollouts", "tokens", "prompts", "left out", "forwarded"):
        shown.add_column(heading)
    for row in rows:
        counted, out = row["counted"], ", ".join(f"{n} {why}" for why, n in row["excluded"].items())
        numbers = [counted["rollouts"], counted["tokens"], counted["prompts"]]
        forwarded = f"{row['forwarded']} of {row['forwarded'] + row['skipped']}"
        shown.add_row(
            str(row["update"]), row["term"], row["formula"], str(row["value"]), *map(str, numbers), out, forwarded
        )
    console.print(shown)
    for term in {row["term"]: row for row in rows}.values():
        console.print(f"\n{term['term']}: {term['rule']}", style="bold", markup=False)
        for sentence in term["words"]:
            console.print(f"  {sentence}", markup=False)
        console.print(
            f"  why: {term['why'] or 'no reason is given (objective.why.' + term['term'] + ')'}", markup=False
        )


def preflight(found: Mapping[str, Any], as_json: bool) -> None:
    """The look at step 0."""
    lines = [f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}" for key, value in found.items()]
    result(found, "\n".join(lines), as_json)


def doctor(found: Mapping[str, Any], as_json: bool) -> None:
    """One line a fact."""
    lines = []
    for key, value in found.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        lines += [f"{key}{'.' + name if name else ''}: {fact}" for name, fact in inner]
    result(found, "\n".join(lines), as_json)
