"""Which prompts are asked, prompts to groups, and a step's metrics from its groups."""

from cupola.train.rollout.collect import Collector
from cupola.train.rollout.logged import MetricLog
from cupola.train.rollout.metrics import Metrics, group_metrics, headline, mean, part_metrics
from cupola.train.rollout.selection import Aimed, Selector, SolveRates, Uniform, credit, open_selector

__all__ = [
    "Aimed",
    "Collector",
    "MetricLog",
    "Metrics",
    "Selector",
    "SolveRates",
    "Uniform",
    "credit",
    "group_metrics",
    "headline",
    "mean",
    "open_selector",
    "part_metrics",
]
