"""Commands that train: init, train, resume, sft."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipes = Annotated[list[str], typer.Argument(metavar="RECIPE.toml [a.b=value]", help="Files, then overrides.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and sample once, but write nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def init(
    path: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path("recipe.toml"),
    data: Annotated[str | None, typer.Option(help="Your questions: .jsonl, .parquet or .csv.")] = None,
    model: Annotated[str, typer.Option(help="`embedded`, a model folder or a hub name.")] = "embedded",
    reward: Annotated[str | None, typer.Option(help="Your reward function: file.py:name or module:name.")] = None,
) -> None:
    """Write a commented recipe that you own."""
    from cupola.core.config import starting_recipe
    from cupola.core.records import RecipeError
    from cupola.core.runlog import write_text

    if path.exists():
        raise RecipeError(f"{path}: exists already; choose another name")
    write_text(path, starting_recipe(data, model, reward))
    typer.echo(f"wrote {path}; next: cupola train {path} --dry-run")


def train(recipe: Recipes, dry_run: DryRun = False, json: AsJson = False) -> None:
    """Train a recipe with validation, live diagnosis and a report."""
    from cupola.core.config import load_recipe

    settings, provenance = load_recipe(*split_arguments(recipe))  # before torch, so that a slip shows at once
    from cupola.cli import finish, progress, show
    from cupola.workflows.preflight import preflight
    from cupola.workflows.train import View, train_recipe

    if dry_run:
        show.preflight(preflight(settings), json)
        return
    with progress.bar(settings.run.steps, quiet=json) as view:
        trained = train_recipe(settings, provenance, View([view], view.finding, view.write))
    raise typer.Exit(finish.finish(trained, json))


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on with data or reward files that have changed; recorded.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint."""
    from cupola.core.config import load_recipe
    from cupola.core.runlog import RunReader

    settings, _ = load_recipe([RunReader(run).layout.recipe])
    from cupola.cli import finish, progress
    from cupola.workflows.train import View, resume_run

    with progress.bar(settings.run.steps, quiet=json) as view:
        trained = resume_run(run, View([view], view.finding, view.write), accept_changes)
    raise typer.Exit(finish.finish(trained, json))


def sft(recipe: Recipes, json: AsJson = False) -> None:
    """Supervised cold start: train on (prompt, target) pairs and write a model folder."""
    from cupola.core.config import SftRecipe, load

    settings, _ = load(*split_arguments(recipe), SftRecipe)
    from cupola.cli import progress, show
    from cupola.workflows.cold_start import cold_start

    folder = cold_start(settings, progress.losses(settings.training.steps, quiet=json))
    if json:
        show.as_json({"model": str(folder)})
    else:
        show.lines(f'wrote {folder}; use it as model.source = "{folder}"')


def split_arguments(arguments: list[str]) -> tuple[list[Path], list[str]]:
    """Recipe files, and overrides of the form a.b=value."""
    from cupola.core.records import RecipeError

    files = [Path(text) for text in arguments if "=" not in text]
    if not files:
        raise RecipeError("no recipe file given; write one with `cupola init`")
    return files, [text for text in arguments if "=" in text]
