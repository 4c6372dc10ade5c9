"""Policies, the in-process sampler, and teacher-forced scoring."""

from cupola.train.models.adapter import adapt, base_weights, merged_weights
from cupola.train.models.critic import Critic, critic_of
from cupola.train.models.fitness import require_fit
from cupola.train.models.new import character_tokenizer, llama_shape, new_policy
from cupola.train.models.packed import unpack
from cupola.train.models.policy import (
    ADAPTER,
    EMBEDDED,
    EMBEDDED_DIGEST,
    ONE_THREAD_PARAMETERS,
    Policy,
    in_float64,
    load_policy,
    make_policy,
    restore_policy,
    save_policy,
    saved_weights,
    set_threads,
    trainable,
    weights_digest,
    whole_folder,
)
from cupola.train.models.publish import WeightPublisher
from cupola.train.models.recompute import recompute
from cupola.train.models.reference import AdapterOff, Reference
from cupola.train.models.sampler import InProcessSampler
from cupola.train.models.scoring import Sequences, completion_scores, logprobs, micro_batches, pad, per_token, to_device
from cupola.train.models.sharding import gathered, named_weights, scattered, shard, whole

__all__ = [
    "ADAPTER",
    "EMBEDDED",
    "EMBEDDED_DIGEST",
    "ONE_THREAD_PARAMETERS",
    "AdapterOff",
    "Critic",
    "InProcessSampler",
    "Policy",
    "Reference",
    "Sequences",
    "WeightPublisher",
    "adapt",
    "base_weights",
    "character_tokenizer",
    "completion_scores",
    "critic_of",
    "gathered",
    "llama_shape",
    "in_float64",
    "load_policy",
    "logprobs",
    "make_policy",
    "merged_weights",
    "micro_batches",
    "named_weights",
    "new_policy",
    "pad",
    "per_token",
    "recompute",
    "restore_policy",
    "require_fit",
    "save_policy",
    "saved_weights",
    "scattered",
    "set_threads",
    "shard",
    "to_device",
    "trainable",
    "unpack",
    "weights_digest",
    "whole",
    "whole_folder",
]
