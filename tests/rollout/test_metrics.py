"""A step's metrics against numbers worked by hand."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest

from cupola.core.records import Completion, Group, Prompt, Rollout, Verdict
from cupola.train.rollout import group_metrics, headline, mean, part_metrics


def rollout(
    reward: float | None,
    correct: bool | None,
    n: int = 2,
    end: Literal["stop", "length"] = "stop",
    text: str = "x",
    entropy: float = 0.5,
) -> Rollout:
    entropies = np.full(n, entropy, dtype=np.float32)
    completion = Completion(text, np.arange(n), np.zeros(n, np.float32), entropies, end, 0)
    status = "error" if reward is None else "ok" if correct else "wrong"
    verdicts = {"answer": Verdict(reward, status, extracted=text or None), "form": Verdict(1.0, "ok")}
    return Rollout(completion, verdicts, reward, correct)


def group(*rollouts: Rollout) -> Group:
    return Group("g", Prompt("q"), rollouts)


GROUPS = [
    group(rollout(1.0, True, n=2), rollout(0.0, False, n=6, end="length", text="y")),  # signal
    group(rollout(0.0, False), rollout(0.0, False, text="")),  # dead, all wrong
    group(rollout(1.0, True), rollout(1.0, True)),  # dead, all right
    group(rollout(0.2, False), rollout(0.4, False)),  # rewards differ, correctness does not
    group(rollout(1.0, True), rollout(None, None)),  # unscorable
]


def test_headline_by_hand() -> None:
    found = headline(GROUPS)
    rewards = [1, 0, 0, 0, 1, 1, 0.2, 0.4, 1]  # the one without a reward is in no mean
    assert found["reward"] == pytest.approx(4.6 / 9)
    variance = sum((r - 4.6 / 9) ** 2 for r in rewards) / 8
    assert found["reward_std"] == pytest.approx(math.sqrt(variance))
    assert found["frac_reward_zero_std"] == 0.5  # two of four scorable groups
    assert found["completions/mean_length"] == 2.4  # nine of 2 and one of 6 tokens
    assert found["completions/min_length"] == 2
    assert found["completions/max_length"] == 6
    assert found["completions/clipped_ratio"] == pytest.approx(0.1)
    assert found["completions/mean_terminated_length"] == 2
    assert found["completions/max_terminated_length"] == 2


def test_entropy_is_the_token_mean() -> None:
    two = [group(rollout(1.0, True, n=1, entropy=1.0), rollout(0.0, False, n=3, entropy=0.2))]
    assert headline(two)["entropy"] == pytest.approx(0.4)


def test_where_there_is_nothing_there_is_no_number() -> None:
    assert set(headline([]).values()) == {None}
    lone = headline([group(rollout(None, None, end="length"))])
    assert lone["reward"] is None
    assert lone["reward_std"] is None
    assert lone["frac_reward_zero_std"] is None
    assert lone["completions/mean_terminated_length"] is None
    assert lone["completions/clipped_ratio"] == 1
    assert headline([group(rollout(None, None, n=0))])["entropy"] is None
    assert mean([]) is None


def test_states_by_hand() -> None:
    found = group_metrics(GROUPS, "answer")
    assert found == {
        "groups/with_signal": 0.4,
        "groups/no_signal": 0.2,
        "groups/unscorable": 0.2,
        "groups/dead": 0.4,
        "groups/dead_right": 0.2,
        "groups/dead_wrong": 0.2,
        "groups/distinct_answers": 7 / 5,  # x, y; x and the empty text; then one each
    }


def test_parts_by_hand() -> None:
    found = part_metrics([r for g in GROUPS for r in g.rollouts])
    assert found["rewards/answer/mean"] == pytest.approx(4.6 / 9)
    assert found["rewards/form/mean"] == 1.0
    assert found["rewards/form/std"] == 0.0
    assert found["correct/mean"] == pytest.approx(4 / 9)
    assert found["verify/error"] == 1
    assert found["verify/ok"] == 4 + 10
    assert found["verify/wrong"] == 5
    nothing = part_metrics([rollout(None, None)])
    assert nothing["rewards/answer/mean"] is None
    assert nothing["rewards/form/std"] is None
    assert nothing["correct/mean"] is None
