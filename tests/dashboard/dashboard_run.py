"""A run folder written by the real writer, with values a reader of the tests can compute by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from cupola.core.records import Completion, Group, Outcome, Prompt, Rollout, Verdict
from cupola.core.runlog import RunWriter

HOSTILE = "<script>document.title='owned'</script>\u202eevil\x07 & 'quoted'"
MANIFEST = {
    "schema": 1,
    "state": "finished",
    "recipe": {
        "run": {"seed": 7, "steps": 60},
        "model": {"source": "embedded"},
        "sampling": {"max_tokens": 32},
        "objective": {"preset": "dr_grpo"},
    },
    "versions": {"cupola": "0.1.0", "torch": "2.13.0"},
    "git_revision": "0123abc",
}
LEDGER = [
    {
        "update": 0,
        "term": "policy",
        "rule": "constant",
        "formula": "1 / (N · L_max)",
        "value": 1 / 16384,
        "counted": {"rollouts": 512, "tokens": 12800, "prompts": 32},
        "excluded": {"unscorable": 2},
        "shares": {"correct": 0.5},
        "words": ["Every token weighs the same: 1 / (512 · 32).", "A long wrong answer is pushed down harder."],
        "why": "Length must not be paid for.",
    },
]
SUMMARY = {
    "id": "at-end",
    "split": "test",
    "questions": 300,
    "samples": 16,
    "temperature": 1.0,
    "arms": {
        "base": {
            "greedy": {"value": 0.503, "low": 0.447, "high": 0.559},
            "best_temperature": {"temperature": 0.3, "value": 0.498, "low": 0.45, "high": 0.546},
            "pass@1": {"value": 0.412, "low": 0.38, "high": 0.444},
            "maj@16": {"value": 0.537, "low": 0.48, "high": 0.593},
            "pass@16": {"value": 0.883, "low": 0.847, "high": 0.92},
        },
        "trained": {
            "greedy": {"value": 0.84, "low": 0.798, "high": 0.882},
            "pass@1": {"value": 0.781, "low": 0.745, "high": 0.817},
            "maj@16": {"value": 0.847, "low": 0.806, "high": 0.888},
            "pass@16": {"value": 0.93, "low": 0.901, "high": 0.959},
        },
    },
    "differences": [
        {"name": "trained pass@1 - base pass@1", "value": 0.369, "low": 0.33, "high": 0.408},
        {"name": "trained greedy - base best", "value": 0.337, "low": 0.278, "high": 0.396},
        {"name": "trained pass@1 - base best", "value": 0.283, "low": 0.233, "high": 0.333},
        {"name": "trained pass@16 - base pass@16", "value": 0.047, "low": -0.002, "high": 0.096},
    ],
    "verdict": {"word": "learned", "reason": "Greedy and sampled answers both beat the base at its best temperature."},
}


def rollout(text: str, right: bool | None, tokens: int = 25, tidy: bool = True) -> Rollout:
    """A completion with a verdict on its answer and one on its format (weight 0.1)."""
    ids = np.arange(tokens)
    zeros = np.zeros(tokens, dtype=np.float32)
    completion = Completion(text, ids, zeros - 0.5, zeros + 0.4, "length" if tokens == 32 else "stop", 3)
    if right is None:
        judged = Verdict(None, "error", reason="the verifier broke")
    else:
        judged = Verdict(float(right), "ok" if right else "wrong", extracted=text[-3:])
    reward = None if right is None else right + 0.1 * tidy
    form = Verdict(float(tidy), "ok" if tidy else "parse_fail")
    return Rollout(completion, {"answer": judged, "format": form}, reward, right)


def outcomes(group: Group) -> list[Outcome]:
    """Reward less the group's mean, and equal weight, as a dead group would not have them."""
    if group.state in ("dead", "unscorable"):
        advantage = 0.0 if group.state == "dead" else None
        return [Outcome(advantage, 0.0, None, False, f"{group.state}_group")] * len(group.rollouts)
    mean = sum(group.rewards) / len(group.rewards)
    return [
        Outcome(None, 0.0, None, False, "unscorable")
        if each.reward is None
        else Outcome(each.reward - mean, 1 / 512, None, True)
        for each in group.rollouts
    ]


