"""Commands that read a run: groups, diagnose, ledger, watch, eval; and doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Step = Annotated[int | None, typer.Option(min=0, help="Step; the newest by default.")]


def groups(
    run: RunFolder,
    step: Step = None,
    split: Annotated[Literal["train", "validation"], typer.Option(help="Which questions.")] = "train",
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Groups to show.")] = 3,
    json: AsJson = False,
) -> None:
    """Read a step's answers in the terminal, best and worst paid first; the groups that can teach come first."""
    from cupola.cli import show
    from cupola.workflows.answers import read_groups

    show.groups(read_groups(run, step, split, count), json)


def diagnose(run: RunFolder, json: AsJson = False) -> None:
    """What the run's record says about it; exit 3 where something needs you."""
    from cupola.cli import show
    from cupola.core.runlog import RunReader
    from cupola.watch.diagnosis import diagnose_run, exit_code

    diagnosis = diagnose_run(RunReader(run))
    show.diagnosis(diagnosis, json)
    raise typer.Exit(exit_code(diagnosis.findings))


def ledger(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Run folder.")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Explain a recipe instead, without running it.")] = None,
    foreign: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            "--from", metavar="TRAINER FILE", help="Explain trl's, verl's, openrlhf's or a loop's JSON or TOML."
        ),
    ] = None,
    step: Step = None,
    json: AsJson = False,
) -> None:
    """Every denominator in numbers and words: of a run's step, a recipe, or another trainer's configuration."""
    from cupola.cli import show
    from cupola.core.records import RecipeError
    from cupola.workflows.explain import explain_foreign, explain_recipe, read_step

    if [run, recipe, foreign].count(None) != 2:
        raise typer.BadParameter("give one of RUN, --recipe FILE and --from TRAINER FILE")
    if run is None and step is not None:
        raise RecipeError("--step: belongs to a RUN; a configuration has no steps")
    if recipe is not None:
        show.explanation(explain_recipe(recipe), json)
    elif foreign is not None:
        show.explanation(explain_foreign(*foreign), json)
    elif run is not None:
        show.ledger(*read_step(run, step), json)


def watch(
    run: RunFolder,
    export: Annotated[Path | None, typer.Option(help="File to write; RUN/report.html by default.")] = None,
) -> None:
    """Write the run's report: one HTML file that opens from disk."""
    from cupola.cli import finish

    typer.echo(f"wrote {finish.report(run, export)}")


def eval_(
    target: Annotated[str, typer.Argument(help="Run folder (base against trained), or a model with --recipe.")],
    recipe: Annotated[Path | None, typer.Option(help="Recipe whose questions and reward judge a lone model.")] = None,
    step: Step = None,
    questions: Annotated[int | None, typer.Option(min=1, help="Test questions.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Sampled answers per question.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for a lone model's evals/.")] = Path("evaluation"),
    json: AsJson = False,
) -> None:
    """Greedy accuracy, pass@1 and pass@k with intervals; for a run, base against trained."""
    from cupola.cli import show
    from cupola.core.config import load_recipe
    from cupola.workflows.evaluate import evaluate_model, evaluate_run

    changed = {k: v for k, v in {"questions": questions, "samples": samples}.items() if v is not None}
    say = show.say(quiet=json)
    if recipe is None:
        show.evaluation(evaluate_run(Path(target), say, step, changed), json)
    else:
        settings, _ = load_recipe([recipe])
        show.evaluation(evaluate_model(settings, target, out, say, changed), json)


def doctor(json: AsJson = False) -> None:
    """What this machine and installation can do."""
    from cupola.cli import show
    from cupola.workflows.doctor import examine

    show.doctor(examine(), json)
