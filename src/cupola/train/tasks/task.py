"""What a built-in task is: its options, a way to make a problem, and what makes two problems one."""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import Annotated

from pydantic import Field

from cupola.core.config import Section
from cupola.core.records import Prompt

#: Digits of a number; Python writes no number of more than a few thousand.
Digits = Annotated[int, Field(ge=1, le=1000)]


class Task(Section):
    """An endless supply of problems. Its fields are the keys of `data.options`."""

    @abstractmethod
    def problem(self, rng: random.Random) -> Prompt:
        """One problem with its answer, a function of `rng` alone."""

    @abstractmethod
    def family(self, prompt: Prompt) -> str:
        """What the problem shares with those whose solution gives its own away; a family lies in one split."""
