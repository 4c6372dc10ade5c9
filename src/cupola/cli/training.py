"""Commands that train: init, train, resume, sft."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cupola.cli.plain import is_first

if TYPE_CHECKING:  # their modules load torch
    from cupola.core.config import Provenance, Recipe
    from cupola.workflows.train import Trained, View

    #: Trains a recipe; `None` on a process that is not the first of several.
    Engine = Callable[[Recipe, Provenance, View], Trained | None]

Recipes = Annotated[list[str], typer.Argument(metavar="RECIPE.toml [a.b=value]", help="Files, then overrides.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and estimate a step; write nothing.")]
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
    engine = engine_of(settings)
    from cupola.cli import progress, show
    from cupola.workflows.preflight import preflight
    from cupola.workflows.train import View

    if dry_run:
        if is_first():
            show.preflight(preflight(settings), json)
        return
    with progress.bar(settings.run.steps, quiet=json or not is_first()) as view:
        trained = engine(settings, provenance, View([view], view.finding, view.write))
    raise ended(trained, json)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on with data or reward files that have changed; recorded.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Continue a run from its last checkpoint."""
    from cupola.core.config import load_recipe
    from cupola.core.records import RunFolderError
    from cupola.core.runlog import RunReader

    settings, _ = load_recipe([RunReader(run).layout.recipe])
    if settings.run.engine == "trl":
        raise RunFolderError(f"{run}: a run of TRL's is not resumed; start another with a checkpoint as model.source")
    from cupola.cli import progress
    from cupola.workflows.train import View, resume_run

    with progress.bar(settings.run.steps, quiet=json or not is_first()) as view:
        trained = resume_run(run, View([view], view.finding, view.write), accept_changes)
    raise ended(trained, json)


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


def engine_of(settings: Recipe) -> Engine:
    """What trains the recipe. Raises RecipeError where it asks for what TRL cannot do, or TRL is not installed."""
    from cupola.core.records import RecipeError

    if settings.run.engine == "trl":
        from cupola.integrations.trl.arguments import arguments
        from cupola.integrations.trl.cut import processes

        arguments(settings, processes())
        try:
            from cupola.integrations.trl.engine import train_with_trl
        except ModuleNotFoundError as error:
            if error.name not in ("accelerate", "datasets", "trl"):
                raise
            raise RecipeError(f"run.engine: 'trl' needs {error.name}: pip install -e '.[trl]' in the clone") from error
        return train_with_trl
    from cupola.workflows.train import train_recipe

    return train_recipe


def ended(trained: Trained | None, json: bool) -> typer.Exit:
    """Judge and print what training left, on the first of several processes; how this one ends.

    The launcher of several takes any code but 0 for a crash, so that a finding of theirs does not show in it.
    """
    from cupola.cli import finish

    if trained is None or not is_first():
        return typer.Exit(0)
    code = finish.finish(trained, json)
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    return typer.Exit(code if alone or trained.state != "finished" else 0)


def split_arguments(arguments: list[str]) -> tuple[list[Path], list[str]]:
    """Recipe files, and overrides of the form a.b=value."""
    from cupola.core.records import RecipeError

    files = [Path(text) for text in arguments if "=" not in text]
    if not files:
        raise RecipeError("no recipe file given; write one with `cupola init`")
    return files, [text for text in arguments if "=" in text]
