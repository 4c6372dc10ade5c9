"""Which prompts are asked, prompts to groups, and a step's metrics from its groups."""

from cupola.train.rollout.collect import Collected, Collector, Draw, group_id
from cupola.train.rollout.logged import MetricLog, with_logged
from cupola.train.rollout.metrics import Metrics, group_metrics, headline, mean, part_metrics
from cupola.train.rollout.selection import Aimed, Selector, SolveRates, Uniform, credit, open_selector
from cupola.train.rollout.server import Server
from cupola.train.rollout.vllm import Publisher, Text, VllmSampler

__all__ = [
    "Aimed",
    "Collected",
    "Collector",
    "Draw",
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
    "with_logged",
]
