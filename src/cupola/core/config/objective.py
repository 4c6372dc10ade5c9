"""The objective's part of a recipe: the five decisions, the terms, and what leaves them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from cupola.core.config.presets import PRESETS, with_preset
from cupola.core.config.section import Misfit, NotNegative, Positive, PositiveInt, Section, Share
from cupola.core.config.surrogate import SURROGATES, AnySurrogate, Clipped, Ratio, check_level


class Why(Section):
    """Why each denominator is what it is; those without a reason are listed by `cupola ledger`."""

    policy: str | None = Field(None, description="Reason for the policy term's denominator.")
    kl: str | None = Field(None, description="Reason for the KL term's denominator.")
    entropy: str | None = Field(None, description="Reason for the entropy term's denominator.")
    value: str | None = Field(None, description="Reason for the value term's denominator.")
    scale: str | None = Field(None, description="Reason for the advantage's scale.")
    whiten: str | None = Field(None, description="Reason for the whitening.")


Denominator = Literal["sequence_mean", "token_mean", "constant", "prompt_mean", "sequence_sum", "token_sum", "padded"]
Scope = Literal["update", "batch", "generation", "micro_batch"]
Baseline = Literal["group_mean", "leave_one_out", "batch_mean", "critic", "none"]
Scale = Literal["group_std", "batch_std", "group_mean", "none"]


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
    value_clip: Positive | None = Field(0.2, description="How far a value may move in one batch; absent: no limit.")
    coef: Positive = Field(1.0, description="Coefficient c_V of the value term.")
    learning_rate: Positive = Field(1e-5, description="The critic's own; the rest of `optim` is shared.")


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
    """What loses its policy gradient and stays in every count; statistics are over the whole optimiser step."""

    reject: Reject | None = Field(None, description="Rollouts whose sampler and trainer disagree leave (absent: none).")
    off_policy: NotNegative | None = Field(
        None, description="Drop rollouts with A < 0 that the policy has left by more nats per token (absent: none)."
    )
    top_entropy: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the tokens, those of highest entropy, that keep their policy gradient."
    )
    clip_cov: ClipCov | None = Field(None, description="Clip-Cov (absent: off).")
    kl_cov: KlCov | None = Field(None, description="KL-Cov (absent: off).")

    @property
    def need_policy(self) -> bool:
        """Whether a mask asks for the current policy's log-probabilities or entropies."""
        return self.off_policy is not None or self.top_entropy < 1 or bool(self.clip_cov or self.kl_cov)


