"""TRL as the engine of a recipe: GRPOTrainer samples and updates; prompts, reward, validation and record are ours."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch.nn.utils import get_total_norm
from torch.optim.lr_scheduler import LambdaLR
from transformers import PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from cupola.core.config import Provenance, Recipe, dump
from cupola.core.records import (
    Action,
    CupolaError,
    DataError,
    ModelError,
    NumericalError,
    RecipeError,
    RunFolderError,
    batch_messages,
)
from cupola.core.runlog import Layout, RunWriter, only_writer
from cupola.integrations.trl.arguments import arguments
from cupola.integrations.trl.cut import Cut, processes
from cupola.integrations.trl.record import Recorder, record, versions
from cupola.integrations.trl.reward import INDEX, RecipeReward
from cupola.integrations.trl.rules import Arguments
from cupola.integrations.trl.watched import Watched
from cupola.train.loop.optim import build_optimizer, learning_rate
from cupola.train.models import adapt, trainable, unpack
from cupola.workflows.assemble import Assembly, assemble, model_notes
from cupola.workflows.manifest import attempt_ended, attempt_started, new_manifest
from cupola.workflows.train import Trained, View, interrupts, notices

#: How a run ended, by what was asked for last.
STATES: dict[Action, str] = {"continue": "finished", "pause": "paused", "stop": "stopped"}


class Trainer(GRPOTrainer):
    """TRL's trainer with the recipe's optimiser and schedule, and with the rules for when an update is made."""

    def __init__(self, recipe: Recipe, **settings: Any) -> None:
        super().__init__(**settings)
        self.recipe = recipe

    def create_optimizer(self, model: Any = None) -> Any:
        if self.optimizer is None:
            own: Any = model or self.model
            self.optimizer = build_optimizer(self.recipe.optim, trainable(own))
            self.optimizer.register_step_pre_hook(self._before_update)
        return self.optimizer

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        """Refuse a gradient that is not finite; take one of exactly 0 away, so that no momentum moves the weights."""
        moved = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = float(get_total_norm([parameter.grad for parameter in moved]))
        if not math.isfinite(norm):
            raise NumericalError(
                f"optimiser step {self.state.global_step + 1}: the gradient's norm is {norm}; the update was refused "
                "and the weights are those before it (lower optim.learning_rate, or look at the last recorded rollouts)"
            )
        if norm == 0:
            for parameter in moved:
                parameter.grad = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        if self.lr_scheduler is None:
            own: Any = optimizer or self.optimizer
            rate, peak = learning_rate(self.recipe.optim, num_training_steps), self.recipe.optim.learning_rate
            self.lr_scheduler = LambdaLR(own, lambda done: rate(done + 1) / peak)
        return self.lr_scheduler


def train_with_trl(recipe: Recipe, provenance: Provenance, view: View) -> Trained | None:
    """Train a recipe in a new run folder, as `workflows.train.train_recipe` does, with TRL as the engine.

    On several processes the first records and looks on; the others return `None`. Raises CupolaError; what TRL cannot
    do is refused before anything is loaded, and a run that fails before its first checkpoint leaves no folder.
    """
    root = Path(recipe.run.folder) / recipe.run.name
    chosen = arguments(recipe, processes())
    config = _config(chosen, Layout(root))
    main = config.process_index == 0
    parts = _parts(recipe)
    writer = None
    if main:
        for notice in notices(parts):
            view.say(notice)
        manifest = new_manifest(recipe, provenance, parts.source.notes(), model_notes(parts), parts.files())
        told = {"arguments": chosen, "processes": processes()}
        manifest |= {"engine": "trl", "trl": told, "versions": versions()}
        writer = RunWriter.create(root, manifest, dump(recipe))
    try:
        with only_writer(Layout(root)) if main else nullcontext():
            return _run(parts, config, writer, view)
    except CupolaError:
        if main and not Layout(root).checkpoint_steps():
            shutil.rmtree(root)
        raise


def _config(chosen: Arguments, layout: Layout) -> Any:
    try:
        with _quiet():
            return GRPOConfig(**chosen, output_dir=str(layout.checkpoints))
    except (TypeError, ValueError) as error:
        raise RecipeError(f"run.trl: GRPOConfig refuses it: {str(error).splitlines()[0]}") from error


def _parts(recipe: Recipe) -> Assembly:
    """What the recipe names, on the CPU: accelerate places it. The adapter is drawn as in cupola's own loop."""
    on_cpu = recipe.model_copy(update={"model": recipe.model.model_copy(update={"device": "cpu"})})
    parts = replace(assemble(on_cpu), recipe=recipe)
    policy, sampling = parts.policy, recipe.sampling
    unpack(policy.model)  # transformers' paged generation knows no attention but its own
    if recipe.model.lora is not None:
        policy.adapter = adapt(policy.model, recipe.model.lora, recipe.run.seed)
    # Whatever ends an answer for the recipe ends it for `generate` and for TRL, which both read it here.
    policy.model.generation_config.eos_token_id = [*policy.stop_ids, *sampling.stop_token_ids]
    return parts


