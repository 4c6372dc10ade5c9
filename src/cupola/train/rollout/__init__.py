"""Which prompts are asked, prompts to groups, and a step's metrics from its groups."""

from cupola.train.rollout.collect import Collector, group_id
from cupola.train.rollout.logged import MetricLog
from cupola.train.rollout.metrics import Metrics, group_metrics, headline, mean, part_metrics
from cupola.train.rollout.selection import Aimed, Selector, SolveRates, Uniform, credit, open_selector
from cupola.train.rollout.server import Server
from cupola.train.rollout.vllm import Publisher, Text, VllmSampler

__all__ = [
    "Aimed",
    "Collector",
    "MetricLog",
    "Metrics",
    "Publisher",
    "Selector",
    "Server",
    "SolveRates",
    "Text",
    "Uniform",
    "VllmSampler",
    "credit",
    "group_id",
    "group_metrics",
    "headline",
    "mean",
    "open_selector",
    "part_metrics",
]
