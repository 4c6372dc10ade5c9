"""A series for every text of the catalogue: what each detector must name, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cupola.core.catalogue import wording
from cupola.core.records import Finding
from cupola.watch.diagnosis import diagnose_rows

Rows = list[dict[str, Any]]

RECIPE: Mapping[str, Any] = {
    "sampling": {"max_tokens": 256, "group_size": 8},
    "optim": {"learning_rate": 1e-3},
    "reward": [{"name": "answer", "kind": "exact"}, {"name": "form", "kind": "pattern", "pattern": "x"}],
    "validation": {"questions": 100, "samples": 4},
}


def rows(split: str = "train", every: int = 1, **columns: Sequence[float | None]) -> Rows:
    """A row per value; `__` in a column's name stands for `/`."""
    length = len(next(iter(columns.values())))
    series = {name.replace("__", "/"): values for name, values in columns.items()}
    return [
        {"step": every * i, "split": split, **{key: values[i] for key, values in series.items()}} for i in range(length)
    ]


def judge(
    name: str,
    *parts: Rows,
    recipe: Mapping[str, Any] | None = RECIPE,
    evaluation: Mapping[str, Any] | None = None,
) -> Finding | None:
    """The finding of that name, if any; whatever is found can also be put in words."""
    found = diagnose_rows([row for part in parts for row in part], recipe, evaluation).findings
    assert all(wording(finding.name, finding.values, finding.steps).see for finding in found)
    return next((finding for finding in found if finding.name == name), None)


def lacks(listed: Rows, recipe: Mapping[str, Any] | None = None) -> dict[str, tuple[str, int, int]]:
    """What each detector that could not judge lacked: the metric, the points there were, the points it needs."""
    return {gap.detector: (gap.key, gap.found, gap.needed) for gap in diagnose_rows(listed, recipe).gaps}


def dead(right: float, wrong: float, both: float, n: int = 6) -> Rows:
    """Shares of dead groups that do not change, with three quarters of the tokens wasted."""
    columns = {"groups__dead": both, "groups__dead_right": right, "groups__dead_wrong": wrong}
    return rows(tokens__spent=[400.0] * n, tokens__wasted=[300.0] * n, **{k: [v] * n for k, v in columns.items()})


def verdicts(n: int = 6, answers: int = 100, **lost: float) -> Rows:
    """Steps of `answers` answers with two verdicts each: how many have which status, and the share of groups lost."""
    groups = lost.pop("groups", 0.0)
    counts = dict.fromkeys(("ok", "wrong", "parse_fail", "gold_bad", "timeout", "error", "skipped"), 0.0) | lost
    counts["ok"] = 2 * answers - sum(lost.values())
    return rows(groups__unscorable=[groups] * n, **{f"verify__{name}": [count] * n for name, count in counts.items()})


RISE = [
    0.30, 0.32, 0.31, 0.33, 0.34, 0.36, 0.35, 0.38, 0.40, 0.39,
    0.42, 0.44, 0.45, 0.44, 0.48, 0.50, 0.52, 0.51, 0.53, 0.54,
]  # fmt: skip
STILL = [
    0.30, 0.33, 0.29, 0.31, 0.30, 0.32, 0.28, 0.31, 0.30, 0.33,
    0.29, 0.30, 0.32, 0.31, 0.28, 0.30, 0.33, 0.31, 0.30, 0.29,
]  # fmt: skip
FALL = RISE[::-1]
LONGER = [100.0 + 5 * i for i in range(20)]  # window medians 110 and 185
TOTAL = [0.5 + value for value in RISE]
CERTAIN = [0.5, 0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, *[0.05] * 10]
RUIN = [0.40, 0.42, 0.45, 0.47, 0.50, 0.52, 0.50, 0.20, 0.03, 0.0, *[0.0] * 10]

LONGER_PAID = {"reward": TOTAL, "completions__mean_length": LONGER}
CLIMBING = [0.1 + 0.04 * i for i in range(20)]

LEARNING = rows(correct__mean=RISE) + rows("validation", every=5, correct__mean=[0.30, 0.38, 0.45, 0.52])