def _run(parts: Assembly, config: Any, writer: RunWriter | None, view: View) -> Trained | None:
    """Train to the end, or until somebody asks to stop."""
    reward = _reward(parts)
    trainer = _trainer(parts, config, reward)
    if writer is not None:
        attempt_started(writer, 0)
    with interrupts(view.say) as interrupted:
        watched = Watched(parts, trainer, writer, view, interrupted)
        recorder = Recorder(trainer, lambda generated: reward.scored, watched.write, reward.updates)
        record(trainer, recorder)
        try:
            with _quiet():
                trainer.train()
        except BaseException as error:
            if writer is not None:
                with suppress(RunFolderError):  # a full disk fails this record too; report the first error
                    attempt_ended(writer, "failed", f"{type(error).__name__}: {error}")
            raise
        state = STATES[recorder.action] if not interrupted() or recorder.action == "continue" else "interrupted"
    if writer is None:
        return None
    attempt_ended(writer, state, None)
    return Trained(writer.layout.root, state, writer.layout.checkpoint_steps()[-1])


def _reward(parts: Assembly) -> RecipeReward:
    """The reward over the prompts of the whole run, in the order in which cupola's own loop would ask them."""
    sampling, steps = parts.recipe.sampling, range(parts.recipe.run.steps)
    prompts = [prompt for step in steps for prompt in parts.selector.draw(step, sampling.prompts_per_step)]
    stop_ids = (*parts.policy.stop_ids, *sampling.stop_token_ids)
    return RecipeReward(parts.scorer, parts.policy, prompts, stop_ids, Cut.of(parts.recipe, processes()).updates)


def _trainer(parts: Assembly, config: Any, reward: RecipeReward) -> Trainer:
    policy = parts.policy
    first = reward.prompts[0].content
    if isinstance(first, str) and policy.encode(first) != policy.tokenizer(first)["input_ids"]:
        raise ModelError(f"{policy.source}: the tokenizer ends a prompt, and TRL would leave its end token there")
    if len({isinstance(prompt.content, str) for prompt in reward.prompts}) > 1:
        raise DataError("data: some prompts are text and some are chat messages; TRL takes one kind, see data.chat")
    columns = {"prompt": batch_messages(reward.prompts), INDEX: list(range(len(reward.prompts)))}
    try:
        with _quiet():
            trainer = Trainer(
                parts.recipe,
                model=policy.adapter or policy.model,
                reward_funcs=reward.functions(parts.recipe.objective.combine == "apart"),
                args=config,
                train_dataset=Dataset.from_dict(columns),
                processing_class=policy.tokenizer,
            )
    except ValueError as error:
        raise RecipeError(f"run.engine: GRPOTrainer refuses it: {str(error).splitlines()[0]}") from error
    trainer.remove_callback(PrinterCallback)
    return trainer


@contextmanager
def _quiet() -> Iterator[None]:
    """TRL 1.16 sets what transformers 5.24 has renamed; nobody who writes a recipe could change that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradient_checkpointing` is deprecated", FutureWarning)
        yield
