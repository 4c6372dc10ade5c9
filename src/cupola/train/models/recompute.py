"""Gradient checkpointing: what a layer computed is computed again for its gradient, and not held until then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn import Module
from torch.utils.checkpoint import checkpoint
from transformers import Cache

from cupola.train.models.sharding import layers


def recompute(module: Module) -> None:
    """Hold of each layer's forward pass only what went into it. The gradient stays what it is.

    transformers' own checkpointing takes the cache away, through which completions share their prompt; here a layer is
    computed again over its part of the cache as it was. After every copy of the module was made: a copy of a layer
    would compute with this one's weights.
    """
    for index, layer in enumerate(layers(module)):
        layer.forward = _recomputed(layer.forward, index)


def _recomputed(forward: Callable[..., Any], index: int) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        cache = next((each for each in (*args, *kwargs.values()) if isinstance(each, Cache)), None)
        if cache is None or not torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
        before, after = copy.copy(cache.layers[index]), list[Any]()

        def over_cache(*args: Any, **kwargs: Any) -> Any:
            own = copy.copy(cache)
            own.layers = [*cache.layers]
            own.layers[index] = copy.copy(before)
            found = forward(
                *(own if each is cache else each for each in args),
                **{key: own if each is cache else each for key, each in kwargs.items()},
            )
            if not after:
                after.append(own.layers[index])
            return found

        found = checkpoint(over_cache, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
        cache.layers[index], after[0] = after[0], None
        return found

    return run
