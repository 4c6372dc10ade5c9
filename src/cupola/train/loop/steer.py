"""The coefficient of the entropy bonus: fixed, or steered by the policy's entropy."""

from __future__ import annotations

from cupola.core.config import Objective


class EntropyBonus:
    """c_H now. Adaptive, it is applied only where the last optimiser step's entropy was at or below the target.

        c_H <- min(c_H + step, high) where H <= target, else max(c_H - step, low)        after each optimiser step

    H is the token mean over the rollouts that the entropy term counts. Source: Skywork-OR1, arXiv 2505.22312, section
    4; TRL's `use_adaptive_entropy`.
    """

    def __init__(self, objective: Objective) -> None:
        self.adaptive = objective.adaptive_entropy
        self.coef = objective.entropy_coef
        self.last: float | None = None

    @property
    def applied(self) -> float:
        """The coefficient of the coming step; of the first step, of which no entropy is known yet, 0 if adaptive."""
        if self.adaptive is None:
            return self.coef
        return self.coef if self.last is not None and self.last <= self.adaptive.target else 0.0

    def steer(self, entropy: float | None) -> None:
        """Take note of a step's entropy, and move."""
        if self.adaptive is None or entropy is None:
            return
        self.last = entropy
        if entropy <= self.adaptive.target:
            self.coef = min(self.coef + self.adaptive.step, self.adaptive.high)
        else:
            self.coef = max(self.coef - self.adaptive.step, self.adaptive.low)

    def state(self) -> dict[str, float | None]:
        """What a checkpoint keeps of it."""
        return {"coef": self.coef, "last": self.last}

    def restore(self, state: dict[str, float | None]) -> None:
        """Go on from a checkpoint's state."""
        assert state["coef"] is not None
        self.coef, self.last = state["coef"], state["last"]
