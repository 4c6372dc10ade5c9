"""The recipe: frozen pydantic models. Each field's description is its only documentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cupola.core.config.presets import PRESETS


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]


class Run(Section):
    name: str = Field(
        "run", pattern=r"^\w[\w .-]*$", description="Folder name under `folder`; a run never shares a folder."
    )
    folder: str = Field("runs", description="Where run folders stand.")
    seed: int = Field(0, description="Seed of sampling and of the order of prompts.")
    steps: PositiveInt = Field(100, description="Sample-and-update steps.")
    threads: Annotated[int, Field(ge=0)] = Field(0, description="CPU threads of torch; 0 takes what `doctor` advises.")


class Model(Section):
    source: str = Field("embedded", description="`embedded`, a model folder, or a hub name.")
    dtype: Literal["float32", "bfloat16", "float64"] = Field("float32", description="Type of the weights in training.")
    device: str = Field("auto", description="`auto` takes the accelerator if there is one, else the CPU.")


class Data(Section):
    task: str | None = Field(None, description="A built-in task (`arithmetic`); excludes `file`.")
    file: str | None = Field(None, description="Training questions: .jsonl, .parquet or .csv with prompt or question.")
    validation_file: str | None = Field(None, description="Validation questions; without it a share of `file` by hash.")
    validation_share: Share = Field(0.1, description="Share of `file` held out for validation when it has no file.")
    chat: bool = Field(False, description="Wrap plain questions as a user message of the model's chat template.")
    system: str | None = Field(None, description="System message put before each chat.")
    answer_required: bool = Field(True, description="Whether every row needs an `answer`.")
    max_bad_gold: Share = Field(0.0, description="Largest share of rows whose answer no verifier can read.")
    options: dict[str, bool | int | float | str | list[int]] = Field(
        default_factory=dict, description="Settings of the built-in task."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Data:
        if (self.task is None) == (self.file is None):
            raise ValueError("give exactly one of data.task and data.file")
        return self


class SamplingSection(Section):
    prompts_per_step: PositiveInt = Field(32, description="Prompts drawn per step.")
    group_size: PositiveInt = Field(8, description="Completions per prompt (G).")
    max_tokens: PositiveInt = Field(256, description="Longest completion in tokens; longer is cut, reason `length`.")
    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="Sampling temperature.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Must be 1: see `top_k`.")
    top_k: Annotated[int, Field(ge=0)] = Field(
        0, description="Must be 0: a cut distribution is not the one whose gradient is taken."
    )
    stop: list[str] = Field(default_factory=list, description="Strings that end a completion.")
    stop_token_ids: list[int] = Field(default_factory=list, description="Further token ids that end a completion.")

    @model_validator(mode="after")
    def _whole_distribution(self) -> SamplingSection:
        if self.top_p < 1 or self.top_k > 0:
            raise ValueError(
                "top_p < 1 or top_k > 0 cut the distribution that is sampled but not the one that is trained, so the "
                "importance ratio would be the kept mass; train with top_p = 1 and top_k = 0"
            )
        return self


class Reward(Section):
    name: str = Field(description="Label of this part in metrics (`rewards/<name>/mean`) and in rollouts.")
    kind: Literal["exact", "numeric", "pattern", "function"] = Field(description="Which verifier.")
    weight: float = Field(1.0, description="Factor of this part in the total reward.")
    role: Literal["correctness", "format", "other"] | None = Field(
        None, description="`correctness` decides right and wrong; by default the first part that is no pattern."
    )
    extract: str | None = Field(None, description="Regular expression whose last match's group 1 is the answer.")
    pattern: str | None = Field(None, description="`pattern` only: the whole completion must match it.")
    path: str | None = Field(None, description="`function` only: `package.module:name` or `file.py:name`.")
    ignore_case: bool = Field(False, description="`exact` only: compare without regard to case.")
    tolerance: NotNegative = Field(0.0, description="`numeric` only: largest absolute difference; 0 compares exactly.")
    optional: bool = Field(False, description="A skipped verdict of this part adds nothing instead of voiding the sum.")
    correct_at: float = Field(1.0, description="Least score that counts as right.")
    on_error: Literal["stop", "unscorable"] = Field("stop", description="What a raising reward function does.")

    @model_validator(mode="after")
    def _needs(self) -> Reward:
        needs = {"pattern": "pattern", "function": "path"}.get(self.kind)
        if needs and getattr(self, needs) is None:
            raise ValueError(f"kind = {self.kind!r} needs `{needs}`")
        return self


class Why(Section):
    """Why each denominator is what it is; those without a reason are listed by `cupola ledger`."""

    policy: str | None = Field(None, description="Reason for the policy term's denominator.")
    kl: str | None = Field(None, description="Reason for the KL term's denominator.")
    entropy: str | None = Field(None, description="Reason for the entropy term's denominator.")
    scale: str | None = Field(None, description="Reason for the advantage's scale.")


Denominator = Literal["sequence_mean", "token_mean", "constant", "prompt_mean"]


class Objective(Section):
    preset: str = Field("grpo", description="Named set of the decisions below.")
    baseline: Literal["group_mean", "none"] = Field("group_mean", description="b in A = (r - b) / s.")
    scale: Literal["group_std", "none"] = Field("group_std", description="s in A = (r - b) / s.")
    scale_epsilon: NotNegative = Field(1e-4, description="Added to the group's standard deviation.")
    ratio: Literal["token"] = Field("token", description="Level of the importance ratio.")
    clip_low: NotNegative = Field(0.2, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: NotNegative = Field(0.2, description="The ratio is clipped above at 1 + clip_high (clip-higher: 0.28).")
    denominator: Denominator = Field("sequence_mean", description="The policy term's denominator rule.")
    kl_denominator: Denominator | None = Field(None, description="The KL term's; by default the policy term's.")
    entropy_denominator: Denominator | None = Field(None, description="The entropy term's; by default the policy's.")
    scope: Literal["update", "batch"] = Field("update", description="What a denominator counts over.")
    count_dead: bool = Field(True, description="Whether dead groups' rollouts stay in the denominators' counts.")
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
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}; there are {', '.join(sorted(PRESETS))}")
        return {**PRESETS[name], **values}

    @model_validator(mode="after")
    def _clip_range(self) -> Objective:
        if self.clip_low > 1:
            raise ValueError("clip_low > 1 would clip the ratio below at a negative number")
        return self


class Optim(Section):
    name: str = Field("adamw", description="Optimiser: a class of torch.optim, by name in any case.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-6, description="Peak learning rate.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), strict=False, description="Adam's decay rates.")
    weight_decay: NotNegative = Field(0.0, description="Decoupled weight decay.")
    schedule: str = Field("linear", description="Schedule by transformers' name (linear, cosine, constant, ...).")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(0, description="Optimiser steps of linear warm-up.")
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Gradient clipping norm.")
    minibatches: PositiveInt = Field(1, description="Optimiser steps one pass over a batch is cut into.")
    epochs: PositiveInt = Field(1, description="Passes over each batch.")
    micro_tokens: PositiveInt = Field(16384, description="Padded tokens per forward; changes memory, not the gradient.")


class Validation(Section):
    every: PositiveInt = Field(20, description="Validate and save a checkpoint every so many steps, and at both ends.")
    questions: PositiveInt = Field(100, description="Fixed validation questions.")
    samples: Annotated[int, Field(ge=0)] = Field(4, description="Sampled answers per question.")
    greedy: bool = Field(True, description="Also take the greedy answer.")
    keep: Annotated[int, Field(ge=0)] = Field(0, description="Checkpoints kept, newest first; 0 keeps all.")


class Evaluation(Section):
    at_end: bool = Field(False, description="Compare the trained policy with its start when training ends.")
    questions: PositiveInt = Field(300, description="Test questions.")
    samples: PositiveInt = Field(16, description="Sampled answers per question and arm.")
    dev_questions: PositiveInt = Field(200, description="Other questions, on which the best temperature is chosen.")
    dev_samples: PositiveInt = Field(4, description="Answers per dev question and temperature.")
    temperatures: list[Annotated[float, Field(gt=0)]] = Field(
        default_factory=lambda: [0.3, 0.5, 0.7, 1.0], description="Candidates beside greedy for the base's best."
    )


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
    optim: Optim = Field(default_factory=Optim)
    validation: Validation = Field(default_factory=Validation)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    diagnosis: Diagnosis = Field(default_factory=Diagnosis)

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        names = [part.name for part in self.reward]
        if len(set(names)) < len(names):
            raise ValueError("two reward parts have the same name")
        if self.sampling.group_size == 1 and (self.objective.baseline, self.objective.scale) != ("none", "none"):
            raise ValueError("sampling.group_size = 1 leaves a group baseline nothing to compare with; use at least 2")
        if self.optim.minibatches > self.sampling.prompts_per_step * self.sampling.group_size:
            raise ValueError("optim.minibatches is larger than the number of rollouts of a step")
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


class SftRecipe(Section):
    """A supervised recipe (`cupola sft`): the cold start."""

    class Start(Section):
        source: str | None = Field(None, description="Model to start from; without it `shape` makes a new one.")
        hidden_size: PositiveInt = Field(48, description="Width of a new Llama-shaped model.")
        layers: PositiveInt = Field(2, description="Layers of a new model.")
        heads: PositiveInt = Field(4, description="Attention heads of a new model.")
        intermediate_size: PositiveInt = Field(128, description="Feed-forward width of a new model.")
        context: PositiveInt = Field(128, description="Longest sequence of a new model in tokens.")
        initializer_range: NotNegative = Field(0.02, description="Standard deviation of a new model's initial weights.")
        alphabet: str = Field("0123456789", description="Characters of a new model, one token each.")

    class Training(Section):
        steps: PositiveInt = Field(600, description="Optimiser steps.")
        batch_size: PositiveInt = Field(64, description="Examples per step.")

    run: Run = Field(default_factory=Run)
    model: Start = Field(default_factory=Start)
    data: Data
    training: Training = Field(default_factory=Training)
    optim: Optim = Field(default_factory=Optim)
    output: str = Field(description="Folder the model is written to; it must not exist.")
