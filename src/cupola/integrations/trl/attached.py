"""The run folder of a GRPOTrainer that somebody else built."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from cupola.core.catalogue import wording
from cupola.core.records import SCHEMA_VERSION, Action, Content, Finding, Prompt, RecipeError, Rollout, Verdict
from cupola.core.runlog import RunWriter
from cupola.integrations.trl.record import Generated, Recorder, Step, completion, record, versions
from cupola.watch.diagnosis import LiveDiagnosis
from cupola.workflows.manifest import attempt_ended, attempt_started, git_revision

#: Columns in which datasets for GRPO keep the reference answer.
ANSWERS = ("answer", "solution", "ground_truth")


@dataclass(frozen=True)
class Attached:
    """A foreign trainer and what is written of it; see `attach` for the rest."""

    trainer: Any
    root: Path
    names: tuple[str, ...]
    correctness: str
    correct_at: float
    say: Callable[[str], None]

    @classmethod
    def to(
        cls,
        trainer: Any,
        folder: str | Path | None,
        correctness: str | None,
        correct_at: float,
        say: Callable[[str], None],
    ) -> Attached:
        """Wrap what is to be seen; the folder is made when training begins."""
        names = _distinct(trainer.reward_func_names)
        if correctness is not None and correctness not in names:
            raise RecipeError(
                f"correctness: the trainer has no reward function {correctness!r}; it has {', '.join(names)}"
            )
        root = Path(trainer.args.output_dir) / "cupola" if folder is None else Path(folder)
        run = cls(trainer, root, tuple(names), correctness or names[0], correct_at, say)
        record(trainer, Recorder(trainer, run.read, run.write, done=run.done))
        return run

    def read(self, generated: Generated) -> list[tuple[Prompt, Rollout]]:
        """What TRL knows of each answer: its text, its tokens, and each reward function's score."""
        answers = zip(generated.rows, generated.completions, generated.completion_ids, strict=True)
        found = []
        for (row, text, ids), scores in zip(answers, generated.rewards.tolist(), strict=True):
            verdicts = {name: self._verdict(name, score) for name, score in zip(self.names, scores, strict=True)}
            decisive = verdicts[self.correctness]
            answer = completion(_text(text), ids, self.trainer.eos_token_ids, self.trainer.state.global_step)
            correct = None if decisive.score is None else decisive.status == "ok"
            found.append((_prompt(row), Rollout(answer, verdicts, self._total(scores), correct)))
        return found

    def write(self, step: Step) -> Action:
        """Add the step to the folder; training goes on whatever is found."""
        if not self.trainer.accelerator.is_main_process:
            return "continue"
        if step.number == 0:
            attempt_started(self.writer, self.trainer.state.global_step)
            return "continue"
        self.writer.rollouts(step.number, step.groups, step.outcomes, self.correctness)
        row = self.writer.metrics(step.number, "train", step.metrics(self.correctness))
        self.diagnosis(step.number, [row], step.groups)
        return "continue"

    def done(self) -> None:
        if self.trainer.accelerator.is_main_process:
            attempt_ended(self.writer, "finished", None)

    @cached_property
    def writer(self) -> RunWriter:
        """Makes the folder on first use."""
        recipe = self._recipe()
        manifest = {
            "schema": SCHEMA_VERSION,
            "name": self.root.name,
            "engine": "trl",
            "state": "running",
            "created": round(time.time(), 3),
            "recipe": recipe,
            "correctness": self.correctness,
            "trl": {"attached": True, "processes": self.trainer.accelerator.num_processes},
            "versions": versions(),
            "git": git_revision(),
            "attempts": [],
        }
        return RunWriter.create(self.root, manifest, tomli_w.dumps(recipe))

    @cached_property
    def diagnosis(self) -> LiveDiagnosis:
        def found(step: int, finding: Finding) -> None:
            self.writer.finding(step, finding)
            words = wording(finding.name, finding.values, finding.steps)
            self.say(f"step {step}: {finding.severity}: {words.title}: {words.do}")

        return LiveDiagnosis(self._recipe(), found)

    def _recipe(self) -> dict[str, Any]:
        """The part of a recipe that the trainer tells; what is not known is not there."""
        args = self.trainer.args
        return {
            "run": {"name": self.root.name, "seed": args.seed, "steps": self.trainer.state.max_steps, "engine": "trl"},
            "model": {"source": str(self.trainer.model.config._name_or_path)},
            "sampling": {
                "prompts_per_step": args.generation_batch_size // args.num_generations,
                "group_size": args.num_generations,
                "max_tokens": args.max_completion_length,
                "temperature": args.temperature,
            },
            "reward": [{"name": name, "kind": "function", "optional": True, **self._role(name)} for name in self.names],
            "objective": {"baseline": "group_mean", "beta": args.beta},
            "optim": {"learning_rate": args.learning_rate},
            "validation": {"samples": 0, "greedy": False},
        }

    def _role(self, name: str) -> dict[str, str]:
        return {"role": "correctness"} if name == self.correctness else {}

    def _verdict(self, name: str, score: float) -> Verdict:
        if math.isnan(score):
            return Verdict(None, "skipped", reason="the function returned None", verifier=name)
        return Verdict(score, "ok" if score >= self.correct_at else "wrong", verifier=name)

    def _total(self, scores: Sequence[float]) -> float | None:
        """TRL's sum: a function that gives no score adds nothing."""
        weights = self.trainer.reward_weights.tolist()
        given = [weight * score for weight, score in zip(weights, scores, strict=True) if not math.isnan(score)]
        return sum(given) if given else None


def _distinct(names: Sequence[str]) -> list[str]:
    """Two functions of one name, lambdas say, get their numbers."""
    return [name if names.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(names)]


def _prompt(row: Any) -> Prompt:
    content = row["prompt"]
    answer = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
    return Prompt(_content(content), None if answer is None else str(answer))


def _content(content: Any) -> Content:
    if isinstance(content, str):
        return content
    return tuple({"role": str(each["role"]), "content": _plain(each.get("content"))} for each in content)


def _text(answer: Any) -> str:
    """A completion for a person; a conversation message by message."""
    return answer if isinstance(answer, str) else "\n".join(_plain(each.get("content")) for each in answer)


def _plain(content: Any) -> str:
    """A message's text; images and the like in the words of their type."""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
