"""Seconds per training step and peak memory beside TRL's GRPOTrainer, on the same weights, prompts and lengths.

    python benchmarks/against_trl.py embedded smollm2 smollm2-dead

Each side trains in a process of its own, told step by step when to go, so that the two alternate and the machine's
drift meets both. Completions have the same forced length, float32, beta 0, the same threads and learning rate; TRL logs
what it logs by default, cupola records and diagnoses as it always does. Prints medians, the ratio of each pair, and the
peak resident memory of each process. Refuses a loaded machine. Needs the extra `[trl]`, and `make smollm2` for the real
model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from idle import wait_until_idle

from cupola.core.records import Action, Group

ROOT = Path(__file__).parent.parent
LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class Workload:
    """A step's shape: `dead` of its groups are paid alike, so that they teach nothing; `recomputed`: by cupola too."""

    model: Path
    task: str
    chat: bool
    prompts: int
    group_size: int
    tokens: int
    dead: int
    threads: int
    recomputed: bool = False


EMBEDDED = ROOT / "src" / "cupola" / "train" / "models" / "embedded"
SMOLLM2 = ROOT / "models" / "smollm2-135m"
WORKLOADS = {
    "embedded": Workload(EMBEDDED, "arithmetic", False, 16, 8, 24, 0, 1),
    "smollm2": Workload(SMOLLM2, "sums", True, 4, 4, 48, 0, 2),
    "smollm2-dead": Workload(SMOLLM2, "sums", True, 4, 4, 48, 3, 2),
    "smollm2-recomputed": Workload(SMOLLM2, "sums", True, 4, 4, 48, 0, 2, True),
}


