"""The user's own files: what a row may be, and a one-line error with file and row for all else."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cupola.core.config import Data, ExactReward, FunctionReward, NumericReward, Reward
from cupola.core.records import DataError, Prompt
from cupola.train.tasks import Questions, load_questions, refuse_overlap

EXACT = ExactReward(name="right")
NUMERIC = NumericReward(name="right")
ROWS = [{"question": f"{n}+{n}?", "answer": str(2 * n), "level": "easy"} for n in range(200)]
HELD_OUT = [{"question": "a?", "answer": "1"}, {"question": "b?", "answer": "2"}]


def write(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def load(folder: Path, rows: Sequence[Mapping[str, Any]], part: Reward = EXACT, **values: Any) -> Questions:
    """Rows as a training file, with a validation file of two other questions."""
    train = write(folder / "train.jsonl", rows)
    held_out = write(folder / "held_out.jsonl", HELD_OUT)
    return load_questions(Data(file=str(train), validation_file=str(held_out), **values), [part])


def assert_refused(path: Path, text: str, **values: Any) -> None:
    with pytest.raises(DataError, match=text) as caught:
        load_questions(Data(file=str(path), **values), [EXACT])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_three_kinds_of_file_give_the_same_questions(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"train.{ending}", ROWS)
    questions = load_questions(Data(file=str(path), validation_share=0.2), [NUMERIC])
    both = {p.id: p for p in (*questions.train, *questions.validation)}
    assert len(questions.train) + len(questions.validation) == len(both) == 200
    assert both[Prompt("7+7?").id].answer == "14"
    assert both[Prompt("7+7?").id].columns == {"question": "7+7?", "answer": "14", "level": "easy"}
    assert 20 <= len(questions.validation) <= 60  # 40 expected; 3.5 standard deviations are 20
    assert (questions.dropped_duplicates, questions.bad_gold) == (0, ())


def test_answers_become_text_and_stay_as_columns_in_their_type(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a", "question": "why?", "answer": 4}, {"prompt": "b", "answer": 0.5}]
    rows.append({"prompt": "c", "answer": -3.0})
    four, half, whole = load(tmp_path, rows).train
    assert (whole.answer, whole.columns) == ("-3", {"answer": -3.0})
    assert (four.content, four.answer, four.columns) == ("a", "4", {"question": "why?", "answer": 4})
    assert (half.content, half.answer, half.columns) == ("b", "0.5", {"answer": 0.5})


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (1.0, "1"),
        (-0.0, "0"),
        (2.0**53, "9007199254740992"),
        (1e300, "1e+300"),
        (0.1, "0.1"),
        (Decimal("7.00"), "7"),
        (Decimal("7.50"), "7.50"),
        (10**30, str(10**30)),
        ("1.0", "1.0"),
    ],
)
def test_a_whole_number_has_no_point(tmp_path: Path, answer: Any, text: str) -> None:
    table = pa.table({"prompt": ["a"], "answer": [str(answer) if isinstance(answer, int) else answer]})
    pq.write_table(table, tmp_path / "train.parquet")
    held_out = write(tmp_path / "held_out.jsonl", HELD_OUT)
    data = Data(file=str(tmp_path / "train.parquet"), validation_file=str(held_out))
    assert load_questions(data, [EXACT]).train[0].answer == text


@pytest.mark.parametrize(
    ("answer", "text"), [("NaN", "nan"), ("1e999", "inf"), ("-Infinity", "-inf"), ("true", "True"), ("false", "False")]
)
def test_an_answer_that_is_no_finite_number_is_refused(tmp_path: Path, answer: str, text: str) -> None:
    rows = f'{{"prompt": "a", "answer": "1"}}\n{{"prompt": "b", "answer": {answer}}}\n'
    (tmp_path / "train.jsonl").write_text(rows)
    assert_refused(tmp_path / "train.jsonl", f"line 2: `answer` is {text}; give text or a finite number")
    held_out = write(tmp_path / "held_out.jsonl", HELD_OUT)
    part = FunctionReward(name="mine", path="m:f")
    data = Data(file=str(tmp_path / "train.jsonl"), validation_file=str(held_out), answer_required=False)
    assert [prompt.answer for prompt in load_questions(data, [part]).train] == ["1", None]


def test_an_answer_that_pandas_lacks_is_missing(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b", "c"], "answer": [1.0, float("nan"), None]})
    pq.write_table(table, tmp_path / "train.parquet")
    assert_refused(tmp_path / "train.parquet", "row 2: `answer` is nan")


@pytest.mark.parametrize(
    "chat",
    [
        '[{"role": "user", "content": "2+2?"}]',
        ' [ {"content": "[x]", "role": "user"},\n {"role": "assistant", "content": "hm"} ]\n',
        "[{'role': 'user', 'content': '2+2?'}]",
    ],
)
def test_chat_messages_as_text_are_refused(tmp_path: Path, chat: str) -> None:
    path = write(tmp_path / "train.csv", [{"prompt": "a", "answer": "1"}, {"prompt": chat, "answer": "4"}])
    assert_refused(
        path, r"line 3: the prompt is chat messages written as text; give them as a list, in .jsonl or .parquet"
    )


@pytest.mark.parametrize("text", ['[{"role": "user", "content": "hi"}] Who speaks?', "[1, 2]", '[{"x": 1}]', "[{"])
def test_text_in_brackets_is_text(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, [{"prompt": text, "answer": "1"}]).train[0].content == text


def test_answers_may_be_left_to_the_reward_function(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a"}, {"prompt": "b", "answer": ["x", "y"]}]
    write(tmp_path / "held_out.jsonl", [{"prompt": "c"}])
    part = FunctionReward(name="mine", path="m:f")
    first, second = load(tmp_path, rows, part, answer_required=False).train
    assert (first.answer, second.answer, second.columns["answer"]) == (None, None, ["x", "y"])


def test_a_byte_order_mark_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    for name, body in (("a.csv", "prompt,answer\n\nq,1\n"), ("a.jsonl", '\n{"prompt": "q", "answer": "1"}\n\n')):
        (tmp_path / name).write_text("\ufeff" + body, encoding="utf-8")
        held_out = write(tmp_path / "held_out.jsonl", HELD_OUT)
        data = Data(file=str(tmp_path / name), validation_file=str(held_out))
        assert [p.content for p in load_questions(data, [EXACT]).train] == ["q"]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_chat_messages(tmp_path: Path, ending: str) -> None:
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "2+2?"}]
    path = write(tmp_path / f"train.{ending}", [{"prompt": chat, "answer": "4"}])
    held_out = write(tmp_path / "held_out.jsonl", HELD_OUT)
    data = Data(file=str(path), validation_file=str(held_out), chat=True, system="be kind")
    questions = load_questions(data, [EXACT])
    assert questions.train[0].content == tuple(chat)  # a chat keeps the system message it opens with
    assert questions.validation[0].content == (
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a?"},
    )


def test_the_split_does_not_depend_on_the_system_message(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", ROWS)
    splits = []
    for values in ({}, {"chat": True}, {"chat": True, "system": "be brief"}):
        questions = load_questions(Data(file=str(path), **values), [EXACT])
        splits.append([p.columns["question"] for p in questions.validation])
    assert splits[0]
    assert splits[0] == splits[1] == splits[2]


def test_a_split_is_stable_when_rows_are_added_or_moved(tmp_path: Path) -> None:
    few = load_questions(Data(file=str(write(tmp_path / "few.jsonl", ROWS[:100]))), [EXACT])
    all_ = load_questions(Data(file=str(write(tmp_path / "all.jsonl", ROWS[::-1]))), [EXACT])
    assert {p.id for p in few.validation} <= {p.id for p in all_.validation}
    assert {p.id for p in few.train} <= {p.id for p in all_.train}


def test_duplicates_are_dropped_and_contradictions_refused(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "answer": "1", "n": 1},
        {"prompt": "b", "answer": "2"},
        {"prompt": "a", "answer": 1, "n": 3},
    ]
    questions = load(tmp_path, rows)
    assert [p.content for p in questions.train] == ["a", "b"]
    assert questions.train[0].columns["n"] == 1
    assert questions.dropped_duplicates == 1
    with pytest.raises(DataError, match=r"train.jsonl: line 3: same question as .*train.jsonl: line 1.*'1' and '9'"):
        load(tmp_path, [*rows[:2], {"prompt": "a", "answer": "9"}])


def test_unreadable_answers_are_counted_listed_and_refused(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": str(n), "answer": "many" if n in (1, 3) else n} for n in range(10)]
    with pytest.raises(DataError, match=r"2 of 10 answers .*: line 2 \('many'\); line 4 \('many'\); .*max_bad_gold"):
        load(tmp_path, rows, NUMERIC, max_bad_gold=0.19)
    questions = load(tmp_path, rows, NUMERIC, max_bad_gold=0.2)
    assert [p.content for p in questions.train] == ["0", "2", "4", "5", "6", "7", "8", "9"]
    assert [place.rpartition("/")[2] for place in questions.bad_gold] == ["train.jsonl: line 2", "train.jsonl: line 4"]


def test_a_long_list_of_unreadable_answers_is_cut(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": str(n), "answer": "x" * 500} for n in range(10)]
    with pytest.raises(DataError, match=r"10 of 10 .*line 5 \('x{40}'\); \.\.\.; correct"):
        load(tmp_path, rows, NUMERIC)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"promt": "a", "answer": "1"}, "no column `prompt` or `question`; there are 'promt', 'answer'; is it 'promt'"),
        ({"Question": "a", "answer": "1"}, "is it 'Question'"),
        ({"text": "a"}, "no column `prompt` or `question`; there are 'text'$"),
        ({}, "there are none"),
        ({"prompt": "a", "anwser": "1"}, "no column `answer`; there are 'prompt', 'anwser'; is it 'anwser'"),
        ({"prompt": "a", "answer": None}, "`answer` is missing"),
        ({"prompt": "a", "answer": [1]}, "`answer` is list"),
        ({"prompt": " ", "answer": "1"}, "prompt is empty"),
        ({"prompt": 3, "answer": "1"}, "prompt is int"),
        ({"prompt": None, "answer": "1"}, "prompt is NoneType"),
        ({"prompt": [], "answer": "1"}, "empty list of messages"),
        ({"prompt": ["hi"], "answer": "1"}, "message 1 is str"),
        ({"prompt": [{"role": "user", "content": "a"}, {"role": "user"}], "answer": "1"}, "message 2 has no `content`"),
        ({"prompt": [{"content": "a"}], "answer": "1"}, "message 1 has no `role`"),
        ({"prompt": [{"role": "user", "content": ["a"]}], "answer": "1"}, "message 1: `content` is list"),
    ],
)
def test_a_faulty_row_is_named(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    path = write(tmp_path / "train.jsonl", [ROWS[0], row])
    assert_refused(path, rf"train.jsonl: line 2: .*{text}")


@pytest.mark.parametrize(
    ("name", "body", "text"),
    [
        ("a.jsonl", "", "holds no rows"),
        ("a.jsonl", "\n\n", "holds no rows"),
        ("a.csv", "", "holds no rows"),
        ("a.csv", "prompt,answer\n", "holds no rows"),
        ("a.jsonl", '{"prompt": "a", "answer": "1"}\n{"prompt": ', "line 2: not JSON"),
        ("a.jsonl", "[" * 200_000, "line 1: not JSON"),
        ("a.jsonl", '"prompt"\n', "line 1: a row is an object"),
        ("a.csv", 'prompt,answer\n"two\nlines",1\nb\n', "line 4: 1 fields, but the header has 2"),
        ("a.csv", "prompt,answer,answer\na,1,2\n", "column 'answer' stands there twice"),
        ("a.csv", 'prompt,answer\n"a,1\n', "cannot be read"),
        ("a.parquet", "no parquet", "cannot be read"),
        ("a.json", "[]", r"unknown extension '.json'; give a .jsonl, .parquet, .csv file"),
    ],
)
def test_a_faulty_file_is_named(tmp_path: Path, name: str, body: str, text: str) -> None:
    (tmp_path / name).write_text(body)
    assert_refused(tmp_path / name, text)


def test_a_missing_or_undecodable_file_is_named(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent.csv", "no such file$")
    assert_refused(Path("absent.csv"), rf"absent.csv: no such file \(looked in {re.escape(str(Path.cwd()))}\)$")
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é"}'.encode("latin-1"))
    assert_refused(tmp_path / "latin.jsonl", "cannot be read: 'utf-8' codec")


def test_the_row_of_a_parquet_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": None}])
    assert_refused(path, r"train.parquet: row 2: `answer` is missing")


def test_a_system_message_needs_a_chat(tmp_path: Path) -> None:
    assert_refused(write(tmp_path / "train.jsonl", ROWS), "line 1: data.system needs chat", system="be brief")


def test_empty_splits_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", ROWS)
    assert_refused(path, "no question is left for validation", validation_share=0.0)
    assert_refused(path, "no question is left for training", validation_share=1.0)


def test_validation_questions_in_the_training_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of 2 held-out .*held_out.jsonl: line 2 \('b\?'\)"):
        load(tmp_path, [*ROWS, HELD_OUT[1]])


def test_the_guard_counts_and_shows_the_first_three() -> None:
    prompts = [Prompt(str(n)) for n in range(9)]
    with pytest.raises(DataError, match=r"5 of 6 held-out .*\('0'\); .*\('1'\); .*\('2'\); \.\.\.; remove"):
        refuse_overlap(prompts[:5], [*prompts[:5], prompts[8]])
    refuse_overlap(prompts[:5], prompts[5:])
    assert prompts[0].id not in {p.id for p in prompts[5:]}
