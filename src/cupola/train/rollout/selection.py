"""Which prompts a step asks: each once an epoch, or most often those that the policy sometimes solves.

A group whose answers are all right or all wrong teaches a group baseline nothing, and the expected improvement of the
policy is bounded below by the variance p (1 - p) of its success at a prompt (Bae et al., arXiv 2504.03380; Foster et
al., Learning to Reason at the Frontier of Learnability, NeurIPS 2025). So a running estimate of each prompt's solve
rate p steers what is drawn, before a token is spent on it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cupola.core.config import Recipe, SamplingSection
from cupola.core.records import Group, Prompt, RecipeError, Rollout
from cupola.train.rollout.metrics import Metrics, mean
from cupola.train.tasks import PromptSource, derive

#: The estimates as JSON holds them: each prompt's sums of credit and of answers, by its id.
State = dict[str, list[float]]


class Selector(Protocol):
    """Draws a run's training prompts and learns from what became of them."""

    def draw(self, index: int, count: int) -> list[Prompt]:
        """The `count` prompts of a batch; batches count from 0, and `count` is the same for all of them."""
        ...

    def observe(self, groups: Sequence[Group]) -> Metrics:
        """Take in all groups of a step, trained on or not. Returns the metrics of how the step was drawn."""
        ...

    def state(self) -> State:
        """What a checkpoint holds, between steps: with it the same batches are drawn again."""
        ...

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        """Put back what `state` gave."""
        ...


def open_selector(recipe: Recipe, source: PromptSource) -> Selector:
    """The recipe's selector over its source.

    Raises RecipeError where `aimed` has no finite set to choose from, or one smaller than a batch.
    """
    sampling, prompts = recipe.sampling, source.prompts()
    if sampling.selection.kind == "uniform":
        return Uniform(source)
    if prompts is None:
        raise RecipeError(
            "sampling.selection.kind: 'aimed' chooses among prompts it has met, but the task makes new ones without "
            "end; give a data.file, or take 'uniform'"
        )
    if len(prompts) < sampling.prompts_per_step:
        raise RecipeError(
            f"sampling.selection.kind: 'aimed' has nothing to choose, for sampling.prompts_per_step = "
            f"{sampling.prompts_per_step} is more than the {len(prompts)} training prompts; lower it, or take 'uniform'"
        )
    return Aimed(source, prompts, sampling, recipe.run.seed, recipe.correctness_part())


@dataclass(frozen=True)
class Uniform:
    """The source's own order, with nothing to learn."""

    source: PromptSource

    def draw(self, index: int, count: int) -> list[Prompt]:
        return self.source.draw(index, count)

    def observe(self, groups: Sequence[Group]) -> Metrics:
        return {}

    def state(self) -> State:
        return {}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        pass


@dataclass
class SolveRates:
    """A running solve rate of each prompt. When a prompt is met again, with credits c_1 ... c_n:

        S <- decay * S + sum_i c_i        N <- decay * N + n        rate = S / N

    With decay 0 it is the latest group's.
    """

    decay: float
    sums: State = field(default_factory=dict)

    def of(self, prompt_id: str) -> float | None:
        """The estimate, or `None` of a prompt without a judged answer."""
        if prompt_id not in self.sums:
            return None
        solved, answers = self.sums[prompt_id]
        return solved / answers

    def add(self, prompt_id: str, credits: Sequence[float]) -> None:
        """Take in a group's judged answers; without any the estimate stays as it is."""
        if credits:
            solved, answers = self.sums.get(prompt_id, (0.0, 0.0))
            self.sums[prompt_id] = [self.decay * solved + sum(credits), self.decay * answers + len(credits)]


def credit(rollout: Rollout, part: str) -> float | None:
    """What an answer adds to its prompt's solve rate by the part that decides: 1 if right, `None` if not judged.

    A wrong answer adds its score where that is partial credit, between 0 and 1, and else nothing.
    """
    score = rollout.verdicts[part].score
    if rollout.correct is None or score is None:
        return None
    if rollout.correct:
        return 1.0
    return score if 0 < score < 1 else 0.0


class Drawn(NamedTuple):
    """A prompt drawn since the last observation: its estimate then, and whether it was drawn without regard to it."""

    prompt_id: str
    rate: float | None
    explored: bool