def pay(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Rewards by place alone: unequal in live groups, 0 in dead ones. A TRL reward function, which both sides call."""
    work = WORKLOADS[os.environ["WORKLOAD"]]
    places = [divmod(i, work.group_size) for i in range(len(completions))]
    return [0.0 if group < work.dead else place / work.group_size for group, place in places]


def questions(work: Workload, count: int) -> list[Any]:
    """The prompts of both sides: text, or chat messages."""
    from cupola.core.config import Data
    from cupola.train.tasks import open_source

    source = open_source(Data(task=work.task, chat=work.chat), [], 0)
    return [prompt.content for prompt in source.draw(0, count)]


class Turns:
    """A worker's side of the conversation: it waits for a line before each step and answers with the step's seconds."""

    def __init__(self) -> None:
        self.started: float | None = None

    def next(self, **more: float | None) -> None:
        """End the step that runs, if one does, and wait to be told to begin another."""
        if self.started is not None:
            print(json.dumps({"seconds": time.perf_counter() - self.started, **more}), flush=True)
        else:
            print(json.dumps({"ready": True}), flush=True)
        if sys.stdin.readline().strip() != "go":
            print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}), flush=True)
            os._exit(0)
        self.started = time.perf_counter()


def run_cupola(work: Workload, folder: str) -> None:
    """The training loop as `cupola train` runs it, with an end token that no model writes."""
    from cupola.core.config import Recipe, dump, validate
    from cupola.core.runlog import RunWriter
    from cupola.train.loop import Position, Run, train
    from cupola.watch.diagnosis import LiveDiagnosis
    from cupola.workflows.assemble import assemble, model_notes
    from cupola.workflows.manifest import new_manifest

    recipe = validate(
        {
            "run": {"name": "cupola", "folder": folder, "steps": 10**6, "threads": work.threads},
            "model": {"source": str(work.model)},
            "data": {"task": work.task, "chat": work.chat},
            "sampling": {
                "prompts_per_step": work.prompts,
                "group_size": work.group_size,
                "max_tokens": work.tokens,
            },
            "reward": [{"name": "pay", "kind": "function", "path": f"{__file__}:pay"}],
            "objective": {"preset": "grpo", "beta": 0.0},
            "optim": {
                "learning_rate": LEARNING_RATE,
                "schedule": "constant",
                "gradient_checkpointing": work.recomputed,
            },
            "validation": {"every": 10**6, "questions": 1, "samples": 0, "greedy": False},
        },
        Recipe,
    )
    parts = assemble(recipe)
    parts.policy.stop_ids = (-1,)
    learner, turns = parts.learner(), Turns()
    manifest = new_manifest(recipe, {}, parts.source.notes(), model_notes(parts), parts.files())
    writer = RunWriter.create(Path(folder) / "cupola", manifest, dump(recipe))
    live = LiveDiagnosis(recipe.model_dump(mode="json"), lambda step, finding: None, [])

    def wait(step: int, rows: Sequence[Mapping[str, Any]], groups: Sequence[Group]) -> Action:
        turns.next(step_time=rows[0]["step_time"] if step else None)
        return "continue"

    train(Run(recipe, learner, parts.collector(), parts.selector, [], writer, [live, wait]), Position())


def run_trl(work: Workload, folder: str, checkpointing: bool | None) -> None:
    """GRPOTrainer with its defaults beside what the workload fixes; the whole batch is one micro-batch."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.set_num_threads(work.threads)
    turns, size = Turns(), work.prompts * work.group_size
    more: dict[str, Any] = {} if checkpointing is None else {"gradient_checkpointing": checkpointing}

    class Step(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            turns.next()

    trainer = GRPOTrainer(
        model=str(work.model),
        reward_funcs=[pay],
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=size,
            num_generations=work.group_size,
            max_completion_length=work.tokens,
            generation_kwargs={"min_new_tokens": work.tokens},
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_steps=10**6,
            beta=0.0,
            loss_type="grpo",
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"},
            **more,
        ),
        train_dataset=Dataset.from_dict({"prompt": questions(work, 64)}),
        callbacks=[Step()],
    )
    trainer.train()


SIDES: dict[str, Callable[[Workload, str], None]] = {
    "cupola": run_cupola,
    "trl": lambda work, folder: run_trl(work, folder, None),
    "trl-no-checkpointing": lambda work, folder: run_trl(work, folder, False),
}


class Worker:
    """One side's process."""

    def __init__(self, side: str, workload: str, folder: str) -> None:
        threads = str(WORKLOADS[workload].threads)
        given = {"WORKLOAD": workload, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, __file__, workload, "--side", side, "--folder", folder]
        self.process = subprocess.Popen(
            command, env={**os.environ, **given}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer("ready")

    def step(self) -> dict[str, float]:
        """Run one step; its seconds, and what the worker measured of it itself."""
        return self._tell("go", "seconds")

    def end(self) -> float:
        """Peak resident memory in GB."""
        return self._tell("end", "peak")["peak"]

    def _tell(self, word: str, key: str) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._answer(key)

    def _answer(self, key: str) -> dict[str, float]:
        """The next line that is an answer: TRL prints its log to the same stream."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f'{{"{key}"'):
                answer: dict[str, float] = json.loads(line)
                return answer
        sys.exit(f"a worker ended early: {self.process.args!r}")


def compare(workload: str, peer: str, steps: int) -> None:
    """Both sides in turn, one warm-up step each; prints a line per figure."""
    with tempfile.TemporaryDirectory() as folder:
        sides = {side: Worker(side, workload, f"{folder}/{side}") for side in ("cupola", peer)}
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        recording = []
        for step in range(steps + 1):
            for side, worker in sides.items():
                found = worker.step()
                if step:
                    seconds[side].append(found["seconds"])
                    if side == "cupola":
                        recording.append(found["seconds"] - found["step_time"])
        peaks = {side: worker.end() for side, worker in sides.items()}
    ratios = [ours / theirs for ours, theirs in zip(seconds["cupola"], seconds[peer], strict=True)]
    print(f"{workload} against {peer}, {steps} steps each")
    for side in sides:
        print(f"  {side:<22} {median(seconds[side]):7.3f} s a step   peak {peaks[side]:.2f} GB")
    print(f"  time ratio   {median(ratios):.2f} (pairs {min(ratios):.2f} to {max(ratios):.2f})")
    print(f"  memory ratio {peaks['cupola'] / peaks[peer]:.2f}")
    print(f"  recording and live diagnosis {1000 * median(recording):.1f} ms a step", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="+", choices=sorted(WORKLOADS))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--peer", choices=[side for side in SIDES if side != "cupola"], default="trl")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        SIDES[options.side](WORKLOADS[options.workloads[0]], options.folder)
        return
    for workload in options.workloads:
        wait_until_idle()
        compare(workload, options.peer, options.steps)


if __name__ == "__main__":
    main()
