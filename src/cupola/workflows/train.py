"""Train a recipe, or continue a run: validation, live diagnosis and progress around the loop."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.core.config import COMMAND_LINE, Provenance, Recipe, dump
from cupola.core.config.presets import PRESETS
from cupola.core.records import Action, CupolaError, Finding, Observer, RunFolderError
from cupola.core.runlog import Layout, RunReader, RunWriter, only_writer
from cupola.train.loop import Learner, Position, Ranks, Run, launched, load_checkpoint, seed_globals, train
from cupola.watch.diagnosis import LiveDiagnosis
from cupola.workflows.assemble import Assembly, assemble, model_notes, recipe_of, refuse_another_model
from cupola.workflows.manifest import attempt_ended, attempt_started, new_manifest


@dataclass(frozen=True)
class View:
    """Who looks on: observers of each recorded step, and where findings and notices go."""

    observers: Sequence[Observer] = ()
    finding: Callable[[int, Finding], None] = lambda step, finding: None
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Trained:
    """How a call of `train_recipe` or `resume_run` ended."""

    folder: Path
    state: str
    step: int


def train_recipe(recipe: Recipe, provenance: Provenance, view: View = View()) -> Trained:
    """Train a recipe in a new run folder `run.folder/run.name`, on all ranks where torchrun started several.

    Nothing is written before model, data, reward and optimiser have been checked. Raises CupolaError; a run that fails
    before its first checkpoint leaves no folder, since nothing could go on from it.
    """
    root = Path(recipe.run.folder) / recipe.run.name
    with launched(recipe.model.device) as ranks:
        parts = ranks.together(lambda: assemble(recipe))
        learner = ranks.together(lambda: parts.learner(ranks))
        for notice in [*notices(parts), *undone(recipe, provenance)] if ranks.is_first else ():
            view.say(notice)
        manifest = new_manifest(recipe, provenance, parts.source.notes(), model_notes(parts), parts.files())
        writer = ranks.first(lambda: RunWriter.create(root, manifest, dump(recipe)))
        try:
            with _held(writer.layout, ranks):
                seed_globals(recipe.run.seed)
                return _run(parts, learner, writer, None, view)
        except CupolaError:
            if ranks.is_first and not writer.layout.checkpoint_steps():
                shutil.rmtree(root)
            raise


def resume_run(root: Path, view: View = View(), accept_changes: bool = False) -> Trained:
    """Continue a run from its last checkpoint with the recipe it was started with; on a CPU bit for bit.

    One that was cut off before its first checkpoint begins again. The number of ranks may be another than before; then
    what is sampled differs. Raises RunFolderError where steps have no checkpoint any more, nothing is left to do,
    another process is at it, or the model is not what the run began with; so too for a data file or reward function
    that has changed, unless `accept_changes`, and then the attempt says so in run.json.
    """
    reader = RunReader(root)
    recipe = recipe_of(reader)
    with launched(recipe.model.device) as ranks, _held(reader.layout, ranks):
        steps, manifest = ranks.first(lambda: (reader.layout.checkpoint_steps(), reader.manifest()))
        if not steps and ranks.first(lambda: reader.metrics("train")):
            raise RunFolderError(f"{root}: no checkpoint to resume from; start again under another run.name")
        if steps and steps[-1] >= recipe.run.steps:
            ranks.first(lambda: _finish(reader, recipe))
            return Trained(root, "finished", steps[-1])
        parts = ranks.together(lambda: assemble(recipe))
        changed = ranks.together(lambda: _changed(root, parts, manifest, accept_changes))
        learner = ranks.together(lambda: parts.learner(ranks))
        seed_globals(recipe.run.seed)  # a checkpoint has states of its own
        last = reader.layout.checkpoint(steps[-1]) if steps else None
        position = ranks.together(lambda: load_checkpoint(last, learner) if last else None)
        writer = RunWriter(reader.layout, len(manifest["attempts"]))
        return _run(parts, learner, writer, position, view, changed)


def _finish(reader: RunReader, recipe: Recipe) -> None:
    """End a run that was cut off after its last checkpoint. Raises RunFolderError where it has ended by itself."""
    root, steps, manifest = reader.layout.root, recipe.run.steps, reader.manifest()
    if manifest["state"] == "finished":
        raise RunFolderError(
            f"{root}: finished: its last checkpoint is step {steps} of {steps}; `cupola watch {root}` writes its "
            f"report, `cupola eval {root}` compares it with its start"
        )
    last = RunWriter(reader.layout, len(manifest["attempts"]) - 1)
    last.forget_checkpoints(recipe.validation.keep)
    attempt_ended(last, "finished", None)


def _changed(root: Path, parts: Assembly, manifest: Mapping[str, Any], accept_changes: bool) -> list[str]:
    """The files that are not those the run began with. Raises RunFolderError for them, and for another model."""
    refuse_another_model(root, parts, manifest)
    changed = [path for path, digest in parts.files().items() if manifest["files"].get(path) != digest]
    if changed and not accept_changes:
        raise RunFolderError(
            f"{root}: {', '.join(changed)} changed since the run began; `cupola resume --accept-changes` goes on so"
        )
    return changed


def _held(layout: Layout, ranks: Ranks) -> AbstractContextManager[None]:
    """The folder's lock, which the first rank holds for all."""
    return only_writer(layout) if ranks.is_first else nullcontext()


