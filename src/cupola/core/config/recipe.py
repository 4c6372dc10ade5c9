"""The recipe: frozen pydantic models. Each field's description is its only documentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from cupola.core.config.presets import PRESETS, with_preset
from cupola.core.config.reward import Reward
from cupola.core.config.section import (
    Count,
    Int63,
    Misfit,
    NotNegative,
    PositiveInt,
    Section,
    Share,
    Temperature,
    Text,
)
from cupola.core.config.shared import Optim, Seed, Source, Threads
from cupola.core.config.surrogate import SURROGATES, AnySurrogate, Clipped, Ratio, check_level
from cupola.core.records import Sampling


class Run(Section):
    name: str = Field(
        "run", pattern=r"^\w[\w .-]*$", description="Folder name under `folder`; a run never shares a folder."
    )
    folder: Text = Field("runs", description="Where run folders stand.")
    seed: Seed = 0
    steps: PositiveInt = Field(100, description="Sample-and-update steps.")
    threads: Threads = 0


class Model(Section):
    source: Text = Field("embedded", description="`embedded`, a model folder, or a hub name.")
    dtype: Literal["float32", "bfloat16", "float64"] = Field("float32", description="Type of the weights in training.")
    device: str = Field("auto", description="`auto` takes the accelerator if there is one, else the CPU.")


class Data(Source):
    """Questions to train on, and others to validate with."""

    validation_file: Text | None = Field(
        None, description="Validation questions; without it a share of `file` by hash."
    )
    validation_share: Share = Field(0.1, description="Share of `file` held out for validation when it has no file.")
    answer_required: bool = Field(True, description="Whether every row needs an `answer`.")
    max_bad_gold: Share = Field(0.0, description="Largest share of rows whose answer no verifier can read.")


class SamplingSection(Section):
    prompts_per_step: PositiveInt = Field(32, description="Prompts drawn per step.")
    group_size: PositiveInt = Field(8, description="Completions per prompt (G).")
    max_tokens: PositiveInt = Field(256, description="Longest completion in tokens; longer is cut, reason `length`.")
    temperature: Temperature = Field(1.0, description="Sampling temperature.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Must be 1: see `top_k`.")
    top_k: Count = Field(0, description="Must be 0: a cut distribution is not the one whose gradient is taken.")
    max_batches: PositiveInt = Field(
        1,
        description="Dynamic sampling: at most so many batches are drawn until `prompts_per_step` groups have signal; "
        "1 trains on whatever comes.",
    )
    stop: list[Text] = Field(default_factory=list, description="Strings that end a completion.")
    stop_token_ids: list[Int63] = Field(default_factory=list, description="Further token ids that end a completion.")

    @field_validator("top_p", "top_k")
    @classmethod
    def _whole_distribution(cls, value: float, info: ValidationInfo) -> float:
        whole = cls.model_fields[str(info.field_name)].default
        if value != whole:
            raise ValueError(
                "cuts the distribution that is sampled but not the one that is trained, so the importance ratio would "
                f"be the kept mass; train with {info.field_name} = {whole:g}"
            )
        return value

    def settings(self, temperature: float | None = None) -> Sampling:
        """How completions are drawn, at another temperature if given."""
        return Sampling(
            self.max_tokens,
            self.temperature if temperature is None else temperature,
            tuple(self.stop),
            tuple(self.stop_token_ids),
        )


class Why(Section):
    """Why each denominator is what it is; those without a reason are listed by `cupola ledger`."""

    policy: str | None = Field(None, description="Reason for the policy term's denominator.")
    kl: str | None = Field(None, description="Reason for the KL term's denominator.")
    entropy: str | None = Field(None, description="Reason for the entropy term's denominator.")
    scale: str | None = Field(None, description="Reason for the advantage's scale.")
    whiten: str | None = Field(None, description="Reason for the whitening.")


Denominator = Literal["sequence_mean", "token_mean", "constant", "prompt_mean", "sequence_sum", "token_sum"]
Baseline = Literal["group_mean", "leave_one_out", "batch_mean", "none"]
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
    scope: Literal["update", "batch"] = Field("update", description="What a denominator counts over.")
    count_dead: bool = Field(
        True, description="Whether dead groups' rollouts stay in the policy term's count, and in it alone."
    )
    correction: Correction = Field(default_factory=Correction, description="Weights from sampler to trainer.")
    mask_truncated: bool = Field(
        False, description="Leave completions cut at `max_tokens` out of every term; they stay in the baseline."
    )
    beta: NotNegative = Field(0.0, description="KL coefficient; 0 loads no reference model.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="Estimator of KL(policy, reference).")
    entropy_coef: NotNegative = Field(0.0, description="Entropy bonus coefficient c_H.")
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
        return self


class Updates(Optim):
    """The optimiser, and how often it steps on one batch."""

    minibatches: PositiveInt = Field(1, description="Optimiser steps one pass over a batch is cut into.")
    epochs: PositiveInt = Field(1, description="Passes over each batch.")


class Validation(Section):
    every: PositiveInt = Field(20, description="Validate and save a checkpoint every so many steps, and at both ends.")
    questions: PositiveInt = Field(100, description="Fixed validation questions.")
    samples: Count = Field(4, description="Sampled answers per question.")
    greedy: bool = Field(True, description="Also take the greedy answer.")
    keep: Count = Field(0, description="Checkpoints kept, newest first; 0 keeps all.")


class Evaluation(Section):
    at_end: bool = Field(False, description="Compare the trained policy with its start when training ends.")
    questions: PositiveInt = Field(300, description="Test questions.")
    samples: PositiveInt = Field(16, description="Sampled answers per question and arm.")
    dev_questions: PositiveInt = Field(200, description="Other questions, on which the best temperature is chosen.")
    dev_samples: PositiveInt = Field(4, description="Answers per dev question and temperature.")
    temperatures: list[Temperature] = Field(
        default_factory=lambda: [0.3, 0.5, 0.7, 1.0], description="Candidates beside greedy for the base's best."
    )

    @field_validator("temperatures")
    @classmethod
    def _each_once(cls, temperatures: list[float]) -> list[float]:
        repeated = sorted({each for each in temperatures if temperatures.count(each) > 1})
        if repeated:
            raise ValueError(f"{repeated[0]:g} stands there twice; give each temperature once")
        return temperatures


class Diagnosis(Section):
    on_warning: Literal["warn", "pause", "stop"] = Field("warn", description="What a live warning does to the run.")


class Recipe(Section):
    """A training recipe (`cupola train`)."""

    run: Run = Field(default_factory=Run)
    model: Model = Field(default_factory=Model)
    data: Data
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    reward: list[Reward] = Field(min_length=1)
    objective: Objective = Field(default_factory=Objective)
    optim: Updates = Field(default_factory=Updates)
    validation: Validation = Field(default_factory=Validation)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    diagnosis: Diagnosis = Field(default_factory=Diagnosis)

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        names = [part.name for part in self.reward]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise Misfit(f"reward.{index}.name", f"another reward part is called {name!r} too; rename one")
        sampling, objective = self.sampling, self.objective
        if objective.pass_k > sampling.group_size:
            raise Misfit("objective.pass_k", f"is more than sampling.group_size = {sampling.group_size}")
        if sampling.group_size == 1 and (objective.baseline, objective.scale) != ("none", "none"):
            raise Misfit("sampling.group_size", "1 leaves a group baseline nothing to compare with; use at least 2")
        rollouts = sampling.prompts_per_step * sampling.group_size
        if self.optim.minibatches > rollouts:
            raise Misfit("optim.minibatches", f"cuts a batch of {rollouts} rollouts into more pieces than it has")
        return self

    def correctness_part(self) -> str:
        """Name of the reward part that decides right and wrong."""
        for part in self.reward:
            if part.role == "correctness":
                return part.name
        for part in self.reward:
            if part.role is None and part.kind != "pattern":
                return part.name
        return self.reward[0].name
