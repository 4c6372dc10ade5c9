"""Prompts to groups, and a step's metrics from its groups."""

from cupola.train.rollout.collect import Collector
from cupola.train.rollout.logged import MetricLog
from cupola.train.rollout.metrics import Metrics, group_metrics, headline, mean, part_metrics

__all__ = ["Collector", "MetricLog", "Metrics", "group_metrics", "headline", "mean", "part_metrics"]
