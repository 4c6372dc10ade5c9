"""What each denominator rule is, and what it says about which examples matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from cupola.core.records import DEAD_TOLERANCE


@dataclass(frozen=True)
class Rule:
    """A rule in formula and words.

    `value` gives the part of the denominator that is the same for all tokens of the scope, from (rollouts, tokens,
    prompts, max_tokens); `own` the part that belongs to one rollout, from (its length, its group's tokens, the width
    that it is padded to). `by_cut` says why it depends on how a batch is cut, and is empty where it does not.
    """

    formula: str
    value: Callable[[int, int, int, int], int]
    own: Callable[[int, int, int], int]
    says: str
    by_cut: str = ""


RULES: dict[str, Rule] = {
    "sequence_mean": Rule(
        formula="omega_i = 1 / (N * |o_i|)",
        value=lambda rollouts, tokens, prompts, max_tokens: rollouts,
        own=lambda length, group_tokens, width: length,
        says="Every answer counts alike, so a token of a long answer counts less: a wrong answer is punished less per "
        "token the longer it is.",
    ),
    "token_mean": Rule(
        formula="omega = 1 / sum_i |o_i|",
        value=lambda rollouts, tokens, prompts, max_tokens: tokens,
        own=lambda length, group_tokens, width: 1,
        says="Every token counts alike, so a long answer counts more than a short one; the constant changes with the "
        "batch's total length.",
    ),
    "constant": Rule(
        formula="omega = 1 / (N * L_max)",
        value=lambda rollouts, tokens, prompts, max_tokens: rollouts * max_tokens,
        own=lambda length, group_tokens, width: 1,
        says="Every token counts alike and the same in every batch; a batch of short answers makes a smaller step than "
        "one of long answers.",
    ),
    "prompt_mean": Rule(
        formula="omega_g = 1 / (P * sum_{j in g} |o_j|)",
        value=lambda rollouts, tokens, prompts, max_tokens: prompts,
        own=lambda length, group_tokens, width: group_tokens,
        says="Every prompt counts alike with its tokens pooled, so a token counts less where a prompt's answers are "
        "long together.",
    ),
    "sequence_sum": Rule(
        formula="omega = 1 / N",
        value=lambda rollouts, tokens, prompts, max_tokens: rollouts,
        own=lambda length, group_tokens, width: 1,
        says="Every token counts alike and the tokens of an answer add up, so a long answer counts more; the step "
        "grows with the answers' mean length.",
    ),
    "token_sum": Rule(
        formula="omega = 1",
        value=lambda rollouts, tokens, prompts, max_tokens: 1,
        own=lambda length, group_tokens, width: 1,
        says="Every token counts alike and nothing is divided: the step grows with the batch and with its answers' "
        "length.",
    ),
    "padded": Rule(
        formula="omega_i = 1 / (N * width_i)",
        value=lambda rollouts, tokens, prompts, max_tokens: rollouts,
        own=lambda length, group_tokens, width: width,
        says="Every token of a micro-batch counts alike, and the less the longer the longest answer that is forwarded "
        "beside it: the weights depend on how the batch is cut.",
        by_cut="the padded width is that of what is forwarded together",
    ),
}


def unequal(groups: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """The groups whose rewards differ: the others' advantages are 0 whatever they are divided by."""
    return [group for group in groups if max(group) - min(group) > DEAD_TOLERANCE]


@dataclass(frozen=True)
class Scale:
    """What the advantages are divided by, in formula and words.

    `value` is its mean over the groups whose rewards differ, from all scored rewards by group, and epsilon.
    """

    formula: str
    says: str
    value: Callable[[Sequence[Sequence[float]], float], float]


@dataclass(frozen=True)
class Whitening:
    """What the advantages of the whole batch are divided by, in formula and words."""

    formula: str
    says: str


WHITENINGS: dict[str, Whitening] = {
    "rollouts": Whitening(
        formula="A <- A / (std_rollouts + 0.0001)",
        says="All advantages are divided by one number, the spread over the batch's rollouts: the size of the step no "
        "longer depends on how many rewards there are, or on how many groups are dead.",
    ),
    "tokens": Whitening(
        formula="A <- (A - mean_tokens) / sqrt(var_tokens + 1e-08)",
        says="Mean and spread are taken over the batch's tokens, so long answers set them; a rollout of average "
        "reward, and one of a dead group, need not have advantage 0.",
    ),
}


SCALES: dict[str, Scale] = {
    "batch_std": Scale(
        formula="A = (r - b) / (std_batch + {epsilon:g})",
        says="All advantages are divided by the spread of the whole batch: groups keep their relative weight, and a "
        "batch of nearly equal rewards is stretched.",
        value=lambda groups, epsilon: stdev([reward for group in groups for reward in group]) + epsilon,
    ),
    "group_mean": Scale(
        formula="A = (r - b) / (mean_g + {epsilon:g})",
        says="Each group's advantages are divided by its mean reward: the right answer of a group solved once in "
        "sixteen weighs 15, one of a group solved half the time 1. Rewards must not be negative.",
        value=lambda groups, epsilon: fmean(fmean(group) + epsilon for group in unequal(groups)),
    ),
    "group_std": Scale(
        formula="A = (r - b) / (std_g + {epsilon:g})",
        says="Each group's advantages are divided by the group's own spread. Of a group that is right with share p an "
        "answer weighs 2 sqrt(p (1 - p)) on average, without the division 2 p (1 - p): groups solved rarely or almost "
        "always count more.",
        value=lambda groups, epsilon: fmean(stdev(group) + epsilon for group in unequal(groups)),
    ),
}


def weight(
    rule: str, counts: tuple[int, int, int], max_tokens: int, length: int, group_tokens: int, width: int
) -> float:
    """omega of one rollout from (rollouts, tokens, prompts): what `objectives.omega` computes as a tensor."""
    entry = RULES[rule]
    return 1.0 / (entry.value(*counts, max_tokens) * entry.own(length, group_tokens, width))
