"""Reward functions written for TRL, unmodified: what they are given, what they may return, how they fail."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cupola.core.config import FunctionReward
from cupola.core.records import Completion, Prompt, RecipeError, RewardError, Verdict
from cupola.train.verifiers import build

TEXTS = ("4", "five")
PROMPTS = (Prompt("2+2?", "4", {"answer": 4, "level": "easy"}), Prompt("2+3?", "5", {"answer": 5}))


class Log:
    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {}
        self.metrics: list[tuple[str, float]] = []

    def column(self, name: str, values: Sequence[Any]) -> None:
        self.columns[name] = list(values)

    def metric(self, name: str, value: float) -> None:
        self.metrics.append((name, value))


def completion(text: str) -> Completion:
    ids = np.array([ord(c) for c in text], np.int64)
    zeros = np.zeros(len(ids), np.float32)
    return Completion(text, ids, zeros, zeros, "stop", 0)


def part(path: str, **values: Any) -> FunctionReward:
    return FunctionReward(name="mine", path=path, **values)


def run(path: str, prompts: Sequence[Prompt] = PROMPTS, log: Log | None = None, **values: Any) -> list[Verdict]:
    [verifier] = build([part(path, **values)], max_steps=50, steps_per_epoch=4)
    return verifier.verify(prompts, [completion(text) for text in TEXTS], 10, log or Log())


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the source of a reward file into the current directory and return the path of its function `f`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())

    def write(source: str, file: str = "mine.py") -> str:
        (tmp_path / file).write_text(source)
        return f"{file}:f"

    return write


def returning(value: str) -> str:
    return f"def f(**_):\n    return {value}\n"


def test_a_function_gets_what_trl_gives(write: Any) -> None:
    path = write("given = {}\ndef f(**all_of_it):\n    given.update(all_of_it)\n    return [1.0, 0.0]\n")
    verdicts = run(path)
    given = next(
        m.given for m in list(sys.modules.values()) if getattr(m, "__file__", "") == str(Path.cwd() / "mine.py")
    )
    state, log_extra, log_metric = given.pop("trainer_state"), given.pop("log_extra"), given.pop("log_metric")
    assert given == {
        "prompts": ["2+2?", "2+3?"],
        "completions": ["4", "five"],
        "completion_ids": [[52], [102, 105, 118, 101]],
        "answer": [4, 5],
        "level": ["easy", None],
    }
    assert (state.global_step, state.max_steps, state.epoch) == (10, 50, 2.5)
    assert callable(log_extra)
    assert callable(log_metric)
    assert [(v.score, v.status, v.verifier) for v in verdicts] == [(1.0, "ok", "mine"), (0.0, "wrong", "mine")]
    assert all(v.seconds > 0 for v in verdicts)


def test_answers_of_a_task_come_as_a_column_too(write: Any) -> None:
    path = write("def f(completions, answer, **_):\n    return [c == a for c, a in zip(completions, answer)]\n")
    assert [v.score for v in run(path, [Prompt("a", "4"), Prompt("b", "5")])] == [1.0, 0.0]


def test_chat_prompts_bring_chat_completions(write: Any) -> None:
    path = write(
        "def f(prompts, completions, **_):\n"
        "    assert prompts[0] == [{'role': 'user', 'content': 'hi'}], prompts\n"
        "    return [len(c[0]['content']) if c[0]['role'] == 'assistant' else -1 for c in completions]\n"
    )
    chat = Prompt(({"role": "user", "content": "hi"},))
    assert [v.score for v in run(path, [chat, chat])] == [1.0, 4.0]


def test_an_async_function_keeps_one_event_loop(write: Any) -> None:
    path = write(
        "import asyncio\nloops = set()\n"
        "async def f(completions, log_metric, **_):\n"
        "    loops.add(asyncio.get_running_loop())\n    log_metric('loops', len(loops))\n"
        "    return await asyncio.gather(*(score(c) for c in completions))\n"
        "async def score(c):\n    await asyncio.sleep(0)\n    return float(len(c))\n"
    )
    log = Log()

    async def in_a_notebook() -> list[Verdict]:
        return run(path, log=log)

    for verdicts in (run(path, log=log), asyncio.run(in_a_notebook())):
        assert [v.score for v in verdicts] == [1.0, 4.0]
    assert log.metrics == [("loops", 1.0), ("loops", 1.0)]


@pytest.mark.parametrize(
    ("value", "scores"),
    [
        ("[True, False]", [1.0, 0.0]),
        ("(2, -0.5)", [2.0, -0.5]),
        ("iter([1, 0])", [1.0, 0.0]),
        ("__import__('numpy').array([1, 0.25])", [1.0, 0.25]),
        ("__import__('decimal').Decimal('0.5'), __import__('numpy').bool_(1)", [0.5, 1.0]),
        ("[None, 1]", [None, 1.0]),
    ],
)
def test_what_counts_as_a_number(write: Any, value: str, scores: list[float | None]) -> None:
    verdicts = run(write(returning(value)))
    assert [v.score for v in verdicts] == scores
    assert [v.status for v in verdicts if v.score is None] == ["skipped"] * scores.count(None)


def test_a_score_is_ok_from_correct_at(write: Any) -> None:
    assert [v.status for v in run(write(returning("[0.5, 0.4]")), correct_at=0.5)] == ["ok", "wrong"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("[1, float('nan')]", r"row 1 \(prompt \w{16}\): returned nan"),
        ("[1, float('inf')]", "row 1 .*: returned inf"),
        ("[1, '1']", "row 1 .*: returned '1'"),
        ("[[1], 1]", r"row 0 .*: returned \[1\]"),
        ("[10**400, 1]", "row 0 .*: returned int, OverflowError"),
        ("[1]", "returned 1 values for 2 completions"),
        ("[1, 2, 3]", "returned 3 values for 2 completions"),
        ("{'a': 1, 'b': 0}", "returned a dict; give a list with one value per completion"),
        ("{1, 0}", "returned a set; give a list"),
        ("{1: 2, 3: 4}.keys()", "returned a dict_keys; give a list"),
        ("'10'", "returned a str; give a list"),
        ("None", "raised TypeError"),
        ("1.0", "raised TypeError"),
        ("1 / 0", r"raised ZeroDivisionError: division by zero \(mine.py, line 2\)"),
        ("exit(0)", "raised SystemExit"),
    ],
)
def test_a_fault_names_the_function_and_the_row(write: Any, value: str, text: str) -> None:
    path = write(returning(value))
    with pytest.raises(RewardError, match=rf"^reward 'mine' \(mine.py:f\): {text}") as caught:
        run(path)
    assert "\n" not in str(caught.value)


def test_an_unscorable_fault_is_no_reward(write: Any) -> None:
    path = write(returning("[1, float('nan')]"))
    good, bad = run(path, on_error="unscorable")
    assert (good.score, good.status) == (1.0, "ok")
    assert (bad.score, bad.status) == (None, "error")
    assert "row 1" in bad.reason


def test_an_unscorable_exception_voids_the_whole_batch(write: Any) -> None:
    path = write("def f(completions, log_metric, **_):\n    log_metric('m', 1)\n    raise OSError('down again')\n")
    log = Log()
    verdicts = run(path, log=log, on_error="unscorable")
    assert [(v.score, v.status) for v in verdicts] == [(None, "error")] * 2
    assert "OSError: down again (mine.py, line 3)" in verdicts[0].reason
    assert log.metrics == []


def test_the_log_gets_columns_and_metrics(write: Any) -> None:
    path = write(
        "import numpy as np\n"
        "def f(completions, log_extra, log_metric, **_):\n"
        "    for c in completions:\n        log_extra('length', [np.int64(len(c))])\n"
        "    log_metric('mean_length', np.float32(2.5))\n    return [1, 1]\n"
    )
    log = Log()
    run(path, log=log)
    run(path)
    assert log.columns == {"length": ["1", "4"]}
    assert log.metrics == [("mean_length", 2.5)]


@pytest.mark.parametrize("values", ["[1]", "[1, 2, 3]", "[1, object()]", "{1: 2, 3: 4}", "{1, 2}", "'ab'", "5"])
def test_a_column_that_cannot_be_kept_is_refused(write: Any, values: str) -> None:
    path = write(f"def f(log_extra, **_):\n    log_extra('extra', {values})\n    return [1, 1]\n")
    with pytest.raises(RewardError, match=r"'extra'|int.* object is not iterable"):
        run(path)


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ("[True, 2**70]", ["true", "1180591620717411303424"]),
        ("[None, 0.5]", [None, "0.5"]),
        ("['é', {'a': [1]}]", ["é", '{"a": [1]}']),
        ("[np.bool_(1), np.arange(2)]", ["true", "[0, 1]"]),
    ],
)
def test_logged_values_are_text_whatever_their_type(write: Any, values: str, kept: list[str | None]) -> None:
    path = write(f"import numpy as np\ndef f(log_extra, **_):\n    log_extra('extra', {values})\n    return [1, 1]\n")
    log = Log()
    run(path, log=log)
    assert log.columns == {"extra": kept}


def test_a_function_may_change_what_it_gets(write: Any) -> None:
    path = write(
        "def f(tests, prompts, **_):\n    prompts[0][0]['content'] = ''\n"
        "    return [t.pop() + 10 * len(t) for t in tests]\n"
    )
    prompt = Prompt(({"role": "user", "content": "hi"},), columns={"tests": [3, 4]})
    for _ in range(2):
        assert [v.score for v in run(path, [prompt, prompt])] == [14.0, 14.0]
    assert prompt.columns == {"tests": [3, 4]}
    assert prompt.text == "user: hi"


def test_what_a_function_prints_goes_to_standard_error(write: Any, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(
        "print('imported')\nasync def f(**_):\n    print('async')\n    return scores()\n"
        "def scores():\n    print('lazy')\n    yield from (1, 0)\n"
    )
    assert [v.score for v in run(path)] == [1.0, 0.0]
    assert capfd.readouterr() == ("", "imported\nasync\nlazy\n")


def test_extract_shows_an_answer_and_leaves_the_score(write: Any) -> None:
    path = write(returning("[0, None]"))
    verdicts = run(path, extract=r"[a-z]+|\d+")
    assert [(v.extracted, v.score) for v in verdicts] == [("4", 0.0), ("five", None)]
    assert [v.extracted for v in run(path, extract=r"x(.*)")] == [None, None]
    assert [v.extracted for v in run(path)] == [None, None]
    with pytest.raises(RecipeError, match="reward 'mine': `extract` is not a regular expression"):
        run(path, extract="(")
    faulty = run(write("def f(**_):\n    raise OSError\n", "faulty.py"), extract=".+", on_error="unscorable")
    assert [(v.extracted, v.status) for v in faulty] == [("4", "error"), ("five", "error")]


def test_no_completions_means_no_call(write: Any) -> None:
    [verifier] = build([part(write(returning("1 / 0")))])
    assert verifier.verify([], [], 0, Log()) == []


def test_import_by_package_and_neighbouring_modules(write: Any, tmp_path: Path) -> None:
    (tmp_path / "my_rewards_pkg").mkdir()
    (tmp_path / "my_rewards_pkg" / "text.py").write_text(
        "from my_helper_mod import one\ndef f(**_): return [one, one]\n"
    )
    (tmp_path / "my_helper_mod.py").write_text("one = 1\n")
    assert [v.score for v in run("my_rewards_pkg.text:f")] == [1.0, 1.0]


def test_a_file_is_imported_once(write: Any) -> None:
    path = write("import itertools\ncount = itertools.count()\ndef f(**_): return [next(count), next(count)]\n")
    assert [v.score for v in run(path) + run(path)] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("mine.py", r"mine.py: write package.module:name or file.py:name"),
        (":f", "write package"),
        ("absent.py:f", r"absent.py:f: no file /.*absent.py"),
        ("no_such_package_here:f", "no_such_package_here:f: cannot be imported: ModuleNotFoundError"),
        ("mine.py:acuracy", "mine.py:acuracy: mine.py has no 'acuracy'; did you mean 'accuracy'?"),
        ("mine.py:zzz", "mine.py has no 'zzz'$"),
        ("mine.py:LIMIT", "'LIMIT' is not callable but int"),
        ("broken.py:f", "broken.py:f: cannot be imported: SyntaxError"),
        ("leaving.py:f", "leaving.py:f: cannot be imported: SystemExit"),
    ],
)
def test_import_faults_name_the_path(write: Any, path: str, text: str) -> None:
    write("LIMIT = 3\ndef accuracy(**_): return []\n")
    write("def f(:\n", "broken.py")
    write("import sys\nsys.exit(0)\n", "leaving.py")
    with pytest.raises(RecipeError, match=text) as caught:
        build([part(path)])
    assert "\n" not in str(caught.value)


def test_without_a_run_the_state_is_that_of_transformers(write: Any) -> None:
    path = write("def f(trainer_state, **_):\n    s = trainer_state\n    return [s.max_steps, s.epoch]\n")
    [verifier] = build([part(path)])
    verdicts = verifier.verify(PROMPTS, [completion(text) for text in TEXTS], 0, Log())
    assert [(v.score, v.status) for v in verdicts] == [(0.0, "wrong"), (None, "skipped")]
    assert math.isfinite(verdicts[0].seconds)
