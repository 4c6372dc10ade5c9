"""A denominator explained before any number is counted: formula, what is known of it, words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    """All denominators of one configuration.

    `absent` names the terms that it leaves out, and why; `read` the keys that bear on a denominator with where each
    value came from; `ignored` the keys that were not read.
    """

    source: str
    denominators: list[Denominator]
    absent: dict[str, str]
    optimizer: str
    notices: list[str]
    read: dict[str, dict[str, Any]] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Average:
    """A trainer's way to average a term: a rule of the ledger with that trainer's counts.

    `value` computes the known part from the configuration's numbers; the rest is as in `Denominator`.
    """

    rule: str
    formula: str
    scope: str
    value: Callable[[Mapping[str, float]], float | None]
    accumulation: str
    world: str
    cut: str

    def of(self, term: str, rule: str, numbers: Mapping[str, float], *words: str) -> Denominator:
        """The denominator of a term under these numbers; `words` follow what the rule says."""
        return Denominator(
            term=term,
            rule=rule,
            formula=self.formula,
            numbers=with_numbers(self.formula, numbers),
            value=self.value(numbers),
            scope=self.scope,
            words=[RULES[self.rule].says, *words],
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


@dataclass(frozen=True)
class Clip:
    """Clip constants that are a paper's, with where they were found to work."""

    constants: tuple[float, ...]
    source: str


CLIPS: dict[str, tuple[Clip, ...]] = {
    "clipped": (
        Clip((0.2, 0.2), "PPO's (arXiv 1707.06347, continuous control)"),
        Clip((0.2, 0.28), "DAPO's (arXiv 2503.14476, Qwen2.5-32B, answers of up to 20480 tokens)"),
        Clip((3e-4, 4e-4), "GSPO's (arXiv 2507.18071, a 30B mixture of experts, the ratio of a sequence)"),
    ),
    "gmpo": (Clip((0.4, 0.4), "GMPO's (arXiv 2507.20673)"),),
    "sapo": (Clip((1.0, 1.05), "SAPO's (arXiv 2511.20347)"),),
    "vespo": (Clip((2.0, 3.0, 3.0, 2.0), "VESPO's (arXiv 2602.10693)"),),
}


def clip_notices(kind: str, constants: tuple[float, ...]) -> list[str]:
    """A notice where the constants are those of a paper."""
    shown = " / ".join(f"{each:g}" for each in constants)
    return [
        f"The clip constants {shown} are {clip.source}: the mechanism transfers, the number does not. It depends on "
        "the model, the answers' length and the steps per batch; look at clip_ratio and set it anew."
        for clip in CLIPS.get(kind, ())
        if clip.constants == constants
    ]
