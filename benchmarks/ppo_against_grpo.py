"""PPO against GRPO on the demo's task: models, memory, time, and accuracy after equal generated tokens.

    python benchmarks/ppo_against_grpo.py [--seeds 0 1 2]

Trains recipes/demo.toml and recipes/demo-ppo.toml in turn, each seed in a process of its own, and prints a table of the
medians over the seeds. Accuracy is validation pass@1 at the training temperature, read off between two validations
in proportion to the tokens generated. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from idle import wait_until_idle

from cupola.core.config import load_recipe
from cupola.core.runlog import RunReader
from cupola.workflows.assemble import assemble

ROOT = Path(__file__).parent.parent
RECIPES = {"grpo": ROOT / "recipes" / "demo.toml", "ppo": ROOT / "recipes" / "demo-ppo.toml"}


@dataclass(frozen=True)
class Measured:
    """One run: seconds per step without validations, peak GB, tokens generated in all, and pass@1 by tokens."""

    step_seconds: float
    peak: float
    tokens: float
    accuracy: list[tuple[float, float]]

    def at(self, tokens: float) -> float:
        """Validation pass@1 after so many generated tokens."""
        generated, correct = zip(*self.accuracy, strict=True)
        return float(np.interp(tokens, np.array(generated), np.array(correct)))


def models(recipe: Path) -> dict[str, int]:
    """Parameters of each model that the run holds."""
    learner = assemble(load_recipe([recipe])[0]).learner()
    found = {"policy": learner.policy.parameters}
    if learner.reference is not None:
        found["reference"] = sum(p.numel() for p in learner.reference.model.parameters())
    if learner.critic is not None:
        found["critic"] = sum(p.numel() for p in learner.critic.parameters())
    return found


def train(name: str, seed: int, folder: str) -> Measured:
    """One run, with the peak of its own process."""
    run = f"{name}-{seed}"
    command = [str(Path(sys.executable).with_name("cupola")), "train", str(RECIPES[name])]
    given = [f"run.name={run}", f"run.folder={folder}", f"run.seed={seed}", "evaluation.at_end=false"]
    process = subprocess.Popen([*command, *given], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3):  # 3: a finding
        sys.exit(f"{run}: cupola train failed")
    rows = list(RunReader(Path(folder) / run).metrics())
    spent = {row["step"]: row["tokens/spent"] for row in rows if row["split"] == "train"}
    accuracy = [
        (sum(n for step, n in spent.items() if step <= row["step"]), row["correct/mean"])
        for row in rows
        if row["split"] == "validation"
    ]
    seconds = median(row["step_time"] for row in rows if row["split"] == "train")
    return Measured(seconds, usage.ru_maxrss / 2**20, sum(spent.values()), accuracy)


def table(runs: dict[str, list[Measured]]) -> list[tuple[str, str, str]]:
    """Rows of (what, grpo, ppo)."""
    budget = min(run.tokens for each in runs.values() for run in each)
    held = {name: models(RECIPES[name]) for name in runs}
    rows = [
        ("models in memory", *(", ".join(f"{k} {n:,}" for k, n in held[name].items()) for name in runs)),
        ("peak memory, GB", *(f"{median(run.peak for run in each):.2f}" for each in runs.values())),
        ("time per step, s", *(f"{median(run.step_seconds for run in each):.2f}" for each in runs.values())),
        ("tokens generated", *(f"{median(run.tokens for run in each):,.0f}" for each in runs.values())),
    ]
    for share in (0.25, 0.5, 1.0):
        tokens = budget * share
        found = [f"{median(run.at(tokens) for run in each):.1%}" for each in runs.values()]
        spread = [
            f"{min(r.at(tokens) for r in each):.1%} to {max(r.at(tokens) for r in each):.1%}" for each in runs.values()
        ]
        rows.append((f"pass@1 after {tokens:,.0f} tokens", *(f"{f} ({s})" for f, s in zip(found, spread, strict=True))))
    return [(str(a), str(b), str(c)) for a, b, c in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    wait_until_idle()
    runs: dict[str, list[Measured]] = {name: [] for name in RECIPES}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            for name in RECIPES:
                runs[name].append(train(name, seed, folder))
    print(f"| median of seeds {', '.join(map(str, seeds))} | grpo | ppo |\n|---|---|---|")
    for row in table(runs):
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
