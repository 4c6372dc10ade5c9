"""A few groups of a few steps, chosen so that a reader sees what the update saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.core.runlog import RunReader
from cupola.dashboard.text import measured, shorten

Row = Mapping[str, Any]

#: Groups with signal shown of each step; one of every other kind is added.
WITH_SIGNAL = 3
#: Completions shown of each group, and characters shown of each text.
MOST_COMPLETIONS = 16
MOST_CHARACTERS = 600


@dataclass(frozen=True)
class Answer:
    """One completion as shown: its text cut to (head, characters left out, tail), and its rollout row."""

    row: Row
    text: tuple[str, int, str]
    reward: float | None
    parts: tuple[tuple[str, float | None], ...]
    advantage: float | None
    weight: float | None
    shade: str


@dataclass(frozen=True)
class ShownGroup:
    """One group: its prompt once, its answers from the best paid to the worst."""

    prompt: tuple[str, int, str]
    gold: str | None
    kind: str
    right: int
    judged: int
    size: int
    answers: tuple[Answer, ...]
    reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ShownStep:
    """One step's chosen groups, out of how many."""

    step: int
    total: int
    groups: tuple[ShownGroup, ...]


def shown_steps(reader: RunReader) -> list[ShownStep]:
    """Groups of the first, the middle and the last training step that have rollouts on record."""
    trained = {row["step"] for row in reader.metrics("train")}
    steps = [step for step in reader.rollout_steps() if step in trained]
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    prompts = reader.prompts()
    return [_step(step, reader.rollouts(step, "train"), prompts) for step in chosen]


def _step(step: int, rows: Sequence[Row], prompts: Mapping[str, Row]) -> ShownStep:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    shown = tuple(_group(group, prompts[group[0]["prompt_id"]]) for group in choose(list(groups.values())))
    return ShownStep(step, len(groups), shown)


def choose(groups: Sequence[list[Row]]) -> list[list[Row]]:
    """The groups with signal that weigh most, then the first of every other kind."""
    by_kind: dict[str, list[list[Row]]] = {}
    for group in groups:
        by_kind.setdefault(kind(group), []).append(group)
    signal = sorted(by_kind.pop("signal", []), key=_weight, reverse=True)[:WITH_SIGNAL]
    return [*signal, *(by_kind[name][0] for name in sorted(by_kind))]


def kind(group: Sequence[Row]) -> str:
    """The group's state, with `dead` told apart into all right and all wrong where answers were judged."""
    state: str = group[0]["group_state"]
    judged = {row["correct"] for row in group if row["correct"] is not None}
    if state == "dead" and len(judged) == 1:
        return "dead, all right" if judged == {True} else "dead, all wrong"
    return state.replace("_", " ")


def _weight(group: Sequence[Row]) -> float:
    return sum(measured(row, "weight_share") or 0.0 for row in group)


def _group(rows: Sequence[Row], prompt: Row) -> ShownGroup:
    paid = sorted(rows, key=_paid, reverse=True)
    half = MOST_COMPLETIONS // 2
    shown = paid if len(paid) <= MOST_COMPLETIONS else [*paid[:half], *paid[-half:]]
    largest = max((abs(value) for row in rows if (value := measured(row, "advantage")) is not None), default=0.0)
    reasons = Counter(row["discard_reason"].replace("_", " ") for row in rows if not row["used"])
    judged = [row["correct"] for row in rows if row["correct"] is not None]
    return ShownGroup(
        prompt=shorten(prompt["prompt"], MOST_CHARACTERS),
        gold=prompt["answer"],
        kind=kind(rows),
        right=sum(judged),
        judged=len(judged),
        size=len(rows),
        answers=tuple(_answer(row, largest) for row in shown),
        reasons=tuple(sorted(reasons.items())),
    )


def _paid(row: Row) -> tuple[float, float]:
    """Sort key: advantage, then reward; what has neither comes last."""
    lowest = float("-inf")
    advantage, reward = measured(row, "advantage"), measured(row, "reward")
    return (lowest if advantage is None else advantage, lowest if reward is None else reward)


def _answer(row: Row, largest: float) -> Answer:
    advantage = measured(row, "advantage")
    return Answer(
        row=row,
        text=shorten(row["completion"], MOST_CHARACTERS),
        reward=measured(row, "reward"),
        parts=tuple((key.removeprefix("reward."), measured(row, key)) for key in row if key.startswith("reward.")),
        advantage=advantage,
        weight=measured(row, "weight_share"),
        shade=shade(advantage, largest),
    )


def shade(advantage: float | None, largest: float) -> str:
    """The colour class of an advantage: sign and quarter of the group's largest; `zero`, or `none` without one."""
    if advantage is None:
        return "none"
    if advantage == 0:
        return "zero"
    quarter = min(4, 1 + int(4 * abs(advantage) / largest * (1 - 1e-9)))
    return f"{'plus' if advantage > 0 else 'minus'}{quarter}"
