"""Commands that train: init, train, resume, sft."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipes = Annotated[list[str], typer.Argument(metavar="RECIPE.toml... [a.b=value...]", help="Files, then overrides.")]
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
    from cupola.cli import progress, show
    from cupola.core.config import load_recipe
    from cupola.workflows.preflight import preflight
    from cupola.workflows.train import train_recipe

    files, overrides = split_arguments(recipe)
    settings, provenance = load_recipe(files, overrides)
    if dry_run:
        show.preflight(preflight(settings), json)
        return
    with progress.bar(settings.run.steps, quiet=json) as view:
        trained = train_recipe(settings, provenance, [view], view.finding)
    show.finish(trained, evaluate=settings.evaluation.at_end, as_json=json)


def resume(run: Annotated[Path, typer.Argument(help="Run folder.")], json: AsJson = False) -> None:
    """Continue a run from its last checkpoint."""
    from cupola.cli import progress, show
    from cupola.core.config import load_recipe
    from cupola.core.runlog import RunReader
    from cupola.workflows.train import resume_run

    settings, _ = load_recipe([RunReader(run).layout.recipe])
    with progress.bar(settings.run.steps, quiet=json) as view:
        trained = resume_run(run, [view], view.finding)
    show.finish(trained, evaluate=settings.evaluation.at_end, as_json=json)


def sft(recipe: Recipes, json: AsJson = False) -> None:
    """Supervised cold start: train on (prompt, target) pairs and write a model folder."""
    from cupola.cli import progress, show
    from cupola.core.config import SftRecipe, load
    from cupola.workflows.cold_start import cold_start

    files, overrides = split_arguments(recipe)
    settings, _ = load(files, overrides, SftRecipe)
    folder = cold_start(settings, progress.losses(settings.training.steps, quiet=json))
    show.result({"model": str(folder)}, f"wrote {folder}", json)


def split_arguments(arguments: list[str]) -> tuple[list[Path], list[str]]:
    """Recipe files, and overrides of the form a.b=value."""
    from cupola.core.records import RecipeError

    files = [Path(text) for text in arguments if "=" not in text]
    if not files:
        raise RecipeError("no recipe file given; write one with `cupola init`")
    return files, [text for text in arguments if "=" in text]
