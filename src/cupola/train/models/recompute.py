"""Gradient checkpointing: what a layer computed is computed again for its gradient, and not held until then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn import Module
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from cupola.train.models.sharding import layers


def recompute(module: Module) -> None:
    """Hold of each layer's forward pass only what went into it. The gradient stays what it is.

    transformers' own checkpointing takes the cache away, through which completions share their prompt; here a layer is
    computed again over the cache as it was.
    """
    for layer in layers(module):
        layer.forward = _recomputed(layer.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        cache: DynamicCache | None = kwargs.get("cache")
        if cache is None or not torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
        before, after = _copied(cache), list[DynamicCache]()

        def over_cache(*args: Any) -> Any:
            own = _copied(before)
            found = forward(*args, **{**kwargs, "cache": own})
            if not after:
                after.append(own)
            return found

        found = checkpoint(over_cache, *args, use_reentrant=False, preserve_rng_state=False)
        cache.layers = after[0].layers
        return found

    return run


def _copied(cache: DynamicCache) -> DynamicCache:
    """A cache of the same tensors, to which further ones can be added apart."""
    own = copy.copy(cache)
    own.layers = [copy.copy(layer) for layer in cache.layers]
    return own
