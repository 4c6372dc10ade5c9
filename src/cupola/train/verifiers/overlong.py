"""The soft overlong punishment: a reward part that reads nothing but the answer's length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cupola.core.config import OverlongReward
from cupola.core.records import Completion, LogSink, Prompt, RecipeError, Verdict


@dataclass(eq=False)
class Overlong:
    """Scores a completion of n tokens by

        min(0, max(-1, (max_tokens - cache - n) / cache))

    that is 0 up to `max_tokens - cache` tokens, then falling to -1 at the limit. Source: DAPO, arXiv 2503.14476,
    eq. 13, as `objectives.soft_overlong_punishment` has it.
    """

    name: str
    cache: int
    max_tokens: int

    def verify(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink
    ) -> list[Verdict]:
        """A verdict of status `ok` per completion: the score is all it says."""
        return [Verdict(self.score(completion.n_tokens), "ok", verifier=self.name) for completion in completions]

    def score(self, tokens: int) -> float:
        return min(0.0, max(-1.0, (self.max_tokens - self.cache - tokens) / self.cache))


def overlong(part: OverlongReward, max_tokens: int) -> Overlong:
    """Raises RecipeError where the punishment would begin before the first token."""
    if part.cache > max_tokens:
        raise RecipeError(f"reward {part.name!r}: cache = {part.cache} is more than sampling.max_tokens = {max_tokens}")
    return Overlong(part.name, part.cache, max_tokens)
