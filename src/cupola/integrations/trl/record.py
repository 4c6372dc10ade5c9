"""What a GRPOTrainer generates, collected into the steps of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState

from cupola.core.records import Action, Completion, Group, Outcome, Prompt, Rollout
from cupola.train.rollout import Metrics, group_metrics, headline, part_metrics
from cupola.workflows import manifest


@dataclass(frozen=True, eq=False)
class Generated:
    """A generation of this process as TRL scored it: the dataset's rows, answers, `rewards` (B, K), NaN for none."""

    rows: Sequence[Mapping[str, Any]]
    completions: Sequence[Any]
    completion_ids: Sequence[list[int]]
    rewards: Any


@dataclass(frozen=True, eq=False)
class Step:
    """A step that TRL has finished: its groups with what became of them, TRL's own metrics, and the wall time.

    Step 0 is the policy before training, without groups.
    """

    number: int
    groups: Sequence[Group] = ()
    outcomes: Mapping[str, Sequence[Outcome]] = field(default_factory=dict)
    logs: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def metrics(self, part: str) -> Metrics:
        """TRL's keys. What the groups tell stands in place of TRL's value, which is 0 where nothing is defined."""
        pairs = [pair for g in self.groups for pair in zip(g.rollouts, self.outcomes[g.id], strict=True)]
        rollouts = [rollout for rollout, _ in pairs]
        return {
            **self.logs,
            **headline(self.groups),
            **part_metrics(rollouts),
            **group_metrics(self.groups, part),
            "entropy": self.logs.get("entropy"),  # TRL knows that of a batch, not of a rollout
            "groups/drawn": len(self.groups),
            "tokens/spent": sum(rollout.completion.n_tokens for rollout in rollouts),
            "tokens/wasted": sum(rollout.completion.n_tokens for rollout, became in pairs if became.weight_share == 0),
            "step_time": self.seconds,
        }


#: A generation as prompts and scored rollouts, in order.
Reader = Callable[[Generated], Sequence[tuple[Prompt, Rollout]]]

#: Called on every process with each finished step; its groups are the same on all.
Writer = Callable[[Step], Action]


