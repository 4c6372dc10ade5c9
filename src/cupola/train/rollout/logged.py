"""What reward functions log, until the row of their step takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cupola.core.records import RewardError
from cupola.train.rollout.metrics import Metrics, mean

#: Keys that a row gets after the reward functions have logged.
RESERVED = ("step", "split", "attempt", "time", "num_tokens", "step_time", "time/sampling", "time/update")

Logged = dict[str, list[float]]


@dataclass
class MetricLog:
    """Metrics by how many steps were finished when they were logged: answers may be scored before their step begins."""

    values: dict[int, Logged] = field(default_factory=dict)

    def of(self, finished: int) -> StepLog:
        return StepLog(self.values.setdefault(finished, {}))


@dataclass(frozen=True)
class StepLog:
    """A `LogSink` that keeps metrics; columns reach the rollouts by way of the scorer."""

    values: Logged

    def column(self, name: str, values: Sequence[Any]) -> None: ...

    def metric(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)


def with_logged(metrics: Metrics, logged: Logged) -> Metrics:
    """The row with the mean of each metric. Raises RewardError for a name the row has."""
    for name in logged:
        if name in {*metrics, *RESERVED}:
            raise RewardError(f"log_metric: {name!r} is a key of the run's own; choose another name")
    return {**metrics, **{name: mean(values) for name, values in logged.items()}}
