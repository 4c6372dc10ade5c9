"""A recipe's reward parts: one verifier each, and their sum.

    total = Σ_part weight · score

A part without a score voids the total, because nobody knows what it would have added; only a `skipped` verdict of an
`optional` part adds nothing instead. If every part is skipped there is no total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cupola.core.config import (
    ExactReward,
    FunctionReward,
    NumericReward,
    OverlongReward,
    PatternReward,
    Recipe,
    Reward,
)
from cupola.core.records import Completion, LogSink, Prompt, RewardError, Rollout, Verdict, Verifier
from cupola.train.verifiers.exact import exact
from cupola.train.verifiers.functions import Schedule, function
from cupola.train.verifiers.loading import module_digest
from cupola.train.verifiers.numeric import numeric
from cupola.train.verifiers.overlong import overlong
from cupola.train.verifiers.pattern import pattern
from cupola.train.verifiers.rules import Rule


def build(
    parts: Sequence[Reward], max_steps: int = 0, steps_per_epoch: float | None = None, max_tokens: int = 0
) -> list[Verifier]:
    """A verifier per part, in order. Raises RecipeError for a bad regular expression, function path or length."""
    schedule = Schedule(max_steps, steps_per_epoch)

    def one(part: Reward) -> Verifier:
        match part:
            case FunctionReward():
                return function(part, schedule)
            case OverlongReward():
                return overlong(part, max_tokens)
            case _:
                return _rule(part)

    return [one(part) for part in parts]


def gold_reader(parts: Sequence[Reward]) -> Callable[[str | None], bool]:
    """Whether every part's verifier can use an answer; where one cannot, its every verdict would be `gold_bad`.

    A function or a punishment of length reads no answer. Raises RecipeError for a bad regular expression.
    """
    rules = [_rule(part) for part in parts if not isinstance(part, FunctionReward | OverlongReward)]
    return lambda answer: all(rule.readable(answer) for rule in rules)


def _rule(part: ExactReward | NumericReward | PatternReward) -> Rule:
    match part:
        case ExactReward():
            return exact(part)
        case NumericReward():
            return numeric(part)
        case PatternReward():
            return pattern(part)


@dataclass(frozen=True)
class Scorer:
    """The reward of a recipe: its parts, their verifiers, and the part that decides right and wrong."""

    parts: Sequence[Reward]
    verifiers: Sequence[Verifier]
    correctness: str

    @classmethod
    def of(cls, recipe: Recipe, steps_per_epoch: float | None = None) -> Scorer:
        """Build the recipe's verifiers; `steps_per_epoch` gives reward functions their `trainer_state.epoch`."""
        verifiers = build(recipe.reward, recipe.run.steps, steps_per_epoch, recipe.sampling.max_tokens)
        return cls(recipe.reward, verifiers, recipe.correctness_part())

    def digests(self) -> Mapping[str, str]:
        """SHA-256 of each file of reward functions, by `file.py` or `package.module`; not of what it imports."""
        targets = [part.path.rpartition(":")[0] for part in self.parts if isinstance(part, FunctionReward)]
        return {target: digest for target in targets if (digest := module_digest(target)) is not None}

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink | None = None
    ) -> list[Rollout]:
        """A rollout per completion; prompts are repeated so that both sequences are equally long.

        `step` counts finished steps: reward functions see it as TRL's `trainer_state.global_step`, 0 in the first step.
        Columns a reward function logs become `Rollout.extra`; columns and metrics also go to `log`.
        Raises RewardError where a part's function fails and its `on_error` is `stop`.
        """
        extra = _Extra(log)
        of_part = {each.name: each.verify(prompts, completions, step, extra) for each in self.verifiers}
        rollouts = []
        for row, completion in enumerate(completions):
            verdicts = {name: verdicts[row] for name, verdicts in of_part.items()}
            columns = {name: values[row] for name, values in extra.columns.items()}
            decisive = verdicts[self.correctness]
            correct = None if decisive.score is None else decisive.status == "ok"
            rollouts.append(Rollout(completion, verdicts, total(self.parts, verdicts), correct, columns))
        return rollouts


def total(parts: Sequence[Reward], verdicts: Mapping[str, Verdict]) -> float | None:
    """Σ weight · score, or `None` where a part voids it or none gave a score."""
    scores = []
    for part in parts:
        verdict = verdicts[part.name]
        if verdict.score is not None:
            scores.append(part.weight * verdict.score)
        elif not (isinstance(part, FunctionReward) and part.optional and verdict.status == "skipped"):
            return None
    return sum(scores) if scores else None


@dataclass
class _Extra:
    """Keeps logged columns for the rollouts and passes everything on."""

    log: LogSink | None
    columns: dict[str, Sequence[Any]] = field(default_factory=dict)

    def column(self, name: str, values: Sequence[Any]) -> None:
        if name in self.columns:
            raise RewardError(f"log_extra: two reward functions log a column {name!r}; rename one")
        self.columns[name] = values
        if self.log:
            self.log.column(name, values)

    def metric(self, name: str, value: float) -> None:
        if self.log:
            self.log.metric(name, value)
