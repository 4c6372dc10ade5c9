"""Ledger rows: one per term and update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.train.ledger.rules import RULES, SCALES, WHITENINGS, unequal

CANCELS = (
    "An adaptive optimiser, or gradient clipping where it binds, largely cancels a constant factor of the whole loss; "
    "what remains is the relative weight within and between batches and against the other terms."
)
SOLVE_BANDS = ("0", "0-1/4", "1/4-1/2", "1/2-3/4", "3/4-1", "1", "unknown")


@dataclass(frozen=True)
class Weighted:
    """One rollout's gradient weight with what it is grouped by."""

    weight: float
    correct: bool | None
    length: int
    solve_rate: float | None


def ledger_row(
    term: str,
    rule: str,
    counts: tuple[int, int, int],
    max_tokens: int,
    excluded: Mapping[str, int],
    weighted: Sequence[Weighted],
    why: str | None,
) -> dict[str, Any]:
    """The row of one term in one update: rule, formula, value, what was counted and left out, shares, words.

    `counts` are (rollouts, tokens, prompts) of the denominator's scope; `value` is the shared part of the denominator.
    """
    entry = RULES[rule]
    found = shares(weighted)
    return {
        "term": term,
        "rule": rule,
        "formula": entry.formula,
        "value": entry.value(*counts, max_tokens) if counts[0] else None,
        "counted": dict(zip(("rollouts", "tokens", "prompts"), counts, strict=True)),
        "excluded": {reason: n for reason, n in excluded.items() if n},
        "shares": found,
        "words": [entry.says, *_in_words(found), CANCELS],
        "why": why,
    }


def scoped_row(row: Mapping[str, Any], scope: str, steps: int) -> dict[str, Any]:
    """The row of a denominator that counts over another scope than its totals: no one value, or a share of it.

    Counted in each micro-batch alone (`micro_batch`, and the `padded` rule) it has as many values as micro-batches; of
    a `generation` each of its `steps` optimiser steps divides by an equal share.
    """
    if scope == "micro_batch" or RULES[row["rule"]].by_cut:
        words = "It is counted in each micro-batch alone, so it has no one value and depends on how the step is cut."
        return {**row, "scope": scope, "value": None, "words": [*row["words"], words]}
    if scope == "generation" and row["value"] is not None:
        words = f"The batch's count is divided by its {steps} optimiser steps, whatever this step holds of it."
        return {**row, "scope": scope, "value": row["value"] / steps, "words": [*row["words"], words]}
    return {**row, "scope": scope}


def scale_row(rule: str, epsilon: float, rewards: Sequence[Sequence[float]], why: str | None) -> dict[str, Any]:
    """The row of the advantage's scale, a denominator too, from the scored rewards of each group of two or more."""
    entry, differing = SCALES[rule], unequal(rewards)
    equal = sum(map(len, rewards)) - sum(map(len, differing))
    return {
        "term": "scale",
        "rule": rule,
        "formula": entry.formula.format(epsilon=epsilon),
        "value": entry.value(rewards, epsilon) if differing else None,
        "counted": {"rollouts": sum(map(len, differing)), "prompts": len(differing)},
        "excluded": {"equal rewards": equal} if equal else {},
        "shares": None,
        "words": [entry.says],
        "why": why,
    }


def whitening_row(
    rule: str, spread: float | None, rewards: Sequence[Sequence[float]], why: str | None
) -> dict[str, Any]:
    """The row of what all advantages were divided by; `spread` is `None` where they were all equal."""
    entry = WHITENINGS[rule]
    return {
        "term": "whiten",
        "rule": rule,
        "formula": entry.formula,
        "value": spread,
        "counted": {"rollouts": sum(map(len, rewards)), "prompts": len(rewards)},
        "excluded": {},
        "shares": None,
        "words": [entry.says],
        "why": why,
    }


def shares(weighted: Sequence[Weighted]) -> dict[str, dict[str, float]] | None:
    """Share of the gradient weight by correctness, length quartile and the group's solve rate; `None` without weight.

    Length quartiles are of the rollouts given, shortest first: rank r of n falls in quartile 1 + floor(4 r / n).
    """
    total = sum(item.weight for item in weighted)
    if total == 0:
        return None
    by: dict[str, dict[str, float]] = {"correctness": defaultdict(float), "length": {}, "solve_rate": {}}
    ranked = sorted(range(len(weighted)), key=lambda i: (weighted[i].length, i))
    quartile = {i: f"q{1 + 4 * rank // len(ranked)}" for rank, i in enumerate(ranked)}
    by["length"] = dict.fromkeys(sorted(set(quartile.values())), 0.0)
    by["solve_rate"] = dict.fromkeys(SOLVE_BANDS, 0.0)
    for i, item in enumerate(weighted):
        by["correctness"][_correctness(item.correct)] += item.weight / total
        by["length"][quartile[i]] += item.weight / total
        by["solve_rate"][_band(item.solve_rate)] += item.weight / total
    return {name: dict(values) for name, values in by.items()}


def _band(rate: float | None) -> str:
    if rate is None:
        return "unknown"
    if rate in (0, 1):
        return str(int(rate))
    return SOLVE_BANDS[1 + int(rate * 4)]


def _correctness(correct: bool | None) -> str:
    return {True: "right", False: "wrong", None: "unjudged"}[correct]


def _in_words(found: Mapping[str, Mapping[str, float]] | None) -> list[str]:
    if found is None:
        return ["No rollout carried any gradient weight in this term."]
    wrong = found["correctness"].get("wrong", 0.0)
    quartiles = list(found["length"].items())
    return [
        f"Wrong answers carry {wrong:.0%} of the term's gradient weight.",
        f"The shortest quarter of the answers carries {quartiles[0][1]:.0%}, the longest {quartiles[-1][1]:.0%}.",
        f"Groups with no right answer carry {found['solve_rate']['0']:.0%}.",
    ]
