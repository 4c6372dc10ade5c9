"""Whether a model answers as the update reads it: padded, cached, with its prompt shared by several answers."""

from __future__ import annotations

import torch

from cupola.core.records import ModelError
from cupola.train.models.policy import Policy
from cupola.train.models.scoring import completion_scores, pad, to_device

#: How far the log-probabilities may differ, in nats, by the type of the weights.
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-2, torch.bfloat16: 0.5, torch.float16: 0.5}


@torch.no_grad()
def require_fit(policy: Policy) -> None:
    """Raise ModelError where a model's log-probabilities depend on padding or on the cache, or it has no such cache.

    Three short answers to two prompts of unequal length are scored together, as the update does, and each alone by a
    plain forward pass. Encoders used as decoders, and models whose state is no list of keys and values, fail here.
    """
    model, high = policy.model, policy.model.config.vocab_size
    prompts = [[5 % high, 6 % high, 7 % high], [8 % high], [8 % high]]
    completions = [[9 % high, 4 % high], [3 % high, 6 % high, 5 % high], [7 % high]]
    try:
        together, _ = completion_scores(model, to_device(pad(prompts, completions, policy.pad_id), policy.device), 1.0)
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise ModelError(f"{policy.source}: cannot continue one prompt several times over its cache: {said}") from error
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        ids = torch.tensor([[*prompt, *completion]], device=policy.device)
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        alone = logits.to(together).log_softmax(-1)[range(len(completion)), completion]
        apart = float((together[row, : len(completion)] - alone).abs().max())
        if not apart <= TOLERANCE.get(model.dtype, 0.5):
            raise ModelError(
                f"{policy.source}: its log-probabilities change by {apart:.2g} nats with padding or cache, so what is "
                "trained would not be what is sampled elsewhere; cupola trains decoders alone"
            )
