"""The loop: batch plan, update, record; checkpoints; the supervised cold start."""

from cupola.train.loop.advantage import batch_advantages
from cupola.train.loop.batch import Batch, without_rejected
from cupola.train.loop.checkpoint import Position, load_checkpoint, save_checkpoint, seed_globals
from cupola.train.loop.plan import plan_step, plan_steps
from cupola.train.loop.ranks import ALONE, Ranks, SharedCollector, launched
from cupola.train.loop.record import Run
from cupola.train.loop.sft import supervised
from cupola.train.loop.train import train
from cupola.train.loop.update import Learner

__all__ = [
    "ALONE",
    "Batch",
    "Learner",
    "Position",
    "Ranks",
    "Run",
    "SharedCollector",
    "batch_advantages",
    "launched",
    "load_checkpoint",
    "plan_step",
    "plan_steps",
    "save_checkpoint",
    "seed_globals",
    "supervised",
    "train",
    "without_rejected",
]
