"""The denominator rules: the weight omega of each rollout's tokens, fixed before the forward pass.

No loss in this project takes a mean. A term is the plain sum over tokens of omega * mask * value, so cutting a batch
into micro-batches, padding it, or spreading it over ranks cannot change the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Counts:
    """Totals over a denominator's whole scope (one optimiser step, or one batch), summed over ranks."""

    rollouts: int
    tokens: int
    prompts: int


@dataclass(frozen=True)
class Rows:
    """What a rule weighs n rollouts by, (n,) float64 each: the rollout's own loss tokens, those of its group together,
    and the width that it is padded to in the forward pass.
    """

    lengths: Tensor
    group_tokens: Tensor
    widths: Tensor


Rule = Callable[[Rows, Counts, int], Tensor]


def count(lengths: Tensor, groups: Tensor, counted: Tensor) -> Counts:
    """Totals of the rollouts that count: their number, their loss tokens, and the groups they belong to."""
    return Counts(int(counted.sum()), int(lengths[counted].sum()), len(groups[counted].unique()))


def sequence_mean(rows: Rows, counts: Counts, max_tokens: int) -> Tensor:
    """omega_i = 1 / (N * |o_i|): every rollout counts alike, so a token of a long answer counts less.

    Source: GRPO, arXiv 2402.03300, eq. 3.
    """
    return 1.0 / (counts.rollouts * rows.lengths)


def token_mean(rows: Rows, counts: Counts, max_tokens: int) -> Tensor:
    """omega = 1 / sum_i |o_i|: every token counts alike, so a long answer counts more.

    Source: the code of DAPO (verl's token-mean over the mini-batch).
    """
    return torch.full_like(rows.lengths, 1.0 / counts.tokens)


def constant(rows: Rows, counts: Counts, max_tokens: int) -> Tensor:
    """omega = 1 / (N * L_max): every token counts alike, and the same in every batch.

    Source: Dr.GRPO, arXiv 2503.20783, section 3.2.
    """
    return torch.full_like(rows.lengths, 1.0 / (counts.rollouts * max_tokens))


def prompt_mean(rows: Rows, counts: Counts, max_tokens: int) -> Tensor:
    """omega_g = 1 / (P * sum_{j in g} |o_j|): every prompt counts alike, its tokens pooled.

    Source: DAPO, arXiv 2503.14476, eq. 8, whose expectation over prompts is the outer mean.
    """
    return 1.0 / (counts.prompts * rows.group_tokens)


def sequence_sum(rows: Rows, counts: Counts, max_tokens: int) -> Tensor:
    """omega = 1 / N: every token counts alike, so a long answer counts more; the step grows with the mean length.

    Source: RLOO without a ratio (arXiv 2402.14740); LUSPO (arXiv 2602.05261); verl's seq-mean-token-sum.
    """
    return torch.full_like(rows.lengths, 1.0 / counts.rollouts)


def token_sum(rows: Rows, counts: Counts, max_tokens: int) -> Tensor:
    """omega = 1: no denominator, so the step grows with the batch. tinker's losses; verl's token-sum."""
    return torch.ones_like(rows.lengths)


def padded(rows: Rows, counts: Counts, max_tokens: int) -> Tensor:
    """omega_i = 1 / (N * width_i): a token counts less where a long answer is forwarded beside it.

    It depends on the cut. Source: verl's seq-mean-token-sum-norm without loss_scale_factor, whose horizon is
    loss_mask.shape[-1] of the micro-batch.
    """
    return 1.0 / (counts.rollouts * rows.widths)


RULES: dict[str, Rule] = {
    "sequence_mean": sequence_mean,
    "token_mean": token_mean,
    "constant": constant,
    "prompt_mean": prompt_mean,
    "sequence_sum": sequence_sum,
    "token_sum": token_sum,
    "padded": padded,
}


#: Rules whose weight depends on what is forwarded together.
BY_CUT = frozenset({"padded"})


def omega(
    rule: str,
    lengths: Tensor,
    groups: Tensor,
    counted: Tensor,
    counts: Counts,
    max_tokens: int,
    widths: Tensor | None = None,
) -> Tensor:
    """Weight of each rollout's tokens under a rule, (N,) float64; exactly 0 for a rollout that does not count.

    Args:
        rule: key of `RULES`.
        lengths: (N,) loss tokens |o_i| of each rollout.
        groups: (N,) int64 group index.
        counted: (N,) bool, the rollouts that count; one without tokens never does.
        counts: totals of the denominator's scope.
        max_tokens: L_max, the longest completion the recipe allows.
        widths: (N,) width that each rollout is padded to; by default all are forwarded together.
    """
    counted = counted & (lengths > 0)
    weights = torch.zeros(len(lengths), dtype=torch.float64, device=lengths.device)
    if not counted.any():
        return weights
    widths = torch.full_like(lengths, int(lengths.max())) if widths is None else widths
    lengths = lengths.double()
    group_tokens = torch.zeros(int(groups.max()) + 1, dtype=torch.float64, device=lengths.device)
    group_tokens = group_tokens.index_add(0, groups, torch.where(counted, lengths, 0.0))[groups]
    rows = Rows(lengths[counted], group_tokens[counted], widths[counted].double())
    weights[counted] = RULES[rule](rows, counts, max_tokens)
    return weights


def omega_by_cut(
    rule: str,
    lengths: Tensor,
    groups: Tensor,
    counted: Tensor,
    cut: Tensor,
    max_tokens: int,
    widths: Tensor | None = None,
) -> Tensor:
    """Weight of each rollout's tokens in a trainer that averages within each micro-batch and then over them, (N,).

        omega_i = omega of the rule counted over i's micro-batch alone / K        for K micro-batches

    It depends on how the batch is cut, which none of our own presets does; here to reproduce trainers that do: TRL's
    `grpo` and `sapo` (sequence_mean), `bnpo` and every entropy bonus (token_mean), `dr_grpo` (constant) and `luspo`
    (sequence_sum). A rollout that counts and has no tokens stays in its micro-batch's count of rollouts.

    Args:
        cut: (N,) int64 micro-batch of each rollout, from 0, or -1 outside the step; K is the largest plus 1.
    """
    pieces = int(cut.max()) + 1
    weights = torch.zeros(len(lengths), dtype=torch.float64, device=lengths.device)
    for piece in range(pieces):
        inside = counted & (cut == piece)
        weights += omega(rule, lengths, groups, inside, count(lengths, groups, inside), max_tokens, widths)
    return weights / pieces


def padded_widths(lengths: Tensor, cut: Tensor) -> Tensor:
    """Width that each rollout is padded to: the longest completion of its micro-batch, (N,); `cut` as above."""
    widths = torch.zeros_like(lengths)
    for piece in range(int(cut.max()) + 1):
        inside = cut == piece
        widths[inside] = lengths[inside].max()
    return widths