class Objective(Section):
    preset: str = Field("grpo", description="Named set of the decisions below.")
    baseline: Baseline = Field("group_mean", description="b in A = (r - b) / s.")
    scale: Scale = Field("group_std", description="s in A = (r - b) / s.")
    scale_epsilon: NotNegative = Field(1e-4, description="Added to the scale.")
    combine: Literal["sum", "apart"] = Field(
        "sum", description="Whether baseline and scale are taken of the summed reward, or of each part apart (GDPO)."
    )
    transform: Literal["none", "pass_at_k", "best_only"] = Field(
        "none", description="What the total reward becomes first: the unbiased pass@k value, or the best's lead."
    )
    pass_k: PositiveInt = Field(1, description="k of `pass_at_k`; at most the group size.")
    whiten: Literal["none", "rollouts", "tokens"] = Field(
        "none",
        description="Divide all advantages of a batch by their spread, each rollout or each token counting once.",
    )
    ratio: Ratio = Field("token", description="Level of the importance ratio.")
    surrogate: AnySurrogate = Field(
        default_factory=Clipped, description=f"Surrogate and its constants. Kinds: {', '.join(SURROGATES)}."
    )
    denominator: Denominator = Field("sequence_mean", description="The policy term's denominator rule.")
    kl_denominator: Denominator | None = Field(None, description="The KL term's; by default the policy term's.")
    entropy_denominator: Denominator | None = Field(None, description="The entropy term's; by default the policy's.")
    value_denominator: Denominator | None = Field(None, description="The value term's; by default the policy's.")
    scope: Scope = Field(
        "update",
        description="What a denominator counts over: an optimiser step; the whole batch; the batch divided by its "
        "optimiser steps, as TRL's dapo does; or each micro-batch alone, then their mean, which depends on the cut.",
    )
    entropy_scope: Scope | None = Field(None, description="The entropy term's; by default `scope`.")
    count: Literal["surviving", "nominal"] = Field(
        "surviving",
        description="Rollouts that a denominator counts: those left by the masks, or all, as in TRL and verl. Masked "
        "tokens count in neither.",
    )
    count_dead: bool = Field(
        True, description="Whether dead groups' rollouts stay in the policy term's count, and in it alone."
    )
    correction: Correction = Field(default_factory=Correction, description="Weights from sampler to trainer.")
    masks: Masks = Field(default_factory=Masks, description="Further rollouts and tokens that leave the policy term.")
    mask_truncated: bool = Field(
        False, description="Leave completions cut at `max_tokens` out of every term; they stay in the baseline."
    )
    beta: NotNegative = Field(0.0, description="KL coefficient; 0 loads no reference model.")
    kl_estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k3+"] = Field(
        "k3", description="Estimator of KL(policy, reference) in the loss; `+` takes the gradient of k2."
    )
    kl_in: Literal["loss", "reward", "token_reward"] = Field(
        "loss",
        description="Where the KL stands: a term of the loss; k1 summed over the answer, taken from its reward before "
        "the baseline; or k1 of each token, taken from the advantage of all tokens up to it.",
    )
    kl_ratio: Ratio = Field(
        "none", description="Level of the importance ratio that the loss's KL is multiplied by; `none` leaves it alone."
    )
    reference: Reference = Field(default_factory=Reference, description="The policy that the KL is measured from.")
    critic: Critic = Field(default_factory=Critic, description='The critic of `baseline = "critic"`.')
    entropy_coef: NotNegative = Field(
        0.0, description="Entropy bonus coefficient c_H; with `adaptive_entropy`, at first."
    )
    adaptive_entropy: AdaptiveEntropy | None = Field(None, description="Steer c_H by the entropy (absent: fixed).")
    why: Why = Field(default_factory=Why, description="Reasons for the denominators.")

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        name = values.get("preset", "grpo")
        return with_preset(name, values) if isinstance(name, str) and name in PRESETS else values

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; there are {', '.join(sorted(PRESETS))}")
        return name

    @model_validator(mode="after")
    def _goes_together(self) -> Objective:
        check_level(self.surrogate, self.surrogate.kind, self.ratio)
        per_token = next((key for key, on in self._per_token().items() if on), None)
        if per_token and self.ratio in ("sequence", "sequence_product"):
            raise Misfit(
                "ratio", f"{self.ratio!r} clips a whole answer, but {per_token} gives each token its own advantage"
            )
        if per_token and self.surrogate.kind == "gmpo":
            raise Misfit("surrogate", f"gmpo takes one advantage per answer, but {per_token} gives one per token")
        return self

    @model_validator(mode="after")
    def _critic_goes_with(self) -> Objective:
        if self.baseline != "critic":
            return self
        for key, only in {"scale": "none", "combine": "sum", "transform": "none"}.items():
            if getattr(self, key) != only:
                raise Misfit(key, f"the critic's advantages know no {key} but {only!r}; `whiten` divides them")
        if self.whiten == "rollouts":
            raise Misfit("whiten", "the critic's advantages are per token: 'tokens' or 'none'")
        return self

    @model_validator(mode="after")
    def _kl_goes_with(self) -> Objective:
        if self.kl_in == "loss" or self.beta == 0:
            return self
        for key, unset in {"kl_ratio": "none", "kl_denominator": None}.items():
            if getattr(self, key) != unset:
                raise Misfit(key, f"belongs to a KL in the loss, but kl_in is {self.kl_in!r}")
        if self.kl_in == "reward" and self.combine == "apart":
            raise Misfit("kl_in", "'reward' is taken from the summed reward, but combine = 'apart' sums none")
        if self.kl_in == "reward" and self.scale in ("group_std", "group_mean"):
            raise Misfit(
                "kl_in",
                f"'reward' with scale {self.scale!r} makes a full-size advantage of the KL alone in a group of equal "
                "rewards; take 'token_reward' or 'loss', or scale 'none'",
            )
        return self

    @model_validator(mode="after")
    def _counted_one_way(self) -> Objective:
        if self.count == "nominal" and not self.count_dead:
            raise Misfit("count_dead", 'false takes dead groups out of the count, but count = "nominal" keeps all')
        return self

    def _per_token(self) -> dict[str, bool]:
        """What gives the tokens of one answer different advantages."""
        return {
            'baseline = "critic"': self.baseline == "critic",
            'kl_in = "token_reward"': self.kl_in == "token_reward" and self.beta > 0,
        }
