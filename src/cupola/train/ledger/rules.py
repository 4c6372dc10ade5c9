"""What each denominator rule is, and what it says about which examples matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A rule in formula and words.

    `value` gives the part of the denominator that is the same for all tokens of the scope, from (rollouts, tokens,
    prompts, max_tokens); `own` the part that belongs to one rollout, from (its length, its group's tokens).
    """

    formula: str
    value: Callable[[int, int, int, int], int]
    own: Callable[[int, int], int]
    says: str


RULES: dict[str, Rule] = {
    "sequence_mean": Rule(
        formula="omega_i = 1 / (N * |o_i|)",
        value=lambda rollouts, tokens, prompts, max_tokens: rollouts,
        own=lambda length, group_tokens: length,
        says="Every answer counts alike, so a token of a long answer counts less: a wrong answer is punished less per "
        "token the longer it is.",
    ),
    "token_mean": Rule(
        formula="omega = 1 / sum_i |o_i|",
        value=lambda rollouts, tokens, prompts, max_tokens: tokens,
        own=lambda length, group_tokens: 1,
        says="Every token counts alike, so a long answer counts more than a short one; the constant changes with the "
        "batch's total length.",
    ),
    "constant": Rule(
        formula="omega = 1 / (N * L_max)",
        value=lambda rollouts, tokens, prompts, max_tokens: rollouts * max_tokens,
        own=lambda length, group_tokens: 1,
        says="Every token counts alike and the same in every batch; a batch of short answers makes a smaller step than "
        "one of long answers.",
    ),
    "prompt_mean": Rule(
        formula="omega_g = 1 / (P * sum_{j in g} |o_j|)",
        value=lambda rollouts, tokens, prompts, max_tokens: prompts,
        own=lambda length, group_tokens: group_tokens,
        says="Every prompt counts alike with its tokens pooled, so a token counts less where a prompt's answers are "
        "long together.",
    ),
}


@dataclass(frozen=True)
class Scale:
    """What the advantages are divided by, in formula and words."""

    formula: str
    says: str


SCALES: dict[str, Scale] = {
    "group_std": Scale(
        formula="A = (r - b) / (std_g + {epsilon:g})",
        says="Each group's advantages are divided by the group's own spread. Of a group that is right with share p an "
        "answer weighs 2 sqrt(p (1 - p)) on average, without the division 2 p (1 - p): groups solved rarely or almost "
        "always count more.",
    ),
}


def weight(rule: str, counts: tuple[int, int, int], max_tokens: int, length: int, group_tokens: int) -> float:
    """omega of one rollout from (rollouts, tokens, prompts): what `objectives.omega` computes as a tensor."""
    entry = RULES[rule]
    return 1.0 / (entry.value(*counts, max_tokens) * entry.own(length, group_tokens))
