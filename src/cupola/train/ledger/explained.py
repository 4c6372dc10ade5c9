"""A denominator explained before any number is counted: formula, what is known of it, words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cupola.train.ledger.averages import Measure
from cupola.train.ledger.rules import RULES

T = TypeVar("T")


@dataclass(frozen=True)
class Denominator:
    """One term's denominator in a configuration.

    `numbers` is the formula with what the configuration fixes; `value` the part of the denominator that is the same for
    all tokens, `None` where it depends on the answers. `accumulation`, `world` and `cut` say how it changes with
    gradient accumulation, with the number of ranks, and whether the gradient is the same however a batch is cut into
    micro-batches.
    """

    term: str
    rule: str
    formula: str
    numbers: str
    value: float | None
    scope: str
    words: list[str]
    accumulation: str
    world: str
    cut: str
    why: str | None = None


@dataclass(frozen=True)
class Explanation:
    """All denominators of one configuration, and the averages of its evaluation.

    `absent` names the terms that it leaves out, and why; `read` the keys that bear on a denominator with where each
    value came from; `ignored` the keys that were not read. `why_at` stands before a term's name in the key that can
    give its reason, and is `None` where the configuration has no place for one.
    """

    source: str
    denominators: list[Denominator]
    absent: dict[str, str]
    optimizer: str
    notices: list[str]
    read: dict[str, dict[str, Any]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    averages: list[Measure] = field(default_factory=list)
    why_at: str | None = None

    @property
    def unreasoned(self) -> list[str]:
        """The denominators without a reason, each by the key that can give it."""
        rows: list[Denominator | Measure] = [*self.denominators, *self.averages]
        return [f"{self.why_at or ''}{row.term}" for row in rows if row.why is None]


@dataclass(frozen=True)
class Average:
    """A trainer's way to average a term: a rule of the ledger with that trainer's counts.

    `value` computes the known part from the configuration's numbers; `says` stands in for the rule's own words
    where it is none of `RULES`; the rest is as in `Denominator`.
    """

    rule: str
    formula: str
    scope: str
    value: Callable[[Mapping[str, float]], float | None]
    accumulation: str
    world: str
    cut: str
    says: str | None = None

    def of(self, term: str, rule: str, numbers: Mapping[str, float], *words: str) -> Denominator:
        """The denominator of a term under these numbers; `words` follow what the rule says."""
        return Denominator(
            term=term,
            rule=rule,
            formula=self.formula,
            numbers=with_numbers(self.formula, numbers),
            value=self.value(numbers),
            scope=self.scope,
            words=[self.says or RULES[self.rule].says, *words],
            accumulation=self.accumulation,
            world=self.world,
            cut=self.cut,
        )


def with_numbers(formula: str, numbers: Mapping[str, float]) -> str:
    """The formula with each name that has a number replaced by it."""
    return re.sub(r"[A-Za-z]\w*", lambda name: f"{numbers[name[0]]:.10g}" if name[0] in numbers else name[0], formula)


def paired(pairs: Iterable[tuple[object, T]]) -> list[T]:
    """What stands beside a condition that holds."""
    return [value for holds, value in pairs if holds]


#: Optimisers by a part of their name: they divide the gradient by its own running size, or take its sign.
SCALE_FREE = ("adam", "adagrad", "adadelta", "adafactor", "rmsprop", "rprop", "lion", "muon", "lamb")


def cancelled(optimizer: str, max_norm: float | None) -> str:
    """What the optimiser and the gradient's clip leave of a constant factor of the whole loss."""
    free = any(part in optimizer.lower() for part in SCALE_FREE)
    first = "largely cancels" if free else "keeps"
    clip = f"the clip at norm {max_norm:g} cancels it where it binds" if max_norm else "no gradient clip is set"
    return (
        f"{optimizer} {first} a constant factor of the whole loss; {clip}. What no optimiser cancels is the relative "
        "weight within and between batches and against the other terms."
    )
