"""A run folder made by the real producers, with values a reader of the tests can compute by hand.

Made up are the answers, and the curves of `train_row`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cupola.core.config import Recipe, dump, validate
from cupola.core.records import Completion, EvalSample, Group, Outcome, Prompt, Rollout, Verdict
from cupola.core.runlog import Layout, RunWriter, write_evaluation
from cupola.prove.evaluation import summarise
from cupola.train.ledger import Weighted, ledger_row
from cupola.workflows.manifest import attempt_ended, attempt_started, new_manifest

HOSTILE = "<script>document.title='owned'</script>\u202eevil\x07 & 'quoted'"


def recipe(steps: int, prompts: int, size: int) -> Recipe:
    """What a run of these sizes would have been trained by."""
    table: dict[str, Any] = {
        "run": {"name": "made", "seed": 7, "steps": steps},
        "data": {"task": "arithmetic"},
        "sampling": {"prompts_per_step": prompts, "group_size": size, "max_tokens": 32},
        "reward": [
            {"name": "answer", "kind": "exact"},
            {"name": "format", "kind": "pattern", "pattern": ".*", "weight": 0.1},
        ],
        "objective": {"preset": "dr_grpo", "why": {"policy": "Length must not be paid for."}},
    }
    return validate(table, Recipe)


def begin(root: Path, steps: int = 60, prompts: int = 6, size: int = 8) -> RunWriter:
    """A run folder whose first attempt has begun."""
    made = recipe(steps, prompts, size)
    writer = RunWriter.create(root, new_manifest(made, {}, data={}, model={"digest": "0123abc"}, files={}), dump(made))
    attempt_started(writer, 0)
    return writer


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


def outcomes(group: Group, rollouts: int = 512) -> list[Outcome]:
    """Reward less the group's mean, and an equal share of the weight, where the group has signal; else what is left."""
    if group.state in ("dead", "unscorable"):
        reason = "dead_group" if group.state == "dead" else "unscorable"
        return [Outcome(None if each.reward is None else 0.0, 0.0, None, False, reason) for each in group.rollouts]
    mean = sum(group.rewards) / len(group.rewards)
    return [
        Outcome(None, 0.0, None, False, "unscorable")
        if each.reward is None
        else Outcome(each.reward - mean, 1 / rollouts, None, True)
        for each in group.rollouts
    ]


def ledger(groups: Sequence[Group], found: dict[str, list[Outcome]]) -> list[dict[str, Any]]:
    """The row of the policy term: every rollout in the counts, those without an advantage not forwarded."""
    pairs = [pair for group in groups for pair in zip(group.rollouts, found[group.id], strict=True)]
    solved = [group.solve_rate for group in groups for _ in group.rollouts]
    weighted = [
        Weighted(outcome.weight_share or 0.0, rollout.correct, rollout.completion.n_tokens, rate)
        for (rollout, outcome), rate in zip(pairs, solved, strict=True)
    ]
    counts = (len(pairs), sum(rollout.completion.n_tokens for rollout, _ in pairs), len(groups))
    row = ledger_row("policy", "constant", counts, 32, {}, weighted, "Length must not be paid for.")
    forwarded = sum(outcome.used for _, outcome in pairs)
    return [{"update": 0, **row, "forwarded": forwarded, "skipped": len(pairs) - forwarded}]


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
    """A finished run of `steps` steps with rollouts and ledger at its first, middle and last step."""
    writer = begin(root, steps, prompts, size)
    kept = {1, steps // 2 + 1, steps}
    for step in range(steps + 1):
        trained = train_groups(step, prompts, size) if step in kept else []
        validated = step % every == 0 or step == steps
        checked = validation_groups(step, steps) if validated else []
        if trained:
            found = {group.id: outcomes(group, prompts * size) for group in trained}
            writer.ledger(step, ledger(trained, found))
        if trained or checked:
            writer.rollouts(step, [*trained, *checked], found if trained else {}, "answer")
        if step:
            writer.metrics(step, "train", train_row(step, steps))
        if validated:
            value = 0.41 + 0.37 * (1 - math.exp(-2.2 * step / steps))
            row = {"correct/mean": value, "correct/mean_low": value - 0.05, "correct/mean_high": value + 0.05}
            writer.metrics(step, "validation", {**row, "correct/greedy": value + 0.07})
    attempt_ended(writer, "finished", None)
    return root


def answers(arm: str, mode: str, right: Sequence[int], samples: int) -> list[EvalSample]:
    """`right[q]` right answers of `samples` to question q, the right ones first."""
    return [
        EvalSample(arm, f"q{q}", mode, i, "text", "right" if i < n else "wrong", i < n, 25, "stop")
        for q, n in enumerate(right)
        for i in range(samples)
    ]


def write_evaluation_of(root: Path) -> None:
    """Base against trained on 100 questions.

    Base: greedy 40 right, at temperature 0.3 50; four samples at 1 hold 2 right answers in 50 questions and 1 in 28.
    Trained: greedy and all four samples right in 80 questions.
    """
    samples = [
        *answers("base", "greedy", [1] * 40 + [0] * 60, 1),
        *answers("base", "t=0.3", [4] * 50 + [0] * 50, 4),
        *answers("base", "t=1.0", [2] * 50 + [1] * 28 + [0] * 22, 4),
        *answers("trained", "greedy", [1] * 80 + [0] * 20, 1),
        *answers("trained", "t=1.0", [4] * 80 + [0] * 20, 4),
    ]
    summary = summarise(samples, split="test", temperature=1.0, base_best=("t=0.3", 0.3), ks=[4])
    write_evaluation(Layout(root), "at-end", samples, summary)
