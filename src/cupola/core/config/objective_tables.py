"""The tables inside a recipe's objective: importance weights, critic, reference, entropy, masks, and reasons."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cupola.core.config.section import Misfit, NotNegative, Positive, PositiveInt, Section, Share, Text


class Why(Section):
    """Why each denominator is what it is; those without a reason are listed by `cupola ledger`."""

    policy: Text | None = Field(None, description="Reason for the policy term's denominator.")
    kl: Text | None = Field(None, description="Reason for the KL term's denominator.")
    entropy: Text | None = Field(None, description="Reason for the entropy term's denominator.")
    value: Text | None = Field(None, description="Reason for the value term's denominator.")
    scale: Text | None = Field(None, description="Reason for the advantage's scale.")
    whiten: Text | None = Field(None, description="Reason for the whitening.")


class Correction(Section):
    """Importance weights between the sampler's log-probabilities and the trainer's, where the two differ."""

    level: Literal["none", "token", "sequence", "sequence_product"] = Field(
        "none", description="Level of the weight; `none` takes the sampler for exact."
    )
    bound: Literal["truncate", "mask"] = Field(
        "truncate", description="What a weight out of bounds becomes: the bound (TIS), or 0 (MIS, IcePop)."
    )
    low: Share = Field(0.0, description="Smallest weight.")
    high: Annotated[float, Field(ge=1, le=1e6)] = Field(2.0, description="Largest weight.")


class Critic(Section):
    """The critic of `baseline = "critic"`: a model of its own, which starts as the policy's body with a new head."""

    gamma: Share = Field(1.0, description="Discount per token.")
    lam: Share = Field(0.95, description="Lambda of GAE; 1 is returns minus values, 0 the one-step error.")
    value_clip: NotNegative = Field(0.2, description="How far a value may move in one batch; 0: no limit.")
    coef: Positive = Field(1.0, description="Coefficient c_V of the value term.")
    learning_rate: Annotated[Positive, Field(le=10)] = Field(
        1e-5, description="The critic's own; the rest of `optim` is shared."
    )


class Reference(Section):
    """The policy that the KL term holds the trained one near."""

    kind: Literal["start", "moving", "adapter_off"] = Field(
        "start",
        description="The starting policy, a copy; an average that moves after the policy, a copy; or the policy with "
        "its adapter switched off, no copy. With `model.lora`, `start` is that one too.",
    )
    every: PositiveInt = Field(512, description="Optimiser steps between two moves of a moving reference.")
    mixup: Share = Field(0.6, description="The policy's share in a move: ref = mixup * policy + (1 - mixup) * ref.")


class AdaptiveEntropy(Section):
    """An entropy coefficient that rises while the policy's entropy is at or below the target, and falls above it."""

    target: Positive = Field(0.2, description="Nats per token; above it the bonus is not applied.")
    step: Positive = Field(0.005, description="Change of the coefficient per optimiser step.")
    low: NotNegative = Field(0.0, description="Smallest coefficient.")
    high: NotNegative = Field(1.0, description="Largest coefficient.")

    @model_validator(mode="after")
    def _ordered(self) -> AdaptiveEntropy:
        if self.low >= self.high:
            raise Misfit("low", f"must be below high = {self.high:g}")
        return self


class Reject(Section):
    """Rollouts on which sampler and trainer disagree too much: they leave the baseline and the policy's count."""

    level: Literal["sequence", "sequence_product"] = Field("sequence", description="Level of the ratio.")
    low: Share = Field(0.5, description="Smallest ratio of trainer to sampler.")
    high: Annotated[float, Field(ge=1, le=1e6)] = Field(2.0, description="Largest ratio.")


class ClipCov(Section):
    """Clip-Cov: a few tokens whose covariance of advantage and log-probability is high lose their gradient."""

    fraction: Annotated[float, Field(gt=0, le=1)] = Field(2e-4, description="Share of the update's tokens drawn.")
    low: float = Field(1.0, description="Tokens with a covariance above this are drawn from.")
    high: float = Field(5.0, description="And below this.")

    @model_validator(mode="after")
    def _ordered(self) -> ClipCov:
        if self.low >= self.high:
            raise Misfit("low", f"must be below high = {self.high:g}")
        return self


class KlCov(Section):
    """KL-Cov: the tokens of highest covariance pay `coef` * |log pi - log pi_old|."""

    fraction: Annotated[float, Field(gt=0, le=1)] = Field(2e-4, description="Share of the update's tokens.")
    coef: Positive = Field(1.0, description="What they pay per nat (the paper 1, verl's configuration 0.1).")


class Masks(Section):
    """What leaves the policy term, or pays in it. Where a mask takes the policy gradient alone, the count stays.

    Statistics over tokens are over the whole optimiser step.
    """

    reject: Reject | None = Field(
        None,
        description="Rollouts whose sampler and trainer disagree leave baseline, gradient and count (absent: none).",
    )
    off_policy: NotNegative | None = Field(
        None,
        description="Rollouts with A < 0 that the policy has left by more nats per token lose their policy gradient "
        "(absent: none).",
    )
    top_entropy: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the tokens, those of highest entropy, that keep their policy gradient."
    )
    clip_cov: ClipCov | None = Field(
        None, description="Clip-Cov: a few tokens lose their policy gradient (absent: off)."
    )
    kl_cov: KlCov | None = Field(None, description="KL-Cov: a few tokens pay a penalty; none leaves (absent: off).")

    @property
    def need_policy(self) -> bool:
        """Whether a mask asks for the current policy's log-probabilities or entropies."""
        return self.off_policy is not None or self.top_entropy < 1 or bool(self.clip_cov or self.kl_cov)