#: Rows by catalogue entry, judged with RECIPE.
CASES: Mapping[str, Rows] = {
    "learning.unevaluated": LEARNING,
    "learning.evaluated": LEARNING,
    "unscored.most": verdicts(groups=1.0, skipped=100.0),
    "unscored.some": verdicts(groups=0.05, error=12.0),
    "unscored.undefined": rows(reward=[None] * 6),
    "no_gradient.zero": rows(grad_norm=[0.3, *[0.0] * 5], groups__with_signal=[0.5] * 6),
    "no_gradient.undefined": rows(grad_norm=[None] * 6),
    "flat_near_floor.any": rows(correct__mean=[0.0, 0.01, 0.0, 0.0, 0.01] * 4),
    "flat_near_floor.form_learnt": rows(rewards__answer__mean=[0.0] * 20, rewards__form__mean=CLIMBING),
    "flat_near_ceiling.from_start": rows(correct__mean=[0.97, 0.96, 0.98, 0.99, 0.97] * 4),
    "flat_near_ceiling.reached": rows(correct__mean=[0.5, 0.6, 0.7, 0.8, 0.9] + [0.97] * 15),
    "reward_and_length_rise.earned": rows(**LONGER_PAID, correct__mean=RISE),
    "reward_and_length_rise.unearned": rows(**LONGER_PAID, correct__mean=STILL),
    "reward_and_length_rise.unknown": rows(**LONGER_PAID),
    "high_truncation.at_cap": rows(completions__clipped_ratio=[0.1, 0.1, 0.1, 0.4, 0.5, 0.6, 0.6, 0.5]),
    "high_truncation.below_cap": rows(completions__clipped_ratio=[0.97] * 6, completions__max_length=[180.0] * 6),
    "train_up_eval_down.train_up": rows(correct__mean=RISE)
    + rows("validation", every=5, correct__mean=[0.50, 0.55, 0.40, 0.30]),
    "train_up_eval_down.train_unknown": rows("validation", correct__mean=[0.55, 0.50, 0.30, 0.18]),
    "entropy_collapse.stalled": rows(
        entropy=CERTAIN, correct__mean=STILL, groups__with_signal=[0.1] * 20, loss=[0.01] * 20
    ),
    "entropy_collapse.still_learning": rows(entropy=CERTAIN, correct__mean=RISE),
    "entropy_collapse.solved": rows(entropy=CERTAIN, correct__mean=[0.5] * 10 + [0.95] * 10),
    "dead_groups_taking_over.all_right": dead(0.6, 0.1, 0.7),
    "dead_groups_taking_over.all_wrong": dead(0.1, 0.6, 0.7),
    "dead_groups_taking_over.mixed": dead(0.36, 0.34, 0.7),
    "dead_groups_taking_over.tied": dead(0.1, 0.1, 0.7),
    "dead_groups_taking_over.improving": rows(frac_reward_zero_std=[0.65] * 20, reward=RISE),
    "dead_groups_taking_over.unknown": rows(
        frac_reward_zero_std=[0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8, 0.8, 0.9, 0.9, 0.9]
    ),
    "correctness_falls.some": rows(correct__mean=FALL),
    "correctness_falls.nearly_all": rows(correct__mean=RUIN, groups__dead=[0.1] * 20),
    "entropy_explosion": rows(entropy=[0.5] * 10 + [2.0] * 10, correct__mean=STILL, grad_norm=[0.3] * 10 + [9.0] * 10),
    "policy_destroyed": rows(correct__mean=RUIN, groups__dead=[0.3] * 8 + [1.0] * 12, loss=[0.01] * 20),
    "format_up_correctness_down": rows(rewards__answer__mean=FALL, rewards__form__mean=RISE),
    "loss_zero_benign": rows(loss=[0.0] * 6, grad_norm=[0.09] * 6),
}

#: What an evaluation of the last checkpoint says.
EVALUATION = {"step": 15, "verdict": {"word": "learned", "reason": "Both lower bounds are above 0."}}


def named(entry: str) -> Finding:
    """The finding of a case, which has the entry's name and reading."""
    name, _, reading = entry.partition(".")
    evaluation = EVALUATION if reading == "evaluated" else None
    found = judge(name, CASES[entry], evaluation=evaluation)
    assert found is not None, entry
    assert found.values.get("reading", "") == reading
    return found


#: A critic in place of a group: answers of one prompt are not compared, or there is only one.
ONE = {**RECIPE, "sampling": {"max_tokens": 256, "group_size": 1}, "objective": {"baseline": "critic"}}
CRITIC = {**RECIPE, "objective": {"baseline": "critic"}}
