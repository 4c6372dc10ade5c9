"""A step's groups for reading: completions by reward, the groups that can teach first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cupola.core.records import RunFolderError
from cupola.core.runlog import RunReader

#: Groups that can teach come first; validation groups have no state.
ORDER = {"signal": 0, "no_signal": 1, "dead": 2, "unscorable": 3}


def read_groups(run: Path, step: int | None, split: str, count: int) -> dict[str, Any]:
    """`count` groups of a step (the newest by default), each with its prompt and rows, best paid first.

    Raises RunFolderError where the step or split has no rollouts.
    """
    reader = RunReader(run)
    steps = reader.rollout_steps()
    if step is None:
        step = next((s for s in reversed(steps) if reader.rollouts(s, split, ["step"])), None)
    if step is None or step not in steps:
        raise RunFolderError(f"{run}: no rollouts of step {step}; there are steps {_span(steps)}")
    rows = reader.rollouts(step, split)
    if not rows:
        raise RunFolderError(f"{run}: step {step} has no {split} rollouts")
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(row["group_id"], []).append(row)
    chosen = sorted(by_group.values(), key=lambda group: (ORDER.get(group[0]["group_state"], 0), group[0]["group_id"]))
    prompts = reader.prompts()
    return {
        "step": step,
        "split": split,
        "groups": [
            {
                "prompt": prompts[group[0]["prompt_id"]]["prompt"],
                "answer": prompts[group[0]["prompt_id"]]["answer"],
                "state": group[0]["group_state"],
                "rollouts": sorted(group, key=_paid, reverse=True),
            }
            for group in chosen[:count]
        ],
    }


def _paid(row: dict[str, Any]) -> float:
    return float("-inf") if row["reward"] is None else float(row["reward"])


def _span(steps: list[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if steps else "none"
