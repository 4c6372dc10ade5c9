"""What every function of this room may ask of its arguments; each refusal is one line that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def require(condition: bool, text: str) -> None:
    """Raise ValueError with this text unless the condition holds."""
    if not condition:
        raise ValueError(text)


def require_finite(what: str, values: Tensor, mask: Tensor, rollouts: Sequence[int] | None = None) -> None:
    """Raise ValueError naming the first rollout with a counted value that is NaN or infinite.

    Args:
        what: how the values are called in the text, e.g. "log-probability".
        values: (N,) or (N, T).
        mask: of the same shape; what it leaves out may hold anything.
        rollouts: the number of each row where the rows are a part of a batch; by default the row's own.
    """
    bad = ~values.isfinite() & mask.bool()
    if bad.any():
        row = int(bad.nonzero()[0, 0])
        raise ValueError(f"the {what} of rollout {row if rollouts is None else rollouts[row]} is not finite")


def require_shapes(values: Tensor, mask: Tensor, omega: Tensor) -> None:
    """Raise ValueError naming the shapes where they do not go together."""
    if values.shape != mask.shape or omega.shape != values.shape[:1]:
        raise ValueError(
            f"values {tuple(values.shape)} and mask {tuple(mask.shape)} must be equal and omega {tuple(omega.shape)} "
            "must have one entry per rollout"
        )


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each rollout's counted tokens, (N, 1); 0 for a rollout without any, which carries no weight."""
    counted = mask.bool()
    return torch.where(counted, values, 0.0).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
