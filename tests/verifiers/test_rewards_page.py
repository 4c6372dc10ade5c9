"""docs/rewards.md: its examples run as they stand there, and its tables name every key and keyword."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupola.core.config import FunctionReward
from cupola.core.records import Completion, Prompt
from cupola.train.verifiers import Scorer, build

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
TEXT = (Prompt("2+2?", "4", {"answer": "4"}), Prompt("2+3?", "5", {"answer": "5"}))
CHAT = tuple(Prompt(({"role": "user", "content": p.text},), p.answer, p.columns) for p in TEXT)


class Log:
    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.metrics: dict[str, float] = {}

    def column(self, name: str, values: Sequence[Any]) -> None:
        self.columns[name] = list(values)

    def metric(self, name: str, value: float) -> None:
        self.metrics[name] = value


def completion(text: str) -> Completion:
    empty = np.zeros(0, np.float32)
    return Completion(text, np.zeros(0, np.int64), empty, empty, "stop", 0)


@pytest.fixture
def scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Score two completions by a function of the page, all of whose code stands in one file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("my_rewards.py").write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S)), encoding="utf-8")

    def scores(name: str, prompts: Sequence[Prompt], texts: Sequence[str], log: Log | None = None) -> Any:
        [verifier] = build([FunctionReward(name=name, path=f"my_rewards.py:{name}")])
        verdicts = verifier.verify(prompts, [completion(text) for text in texts], 0, log or Log())
        return [verdict.score for verdict in verdicts]

    return scores


def test_the_first_example_reads_the_answer(scores: Any) -> None:
    assert scores("right", TEXT, ["it is 4\n", "4"]) == [1.0, 0.0]


@pytest.mark.parametrize("prompts", [TEXT, CHAT], ids=["text", "chat"])
def test_the_chat_safe_example_reads_both_and_logs(scores: Any, prompts: Sequence[Prompt]) -> None:
    log = Log()
    assert scores("short", prompts, ["a few words", "word " * 21], log) == [1.0, 0.0]
    assert log.columns == {"words": ["3", "21"]}
    assert log.metrics == {"most_words": 21.0}


def test_the_async_example_scores_and_skips(scores: Any) -> None:
    assert scores("judged", TEXT, ["so 4", ""]) == [1.0, None]
    assert scores("judged", TEXT, ["so 4", "so 6"]) == [1.0, 0.0]


def test_the_recipe_of_the_page_is_one(scores: Any) -> None:
    [toml] = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    part = FunctionReward.model_validate(tomllib.loads(toml)["reward"][0])
    [rollout] = Scorer([part], build([part]), part.name).score(TEXT[:1], [completion("4")], 0)
    assert (rollout.reward, rollout.correct) == (1.0, True)


def test_the_tables_name_every_key_and_keyword(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = " ".join(re.findall(r"^\| (.*?) \|", PAGE, re.M))
    for key in FunctionReward.model_fields.keys() - {"name", "kind", "path"}:
        assert f"`{key}`" in named, key
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("given.py").write_text("given = []\ndef f(**all_of_it):\n    given.extend(all_of_it)\n    return [0]\n")
    part = FunctionReward(name="f", path="given.py:f")
    build([part])[0].verify(TEXT[:1], [completion("4")], 0, Log())
    [given] = [
        m.given for m in list(sys.modules.values()) if getattr(m, "__file__", "") == str(Path.cwd() / "given.py")
    ]
    assert len(given) == 7
    for keyword in given:
        assert re.search(rf"`{keyword}[`(]", named), keyword
