"""A step's metrics from its groups. Keys are TRL's where TRL has one; what is undefined is `None`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import get_args

import numpy as np

from cupola.core.records import Group, Rollout, Status

Metrics = dict[str, float | None]


def headline(groups: Sequence[Group]) -> Metrics:
    """Reward, entropy and lengths over all rollouts of the groups, and how many groups had equal rewards.

    `reward_std` is the standard deviation (ddof 1) over the whole batch, `entropy` the token mean in nats of the
    distributions sampled from (`None` where the sampler does not tell), `frac_reward_zero_std` the share of scorable
    groups whose rewards are equal.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = [r.reward for r in rollouts if r.reward is not None]
    scorable = [group for group in groups if group.state != "unscorable"]
    return {
        "reward": mean(rewards),
        "reward_std": stdev(rewards) if len(rewards) > 1 else None,
        "frac_reward_zero_std": mean(group.state == "dead" for group in scorable),
        "entropy": _token_mean([r.completion.entropies for r in rollouts]),
        **_lengths(rollouts),
    }


def part_metrics(rollouts: Sequence[Rollout]) -> Metrics:
    """Scores of each part, the share right of the judged answers, and how many verdicts had which status."""
    judged = [r.correct for r in rollouts if r.correct is not None]
    found: Metrics = {"correct/mean": mean(judged), "correct/answers": len(judged)}
    counts = dict.fromkeys(get_args(Status), 0)
    for name in rollouts[0].verdicts if rollouts else ():
        scores = [s for r in rollouts if (s := r.verdicts[name].score) is not None]
        found[f"rewards/{name}/mean"] = mean(scores)
        found[f"rewards/{name}/std"] = stdev(scores) if len(scores) > 1 else None
        for rollout in rollouts:
            counts[rollout.verdicts[name].status] += 1
    return {**found, **{f"verify/{status}": n for status, n in counts.items()}}


def group_metrics(groups: Sequence[Group], part: str) -> Metrics:
    """Shares of groups by state, dead ones split into all-right and all-wrong, and distinct answers in a group.

    `groups/with_signal` are the prompts with signal: neither dead nor unscorable.
    """
    dead = [group for group in groups if group.state == "dead"]
    n = len(groups)
    return {
        "groups/with_signal": sum(group.state in ("signal", "no_signal") for group in groups) / n,
        "groups/no_signal": sum(group.state == "no_signal" for group in groups) / n,
        "groups/unscorable": sum(group.state == "unscorable" for group in groups) / n,
        "groups/dead": len(dead) / n,
        "groups/dead_right": sum(group.solve_rate == 1 for group in dead) / n,
        "groups/dead_wrong": sum(group.solve_rate == 0 for group in dead) / n,
        "groups/distinct_answers": mean(len({_answer(r, part) for r in group.rollouts}) for group in groups),
    }


def mean(values: Iterable[float]) -> float | None:
    """Mean, or `None` of nothing."""
    listed = list(values)
    return fmean(listed) if listed else None


def _answer(rollout: Rollout, part: str) -> str:
    """The extracted answer, or the whole text where the verifier extracts none."""
    extracted = rollout.verdicts[part].extracted
    return rollout.completion.text if extracted is None else extracted


def _lengths(rollouts: Sequence[Rollout]) -> Metrics:
    """TRL's `completions/*`; unlike TRL's, a statistic over no terminated completion is `None`, not 0."""
    lengths = [r.completion.n_tokens for r in rollouts]
    ended = [r.completion.n_tokens for r in rollouts if r.completion.finish_reason == "stop"]
    found: Metrics = {"completions/clipped_ratio": 1 - len(ended) / len(lengths) if lengths else None}
    for key, values in (("length", lengths), ("terminated_length", ended)):
        found[f"completions/mean_{key}"] = mean(values)
        found[f"completions/min_{key}"] = min(values, default=None)
        found[f"completions/max_{key}"] = max(values, default=None)
    return found


def _token_mean(values: Sequence[np.ndarray | None]) -> float | None:
    known = [value for value in values if value is not None]
    tokens = np.concatenate(known) if known and len(known) == len(values) else np.empty(0)
    return float(tokens.mean(dtype=np.float64)) if len(tokens) else None
