"""The loop: batch plan, update, record; checkpoints; the supervised cold start."""

from cupola.train.loop.checkpoint import Position, load_checkpoint, save_checkpoint, seed_globals
from cupola.train.loop.sft import TARGET, supervised
from cupola.train.loop.train import MetricLog, Run, sampling_of, train, validate, validation_metrics
from cupola.train.loop.update import Learner, Updated

__all__ = [
    "TARGET",
    "Learner",
    "MetricLog",
    "Position",
    "Run",
    "Updated",
    "load_checkpoint",
    "sampling_of",
    "save_checkpoint",
    "seed_globals",
    "supervised",
    "train",
    "validate",
    "validation_metrics",
]
