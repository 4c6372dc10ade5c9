"""Policies, the in-process sampler, and teacher-forced scoring."""

from cupola.train.models.new import character_tokenizer, new_policy
from cupola.train.models.policy import (
    EMBEDDED,
    EMBEDDED_DIGEST,
    Policy,
    choose_threads,
    load_policy,
    make_policy,
    save_policy,
    weights_digest,
)
from cupola.train.models.sampler import InProcessSampler
from cupola.train.models.scoring import Sequences, completion_logits, logprobs, micro_batches, pad, to_device

__all__ = [
    "EMBEDDED",
    "EMBEDDED_DIGEST",
    "InProcessSampler",
    "Policy",
    "Sequences",
    "character_tokenizer",
    "choose_threads",
    "completion_logits",
    "load_policy",
    "logprobs",
    "make_policy",
    "micro_batches",
    "new_policy",
    "pad",
    "save_policy",
    "to_device",
    "weights_digest",
]