@dataclass
class Aimed:
    """Prompts near the target most often: of a batch, `explore` come as in Uniform, the others without replacement by

        weight = exp(-|rate - target| / width)

    A prompt without an estimate weighs as much as one on the target: the first pass over the data is close to uniform,
    and where all that is known is too hard or too easy the unknown comes first. No prompt comes twice between two
    observations, unless the set is used up. A batch depends on the seed, its index and the estimates alone.

    Source: the weight is DOTS's softmax (arXiv 2506.05316, its released code); neutral weight for unseen prompts is
    prime-rl's difficulty pools (0.2 up to rate 0.25, 1 up to 0.75, 0.2 above; the defaults here give 0.14 at 0 and 1).
    open-instruct's `no_resampling_pass_rate` instead drops a solved prompt for good; here it comes back, if rarely,
    because a policy can forget.
    """

    source: PromptSource
    prompts: Sequence[Prompt]
    sampling: SamplingSection
    seed: int
    part: str
    _drawn: list[Drawn] = field(default_factory=list, init=False)
    _rates: SolveRates = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = sorted(self.prompts, key=lambda prompt: prompt.id)  # a file's order plays no part
        self._rates = SolveRates(self.sampling.selection.decay)

    def draw(self, index: int, count: int) -> list[Prompt]:
        just_drawn = {drawn.prompt_id for drawn in self._drawn}
        free = [prompt for prompt in self.prompts if prompt.id not in just_drawn]
        if len(free) < count:
            free = list(self.prompts)
        ids = {prompt.id for prompt in free}
        explored = {p.id: p for p in self.source.draw(index, self._explored(count)) if p.id in ids}
        rng = random.Random(derive(self.seed, "selection", index))
        # The largest of log-weight + Gumbel noise are a weighted draw without replacement (arXiv 1903.06059).
        keys = {p.id: self._log_weight(p.id) + _gumbel(rng) for p in free if p.id not in explored}
        others = (prompt for prompt in free if prompt.id in keys)
        aimed = heapq.nlargest(count - len(explored), others, key=lambda prompt: keys[prompt.id])
        self._drawn += [Drawn(p.id, self._rates.of(p.id), p.id in explored) for p in (*explored.values(), *aimed)]
        # In an order that tells nothing of the estimates, since updates cut a batch in order.
        return sorted((*explored.values(), *aimed), key=lambda prompt: derive(self.seed, index, prompt.id))

    def observe(self, groups: Sequence[Group]) -> Metrics:
        metrics = self._metrics()
        self._drawn.clear()
        for group in groups:
            credits = [credit(rollout, self.part) for rollout in group.rollouts]
            self._rates.add(group.prompt.id, [each for each in credits if each is not None])
        return metrics

    def state(self) -> State:
        return {prompt_id: list(sums) for prompt_id, sums in self._rates.sums.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        self._rates.sums = {prompt_id: list(sums) for prompt_id, sums in state.items()}
        self._drawn.clear()

    def _metrics(self) -> Metrics:
        """Of the draws since the last observation, and of the estimates that steered them."""
        rates = [rate for prompt in self.prompts if (rate := self._rates.of(prompt.id)) is not None]
        return {
            "groups/selection_known": len(rates) / len(self.prompts),
            "groups/selection_rate": mean(rates),
            "groups/selection_drawn_rate": mean(drawn.rate for drawn in self._drawn if drawn.rate is not None),
            "groups/selection_explored": mean(drawn.explored for drawn in self._drawn),
        }

    def _explored(self, count: int) -> int:
        """How many of a batch are drawn without regard to the estimates: any share above 0 makes one."""
        share = self.sampling.selection.explore
        return max(1, round(share * count)) if share else 0

    def _log_weight(self, prompt_id: str) -> float:
        rate, selection = self._rates.of(prompt_id), self.sampling.selection
        return 0.0 if rate is None else -abs(rate - selection.target) / selection.width


def _gumbel(rng: random.Random) -> float:
    """Standard Gumbel noise; the one uniform number without a logarithm is moved off 0."""
    return -math.log(-math.log(rng.random() or 2**-54))
