"""Sums as questions in words, for a model that speaks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from cupola.core.records import Prompt, RecipeError


@dataclass(frozen=True)
class Sums:
    """`What is 47 + 8?` with `terms` numbers of at most `digits` digits each."""

    terms: int = 2
    digits: int = 2

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Sums:
        """From `data.options`. Raises RecipeError naming the option that is unknown or out of range."""
        unknown = set(options) - set(cls.__dataclass_fields__)
        if unknown:
            names = ", ".join(cls.__dataclass_fields__)
            raise RecipeError(f"data.options.{min(unknown)}: unknown option of task sums; there are {names}")
        return cls(_at_least(2, options, "terms"), _at_least(1, options, "digits"))

    def problem(self, rng: random.Random) -> Prompt:
        """A question with its answer; each number's digit count is drawn evenly, so that short ones are not rare."""
        numbers = [rng.randrange(10 ** rng.randint(1, self.digits)) for _ in range(self.terms)]
        answer = str(sum(numbers))
        return Prompt(f"What is {' + '.join(map(str, numbers))}? Answer with the number.", answer, {"answer": answer})

    def family(self, prompt: Prompt) -> str:
        """The order of the terms makes no new problem."""
        return "+".join(sorted(prompt.text.removeprefix("What is ").split("?")[0].split(" + ")))


def _at_least(least: int, options: Mapping[str, object], name: str) -> int:
    value = options.get(name, getattr(Sums, name))
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RecipeError(f"data.options.{name}: give a whole number of at least {least}, got {value!r}")
    return value
