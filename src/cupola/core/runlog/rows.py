"""Groups as parquet rows: one row per rollout, the columns of the run folder's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cupola.core.records import Group, Outcome, Rollout


def rollout_rows(
    step: int, attempt: int, groups: Sequence[Group], outcomes: Mapping[str, Sequence[Outcome]], part: str
) -> list[dict[str, Any]]:
    """Rows of every rollout; a group without outcomes (validation) leaves the training columns empty."""
    rows = []
    for group in groups:
        of_group = outcomes.get(group.id, ())
        for index, rollout in enumerate(group.rollouts):
            outcome = of_group[index] if of_group else Outcome()
            rows.append(
                {
                    "step": step,
                    "attempt": attempt,
                    "split": group.split,
                    "mode": group.mode,
                    "group_id": group.id,
                    "group_state": group.state if group.split == "train" else None,
                    "prompt_id": group.prompt.id,
                    "index": index,
                    **_rollout(rollout, part),
                    **_outcome(outcome),
                }
            )
    extra = sorted({f"extra.{name}" for group in groups for rollout in group.rollouts for name in rollout.extra})
    return [{**dict.fromkeys(extra), **row} for row in rows]


def _rollout(rollout: Rollout, part: str) -> dict[str, Any]:
    completion, verdict = rollout.completion, rollout.verdicts[part]
    return {
        "completion": completion.text,
        "token_ids": completion.token_ids.astype(np.int32),
        "n_tokens": completion.n_tokens,
        "finish_reason": completion.finish_reason,
        "reward": rollout.reward,
        "correct": rollout.correct,
        **{f"reward.{name}": each.score for name, each in rollout.verdicts.items()},
        "verdict.status": verdict.status,
        "verdict.extracted": verdict.extracted,
        "verdict.reason": next((v.reason for v in rollout.verdicts.values() if v.reason), verdict.reason),
        "verdict.seconds": sum(v.seconds for v in rollout.verdicts.values()),
        "logp_sampler": completion.logps,
        "entropy": _mean(completion.entropies),
        "policy_version": completion.policy_version,
        **{f"extra.{name}": value for name, value in rollout.extra.items()},
    }


def _mean(values: NDArray[np.float32] | None) -> float | None:
    return None if values is None or not len(values) else float(values.mean())


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "advantage": outcome.advantage,
        "weight_share": outcome.weight_share,
        "logp_old": outcome.logp_old,
        "used": outcome.used,
        "discard_reason": outcome.discard_reason,
    }
