"""Prompts to groups, and a step's metrics from its groups."""

from cupola.train.rollout.collect import Collector, Scorer, derive_seed
from cupola.train.rollout.metrics import Metrics, group_states, headline, mean, parts

__all__ = ["Collector", "Metrics", "Scorer", "derive_seed", "group_states", "headline", "mean", "parts"]
