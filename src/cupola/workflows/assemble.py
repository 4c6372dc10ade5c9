"""From a recipe to the parts of a run: model, questions, reward. Everything that can be refused is refused here."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from cupola.core.config import Recipe
from cupola.core.records import Completion, Prompt, Rollout
from cupola.train.loop import Learner
from cupola.train.models import InProcessSampler, Policy, load_policy, set_threads
from cupola.train.rollout import Collector, MetricLog
from cupola.train.tasks import PromptSource, open_source
from cupola.train.verifiers import Scorer


@dataclass
class Assembly:
    """What a recipe names, loaded and checked."""

    recipe: Recipe
    policy: Policy
    source: PromptSource
    scorer: Scorer
    validation: list[Prompt]
    threads: int
    logged: MetricLog = field(default_factory=MetricLog)

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
    threads = set_threads(policy.parameters, recipe.run.threads)
    for prompt in [*validation, *(source.prompts() or source.draw(0, per_step))]:
        policy.encode_for(prompt, recipe.sampling.max_tokens)
    return Assembly(recipe, policy, source, scorer, validation, threads)
