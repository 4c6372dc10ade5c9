"""The sum of a recipe's parts: weights, voids, optional parts, correctness."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.core.config import Data, ExactReward, FunctionReward, NumericReward, PatternReward, Recipe, Reward
from cupola.core.records import Completion, LogSink, Prompt, RewardError, Status, Verdict
from cupola.train.verifiers import Scorer, total


def completion(text: str) -> Completion:
    empty = np.zeros(0, np.float32)
    return Completion(text, np.zeros(0, np.int64), empty, empty, "stop", 0)


def part(name: str, **values: Any) -> Reward:
    return FunctionReward(name=name, path="mine.py:f", **values)


class Fixed:
    """A verifier of a user's own: the same verdict always, and a column in the log."""

    def __init__(self, name: str, verdict: Verdict, column: str | None = None) -> None:
        self.name, self.verdict, self.column = name, verdict, column

    def verify(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink
    ) -> list[Verdict]:
        if self.column:
            log.column(self.column, [c.text for c in completions])
            log.metric("seen", len(completions))
        return [self.verdict] * len(completions)


def test_weights_and_correctness_are_separate() -> None:
    recipe = Recipe.model_validate(
        {
            "data": {"task": "arithmetic"},
            "reward": [
                {"name": "format", "kind": "pattern", "pattern": r"<a>.*</a>", "weight": 0.25},
                {"name": "right", "kind": "numeric", "weight": 2.0},
            ],
        }
    )
    texts = ["<a>4</a>", "4", "<a>5</a>", "none"]
    rollouts = Scorer.of(recipe).score([Prompt("2+2?", "4")] * 4, [completion(t) for t in texts], 0)
    assert [r.reward for r in rollouts] == [2.25, 2.0, 0.25, 0.0]
    assert [r.correct for r in rollouts] == [True, True, False, False]
    assert [list(r.verdicts) for r in rollouts] == [["format", "right"]] * 4
    assert [r.verdicts["right"].status for r in rollouts] == ["ok", "ok", "wrong", "parse_fail"]
    assert [r.completion.text for r in rollouts] == texts


def test_a_bad_gold_gives_neither_reward_nor_correctness() -> None:
    parts = [NumericReward(name="right"), PatternReward(name="form", pattern=".*")]
    recipe = Recipe(data=Data(task="arithmetic"), reward=parts)
    [rollout] = Scorer.of(recipe).score([Prompt("q", "many")], [completion("4")], 0)
    assert rollout.reward is None
    assert rollout.correct is None
    assert rollout.verdicts["form"].score == 1.0


@pytest.mark.parametrize(
    ("optional", "status", "expected"),
    [
        (False, "skipped", None),
        (True, "skipped", 3.0),
        (True, "error", None),
        (True, "gold_bad", None),
        (True, "timeout", None),
    ],
)
def test_only_an_optional_skip_adds_nothing(optional: bool, status: Status, expected: float | None) -> None:
    parts = [part("a", weight=3.0), part("b", optional=optional)]
    assert total(parts, {"a": Verdict(1.0, "ok"), "b": Verdict(None, status)}) == expected


def test_all_skipped_is_no_reward() -> None:
    skipped = Verdict(None, "skipped")
    assert total([part("a", optional=True), part("b", optional=True)], {"a": skipped, "b": skipped}) is None


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(-8, 8)), min_size=1, max_size=5))
def test_the_total_is_the_weighted_sum(pairs: list[tuple[int, int]]) -> None:
    parts = [part(str(i), weight=float(weight)) for i, (weight, _) in enumerate(pairs)]
    verdicts = {str(i): Verdict(float(score), "ok") for i, (_, score) in enumerate(pairs)}
    assert total(parts, verdicts) == sum(weight * score for weight, score in pairs)


@pytest.mark.parametrize(
    ("verdict", "correct"),
    [
        (Verdict(0.5, "ok"), True),
        (Verdict(0.9, "wrong"), False),
        (Verdict(0.0, "parse_fail"), False),
        (Verdict(None, "gold_bad"), None),
        (Verdict(None, "error"), None),
        (Verdict(None, "skipped"), None),
    ],
)
def test_correct_is_what_the_decisive_verdict_says(verdict: Verdict, correct: bool | None) -> None:
    verifiers = [Fixed("paid", Verdict(1.0, "ok")), Fixed("judged", verdict)]
    scorer = Scorer([part("paid"), part("judged")], verifiers, "judged")
    assert scorer.score([Prompt("q")], [completion("x")], 0)[0].correct is correct


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([PatternReward(name="a", pattern="x"), ExactReward(name="b"), ExactReward(name="c")], "b"),
        ([ExactReward(name="a"), ExactReward(name="b", role="correctness")], "b"),
        ([ExactReward(name="a", role="format"), ExactReward(name="b", role="other"), ExactReward(name="c")], "c"),
        ([PatternReward(name="a", pattern="x"), PatternReward(name="b", pattern="x")], "a"),
    ],
)
def test_which_part_decides(parts: list[Reward], name: str) -> None:
    assert Recipe(data=Data(task="arithmetic"), reward=parts).correctness_part() == name


def test_logged_columns_reach_the_rollouts() -> None:
    scorer = Scorer([part("a")], [Fixed("a", Verdict(1.0, "ok"), "seen_text")], "a")
    rollouts = scorer.score([Prompt("q")] * 2, [completion("x"), completion("y")], 0)
    assert [r.extra for r in rollouts] == [{"seen_text": "x"}, {"seen_text": "y"}]


def test_digests_are_those_of_the_reward_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    source = "def f(**_): return []\n"
    for name in ("pay.py", "pay_as_module.py"):
        Path(name).write_text(source)
    of_source = "f7ad2b67cff2534672ee049ef3e398a6e4dcb0600548ef06cd4ba6b0596ca4ec"
    rewards: list[Reward] = [
        FunctionReward(name="a", path="pay.py:f"),
        FunctionReward(name="b", path="pay_as_module:f"),
        FunctionReward(name="c", path="builtins:len"),
        ExactReward(name="d"),
    ]
    scorer = Scorer.of(Recipe(data=Data(task="arithmetic"), reward=rewards))
    assert scorer.digests() == {"pay.py": of_source, "pay_as_module": of_source}
    Path("pay.py").write_text(source + "#\n")
    assert scorer.digests()["pay.py"] != of_source


def test_two_parts_cannot_log_one_column() -> None:
    verifiers = [Fixed(name, Verdict(1.0, "ok"), "seen_text") for name in ("a", "b")]
    scorer = Scorer([part("a"), part("b")], verifiers, "a")
    with pytest.raises(RewardError, match="'seen_text'"):
        scorer.score([Prompt("q")], [completion("x")], 0)
