"""What the update did with a rollout, beside what the rollout is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Outcome:
    """One rollout's part in its step.

    `advantage` is `None` without a reward; `weight_share` is its share of the step's gradient weight (0 where it had
    none, `None` where the step made no update); `logp_old` (T,) are the trainer's log-probabilities before the update,
    `None` where they were not needed. `used` tells whether it was forwarded; otherwise `discard_reason` tells why not.
    """

    advantage: float | None = None
    weight_share: float | None = None
    logp_old: NDArray[np.float32] | None = None
    used: bool = False
    discard_reason: str | None = None
