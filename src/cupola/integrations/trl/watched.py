"""What cupola does around each step of TRL's: record, validate, diagnose, save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from cupola.core.records import Action, Finding, Group, RecipeError
from cupola.core.runlog import Layout, RunWriter
from cupola.integrations.trl.record import Step
from cupola.integrations.trl.reward import TOTAL
from cupola.train.loop.record import GREEDY, forget_rollouts, is_due, validation_metrics
from cupola.train.models import save_policy, whole_folder
from cupola.train.rollout import with_logged
from cupola.watch.diagnosis import LiveDiagnosis
from cupola.workflows.assemble import Assembly
from cupola.workflows.train import View

#: What TRL logs of the function that we hand it for the sum of the parts.
OWN = f"rewards/{TOTAL}/"


class Watched:
    """A recipe's run on this process; the first has a `writer`. Raises RecipeError for what needs a whole model."""

    def __init__(
        self,
        parts: Assembly,
        trainer: Any,
        writer: RunWriter | None,
        view: View,
        interrupted: Callable[[], bool],
    ) -> None:
        self.parts, self.recipe, self.trainer, self.writer = parts, parts.recipe, trainer, writer
        self.interrupted = interrupted
        self.layout = Layout(Path(trainer.args.output_dir).parent)
        plugin = trainer.accelerator.state.deepspeed_plugin
        self.sharded = trainer.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3)
        self._refuse_sharded()

        def found(step: int, finding: Finding) -> None:
            if writer is not None:
                writer.finding(step, finding)
            view.finding(step, finding)

        self.observers = [*view.observers, LiveDiagnosis(parts.recipe.model_dump(mode="json"), found)]
        with self._asked():
            self.collector = parts.collector()

    def _refuse_sharded(self) -> None:
        validation = self.recipe.validation
        if self.sharded and (validation.samples or validation.greedy):
            raise RecipeError(
                "validation.samples: it asks the whole model in one process, and FSDP and ZeRO-3 leave a part there; "
                "set validation.samples = 0 and validation.greedy = false, and use `cupola eval`"
            )
        if self.sharded and self.recipe.model.lora is not None:
            raise RecipeError("model.lora: an adapter is not merged over processes; take DDP or ZeRO-2 with it")

    def write(self, step: Step) -> Action:
        """On every process: record where this is the first, agree on what to do, save where that is due."""
        due = is_due(self.recipe, step.number)
        asked = [self._record(step, due) if self.writer is not None else "continue"]
        action: Action = broadcast_object_list(asked)[0]
        if due or action != "continue":
            self._save(step.number)
        return action if step.number < self.recipe.run.steps else "continue"

    def _record(self, step: Step, due: bool) -> Action:
        """As the own loop does: rollouts first and metrics rows last, so a step that has one is recorded whole."""
        assert self.writer is not None
        part = self.recipe.correctness_part()
        checked = self._validate(step.number) if due else []
        groups = [*step.groups, *checked]
        if groups:
            self.writer.rollouts(step.number, groups, step.outcomes, part)
            forget_rollouts(self.writer, self.recipe, step.number)
        rows = []
        if step.groups:
            metrics = {key: value for key, value in step.metrics(part).items() if not key.startswith(OWN)}
            rows.append(self.writer.metrics(step.number, "train", metrics))
        if checked:
            metrics = with_logged(validation_metrics(checked), self.parts.logged.values.pop(step.number, {}))
            rows.append(self.writer.metrics(step.number, "validation", metrics))
        asked = [observe(step.number, rows, groups) for observe in self.observers]
        if self.interrupted():
            asked.append("pause")
        return "stop" if "stop" in asked else "pause" if "pause" in asked else "continue"

    def _validate(self, step: int) -> list[Group]:
        """The fixed questions, asked as the own loop asks them, of the policy as TRL has trained it."""
        settings, sampling, questions = self.recipe.validation, self.recipe.sampling, self.parts.validation
        groups: list[Group] = []
        with self._asked():
            if settings.samples:
                drawn = sampling.settings()
                groups += self.collector.collect(step, questions, settings.samples, drawn, "validation")
            if settings.greedy:
                groups += self.collector.collect(step, questions, 1, sampling.settings(0), "validation", GREEDY)
        return groups

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """TRL trains in training mode, in which gradient checkpointing would take the cache away."""
        model = self.parts.policy.model
        training = model.training
        model.train(False)
        try:
            yield
        finally:
            model.train(training)

    def _save(self, step: int) -> None:
        """A folder that plain transformers and `cupola eval` load; the first process writes it."""
        folder, first = self.layout.checkpoint(step), self.writer is not None
        if self.sharded:
            own = whole_folder(folder) if first else nullcontext(folder)
            with own as temporary:
                self.trainer.save_model(str(temporary))
        elif first:
            with whole_folder(folder) as temporary:
                save_policy(self.parts.policy, temporary)
        if self.writer is not None:
            self.writer.forget_checkpoints(self.recipe.validation.keep)
