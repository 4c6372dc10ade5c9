"""The soft overlong punishment as a reward part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cupola.core.config import ExactReward, OverlongReward, Recipe, validate
from cupola.core.records import Completion, Prompt, RecipeError
from cupola.train.objectives import soft_overlong_punishment
from cupola.train.verifiers import Scorer, build


def completion(tokens: int) -> Completion:
    zeros = np.zeros(tokens, dtype=np.float32)
    return Completion("7", np.zeros(tokens, dtype=np.int64), zeros, zeros, "stop", 0)


def test_it_grows_over_the_last_tokens_as_the_objective_has_it() -> None:
    """max 100, cache 20: 0 up to 80 tokens, -1/4 at 85, -1 at 100 and beyond."""
    part = OverlongReward(name="short", cache=20)
    [verifier] = build([part], max_tokens=100)
    lengths = [1, 80, 85, 90, 100, 120]
    scores = [v.score for v in verifier.verify([Prompt("q")] * 6, [completion(n) for n in lengths], 0, None)]
    assert scores == [0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert scores == soft_overlong_punishment(torch.tensor(lengths), 100, 20).tolist()


def test_it_is_added_to_the_reward_and_says_nothing_of_right_and_wrong() -> None:
    recipe = validate(
        {
            "data": {"task": "arithmetic"},
            "sampling": {"max_tokens": 100},
            "reward": [{"name": "short", "kind": "overlong", "cache": 20}, {"name": "right", "kind": "exact"}],
        },
        Recipe,
    )
    assert recipe.correctness_part() == "right"
    [rollout] = Scorer.of(recipe).score([Prompt("3+4=", "7")], [completion(90)], 0)
    assert (rollout.reward, rollout.correct) == (0.5, True)


def test_a_cache_longer_than_the_limit_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"cache = 200 is more than sampling\.max_tokens = 100"):
        build([ExactReward(name="right"), OverlongReward(name="short", cache=200)], max_tokens=100)
