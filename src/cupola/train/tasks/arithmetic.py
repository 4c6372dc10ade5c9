"""The built-in task: `a+b=`, answered by a chain of digit sums and then the number."""

from __future__ import annotations

import random

from pydantic import Field

from cupola.core.config import Share
from cupola.core.records import Prompt
from cupola.train.tasks.task import Digits, Task


class Arithmetic(Task):
    """Sums of two numbers with equally many digits, as many as one of `levels`, drawn evenly.

    The prompt is right-aligned to one width, so that a batch needs no padding. The answer goes from the units up: a
    two-digit sum per column, `+1` for a carry, then `#` and the number:

        `47+85=`  ->  `7+5=12 4+8+1=13 #132`

    `dropped_carry` and `wrong_digit` are the probabilities that a supervised target forgets a carry, or writes a wrong
    units digit, and goes on consistently with it: a policy started on such targets has something to unlearn.
    """

    levels: list[Digits] = Field(default_factory=lambda: [1, 2, 3, 4], min_length=1, description="Digit counts.")
    dropped_carry: Share = Field(0.0, description="Probability that a target forgets a carry.")
    wrong_digit: Share = Field(0.0, description="Probability that a target writes a wrong digit.")

    def problem(self, rng: random.Random) -> Prompt:
        """A sum with its answer, and a supervised target in the column `target`."""
        digits = rng.choice(self.levels)
        lowest = 0 if digits == 1 else 10 ** (digits - 1)
        a, b = rng.randrange(lowest, 10**digits), rng.randrange(lowest, 10**digits)
        text = f"{a}+{b}=".rjust(2 * max(self.levels) + 2)
        return Prompt(text, str(a + b), {"answer": str(a + b), "digits": digits, "target": self.chain(a, b, rng)})

    def family(self, prompt: Prompt) -> str:
        """a+b and b+a are one problem: they fall in the same split."""
        return "+".join(sorted(prompt.text.strip(" =").split("+")))

    def chain(self, a: int, b: int, rng: random.Random) -> str:
        """The worked answer, flawed with the probabilities of this task."""
        carry, columns, digits = 0, [], ""
        pairs = list(zip(reversed(str(a)), reversed(str(b)), strict=True))
        for place, (x, y) in enumerate(pairs):
            total = int(x) + int(y) + carry
            if rng.random() < self.wrong_digit:
                total = total // 10 * 10 + rng.randrange(10)
            columns.append(f"{x}+{y}{'+1' if carry else ''}={total:02d}")
            if place == len(pairs) - 1:
                digits = f"{total}{digits}"
            else:
                digits = f"{total % 10}{digits}"
                carry = 0 if rng.random() < self.dropped_carry else total // 10
        return f"{' '.join(columns)} #{int(digits)}"
