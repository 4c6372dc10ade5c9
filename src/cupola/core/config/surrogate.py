"""The surrogates a recipe can name, each with its own constants. Their mathematics stands in `train.objectives`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from cupola.core.config.section import Misfit, NotNegative, Positive, Section, Share

Ratio = Literal["token", "sequence", "sequence_token", "sequence_product", "none"]

ANY_RATIO: tuple[Ratio, ...] = ("token", "sequence", "sequence_token", "sequence_product")

#: Levels at which all tokens of an answer share one ratio and its gradient.
PER_ANSWER: tuple[Ratio, ...] = ("sequence", "sequence_product")

Bound = Annotated[NotNegative, Field(le=100)]
AtLeastOne = Annotated[float, Field(ge=1)]


class Surrogate(Section):
    """What all have: `levels` are the ratio levels that the surrogate is defined on.

    `whole` are those at which the entry of each token carries the gradient of the whole answer: the gradient goes
    through a ratio that all its tokens share. Where it goes through log pi, an entry is its token's own.
    """

    levels: ClassVar[tuple[Ratio, ...]] = ANY_RATIO
    whole: ClassVar[tuple[Ratio, ...]] = ()


class Clipped(Surrogate):
    whole: ClassVar[tuple[Ratio, ...]] = PER_ANSWER
    kind: Literal["clipped"] = Field("clipped", description="PPO's clip; `high` above `low` is clip-higher.")
    low: Share = Field(0.2, description="The ratio is clipped below at 1 - low.")
    high: Bound = Field(0.2, description="The ratio is clipped above at 1 + high (clip-higher: 0.28).")


class TwoSided(Surrogate):
    whole: ClassVar[tuple[Ratio, ...]] = PER_ANSWER
    kind: Literal["two_sided"] = Field("two_sided", description="Clip, and a largest ratio where A < 0.")
    low: Share = Field(0.2, description="The ratio is clipped below at 1 - low.")
    high: Bound = Field(0.2, description="The ratio is clipped above at 1 + high.")
    delta: Positive = Field(4.0, description="Largest ratio where A < 0; more than 1 + high.")

    @model_validator(mode="after")
    def _beyond_the_clip(self) -> TwoSided:
        if self.delta <= 1 + self.high:
            raise Misfit("delta", f"must be above 1 + high = {1 + self.high:g}: it bounds what the clip leaves")
        return self


class DualClip(Surrogate):
    whole: ClassVar[tuple[Ratio, ...]] = PER_ANSWER
    kind: Literal["dual_clip"] = Field("dual_clip", description="Clip, and a largest loss where A < 0.")
    low: Share = Field(0.2, description="The ratio is clipped below at 1 - low.")
    high: Bound = Field(0.2, description="The ratio is clipped above at 1 + high.")
    c: Annotated[float, Field(gt=1)] = Field(
        3.0, description="Multiple of A at which the loss stops where A < 0; more than 1."
    )


class Sapo(Surrogate):
    whole: ClassVar[tuple[Ratio, ...]] = PER_ANSWER
    kind: Literal["sapo"] = Field("sapo", description="A smooth gate in place of the clip.")
    tau_pos: Positive = Field(1.0, description="Temperature of the gate where A > 0.")
    tau_neg: Positive = Field(1.05, description="Temperature of the gate elsewhere.")


class Gmpo(Surrogate):
    levels: ClassVar[tuple[Ratio, ...]] = ("token",)
    whole: ClassVar[tuple[Ratio, ...]] = ("token",)
    kind: Literal["gmpo"] = Field("gmpo", description="Geometric mean of clipped token ratios.")
    low: NotNegative = Field(0.4, description="The log-ratio is clipped below at -low.")
    high: NotNegative = Field(0.4, description="The log-ratio is clipped above at high.")


class Reinforce(Surrogate):
    levels: ClassVar[tuple[Ratio, ...]] = ("none",)
    kind: Literal["reinforce"] = Field("reinforce", description="The score function, without a ratio.")


class Cispo(Surrogate):
    kind: Literal["cispo"] = Field("cispo", description="A clipped, detached ratio weighs the score function.")
    ceiling: Positive = Field(5.0, description="Largest weight.")
    floor: NotNegative = Field(0.0, description="Smallest weight.")

    @model_validator(mode="after")
    def _ordered(self) -> Cispo:
        if self.floor > self.ceiling:
            raise Misfit("floor", f"must not be above ceiling = {self.ceiling:g}")
        return self


class DppoTv(Surrogate):
    levels: ClassVar[tuple[Ratio, ...]] = ("token",)
    kind: Literal["dppo_tv"] = Field("dppo_tv", description="Drops tokens whose probability moved too far.")
    low: NotNegative = Field(0.15, description="Largest fall of the probability where A <= 0.")
    high: NotNegative = Field(0.15, description="Largest rise of the probability where A > 0.")
    ceiling: AtLeastOne = Field(20.0, description="Largest ratio that weighs a kept token.")


class DppoKl(Surrogate):
    levels: ClassVar[tuple[Ratio, ...]] = ("token",)
    kind: Literal["dppo_kl"] = Field("dppo_kl", description="Drops tokens whose binary KL is too large.")
    low: NotNegative = Field(0.05, description="Largest divergence of a fall where A <= 0.")
    high: NotNegative = Field(0.05, description="Largest divergence of a rise where A > 0.")
    ceiling: AtLeastOne = Field(20.0, description="Largest ratio that weighs a kept token.")


class Vespo(Surrogate):
    levels: ClassVar[tuple[Ratio, ...]] = ("sequence_product",)
    kind: Literal["vespo"] = Field("vespo", description="A gamma-shaped weight of the sequence ratio.")
    k_pos: Positive = Field(2.0, description="Exponent of the weight where A > 0.")
    lambda_pos: Positive = Field(3.0, description="Decay of the weight where A > 0.")
    k_neg: Positive = Field(3.0, description="Exponent of the weight elsewhere.")
    lambda_neg: Positive = Field(2.0, description="Decay of the weight elsewhere.")


AnySurrogate = Annotated[
    Clipped | TwoSided | DualClip | Sapo | Gmpo | Reinforce | Cispo | DppoTv | DppoKl | Vespo,
    Field(discriminator="kind"),
]

SURROGATES: dict[str, type[Surrogate]] = {
    str(table.model_fields["kind"].default): table
    for table in (Clipped, TwoSided, DualClip, Sapo, Gmpo, Reinforce, Cispo, DppoTv, DppoKl, Vespo)
}


def check_level(surrogate: Surrogate, kind: str, ratio: Ratio) -> None:
    """Raise Misfit where a surrogate is not defined on a ratio level: nothing would say which ratio is clipped."""
    if ratio not in surrogate.levels:
        allowed = " or ".join(map(repr, surrogate.levels))
        raise Misfit("ratio", f"{ratio!r} does not go with surrogate {kind!r}, which is defined on {allowed}")
