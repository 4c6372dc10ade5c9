"""The recipe: frozen pydantic models. Each field's description is its only documentation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from cupola.core.config.objective import Objective
from cupola.core.config.reward import Reward
from cupola.core.config.sampler import SamplerSection
from cupola.core.config.section import (
    Count,
    Decay,
    Int63,
    Misfit,
    Positive,
    PositiveInt,
    Section,
    Share,
    Temperature,
    Text,
    changed,
)
from cupola.core.config.shared import Optim, Seed, Source, Threads
from cupola.core.records import Sampling


class Run(Section):
    name: str = Field(
        "run", pattern=r"^\w[\w .-]*$", description="Folder name under `folder`; a run never shares a folder."
    )
    folder: Text = Field("runs", description="Where run folders stand.")
    seed: Seed = 0
    steps: PositiveInt = Field(100, description="Sample-and-update steps.")
    threads: Threads = 0
    keep_rollouts: Count = Field(
        0,
        description="Steps whose rollouts are kept, newest first, beside those that were validated; 0 keeps all.",
    )
    engine: Literal["cupola", "trl"] = Field(
        "cupola", description="What samples and updates: cupola's own loop, or TRL's GRPOTrainer (docs/trl.md)."
    )
    trl: dict[str, Any] = Field(
        default_factory=dict,
        description="Further arguments of TRL's GRPOConfig, where the recipe has no key of its own (`use_vllm`, ...).",
    )

    @model_validator(mode="after")
    def _engine_fits(self) -> Run:
        if self.trl and self.engine != "trl":
            raise Misfit("trl", "are arguments of TRL's trainer; set run.engine = 'trl', or leave them out")
        return self


class Lora(Section):
    """Low-rank adaptation: W x + (alpha / rank) B A x with W frozen.

    There is no dropout: it would make the policy that is trained another than the one that is sampled, so that the
    first update's ratio were not 1.
    """

    rank: Annotated[PositiveInt, Field(le=65536)] = Field(16, description="Rows of A and columns of B.")
    alpha: PositiveInt = Field(32, description="The correction is multiplied by alpha / rank.")
    targets: list[Text] = Field(
        default_factory=list,
        description="Linear layers that get an adapter, by the last part of their name (`q_proj`); empty: all but the "
        "head, as peft's `all-linear`.",
    )


class Model(Section):
    source: Text = Field("embedded", description="`embedded`, a model folder, or a hub name.")
    dtype: Literal["float32", "bfloat16", "float64"] = Field("float32", description="Type of the weights in training.")
    device: str = Field("auto", description="`auto` takes the accelerator if there is one, else the CPU.")
    lora: Lora | None = Field(
        None, description="Train an adapter of low rank beside the frozen weights (absent: train all weights)."
    )


class Data(Source):
    """Questions to train on, and others to validate with."""

    validation_file: Text | None = Field(
        None, description="Validation questions; without it a share of `file` by hash."
    )
    validation_share: Share = Field(0.1, description="Share of `file` held out for validation when it has no file.")
    answer_required: bool = Field(True, description="Whether every row needs an `answer`.")
    max_bad_gold: Share = Field(0.0, description="Largest share of rows whose answer no verifier can read.")


class Selection(Section):
    """Which of the training prompts a step asks."""

    kind: Literal["uniform", "aimed"] = Field(
        "uniform",
        description="Each prompt once an epoch, or most often those whose estimated solve rate is near `target`.",
    )
    target: Annotated[float, Field(gt=0, lt=1)] = Field(0.5, description="Solve rate aimed at.")
    width: Positive = Field(0.25, description="An estimate so far from `target` makes a prompt e times rarer.")
    decay: Decay = Field(0.5, description="What older answers keep of their count each time a prompt is met again.")
    explore: Share = Field(0.1, description="Share of a batch that is drawn as `uniform` does, whatever the estimates.")

    @model_validator(mode="after")
    def _used(self) -> Selection:
        idle = changed(self, {}) if self.kind == "uniform" else []
        if idle:
            raise Misfit(idle[0], "is of no use to kind 'uniform'; set kind to 'aimed', or leave this out")
        return self


class SamplingSection(Section):
    prompts_per_step: Annotated[PositiveInt, Field(le=10**6)] = Field(32, description="Prompts drawn per step.")
    group_size: Annotated[PositiveInt, Field(le=10**5)] = Field(8, description="Completions per prompt (G).")
    max_tokens: PositiveInt = Field(256, description="Longest completion in tokens; longer is cut, reason `length`.")
    temperature: Temperature = Field(1.0, description="Sampling temperature.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Must be 1: see `top_k`.")
    top_k: Count = Field(0, description="Must be 0: a cut distribution is not the one whose gradient is taken.")
    max_batches: PositiveInt = Field(
        1,
        description="Dynamic sampling: at most so many batches are drawn until `prompts_per_step` groups have signal; "
        "1 trains on whatever comes.",
    )
    one_step_off: bool = Field(
        False,
        description="Draw the next step's answers while this one's update runs, with the weights from before it.",
    )
    selection: Selection = Field(default_factory=Selection, description="Which prompts are drawn.")
    stop: list[Text] = Field(default_factory=list, description="Strings that end a completion.")
    stop_token_ids: list[Int63] = Field(default_factory=list, description="Further token ids that end a completion.")

    @model_validator(mode="after")
    def _draws_ahead(self) -> SamplingSection:
        if self.one_step_off and self.selection.kind == "aimed":
            raise Misfit(
                "one_step_off",
                "draws before the answers of the step before are known, by which selection.kind 'aimed' chooses; take "
                "'uniform'",
            )
        return self

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


class Updates(Optim):
    """The optimiser, and how often it steps on one batch."""

    minibatches: PositiveInt = Field(1, description="Optimiser steps one pass over a batch is cut into.")
    epochs: PositiveInt = Field(1, description="Passes over each batch.")
    micro_rollouts: PositiveInt | None = Field(
        None, description="Rollouts per forward, in order, in place of `micro_tokens` (absent: as many as those hold)."
    )
    gradient_checkpointing: bool = Field(
        False, description="Compute each layer again for its gradient instead of holding it: less memory, more time."
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        "stop",
        description="What follows an optimiser step that is refused because a loss or gradient is not finite; the step "
        "is recorded with its rollouts either way.",
    )


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
    exact_share_every: Count = Field(
        0, description="Measure each rollout's own gradient every so many optimiser steps; 0 never. Slow."
    )


class Recipe(Section):
    """A training recipe (`cupola train`)."""

    run: Run = Field(default_factory=Run)
    model: Model = Field(default_factory=Model)
    data: Data
    sampling: SamplingSection = Field(default_factory=SamplingSection)
    sampler: SamplerSection = Field(default_factory=SamplerSection)
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
        sampling, optim = self.sampling, self.optim
        rollouts = sampling.prompts_per_step * sampling.group_size
        if optim.minibatches > rollouts:
            raise Misfit("optim.minibatches", f"cuts a batch of {rollouts} rollouts into more pieces than it has")
        if self.objective.masks.kl_cov and optim.minibatches * optim.epochs == 1:
            raise Misfit(
                "objective.masks.kl_cov",
                "charges for leaving the policy that a batch began with, which its only optimiser step has not left; "
                "take more optim.minibatches or optim.epochs",
            )
        return self

    @model_validator(mode="after")
    def _groups_fit(self) -> Recipe:
        sampling, objective = self.sampling, self.objective
        if objective.transform == "pass_at_k" and objective.pass_k > sampling.group_size:
            raise Misfit("objective.pass_k", f"is more than sampling.group_size = {sampling.group_size}")
        if sampling.group_size > 1:
            return self
        if objective.baseline not in ("none", "critic") or objective.scale != "none":
            raise Misfit(
                "sampling.group_size",
                "1 makes groups that cannot be compared, so it goes with baseline 'critic' or 'none' and scale 'none' "
                "alone; use at least 2",
            )
        if objective.transform == "best_only":
            raise Misfit("sampling.group_size", "1 leaves transform 'best_only' no second answer; use at least 2")
        if sampling.max_batches > 1:
            raise Misfit(
                "sampling.max_batches",
                "above 1 draws until enough groups differ within, which a group of 1 never does; take 1, or a larger "
                "sampling.group_size",
            )
        return self

    @model_validator(mode="after")
    def _dynamic_sampling_fits(self) -> Recipe:
        """Refuse to discard groups that teach."""
        objective = self.objective
        compared = objective.baseline in ("group_mean", "leave_one_out") and objective.combine == "sum"
        if self.sampling.max_batches > 1 and not compared:
            what = "combine = 'apart'" if objective.combine == "apart" else f"baseline = {objective.baseline!r}"
            raise Misfit(
                "sampling.max_batches",
                f"above 1 discards groups of equal rewards, but with objective.{what} they have advantages; take 1",
            )
        return self

    @model_validator(mode="after")
    def _stale_answers_are_corrected(self) -> Recipe:
        if self.sampling.one_step_off and self.objective.correction.level == "none":
            raise Misfit(
                "sampling.one_step_off",
                "trains on answers of weights one step old, whose weight has to be corrected; set "
                "objective.correction.level to 'token' or 'sequence'",
            )
        return self

    @model_validator(mode="after")
    def _reference_fits(self) -> Recipe:
        kind = self.objective.reference.kind
        if kind == "adapter_off" and self.model.lora is None:
            raise Misfit("objective.reference.kind", "'adapter_off' needs an adapter; add [model.lora], or use 'start'")
        if kind == "moving" and self.model.lora is not None:
            raise Misfit(
                "objective.reference.kind",
                "'moving' mixes weights, but a mixture of two adapters' factors is not the mixture of what they do; "
                "with [model.lora] use 'adapter_off'",
            )
        return self

    @model_validator(mode="after")
    def _sampler_fits(self) -> Recipe:
        if self.sampler.kind != "vllm":
            return self
        if self.model.dtype == "float64":
            raise Misfit("model.dtype", "'float64' is a type that sampler.kind 'vllm' cannot hold; use 'float32'")
        if self.model.lora is not None and self.sampler.transfer != "files":
            raise Misfit(
                "sampler.transfer",
                f"{self.sampler.transfer!r} sends whole weights, but an adapter is loaded by name from a folder; with "
                "[model.lora] use 'files' and sampler.folder",
            )
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
