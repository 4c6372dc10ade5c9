"""What advantages are divided by elsewhere, in the ledger's words; `rules.SCALES` are ours."""

from __future__ import annotations

from dataclasses import dataclass

from cupola.train.ledger.explained import Denominator
from cupola.train.ledger.rules import SCALES, WHITENINGS


@dataclass(frozen=True)
class Divisor:
    """A scale in formula, scope and words."""

    formula: str
    scope: str
    words: str


def group_std(epsilon: float) -> Divisor:
    """Each group's own standard deviation plus `epsilon`."""
    entry = SCALES["group_std"]
    return Divisor(entry.formula.format(epsilon=epsilon), "each prompt's group", entry.says)


def batch_std(epsilon: float) -> Divisor:
    """The whole batch's standard deviation plus `epsilon`."""
    entry = SCALES["batch_std"]
    return Divisor(entry.formula.format(epsilon=epsilon), "all answers of the batch", entry.says)


UNDIVIDED = Divisor(
    "A = r - b",
    "nothing",
    "Advantages are not divided: a group solved half the time weighs most, and the reward's unit is the step's.",
)
WHITENED = Divisor(WHITENINGS["tokens"].formula, "all answer tokens of the batch", WHITENINGS["tokens"].says)
CENTRED = Divisor(
    "A <- A - mean_tokens",
    "all answer tokens of the batch",
    "Advantages are centred over the batch's tokens, in which long answers weigh more, and not divided.",
)
ONCE_PER_REWARD = Divisor(
    "A = z_batch(sum_k w_k * z_group(r_k)), z(x) = (x - mean) / (std + 0.0001)",
    "each reward's group, then all answers of the batch",
    "Each reward is divided by its own spread in the group, so one that rarely differs counts as much as any; their "
    "sum is divided by the batch's spread.",
)


def scale(rule: str, divisor: Divisor) -> Denominator:
    """The advantage's scale as a denominator: it is taken before a batch is cut, over all ranks."""
    return Denominator(
        term="scale",
        rule=rule,
        formula=divisor.formula,
        numbers=divisor.formula,
        value=None,
        scope=divisor.scope,
        words=[divisor.words],
        accumulation="does not change it",
        world="does not change it",
        cut="yes",
    )
