"""What reward functions log, until the step's row takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cupola.core.records import RewardError
from cupola.train.rollout.metrics import Metrics, mean

#: Keys that a row gets after the reward functions have logged.
RESERVED = ("step", "split", "attempt", "time", "num_tokens", "step_time")


@dataclass
class MetricLog:
    """A `LogSink` that keeps metrics; columns reach the rollouts by way of the scorer."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def column(self, name: str, values: Sequence[Any]) -> None: ...

    def metric(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def added_to(self, metrics: Metrics) -> Metrics:
        """The row with the mean of each metric since the last call. Raises RewardError for a name the row has."""
        for name in self.values:
            if name in {*metrics, *RESERVED}:
                raise RewardError(f"log_metric: {name!r} is a key of the run's own; choose another name")
        logged = {name: mean(values) for name, values in self.values.items()}
        self.values.clear()
        return {**metrics, **logged}
