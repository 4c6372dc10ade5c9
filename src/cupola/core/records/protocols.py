"""The seams: small protocols that samplers, verifiers and observers implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cupola.core.records.data import Completion, Group, Prompt, Receipt, Sampling, Verdict

Action = Literal["continue", "pause", "stop"]


class Sampler(Protocol):
    """Draws completions and scores given ones, always with the weights it says it holds.

    `apart` says that those are its own, so that it may draw while the trainer's move.
    """

    apart: bool

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling, seed: int) -> list[list[Completion]]:
        """`n` completions for each prompt, a list per prompt in the order given."""
        ...

    def logprobs(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], temperature: float
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities (T_i,) of each completion's tokens at `temperature`."""
        ...

    def publish(self, version: int) -> Receipt:
        """Take over the trainer's weights as `version`."""
        ...


class Verifier(Protocol):
    """Judges completions. The name labels the reward part in every metric, column and chart."""

    name: str

    def verify(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink
    ) -> list[Verdict]:
        """One verdict per completion; prompts are repeated so that both sequences are equally long."""
        ...


class LogSink(Protocol):
    """Where user reward functions leave further columns and metrics."""

    def column(self, name: str, values: Sequence[Any]) -> None: ...

    def metric(self, name: str, value: float) -> None: ...


class Observer(Protocol):
    """Sees each recorded step and may ask the loop to pause or stop."""

    def __call__(self, step: int, rows: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> Action: ...
