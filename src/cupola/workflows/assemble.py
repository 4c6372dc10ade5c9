"""From a recipe to the parts of a run: model, questions, reward. Everything that can be refused is refused here."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cupola.core.config import Evaluation, Recipe, load_recipe
from cupola.core.records import Completion, Prompt, Rollout, RunFolderError, Sampler, Split
from cupola.core.runlog import RunReader
from cupola.train.loop import ALONE, Learner, Ranks, SharedCollector
from cupola.train.models import (
    AdapterOff,
    InProcessSampler,
    Policy,
    Reference,
    WeightPublisher,
    adapt,
    base_weights,
    critic_of,
    gathered,
    load_policy,
    require_fit,
    set_threads,
    trainable,
    weights_digest,
)
from cupola.train.rollout import Collector, MetricLog, Selector, Server, Text, VllmSampler, open_selector
from cupola.train.tasks import PromptSource, open_source
from cupola.train.verifiers import Scorer


@dataclass
class Assembly:
    """What a recipe names, loaded and checked."""

    recipe: Recipe
    policy: Policy
    source: PromptSource
    selector: Selector
    scorer: Scorer
    validation: list[Prompt]
    threads: int
    logged: MetricLog = field(default_factory=MetricLog)

    def collector(self, sampler: Sampler | None = None) -> Collector:
        """Sampler and reward of this run; without a sampler the policy itself answers."""

        def score(prompts: Sequence[Prompt], completions: Sequence[Completion], step: int) -> list[Rollout]:
            return self.scorer.score(prompts, completions, step, self.logged.of(step))

        return Collector(sampler or InProcessSampler(self.policy), score, self.recipe.run.seed)

    def sampler(self) -> Sampler:
        """The sampler that the recipe trains with."""
        settings, policy = self.recipe.sampler, self.policy
        if settings.url is None:
            return InProcessSampler(policy)
        server = Server(settings.url, settings.timeout, settings.retries)
        text = Text(policy.encode_for, policy.decode, policy.stop_ids)
        return VllmSampler(server, text, WeightPublisher(server, policy, self.recipe, self.validation))

    def shared_collector(self, ranks: Ranks) -> Collector:
        """Sampler and reward of this run, shared out over the ranks; a server is asked by the first alone."""
        with gathered(self.policy.model):
            sampler = self.sampler()
        alone = self.collector(sampler)
        if ranks.world == 1:
            return alone
        sources = 1 if sampler.apart else ranks.world
        return SharedCollector(sampler, alone.score, alone.seed, ranks, self.policy.model, sources)

    def questions(self, settings: Evaluation) -> tuple[Split, list[Prompt], list[Prompt]]:
        """(split, dev questions, test questions) of an evaluation.

        A data file has no test split: its validation questions are used. The dev questions serve the base alone, which
        was trained on none of them, so a file's training questions do.
        """
        if finite := self.source.prompts():
            dev = list(finite[: settings.dev_questions])
            return "validation", dev, self.source.held_out("validation", settings.questions)
        return (
            "test",
            self.source.held_out("dev", settings.dev_questions),
            self.source.held_out("test", settings.questions),
        )

    def files(self) -> dict[str, str]:
        """SHA-256 of every file of the user's that the run reads: data and reward functions."""
        return {**self.source.digests(), **self.scorer.digests()}

    def learner(self, ranks: Ranks = ALONE) -> Learner:
        """The learner, with adapter, reference and critic where the recipe asks for them, sharded over the ranks."""
        objective, lora = self.recipe.objective, self.recipe.model.lora
        if lora is not None:
            self.policy.adapter = adapt(self.policy.model, lora, self.recipe.run.seed)
        reference = self._reference() if objective.beta > 0 else None
        critic = critic_of(self.policy) if objective.baseline == "critic" else None
        return Learner(self.policy, reference, self.recipe, critic, ranks)

    def _reference(self) -> Reference:
        """The policy without its adapter where it has one, else a copy of it."""
        if self.policy.adapter is not None:
            return AdapterOff(self.policy.model, self.policy.adapter)
        kind = self.recipe.objective.reference
        every = kind.every if kind.kind == "moving" else None
        return Reference(copy.deepcopy(self.policy.model).requires_grad_(False), every, kind.mixup)


def assemble(recipe: Recipe, model: str | None = None) -> Assembly:
    """Load and check what the recipe names (with `model` in place of its own, if given).

    Raises the error of whatever cannot be used: missing model, bad dataset, reward function that cannot be imported,
    held-out questions in the training set, prompts that do not fit the context.
    """
    source = open_source(recipe.data, recipe.reward, recipe.run.seed)
    per_step = recipe.sampling.prompts_per_step
    scorer = Scorer.of(recipe, source.size / per_step if source.size else None)
    validation = source.held_out("validation", recipe.validation.questions)
    policy = load_policy(model or recipe.model.source, recipe.model.dtype, recipe.model.device)
    require_fit(policy)
    threads = set_threads(policy.parameters, recipe.run.threads)
    for prompt in [*validation, *(source.prompts() or source.draw(0, per_step))]:
        policy.encode_for(prompt, recipe.sampling.max_tokens)
    made = Assembly(recipe, policy, source, open_selector(recipe, source), scorer, validation, threads)
    if recipe.evaluation.at_end:
        made.questions(recipe.evaluation)  # too few questions show now, not after training
    return made


def recipe_of(reader: RunReader) -> Recipe:
    """The recipe a run was started with, on as many threads: sums in another order are other sums."""
    recipe, _ = load_recipe([reader.layout.recipe])
    run = recipe.run.model_copy(update={"threads": reader.manifest()["model"]["threads"]})
    return recipe.model_copy(update={"run": run})


def model_notes(parts: Assembly) -> dict[str, Any]:
    """What the manifest says of the starting model; its digest leaves an adapter out. All ranks ask together."""
    with gathered(parts.policy.model):
        digest = weights_digest(base_weights(parts.policy.model))
    return {
        "source": parts.recipe.model.source,
        "parameters": parts.policy.parameters,
        "trainable": sum(parameter.numel() for parameter in trainable(parts.policy.model)),
        "digest": digest,
        "threads": parts.threads,
    }


def refuse_another_model(root: Path, parts: Assembly, manifest: Mapping[str, Any]) -> None:
    """Raise RunFolderError where the starting model is not the one the run began with."""
    if model_notes(parts)["digest"] != manifest["model"]["digest"]:
        raise RunFolderError(f"{root}: the model {parts.recipe.model.source} has changed since the run began")
