"""A recipe's reward as TRL's reward functions: each generation is scored once, and what was found is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupola.core.records import Completion, Prompt, Rollout
from cupola.integrations.trl.record import completion
from cupola.train.models import Policy
from cupola.train.verifiers import Scorer

#: The dataset's column that says which of the recipe's prompts a row is.
INDEX = "prompt_index"

#: What TRL calls the reward of a recipe whose parts are summed.
TOTAL = "total"


@dataclass(eq=False)
class RecipeReward:
    """Scores TRL's completions by the recipe's parts; `prompts` are those of the dataset's rows.

    `updates` are the optimiser steps of a step: reward functions see how many steps are finished.
    """

    scorer: Scorer
    policy: Policy
    prompts: Sequence[Prompt]
    stop_ids: Sequence[int]
    updates: int
    scored: list[tuple[Prompt, Rollout]] = field(default_factory=list)
    _seen: object = None

    def functions(self, apart: bool) -> list[Callable[..., list[float | None]]]:
        """One function for the sum, or one for each part. A rollout without a reward has none in any of them."""
        if not apart:
            return [self._function(TOTAL, lambda rollout: rollout.reward)]
        return [self._function(name, self._part(name)) for name in (part.name for part in self.scorer.parts)]

    def _part(self, name: str) -> Callable[[Rollout], float | None]:
        return lambda rollout: None if rollout.reward is None else rollout.verdicts[name].score

    def _function(self, name: str, value: Callable[[Rollout], float | None]) -> Callable[..., list[float | None]]:
        def function(**arguments: Any) -> list[float | None]:
            return [value(rollout) for _, rollout in self._score(**arguments)]

        function.__name__ = name
        return function

    def _score(
        self, completion_ids: list[list[int]], trainer_state: Any, log_metric: Callable[..., None], **columns: Any
    ) -> list[tuple[Prompt, Rollout]]:
        if completion_ids is not self._seen:
            asked = [self.prompts[index] for index in columns[INDEX]]
            answers = [self._completion(ids, trainer_state.global_step) for ids in completion_ids]
            finished = trainer_state.global_step // self.updates
            found = self.scorer.score(asked, answers, finished, _Metrics(log_metric))
            self.scored, self._seen = list(zip(asked, found, strict=True)), completion_ids
        return self.scored

    def _completion(self, ids: list[int], version: int) -> Completion:
        return completion(self.policy.decode(ids), ids, self.stop_ids, version)


@dataclass(frozen=True)
class _Metrics:
    """Hands metrics to TRL, which averages them over processes; columns stay with the rollouts."""

    log: Callable[..., None]

    def column(self, name: str, values: Sequence[Any]) -> None: ...

    def metric(self, name: str, value: float) -> None:
        self.log(name, value)
