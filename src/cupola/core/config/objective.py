"""The objective's part of a recipe: the five decisions, its terms, and which decisions go together."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from cupola.core.config.objective_tables import AdaptiveEntropy, Correction, Critic, Masks, Reference, Why
from cupola.core.config.presets import PRESETS, with_preset
from cupola.core.config.section import Misfit, NotNegative, PositiveInt, Section, changed
from cupola.core.config.surrogate import PER_ANSWER, SURROGATES, AnySurrogate, Clipped, Ratio, check_level

Denominator = Literal["sequence_mean", "token_mean", "constant", "prompt_mean", "sequence_sum", "token_sum", "padded"]
Scope = Literal["update", "batch", "generation", "micro_batch"]
Baseline = Literal["group_mean", "leave_one_out", "batch_mean", "critic", "none"]
Scale = Literal["group_std", "batch_std", "group_mean", "none"]

#: Decisions against each other: where the first holds, the key is refused with the text.
Rules = tuple[tuple[object, str, str], ...]


class TermRule(NamedTuple):
    """How a term of the loss is averaged: its denominator's rule, and what that counts over."""

    denominator: Denominator
    scope: Scope


class Objective(Section):
    preset: str = Field("grpo", description="Named set of the decisions below.")
    baseline: Baseline = Field("group_mean", description="b in A = (r - b) / s.")
    scale: Scale = Field("group_std", description="s in A = (r - b) / s.")
    scale_epsilon: NotNegative = Field(1e-4, description="Added to the scale.")
    combine: Literal["sum", "apart"] = Field(
        "sum", description="Whether baseline and scale are taken of the summed reward, or of each part apart (GDPO)."
    )
    transform: Literal["none", "pass_at_k", "best_only"] = Field(
        "none",
        description="What the total reward becomes first: the unbiased pass@k value, or the best's lead, which takes "
        "no baseline.",
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
    masks: Masks = Field(default_factory=Masks, description="What else leaves the policy term, or pays in it.")
    mask_truncated: bool = Field(
        False, description="Leave completions cut at `max_tokens` out of every term; they stay in the baseline."
    )
    beta: NotNegative = Field(0.0, description="KL coefficient; 0 loads no reference model.")
    kl_estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k3+"] = Field(
        "k3",
        description="Estimator of KL(policy, reference); `+` takes the gradient of k2. A KL in the reward is k1, and "
        "by default says so.",
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
        if not isinstance(name, str) or name not in PRESETS:
            return values
        merged = with_preset(name, values)
        if "kl_estimator" not in values and merged.get("kl_in", "loss") != "loss":
            merged["kl_estimator"] = "k1"
        return merged

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; there are {', '.join(sorted(PRESETS))}")
        return name

    @model_validator(mode="after")
    def _goes_together(self) -> Objective:
        check_level(self.surrogate, self.surrogate.kind, self.ratio)
        rules = (*self._advantage_rules(), *self._token_rules(), *self._term_rules())
        for refused, key, text in rules:
            if refused:
                raise Misfit(key, text)
        return self

    @model_validator(mode="after")
    def _all_is_used(self) -> Objective:
        chosen = changed(self, PRESETS[self.preset])
        for used, what, keys in self._uses():
            idle = [key for key in chosen if key.startswith(keys)]
            if idle and not used:
                raise Misfit(idle[0], f"is of no use without {what}; set that, or leave this out")
        return self

    def _advantage_rules(self) -> Rules:
        """Baseline, scale, transform and whitening."""
        critic, apart, token = self.baseline == "critic", self.combine == "apart", self.per_token
        known = "the critic's advantages know no {0} but {1!r}; `whiten` divides them"
        return (
            (critic and self.scale != "none", "scale", known.format("scale", "none")),
            (critic and apart, "combine", known.format("combine", "sum")),
            (critic and self.transform != "none", "transform", known.format("transform", "none")),
            (
                self.surrogate.kind == "vespo" and self.correction.level != "none",
                "correction.level",
                "weighs the loss from outside, but vespo's weight is of the ratio to the sampler itself; take 'none'",
            ),
            (
                apart and self.transform != "none",
                "transform",
                f"{self.transform!r} is of the summed reward, but combine = 'apart' sums none",
            ),
            (
                self.transform == "best_only" and self.baseline != "none",
                "baseline",
                f"{self.baseline!r} does not go with transform = 'best_only': the best's lead is measured from the "
                "second best already; take 'none'",
            ),
            (
                token and self.whiten == "rollouts",
                "whiten",
                f"'rollouts' takes one advantage per answer, but {token} gives each token its own; take 'tokens' or "
                "'none'",
            ),
        )

    def _token_rules(self) -> Rules:
        """What gives or takes single tokens, against what binds an answer's tokens together."""
        kind, token, masks = self.surrogate.kind, self.per_token, self.masks
        bound = f"surrogate {kind!r}" if kind == "gmpo" else f"ratio {self.ratio!r}"
        whole = self.ratio in self.surrogate.whole
        inert = f"takes single tokens, but with {bound} the gradient of each stands in all entries of its answer; "
        inert += "take ratio 'token' or 'sequence_token'" if kind != "gmpo" else "take another surrogate"
        return (
            (
                token and self.ratio in PER_ANSWER,
                "ratio",
                f"{self.ratio!r} clips a whole answer, but {token} gives each token its own advantage",
            ),
            (
                token and kind == "gmpo",
                "surrogate",
                f"gmpo takes one advantage per answer, but {token} gives one per token",
            ),
            (whole and masks.top_entropy < 1, "masks.top_entropy", inert),
            (whole and masks.clip_cov, "masks.clip_cov", inert),
            (
                masks.clip_cov and masks.kl_cov,
                "masks.kl_cov",
                "stands beside clip_cov: the same tokens cannot lose their gradient and pay; keep one",
            ),
        )

    def _term_rules(self) -> Rules:
        """KL, entropy and the count."""
        in_reward, place = self.beta > 0 and self.kl_in != "loss", self.kl_in
        steered = self.adaptive_entropy
        return (
            (
                in_reward and self.kl_estimator != "k1",
                "kl_estimator",
                f"{self.kl_estimator!r} is of a KL in the loss; with kl_in = {place!r} it is 'k1': take that, or leave "
                "this out",
            ),
            (
                in_reward and place == "reward" and self.combine == "apart",
                "kl_in",
                "'reward' is taken from the summed reward, but combine = 'apart' sums none",
            ),
            (
                in_reward and place == "reward" and self.scale in ("group_std", "group_mean"),
                "kl_in",
                f"'reward' with scale {self.scale!r} makes a full-size advantage of the KL alone in a group of equal "
                "rewards; take 'token_reward' or 'loss', or scale 'none'",
            ),
            (
                steered and not steered.low <= self.entropy_coef <= steered.high,
                "entropy_coef",
                "is where c_H begins, so it must lie within low and high of adaptive_entropy",
            ),
            (
                self.count == "nominal" and not self.count_dead,
                "count_dead",
                'false takes dead groups out of the count, but count = "nominal" keeps all',
            ),
        )

    def _uses(self) -> tuple[tuple[bool, str, tuple[str, ...]], ...]:
        """Whether the objective has something, how it is set, and the keys that are of no use without it."""
        terms = self.terms
        return (
            ("value" in terms, 'baseline = "critic"', ("critic.", "value_denominator")),
            ("kl" in terms, 'a KL in the loss (beta above 0, kl_in = "loss")', ("kl_ratio", "kl_denominator")),
            ("entropy" in terms, "entropy_coef or adaptive_entropy", ("entropy_denominator", "entropy_scope")),
            (self.beta > 0, "beta above 0", ("reference.",)),
            (self.reference.kind == "moving", 'reference.kind = "moving"', ("reference.every", "reference.mixup")),
            (self.correction.level != "none", "a correction.level", ("correction.",)),
            (self.transform == "pass_at_k", 'transform = "pass_at_k"', ("pass_k",)),
        )

    @property
    def per_token(self) -> str | None:
        """What gives the tokens of one answer different advantages, if anything does."""
        if self.baseline == "critic":
            return 'baseline = "critic"'
        return 'kl_in = "token_reward"' if self.kl_in == "token_reward" and self.beta > 0 else None

    @property
    def terms(self) -> dict[str, TermRule]:
        """The terms of the loss, each with its denominator's rule and scope."""
        own, scope = self.denominator, self.scope
        rules = {
            "policy": TermRule(own, scope),
            "kl": TermRule(self.kl_denominator or own, scope),
            "entropy": TermRule(self.entropy_denominator or own, self.entropy_scope or scope),
            "value": TermRule(self.value_denominator or own, scope),
        }
        absent = {
            "kl": self.beta == 0 or self.kl_in != "loss",
            "entropy": self.entropy_coef == 0 and self.adaptive_entropy is None,
            "value": self.baseline != "critic",
        }
        return {name: rule for name, rule in rules.items() if not absent.get(name)}
