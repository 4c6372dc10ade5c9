"""Averages beside the RL terms', in formula and words: of a supervised loss and of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """A rule in formula and words; `by_cut` as in `rules.Rule`."""

    formula: str
    says: str
    by_cut: str = ""


#: A supervised loss over target texts y_i; masked tokens, such as a prompt's, belong to no |y_i|.
SUPERVISED: dict[str, Said] = {
    "token_mean": Said(
        "omega = 1 / sum_i |y_i|",
        "Every target token counts alike, so an example counts by its length: a long one outweighs many short ones, "
        "and a step of short examples gives each of their tokens more than a step of long ones.",
    ),
    "micro_token_mean": Said(
        "omega = 1 / (K * sum_{i in micro-batch} |y_i|)",
        "Each of K micro-batches counts alike, so a token counts more where its micro-batch holds few: what an example "
        "weighs depends on those that stand beside it in memory.",
        by_cut="each micro-batch counts alike, however many tokens it has",
    ),
    "sequence_mean": Said(
        "omega_i = 1 / (N * |y_i|)",
        "Every example counts alike, so a token of a long example counts less than one of a short.",
    ),
    "packed_token_mean": Said(
        "omega = 1 / sum_{rows r} sum_{i in r} |y_i|",
        "Every target token counts alike, and as rows are full about the same in every step: over the data an example "
        "counts by its length alone. A step holds as many examples as fit, many where they are short.",
    ),
    "packed_row_mean": Said(
        "omega_r = 1 / (R * sum_{i in r} |y_i|)",
        "Each of R packed rows counts alike and in it each token: examples share their row's weight by length, and a "
        "token counts more in a row that is mostly prompt or padding.",
    ),
    "token_sum": Said(
        "omega = 1", "Every target token counts alike and nothing is divided: the step grows with the batch's tokens."
    ),
}

#: Scores x_qi of n_q answers to each of Q questions.
AVERAGES: dict[str, Said] = {
    "micro": Said(
        "sum_qi x_qi / sum_q n_q",
        "Every answer counts alike, so a question counts by how many of its answers are counted. Answers to one "
        "question are alike: an interval over answers comes out too short.",
    ),
    "macro": Said(
        "mean_q( sum_i x_qi / n_q )",
        "Every question counts alike, however many of its answers are counted; an interval over questions is honest.",
    ),
    "task_macro": Said(
        "mean_k( mean over the questions of task k )",
        "Every task counts alike: a question of a task of 30 counts as much as ten of a task of 300, and so does its "
        "noise.",
    ),
    "token": Said("sum_it x_it / sum_i |o_i|", "Every token counts alike, so long answers set it."),
    "batch_token": Said(
        "mean over rows of sum_{t in batch} x_t / |batch|",
        "Each row stands for the token mean of its batch: a token counts more in a batch of few, and another batch "
        "size gives another number.",
    ),
    "pass_at_k": Said(
        "mean_q( 1 - C(n - c_q, k) / C(n, k) )",
        "Every question counts alike, by the chance that one of k answers is right: one that is solved now and then "
        "counts nearly as much as one that always is.",
    ),
    "vote": Said(
        "mean_q( P(the most frequent answer to q is right) )",
        "Every question counts alike, by its most frequent answer: one that is right less often than the commonest "
        "mistake counts nothing.",
    ),
}

#: What becomes of answers that were cut, could not be read or could not be judged.
COUNTED: dict[str, str] = {
    "judged": "by what text there is: right where the answer stands in it, else wrong",
    "wrong": "in sum and count as 0: a tighter limit or a stricter reader lowers the average of the same model",
    "left_out": "in neither sum nor count: the average is of the rest, so look at how many those are",
    "apart": "in neither sum nor count, but reported beside the average",
    "abstain": "without a vote; where all abstain the question is lost",
}

#: What becomes of a vote that ends even.
TIES: dict[str, str] = {
    "shared": "the tied answers share the vote: the share of them that is right",
    "first": "the first of the tied answers wins: the order of sampling decides",
    "lost": "a tie counts as wrong",
}


@dataclass(frozen=True)
class Measure:
    """One average of an evaluation: its rule in formula and words, and how the answers named in `counted` are counted.

    The values of `counted` are keys of `COUNTED`, those of its `ties` of `TIES`.
    """

    term: str
    rule: str
    formula: str
    says: str
    counted: dict[str, str]
    why: str | None = None


def measure(term: str, rule: str, counted: Mapping[str, str], why: str | None = None) -> Measure:
    """The average of a term by a rule of `AVERAGES`."""
    said = AVERAGES[rule]
    return Measure(term, rule, said.formula, said.says, dict(counted), why)


def legend(measures: Iterable[Measure]) -> dict[str, str]:
    """What each way of counting that these averages have means."""
    used = [(answers, how) for each in measures for answers, how in each.counted.items()]
    return {how: (TIES if answers == "ties" else COUNTED)[how] for answers, how in used}
