"""Splits by hash, tasks and draws: disjoint, stable, once an epoch, and the same after a resumption."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.core.config import Data, ExactReward, NumericReward, PositiveInt, Source
from cupola.core.records import DataError, Prompt, RecipeError, Split
from cupola.train.tasks import (
    TASKS,
    FileSource,
    Questions,
    Task,
    TaskSource,
    bucket,
    derive,
    draw_problem,
    held_out,
    make_task,
    open_examples,
    open_source,
    split_of,
)

EXACT = ExactReward(name="right")
DATA = Data(task="doubling")


class Doubling(Task):
    """What is n + n, for n below `limit`?"""

    limit: PositiveInt = 100_000

    def problem(self, rng: random.Random) -> Prompt:
        n = rng.randrange(self.limit)
        return Prompt(f"{n}+{n}={' ' * rng.randrange(2)}", str(2 * n))

    def family(self, prompt: Prompt) -> str:
        return prompt.text.strip()


@pytest.fixture
def doubling() -> Iterator[None]:
    TASKS["doubling"] = Doubling
    yield
    del TASKS["doubling"]


def source(count: int, seed: int = 0) -> FileSource:
    return FileSource(Questions(tuple(Prompt(f"q{n}") for n in range(count)), (), 0, ()), seed)


def ids(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.id for prompt in prompts]


def test_derived_seeds_never_meet() -> None:
    keys = [(seed, split, index) for seed in range(30) for split in ("train", "test") for index in range(30)]
    assert len({derive(*key) for key in keys}) == len(keys)
    assert derive("1", 1) != derive(1, "1")
    assert derive(0, "a") == 0x4A2978D91C0194C6  # printf '[0, "a"]' | sha256sum


@given(st.text(), st.text())
def test_a_bucket_is_a_place_in_the_unit_interval(prompt_id: str, salt: str) -> None:
    assert 0 <= bucket(prompt_id, salt) < 1
    assert bucket(prompt_id, salt) == bucket(prompt_id, salt)


def test_buckets_are_uniform_and_salts_independent() -> None:
    places = [(bucket(str(n), "a"), bucket(str(n), "b")) for n in range(10_000)]
    for quarter in range(4):
        # 2500 expected with a standard deviation of 43; 625 with one of 24
        assert abs(sum(int(4 * a) == quarter for a, _ in places) - 2500) < 200
        assert abs(sum(int(4 * a) == quarter and int(4 * b) == 0 for a, b in places) - 625) < 110


def test_task_splits_have_their_shares() -> None:
    splits = [split_of(str(n)) for n in range(10_000)]
    for split, expected in (("train", 7000), ("validation", 1000), ("dev", 1000), ("test", 1000)):
        assert abs(splits.count(split) - expected) < 200


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(0, 50))
def test_task_splits_are_disjoint(seed: int, step: int) -> None:
    task = Doubling(limit=200)
    trained = {task.family(p) for p in TaskSource(task, DATA, seed).draw(step, 50)}
    kept = [{task.family(p) for p in held_out(task, split, 10)} for split in ("validation", "dev", "test")]
    assert [len(split) for split in kept] == [10, 10, 10]
    assert len(set.union(*kept)) == 30
    assert trained.isdisjoint(set.union(*kept))


def test_held_out_problems_are_different_and_always_the_same() -> None:
    task = Doubling()
    first = ids(held_out(task, "test", 300))
    assert len({task.family(p) for p in held_out(task, "test", 300)}) == 300
    assert ids(held_out(task, "test", 300)) == first
    assert ids(held_out(task, "test", 100)) == first[:100]


def test_a_small_task_says_how_many_problems_it_has() -> None:
    in_test = sum(split_of(f"{n}+{n}=") == "test" for n in range(100))
    assert len(held_out(Doubling(limit=100), "test", in_test)) == in_test
    with pytest.raises(
        DataError,
        match=f"about {in_test} different problems in split 'test', but {in_test + 1} were asked for; "
        "lower evaluation.questions or widen data.options",
    ):
        held_out(Doubling(limit=100), "test", in_test + 1)
    splits: tuple[Split, ...] = ("validation", "dev", "test")
    empty = next(s for s in splits if split_of("0+0=") != s)
    with pytest.raises(DataError, match=f"no problem in split '{empty}'"):
        draw_problem(Doubling(limit=1), empty, 0)


def test_task_draws_differ_by_seed_step_and_index_and_resume_exactly() -> None:
    task = Doubling()
    whole = [ids(TaskSource(task, DATA, 1).draw(step, 8)) for step in range(6)]
    resumed = TaskSource(task, DATA, 1)
    assert [ids(resumed.draw(step, 8)) for step in (3, 4, 5)] == whole[3:]
    drawn = [i for step in whole for i in step] + ids(TaskSource(task, DATA, 2).draw(0, 8))
    assert len(set(drawn)) == 56


def test_a_chat_is_wrapped_after_the_split() -> None:
    task = Doubling()
    plain = TaskSource(task, DATA, 0).draw(0, 5)
    chat = TaskSource(task, Data(task="doubling", chat=True, system="be brief"), 0).draw(0, 5)
    for before, after in zip(plain, chat, strict=True):
        assert after.content == (
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": before.content},
        )
        assert after.answer == before.answer
        assert after.id == Prompt(after.content).id


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 10**6))
def test_each_prompt_is_drawn_once_an_epoch(size: int, count: int, seed: int) -> None:
    file_source = source(size, seed)
    epochs = 3
    steps = -(-epochs * size // count)
    drawn = [i for step in range(steps) for i in ids(file_source.draw(step, count))]
    assert len(drawn) == steps * count
    everything = {p.id for p in file_source.questions.train}
    for epoch in range(epochs):
        assert set(drawn[epoch * size : (epoch + 1) * size]) == everything


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 30), st.integers(0, 10**6))
def test_draws_after_a_resumption_are_equal(size: int, count: int, resume_at: int, seed: int) -> None:
    running = source(size, seed)
    whole = [ids(running.draw(step, count)) for step in range(resume_at + 5)]
    resumed = source(size, seed)
    assert [ids(resumed.draw(step, count)) for step in range(resume_at, resume_at + 5)] == whole[resume_at:]


def test_epochs_and_seeds_order_differently_and_rows_do_not() -> None:
    first, second = ids(source(30).draw(0, 30)), ids(source(30).draw(1, 30))
    assert sorted(first) == sorted(second)
    assert first != second
    assert ids(source(30, seed=1).draw(0, 30)) != first
    turned = FileSource(Questions(source(30).questions.train[::-1], (), 0, ()), 0)
    assert ids(turned.draw(0, 30)) == first


def test_open_source_reads_the_recipe(tmp_path: Path, doubling: None) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}?", "answer": n}) + "\n" for n in range(100)))
    from_file = open_source(Data(file=str(path), validation_share=0.3), [EXACT], 0)
    kept = from_file.held_out("validation", 10)
    assert from_file.size is not None
    assert 50 <= from_file.size < 100
    assert len(kept) == 10
    assert ids(from_file.held_out("validation", 5)) == ids(kept)[:5]
    assert set(ids(from_file.prompts() or [])) == set(ids(from_file.draw(0, from_file.size)))
    assert not set(ids(kept)) & set(ids(from_file.draw(0, from_file.size)))
    with pytest.raises(DataError, match="no split 'test'"):
        from_file.held_out("test", 5)
    from_task = open_source(Data(task="doubling", options={"limit": 50}), [EXACT], 0)
    assert (from_task.size, from_task.prompts(), from_task.notes(), from_task.notices()) == (
        None,
        None,
        {"train": None},
        [],
    )
    assert all(int(str(p.answer)) < 100 for p in from_task.draw(0, 20))


def test_a_file_says_what_it_left_out(tmp_path: Path) -> None:
    answers = ["1", "many", "2", "2", "3", "none"]
    rows = [{"prompt": f"q{n}", "answer": answer} for n, answer in zip((0, 1, 2, 2, 3, 4), answers, strict=True)]
    held_out = [{"prompt": "v", "answer": "9"}]
    for name, part in (("q.jsonl", rows), ("v.jsonl", held_out)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    file, bad = str(tmp_path / "q.jsonl"), [f"{tmp_path}/q.jsonl: line 2", f"{tmp_path}/q.jsonl: line 6"]
    data = Data(file=file, validation_file=str(tmp_path / "v.jsonl"), max_bad_gold=0.5)
    source = open_source(data, [NumericReward(name="right")], 0)
    assert source.notes() == {"train": 3, "validation": 1, "dropped_duplicates": 1, "bad_gold": bad}
    assert source.notices() == [
        "3 training and 1 validation questions",
        "1 rows repeat a question and were left out",
        f"2 rows were left out because a reward part cannot read their answer: {bad[0]}; {bad[1]}",
    ]


def test_digests_tell_whether_a_file_is_the_same(tmp_path: Path, doubling: None) -> None:
    train, held_out = tmp_path / "q.csv", tmp_path / "v.csv"
    train.write_text("prompt,answer,target\na,1,x\n")
    held_out.write_text("prompt,answer\nb,2\n")
    expected = {
        str(train): "94e4ed5e12114f1bc0d5af2ea8db72bb435c44945cdd68f13ecd7b82d8b9c2bb",
        str(held_out): "6c6660a6af247c858604f33cc181b8bebf541abf3d7216a74caf214e05cbde8e",
    }
    data = Data(file=str(train), validation_file=str(held_out))
    source = open_source(data, [EXACT], 0)
    assert source.digests() == expected
    assert open_examples(Source(file=str(train)), 0).digests() == {str(train): expected[str(train)]}
    assert open_source(Data(task="doubling"), [EXACT], 0).digests() == {}
    train.write_text("prompt,answer,target\na,2,x\n")
    changed = open_source(data, [EXACT], 0).digests()
    assert [changed[path] == expected[path] for path in expected] == [False, True]


def test_examples_need_no_answer_and_every_row_is_drawn_once_an_epoch(tmp_path: Path) -> None:
    rows = [{"question": f"q{n % 7}", "target": f"t{n % 14}", "n": n} for n in range(28)]
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_examples(Source(file=str(path), chat=True), 3)
    assert source.size == 28
    assert [prompt.columns for prompt in source.prompts() or []] == rows
    epochs = [[prompt.columns["n"] for prompt in source.draw(step, 28)] for step in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(28))
    assert epochs[0] != epochs[1]
    prompts = [n % 7 for n in epochs[0]]
    # A random order puts a prompt's row next to another of it 3 times on average, the worst order 21 times.
    assert sum(a == b for a, b in pairwise(prompts)) < 12
    assert source.draw(0, 1)[0].content == ({"role": "user", "content": f"q{prompts[0]}"},)


def test_examples_of_a_task(doubling: None) -> None:
    source = open_examples(Source(task="doubling", options={"limit": 50}), 0)
    assert source.size is None
    assert ids(source.draw(2, 5)) == ids(open_source(Data(task="doubling", options={"limit": 50}), [], 0).draw(2, 5))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "a", "answer": "1"}, "no column `target`; there are 'prompt', 'answer'$"),
        ({"prompt": "a", "targets": "1"}, "no column `target`; there are 'prompt', 'targets'; is it 'targets'"),
        ({"prompt": "a", "target": 3}, "`target` is 3; give the text to learn"),
        ({"prompt": "a", "target": ""}, "`target` is ''; give the text to learn"),
        ({"prompt": " ", "target": "x"}, "the prompt is empty"),
        ({"target": "x"}, "no column `prompt` or `question`"),
    ],
)
def test_a_faulty_example_is_named(tmp_path: Path, row: dict[str, object], text: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(json.dumps({"prompt": "q", "target": "t"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=rf"examples.jsonl: line 2: {text}"):
        open_examples(Source(file=str(path)), 0)


def test_an_unknown_task_gets_a_suggestion(doubling: None) -> None:
    assert isinstance(make_task("doubling", {}), Doubling)
    with pytest.raises(RecipeError, match="unknown task 'doublin'; did you mean 'doubling'"):
        make_task("doublin", {})
    with pytest.raises(RecipeError, match="unknown task 'xyz'; there are arithmetic, doubling"):
        make_task("xyz", {})


@pytest.mark.parametrize(
    ("task", "options", "text"),
    [
        ("arithmetic", {"levls": [1]}, "data.options.levls: unknown key; did you mean levels?"),
        ("arithmetic", {"xyz": 1}, "data.options.xyz: unknown key; there are levels, dropped_carry, wrong_digit"),
        ("arithmetic", {"levels": 3}, "data.options.levels: input should be a valid list, got 3"),
        ("arithmetic", {"levels": []}, "data.options.levels: list should have at least 1 item after validation"),
        ("arithmetic", {"levels": [1, 0]}, "data.options.levels.1: input should be greater than or equal to 1, got 0"),
        ("arithmetic", {"levels": ["1"]}, "data.options.levels.0: input should be a valid integer, got '1'"),
        ("arithmetic", {"levels": [True]}, "data.options.levels.0: input should be a valid integer, got True"),
        ("arithmetic", {"wrong_digit": 1.5}, "data.options.wrong_digit: input should be less than or equal to 1"),
        ("arithmetic", {"levels": [1001]}, "data.options.levels.0: input should be less than or equal to 1000"),
        ("sums", {"digits": 1001}, "data.options.digits: input should be less than or equal to 1000, got 1001"),
        ("sums", {"terms": 1}, "data.options.terms: input should be greater than or equal to 2, got 1"),
        ("sums", {"digits": 2.5}, "data.options.digits: input should be a valid integer, got 2.5"),
    ],
)
def test_options_of_a_task_are_checked(task: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make_task(task, options)
    assert str(caught.value).startswith(text)


def test_options_shape_the_problems() -> None:
    rng = random.Random(0)
    sums = [make_task("sums", {"terms": 3, "digits": 1}).problem(rng).text for _ in range(20)]
    assert all(re.fullmatch(r"What is \d \+ \d \+ \d\? Answer with the number\.", text) for text in sums)
    carried = make_task("arithmetic", {"levels": [2]}).problem
    assert all(re.fullmatch(r"\d\d\+\d\d=", carried(rng).text) for _ in range(20))
