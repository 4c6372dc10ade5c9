"""`[[reward]]`: the parts of the reward, a model for each kind of verifier."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cupola.core.config.section import NotNegative, PositiveInt, Section, Text

KIND = "Which verifier."
EXTRACT = "Regular expression whose last match's group 1 is the answer."


Role = Literal["correctness", "format", "other"] | None


class RewardPart(Section):
    """What the kinds of reward part have in common."""

    name: str = Field(description="Label of this part in metrics (`rewards/<name>/mean`) and in rollouts.")
    kind: str = Field(description=KIND)
    weight: float = Field(1.0, ge=-1e6, le=1e6, description="Factor of this part in the total reward.")
    role: Role = Field(
        None,
        description="`correctness` decides right and wrong (by default the first part without a role that is no "
        "pattern); `format` pays for form, as a pattern does without a role; `other` pays for neither.",
    )


class ExactReward(RewardPart):
    """The answer, character by character."""

    kind: Literal["exact"] = Field("exact", description=KIND)
    extract: str | None = Field(None, description=f"{EXTRACT} By default the whole completion is.")
    ignore_case: bool = Field(False, description="Compare without regard to case.")


class NumericReward(RewardPart):
    """The answer as a number."""

    kind: Literal["numeric"] = Field("numeric", description=KIND)
    extract: str | None = Field(None, description=f"{EXTRACT} By default the last number is.")
    tolerance: NotNegative = Field(0.0, description="Largest absolute difference; 0 compares exactly.")


class PatternReward(RewardPart):
    """The form of the completion."""

    kind: Literal["pattern"] = Field("pattern", description=KIND)
    pattern: str = Field(description="Regular expression that the whole completion must match.")


class FunctionReward(RewardPart):
    """The user's own reward function."""

    kind: Literal["function"] = Field("function", description=KIND)
    path: Text = Field(description="`package.module:name` or `file.py:name`.")
    correct_at: float = Field(1.0, description="Least score that counts as right.")
    extract: str | None = Field(
        None, description=f"{EXTRACT} It is shown and voted on (maj@k); the score is the function's alone."
    )
    optional: bool = Field(False, description="A `None` of the function adds nothing instead of voiding the sum.")
    on_error: Literal["stop", "unscorable"] = Field("stop", description="What a raising reward function does.")


class OverlongReward(RewardPart):
    """A soft punishment of answers that come near the limit (DAPO): 0 to -1."""

    kind: Literal["overlong"] = Field("overlong", description=KIND)
    role: Role = Field("other", description="It pays for neither correctness nor form.")
    cache: PositiveInt = Field(description="Tokens below `sampling.max_tokens` over which the punishment grows.")


Reward = Annotated[
    ExactReward | NumericReward | PatternReward | FunctionReward | OverlongReward, Field(discriminator="kind")
]

#: The model of each kind.
REWARDS: dict[str, type[RewardPart]] = {
    "exact": ExactReward,
    "numeric": NumericReward,
    "pattern": PatternReward,
    "function": FunctionReward,
    "overlong": OverlongReward,
}
