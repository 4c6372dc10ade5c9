"""From a recipe to the parts of a run: model, questions, reward. Everything that can be refused is refused here."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cupola.core.config import Recipe
from cupola.core.records import Completion, Prompt, Rollout
from cupola.train.loop import Learner, MetricLog
from cupola.train.models import InProcessSampler, Policy, choose_threads, load_policy
from cupola.train.rollout import Collector
from cupola.train.tasks import FileSource, PromptSource, open_source, refuse_overlap
from cupola.train.verifiers import Scorer


@dataclass
class Parts:
    """What a recipe names, loaded and checked."""

    recipe: Recipe
    policy: Policy
    source: PromptSource
    scorer: Scorer
    validation: list[Prompt]
    logged: MetricLog
    threads: int

    def collector(self) -> Collector:
        """Sampler and reward of this run."""

        def score(prompts: Sequence[Prompt], completions: Sequence[Completion], step: int) -> list[Rollout]:
            return self.scorer.score(prompts, completions, step, self.logged)

        return Collector(InProcessSampler(self.policy), score, self.recipe.run.seed)

    def learner(self) -> Learner:
        """The learner, with a frozen copy of the policy as reference where the recipe has a KL term."""
        reference = None
        if self.recipe.objective.beta > 0:
            reference = copy.deepcopy(self.policy.model).requires_grad_(False)
        return Learner(self.policy, reference, self.recipe)


def assemble(recipe: Recipe, model: str | None = None) -> Parts:
    """Load and check what the recipe names (with `model` in place of its own, if given).

    Raises the error of whatever cannot be used: missing model, bad dataset, reward function that cannot be imported,
    held-out questions in the training set, prompts that do not fit the context.
    """
    source = open_source(recipe.data, recipe.reward, recipe.run.seed)
    per_step = recipe.sampling.prompts_per_step
    scorer = Scorer.of(recipe, source.size / per_step if source.size else None)
    validation = source.held_out("validation", recipe.validation.questions)
    policy = load_policy(model or recipe.model.source, recipe.model.dtype, recipe.model.device)
    threads = choose_threads(policy.parameters, recipe.run.threads)
    torch.set_num_threads(threads)
    train = source.questions.train if isinstance(source, FileSource) else source.draw(0, per_step)
    refuse_overlap(train, validation)
    for prompt in [*validation, *train]:
        policy.encode_for(prompt, recipe.sampling.max_tokens)
    return Parts(recipe, policy, source, scorer, validation, MetricLog(), threads)


def notices(source: PromptSource) -> list[str]:
    """What a person should know of the data before training: how many rows were left out, and why."""
    if not isinstance(source, FileSource):
        return []
    questions, bad = source.questions, source.questions.bad_gold
    found = [f"{len(questions.train)} training and {len(questions.validation)} validation questions"]
    if questions.dropped_duplicates:
        found.append(f"{questions.dropped_duplicates} rows repeat a question and were left out")
    if bad:
        listed = "; ".join(bad[:5]) + ("; ..." if len(bad) > 5 else "")
        found.append(f"{len(bad)} rows were left out because a reward part cannot read their answer: {listed}")
    return found


def data_notes(source: PromptSource) -> Mapping[str, Any]:
    """What the manifest says of the data: sizes, and what was left out."""
    if not isinstance(source, FileSource):
        return {"train": None}
    questions = source.questions
    return {
        "train": len(questions.train),
        "validation": len(questions.validation),
        "dropped_duplicates": questions.dropped_duplicates,
        "bad_gold": list(questions.bad_gold),
    }