def train_groups(step: int, count: int, size: int) -> list[Group]:
    """Group g of a step: 0 is dead and all right, 1 dead and all wrong, the others have signal."""
    groups = []
    for number in range(count):
        a, b = 17 * number + step, 31 * number + 5
        right = {0: size, 1: 0}.get(number, 1 + (number + step) % (size - 1))
        answers = []
        for index in range(size):
            total = a + b if index < right else a + b + index
            last_of_live = index == size - 1 and number > 1
            text = f"{chain(a, b)} = {total}"
            answers.append(rollout(text, index < right, 32 if last_of_live else 25, index % 5 != 4 or number < 2))
        groups.append(Group(f"{step}-{number}", Prompt(f"{a}+{b}=", str(a + b)), tuple(answers)))
    return groups


def chain(a: int, b: int) -> str:
    """Four digit pairs with their sums, units first, as the embedded task has them but without carries."""
    pairs = zip(f"{a:04d}"[::-1], f"{b:04d}"[::-1], strict=True)
    return " ".join(f"{x}{y}>{int(x) + int(y):02d}" for x, y in pairs)


#: Right answers of four at the first and at the last validation, by question modulo 11; the rest goes from 1 to 4.
COURSES = [(4, 4), (0, 0), (0, 4), (1, 3), (3, 1), (2, 2), (1, 4), (1, 4), (1, 4), (1, 4), (1, 4)]


def validation_groups(step: int, last: int, questions: int = 60) -> list[Group]:
    """Four sampled answers a question: some always right, some never, most more often as training goes on."""
    groups = []
    for number in range(questions):
        start, end = COURSES[number % 11]
        right = round(start + (end - start) * step / max(1, last))
        answers = tuple(rollout(f"= {number}", index < right) for index in range(4))
        prompt = Prompt(f"{number * 97 % 5000}+{number * 41 % 900}=", "0")
        groups.append(Group(f"v{step}-{number}", prompt, answers, "validation"))
    return groups


def train_row(step: int, last: int) -> dict[str, float | None]:
    """Smooth made-up curves with some unevenness."""
    t = step / max(1, last)
    wave = 0.02 * math.sin(2.3 * step) + 0.012 * math.cos(5.1 * step)
    right = 0.42 + 0.38 * (1 - math.exp(-2.2 * t)) + wave
    return {
        "reward": right + 0.095,
        "reward_std": 0.4,
        "correct/mean": right,
        "rewards/answer/mean": right,
        "rewards/format/mean": 0.95 + wave / 2,
        "entropy": 0.52 * math.exp(-1.1 * t) + 0.06 + wave / 3,
        "completions/mean_length": 24.4 + 0.8 * t + 8 * wave,
        "completions/mean_terminated_length": 24.1 + 0.7 * t + 6 * wave,
        "completions/clipped_ratio": max(0.0, 0.05 - 0.04 * t + wave / 4),
        "clip_ratio/low_mean": 0.004 + 0.003 * t + abs(wave) / 8,
        "clip_ratio/high_mean": 0.006 + 0.004 * t + abs(wave) / 6,
        "grad_norm": 0.6 + 0.7 * t + 6 * abs(wave),
        "learning_rate": 8e-4 * min(1.0, step / 5) * (1 - max(0, step - 5) / max(1, last)),
        "groups/with_signal": 0.84 - 0.34 * t + wave,
        "groups/dead_right": 0.08 + 0.36 * t - wave,
        "groups/dead_wrong": 0.08 - 0.02 * t,
        "tokens/spent": round(12500 + 300 * t + 4000 * wave),
        "tokens/wasted": round(2000 + 4200 * t - 4000 * wave),
    }


def write_run(root: Path, steps: int, prompts: int = 6, size: int = 8, every: int = 10) -> Path:
    """A finished run of `steps` steps with rollouts at its validated steps and at the middle."""
    writer = RunWriter.create(root, MANIFEST, '[data]\ntask = "arithmetic"\n')
    kept = {1, steps // 2 + 1, steps} if steps else set()
    for step in range(steps + 1):
        groups = train_groups(step, prompts, size) if step in kept else []
        validated = step % every == 0 or step == steps
        if validated:
            value = 0.41 + 0.37 * (1 - math.exp(-2.2 * step / max(1, steps)))
            row = {"correct/mean": value, "correct/mean_low": value - 0.05, "correct/mean_high": value + 0.05}
            writer.metrics(step, "validation", {**row, "correct/greedy": value + 0.07})
            groups += validation_groups(step, steps)
        if step:
            writer.metrics(step, "train", train_row(step, steps))
            writer.ledger(step, LEDGER)
        if groups:
            writer.rollouts(step, groups, {g.id: outcomes(g) for g in groups if g.split == "train"}, "answer")
    return root


def write_evaluation(root: Path) -> None:
    folder = root / "evals" / "at-end"
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(SUMMARY), encoding="utf-8")
