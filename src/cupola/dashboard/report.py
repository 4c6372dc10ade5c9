"""One run as one HTML file that opens from disk: no script, no network, nothing beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cupola.core.catalogue import Gap, Wording, wording
from cupola.core.records import Finding
from cupola.core.runlog import RunReader, write_text
from cupola.dashboard import figures, plot, questions, text
from cupola.dashboard.groups import shown_steps
from cupola.dashboard.summary import BAR_WIDTH, SPARK_HEIGHT, SPARK_WIDTH, facts, gains, tiles


def export(
    run: Path | str,
    out: Path | str | None = None,
    findings: Sequence[Finding] | None = None,
    gaps: Sequence[Gap] = (),
) -> Path:
    """Render a run folder as one static HTML file and return its path.

    `out` is the file to write, by default the run folder's own report. `findings` are shown worst first; `None` says
    that the run was not diagnosed, which is not the same as an empty list. `gaps` are what could not be judged.
    Raises RunFolderError if the folder is no run or the file cannot be written.
    """
    reader = RunReader(run)
    target = reader.layout.report if out is None else Path(out)
    write_text(target, render(reader, findings, gaps))
    return target


def render(reader: RunReader, findings: Sequence[Finding] | None, gaps: Sequence[Gap]) -> str:
    """The page as text."""
    environment = _environment()
    style = environment.get_template("report.css").render()
    template = environment.get_template("report.html")
    charts = figures.charts(reader)
    drawn = [chart for chart in charts if chart.drawn]
    manifest = reader.manifest()
    return template.render(
        style=Markup(style),
        policy=policy(style),
        run=reader.name,
        state=manifest.get("state"),
        error=(manifest.get("attempts") or [{}])[-1].get("error"),
        facts=facts(reader),
        tiles=tiles(reader),
        findings=None if findings is None else [(f, _words(f)) for f in sorted(findings, key=_urgency)],
        gaps=gaps,
        gains=gains(reader),
        charts=[(chart, plot.plot(chart), plot.caption(chart), plot.table(chart)) for chart in drawn],
        missing=[chart.title for chart in charts if not chart.drawn],
        timeline=questions.timeline(reader),
        class_words=questions.CLASSES,
        steps=shown_steps(reader),
        ledger=newest_update(reader.ledger()),
        recipe=recipe_text(reader),
        provenance=provenance(manifest),
        box=plot,
        spark=(SPARK_WIDTH, SPARK_HEIGHT),
        bar_width=BAR_WIDTH,
    )


def policy(style: str) -> str:
    """The content security policy: nothing at all but this one style sheet, named by its digest."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _urgency(finding: Finding) -> tuple[int, int]:
    return ("error", "warning", "info").index(finding.severity), finding.steps[0]


def _words(finding: Finding) -> Wording:
    return wording(finding.name, finding.values, finding.steps)


def newest_update(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The ledger rows of the last update of the last step."""
    last = max(((row["step"], row["update"]) for row in rows), default=None)
    return [row for row in rows if (row["step"], row["update"]) == last]


def recipe_text(reader: RunReader) -> str | None:
    """The resolved recipe, or `None` for a folder made from metrics alone."""
    path = reader.layout.recipe
    return path.read_text(encoding="utf-8") if path.exists() else None


def provenance(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Versions, revision, digests and notes that the manifest records, in its order, nested tables one level deep."""
    found: list[tuple[str, Any]] = []
    for key, value in manifest.items():
        if key in ("name", "state", "created", "recipe", "provenance", "attempts"):
            continue
        if isinstance(value, Mapping):
            found += [(name if key == "versions" else f"{key} {name}", inner) for name, inner in value.items()]
        else:
            found.append((key, value))
    return [(key.replace("_", " "), str(value)) for key, value in found if isinstance(value, str | int | float)]


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("cupola.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        visible=text.visible,
        prose=text.prose,
        words=lambda value: str(value).replace("_", " "),
        plain=text.plain,
        number=text.number,
        percent=text.percent,
        points=text.points,
        signed=lambda value: text.number(value, sign=True),
    )
    return environment