def _run(
    parts: Assembly,
    learner: Learner,
    writer: RunWriter,
    saved: Position | None,
    view: View,
    changed: Sequence[str] = (),
) -> Trained:
    """Train from where a checkpoint was saved, or from nothing, to the end or until asked to pause.

    The first rank has the view, the diagnosis and the folder.
    """
    ranks, position = learner.ranks, saved or Position()
    view = view if ranks.is_first else View()
    ranks.first(lambda: attempt_started(writer, None if saved is None else saved.step, changed, ranks.world))

    def found(step: int, finding: Finding) -> None:
        writer.finding(step, finding)
        view.finding(step, finding)

    def live() -> LiveDiagnosis:
        before = RunReader(writer.layout.root)
        return LiveDiagnosis(parts.recipe.model_dump(mode="json"), found, before.metrics(), before.findings())

    with interrupts(view.say) as interrupted:
        run = Run(
            parts.recipe,
            learner,
            parts.shared_collector(ranks),
            parts.selector,
            parts.validation,
            writer,
            [*view.observers, live()] if ranks.is_first else [],
            interrupted,
            parts.logged,
        )
        try:
            action = train(run, position)
        except BaseException as error:
            with suppress(RunFolderError):  # a full disk fails this record too; the first error is the one to report
                if ranks.is_first:
                    attempt_ended(writer, "failed", f"{type(error).__name__}: {error}")
            raise

    def ended() -> Trained:
        state = _state(action, interrupted())
        attempt_ended(writer, state, None)
        return Trained(writer.layout.root, state, writer.layout.checkpoint_steps()[-1])

    return ranks.first(ended)


def notices(parts: Assembly) -> list[str]:
    """What a person should know before training: rows left out, and fewer validation questions than asked for."""
    found, asked = parts.source.notices(), parts.recipe.validation.questions
    if len(parts.validation) < asked:
        found.append(f"validation: {len(parts.validation)} of the {asked} questions asked for (validation.questions)")
    if parts.recipe.model.dtype == "bfloat16" and parts.recipe.model.lora is None:  # an adapter stays in float32
        found.append("bfloat16 weights lose updates below 1/256 of a weight; model.dtype = 'float32' keeps them")
    return found


def undone(recipe: Recipe, provenance: Provenance) -> list[str]:
    """What keys of a recipe file keep of the objective where the command line asks for another preset."""
    if provenance.get("objective.preset") != COMMAND_LINE:
        return []
    name = recipe.objective.preset
    stays = {
        f"objective.{key}": getattr(recipe.objective, key)
        for key, value in PRESETS[name].items()
        if not isinstance(value, dict) and getattr(recipe.objective, key) != value
    }
    kept = [f"{key} = {value} ({provenance[key]})" for key, value in stays.items() if provenance[key] != COMMAND_LINE]
    return [f"preset {name}, but {'; '.join(kept)}; take that out to have the preset's own"] if kept else []


def _state(action: Action, interrupted: bool) -> str:
    if action == "continue":
        return "finished"
    return "interrupted" if interrupted else {"pause": "paused", "stop": "stopped"}[action]


@contextmanager
def interrupts(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the step finish and be recorded; the second ends the process at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        asked.set()
        say("finishing and recording this step; Ctrl-C again ends at once and loses it")
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
