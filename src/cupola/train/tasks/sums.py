"""Sums as questions in words, for a model that speaks."""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import Field

from cupola.core.records import Prompt
from cupola.train.tasks.task import Digits, Task


class Sums(Task):
    """`What is 47 + 8?` with `terms` numbers of at most `digits` digits each."""

    terms: Annotated[int, Field(ge=2, le=1000)] = Field(2, description="Numbers to add.")
    digits: Digits = Field(2, description="Digits of a number at most.")

    def problem(self, rng: random.Random) -> Prompt:
        """A question with its answer; each number's digit count is drawn evenly, so that short ones are not rare."""
        numbers = [rng.randrange(10 ** rng.randint(1, self.digits)) for _ in range(self.terms)]
        answer = str(sum(numbers))
        return Prompt(f"What is {' + '.join(map(str, numbers))}? Answer with the number.", answer, {"answer": answer})

    def family(self, prompt: Prompt) -> str:
        """The order of the terms makes no new problem."""
        return "+".join(sorted(prompt.text.removeprefix("What is ").split("?")[0].split(" + ")))