class Recorder(TrainerCallback):
    """Collects what `trainer` generates and hands over each step once its updates are done and TRL has logged them.

    `updates` are the optimiser steps that count as one step; `done` is called after the last.
    """

    def __init__(
        self,
        trainer: Any,
        read: Reader,
        write: Writer,
        updates: int = 1,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.trainer, self.read, self.write, self.updates, self.done = trainer, read, write, updates, done
        self.action: Action = "continue"
        self._rows: list[tuple[Prompt, Rollout, Outcome]] = []
        self._started: float | None = None
        self._waits = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        return self._hand_over(Step(0), control)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """A step is finished where TRL would generate next; where it logs now, what that says belongs to the step."""
        micro_steps = state.global_step * args.gradient_accumulation_steps
        if self._rows and micro_steps % (args.steps_per_generation * args.num_iterations) == 0:
            self._waits = control.should_log
            if not self._waits:
                return self._finish(state, control, {})
        return control

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **further: Any) -> TrainerControl:
        if self._waits and "loss" in further["logs"]:
            self._waits = False
            return self._finish(state, control, further["logs"])
        return control

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Training may end within a generation."""
        if self._rows:
            control = self._finish(state, control, {})
        self.done()
        return control

    def keep(self, generated: Generated, output: Mapping[str, Any]) -> None:
        """Take in a generation of this process, and with it those of all others, in the order of the dataset."""
        lengths = [len(ids) for ids in generated.completion_ids]
        old, sampled = (_of_rows(output.get(f"{name}_per_token_logps"), lengths) for name in ("old", "sampling"))
        own = []
        for i, (prompt, rollout) in enumerate(self.read(generated)):
            if sampled[i] is not None:
                rollout = replace(rollout, completion=replace(rollout.completion, logps=sampled[i]))
            advantage = None if rollout.reward is None else float(output["advantages"][i])
            own.append((prompt, rollout, Outcome(advantage, logp_old=old[i], used=True)))
        self._rows += gather_object(own)

    def _finish(self, state: TrainerState, control: TrainerControl, logs: Mapping[str, Any]) -> TrainerControl:
        number = -(-state.global_step // self.updates)
        size = self.trainer.num_generations
        groups, outcomes = [], {}
        for index, at in enumerate(range(0, len(self._rows), size)):
            rows = self._rows[at : at + size]
            id = f"{number:06d}-train-sampled-{index:04d}"
            groups.append(Group(id, rows[0][0], tuple(rollout for _, rollout, _ in rows)))
            outcomes[id] = [self._weighed(outcome, groups[-1]) for _, _, outcome in rows]
        seconds = time.perf_counter() - (self._started or time.perf_counter())
        self._rows, self._started = [], None
        return self._hand_over(Step(number, groups, outcomes, logs, seconds), control)

    def _weighed(self, outcome: Outcome, group: Group) -> Outcome:
        """TRL measures no share of the gradient's weight; without KL and entropy that of a dead group is 0.

        Of rewards that are normalised apart, an equal total says nothing.
        """
        args = self.trainer.args
        alone = not (self.trainer.beta or args.entropy_coef or args.use_adaptive_entropy)
        dead = group.state == "dead" and args.multi_objective_aggregation == "sum_then_normalize"
        silent = alone and (dead or not outcome.advantage)
        return replace(outcome, weight_share=0.0) if silent else outcome

    def _hand_over(self, step: Step, control: TrainerControl) -> TrainerControl:
        self.action = self.write(step)
        if self.action != "continue":
            control.should_training_stop = True
        return control


def record(trainer: Any, recorder: Recorder) -> None:
    """Have `recorder` see every training generation of `trainer`, and its steps.

    TRL 1.16 has no hook where token ids, rewards and advantages are at hand, so two methods of this one trainer are
    wrapped; what they compute stays as it is.
    """
    score, generate = trainer._calculate_rewards, trainer._generate_and_score_completions
    scored: list[Generated] = []

    def calculate_rewards(rows: Any, prompts: Any, completions: Any, completion_ids: Any) -> Any:
        rewards = score(rows, prompts, completions, completion_ids)
        first = trainer.accelerator.process_index * len(prompts)  # TRL has gathered those of all processes
        scored.append(Generated(rows, completions, completion_ids, rewards[first : first + len(prompts)]))
        return rewards

    def generate_and_score(inputs: Any) -> Any:
        output = generate(inputs)
        generated = scored.pop()
        if trainer.model.training:
            recorder.keep(generated, output)
        return output

    trainer._calculate_rewards, trainer._generate_and_score_completions = calculate_rewards, generate_and_score
    trainer.add_callback(recorder)


def completion(text: str, ids: Sequence[int], stop_ids: Sequence[int], version: int) -> Completion:
    """An answer of TRL's, whose sampler tells neither log-probabilities (NaN, until vLLM's come) nor entropies."""
    unknown = np.full(len(ids), np.nan, dtype=np.float32)
    ended = bool(ids) and ids[-1] in stop_ids
    return Completion(text, np.array(ids, dtype=np.int64), unknown, None, "stop" if ended else "length", version)


def _of_rows(padded: Any, lengths: Sequence[int]) -> list[Any]:
    """Each row's own entries of a tensor (B, T) as float32, or `None` for each where TRL has no such tensor."""
    if padded is None:
        return [None] * len(lengths)
    return [row[:n].astype(np.float32) for row, n in zip(padded.float().cpu().numpy(), lengths, strict=True)]


def versions() -> dict[str, str | None]:
    """Those of every run, and of what TRL stands on."""
    return {**manifest.versions(), **{name: version(name) for name in ("trl", "accelerate", "datasets")}}
