"""Policies, the in-process sampler, and teacher-forced scoring."""

from cupola.train.models.new import character_tokenizer, llama_shape, new_policy
from cupola.train.models.policy import (
    EMBEDDED,
    EMBEDDED_DIGEST,
    Policy,
    load_policy,
    make_policy,
    save_policy,
    set_threads,
    weights_digest,
    whole_folder,
)
from cupola.train.models.sampler import InProcessSampler
from cupola.train.models.scoring import completion_logits, logprobs, micro_batches, pad, to_device

__all__ = [
    "EMBEDDED",
    "EMBEDDED_DIGEST",
    "InProcessSampler",
    "Policy",
    "character_tokenizer",
    "completion_logits",
    "llama_shape",
    "load_policy",
    "logprobs",
    "make_policy",
    "micro_batches",
    "new_policy",
    "pad",
    "save_policy",
    "set_threads",
    "to_device",
    "weights_digest",
    "whole_folder",
]
