"""Bad input: one line of error that names the file, key or row, its exit code, and nothing half-written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cupola_process import Cupola

from cupola.core.records import content_hash
from cupola.core.runlog import RunReader

QUESTIONS = [{"prompt": f"{n}+{m}=", "answer": str(n + m)} for n in range(1, 9) for m in range(9)]
OWN = ["data.file=q.jsonl", "sampling.max_tokens=20", "validation.questions=3"]
FUNCTION = "reward=[{{name = 'correct', kind = 'function', path = '{}'}}]"


def write_jsonl(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def own(work: Path) -> Path:
    """A working directory with questions of the user's own; the recipe has no task."""
    recipe = work / "small.toml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace('task = "arithmetic"', ""), encoding="utf-8")
    write_jsonl(work / "q.jsonl", QUESTIONS)
    return work


def refused(cupola: Cupola, folder: Path, *overrides: str, code: int = 1) -> str:
    """The error of `cupola train small.toml OVERRIDES`, which writes nothing."""
    before = standing(folder)
    done = cupola(folder, "train", "small.toml", *overrides)
    assert done.code == code, done
    assert done.out == ""
    assert standing(folder) == before
    return done.error()


def standing(folder: Path) -> list[str]:
    """What stands in a folder, but for Python's cache and the shelf `runs` itself."""
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*"))]
    return [str(path) for path in paths if "__pycache__" not in path.parts and path != Path("runs")]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("sampling.grup_size=3", "command line: sampling.grup_size: unknown key; did you mean group_size?"),
        ("run.steps=many", "command line: run.steps: input should be a valid integer, got 'many'"),
        ("sampling.group_size=1", "command line: sampling.group_size: 1 makes groups that cannot be compared, so it"),
        ("data.file=q.jsonl", "command line: data.file: stands beside `task`; give one of the two"),
        ("data.task=aritmetic", "data.task: unknown task 'aritmetic'; did you mean 'arithmetic'?"),
        ("data.options={levls = [1]}", "data.options.levls: unknown key; did you mean levels?"),
        ("reward.0.tolerance=1", "command line: reward.0.tolerance: unknown key of kind 'exact'; it belongs to kind"),
        ("reward.0.extract=(", "reward 'correct': `extract` is not a regular expression: missing )"),
        ("optim.name=adamm", "optim.name: no optimiser 'adamm' in torch.optim; there are"),
        ("optim.schedule=linaer", "optim.schedule: "),
        ("small.txt", "small.txt: no such recipe"),
    ],
)
def test_recipe(cupola: Cupola, work: Path, override: str, text: str) -> None:
    assert refused(cupola, work, override, code=2).startswith(text)


def test_recipe_key_in_the_file(cupola: Cupola, work: Path) -> None:
    recipe = work / "small.toml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("group_size", "gruop_size"), encoding="utf-8")
    text = "small.toml:10: sampling.gruop_size: unknown key; did you mean group_size?"
    assert refused(cupola, work, code=2) == text


def test_model(cupola: Cupola, work: Path) -> None:
    assert refused(cupola, work, "model.source=./nowhere") == "./nowhere: no such model folder"
    (work / "empty").mkdir()
    assert refused(cupola, work, "model.source=./empty") == "./empty: no config.json in this model folder"
    (work / "empty" / "config.json").write_text("{}", encoding="utf-8")
    assert refused(cupola, work, "model.source=./empty").startswith("./empty: cannot be loaded: ")


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "q.jsonl: holds no rows"),
        ([{"promt": "1+1=", "answer": "2"}], "q.jsonl: line 1: no column `prompt` or `question`; there are 'promt', "),
        ([{"prompt": "1+1=", "anwser": "2"}], "q.jsonl: line 1: no column `answer`; there are 'prompt', 'anwser'; is"),
        ([QUESTIONS[0], {"prompt": "1+2=", "answer": None}], "q.jsonl: line 2: `answer` is missing; give one, or set"),
        ([QUESTIONS[0], {"prompt": 3, "answer": "2"}], "q.jsonl: line 2: the prompt is int; give text or a list"),
        ([QUESTIONS[0], 5], 'q.jsonl: line 2: a row is an object such as {"prompt": ...}, got int'),
        ([*QUESTIONS, {"prompt": "1+1=", "answer": "3"}], "q.jsonl: line 73: same question as q.jsonl: line 2, but"),
    ],
)
def test_questions(cupola: Cupola, own: Path, rows: list[Any], text: str) -> None:
    write_jsonl(own / "q.jsonl", rows)
    assert refused(cupola, own, *OWN).startswith(text)


def test_questions_that_are_not_there_or_not_json(cupola: Cupola, own: Path) -> None:
    assert refused(cupola, own, "data.file=none.csv").startswith("none.csv: no such file (looked in ")
    assert refused(cupola, own, "data.file=q.txt").startswith("q.txt: unknown extension '.txt'; give a .jsonl")
    (own / "q.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt"\n', encoding="utf-8")
    assert refused(cupola, own, *OWN).startswith("q.jsonl: line 2: not JSON: ")
    (own / "q.csv").write_text("prompt,answer\n1+1=,2\n1+2=\n", encoding="utf-8")
    assert refused(cupola, own, "data.file=q.csv") == "q.csv: line 3: 1 fields, but the header has 2"
    pq.write_table(pa.table({"text": ["1+1="], "answer": ["2"]}), own / "q.parquet")
    assert refused(cupola, own, "data.file=q.parquet").startswith("q.parquet: row 1: no column `prompt` or `question`")


def test_unreadable_answers_are_counted_and_listed_and_allowed_up_to_a_share(cupola: Cupola, own: Path) -> None:
    write_jsonl(own / "q.jsonl", [*QUESTIONS, {"prompt": "9+9=", "answer": "many"}, {"prompt": "9+8=", "answer": " "}])
    numeric = [*OWN, "reward.0.kind=numeric"]
    error = refused(cupola, own, *numeric)
    assert error.startswith("q.jsonl: 2 of 74 answers cannot be read by every reward part: line 73 ('many'); line 74")
    assert refused(cupola, own, *numeric, "data.max_bad_gold=0.01").startswith("q.jsonl: 2 of 74 answers")
    allowed = cupola(own, "train", "small.toml", "--dry-run", *numeric, "data.max_bad_gold=0.03")
    assert allowed.code == 0
    assert "0 duplicates and 2 unreadable answers left out" in allowed.out


def test_validation_questions_that_also_stand_in_the_training_set(cupola: Cupola, own: Path) -> None:
    write_jsonl(own / "v.jsonl", [{"prompt": "90+9=", "answer": "99"}, QUESTIONS[3]])
    assert refused(cupola, own, *OWN, "data.validation_file=v.jsonl") == (
        "1 of 2 held-out questions also stand in the training set: v.jsonl: line 2 ('1+3='); "
        "remove them from one of the two"
    )


def test_prompt_longer_than_the_context(cupola: Cupola, own: Path) -> None:
    long = "1+" * 30 + "1="
    write_jsonl(own / "q.jsonl", [*QUESTIONS, {"prompt": long, "answer": "31"}])
    error = refused(cupola, own, *OWN)
    assert error.startswith(f"prompt {content_hash(long)} ({long[:40]!r}): 62 tokens and a completion of up to 20")
    assert "shorten it or lower sampling.max_tokens" in error


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError('no\\n  luck')", "raised ValueError: no luck (mine.py, line 2)"),
        ("return [float('nan')] * len(completions)", "row 0 (prompt "),
        ("return [1.0]", "returned 1 values for 12 completions"),
        ("return None", "raised TypeError"),
        ("return ['1'] * len(completions)", "row 0 (prompt "),
    ],
)
def test_reward_function_at_step_0(cupola: Cupola, own: Path, body: str, text: str) -> None:
    (own / "mine.py").write_text(f"def mine(completions, **_):\n    {body}\n", encoding="utf-8")
    before = standing(own)
    done = cupola(own, "train", "small.toml", *OWN, FUNCTION.format("mine.py:mine"), "validation.samples=4")
    assert done.code == 1
    assert done.error().startswith(f"reward 'correct' (mine.py:mine): {text}")
    assert standing(own) == before


@pytest.mark.parametrize("path", ["mine.py", "none.py:mine", "mine.py:miner", "broken.py:mine"])
def test_reward_function_that_cannot_be_found(cupola: Cupola, own: Path, path: str) -> None:
    (own / "mine.py").write_text("def mine(**_): ...\n", encoding="utf-8")
    (own / "broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    assert refused(cupola, own, *OWN, FUNCTION.format(path), code=2).startswith(f"{path}: ")


def test_reward_function_that_fails_later_keeps_what_was_recorded(cupola: Cupola, own: Path) -> None:
    (own / "mine.py").write_text(
        "def mine(completions, trainer_state, **_):\n"
        "    if trainer_state.global_step == 2:\n        raise RuntimeError('tired')\n"
        "    return [float(len(text)) for text in completions]\n",
        encoding="utf-8",
    )
    done = cupola(own, "train", "small.toml", *OWN, FUNCTION.format("mine.py:mine"))
    assert done.code == 1
    assert done.error() == "reward 'correct' (mine.py:mine): raised RuntimeError: tired (mine.py, line 3)"
    reader = RunReader(own / "runs" / "r")
    assert [(row["step"], row["split"]) for row in reader.metrics()] == [
        (0, "validation"), (1, "train"), (1, "validation"),
    ]  # fmt: skip
    manifest = reader.manifest()
    assert (manifest["state"], manifest["attempts"][0]["state"]) == ("failed", "failed")
    assert manifest["attempts"][0]["error"] == f"RewardError: {done.error()}"
    (own / "mine.py").write_text("def mine(completions, **_):\n    return [1.0] * len(completions)\n", encoding="utf-8")

    assert "mine.py changed since the run began" in cupola(own, "resume", "runs/r").error()
    assert cupola(own, "resume", "runs/r", "--accept-changes").code == 0
    assert [attempt["state"] for attempt in reader.manifest()["attempts"]] == ["failed", "finished"]
    assert [row["step"] for row in reader.metrics("train")] == [1, 2]


def test_run_folder_that_exists(cupola: Cupola, work: Path) -> None:
    (work / "runs" / "r").mkdir(parents=True)
    error = refused(cupola, work)
    assert error.startswith("runs/r: exists already; choose another run.name, or continue it with `cupola resume runs")


def test_recipe_and_model_folders_that_exist(cupola: Cupola, work: Path) -> None:
    before = (work / "small.toml").read_text(encoding="utf-8")
    assert cupola(work, "init", "small.toml").error() == "small.toml: exists already; choose another name"
    assert (work / "small.toml").read_text(encoding="utf-8") == before
    (work / "sft.toml").write_text('output = "m"\n[data]\ntask = "arithmetic"\n', encoding="utf-8")
    (work / "m").mkdir()
    assert cupola(work, "sft", "sft.toml").error() == "m: exists already; choose another output"
    assert list((work / "m").iterdir()) == []


def test_supervised_examples_without_a_target(cupola: Cupola, own: Path) -> None:
    (own / "sft.toml").write_text('output = "m"\n[data]\nfile = "q.jsonl"\n[training]\nsteps = 1\n', encoding="utf-8")
    done = cupola(own, "sft", "sft.toml")
    assert done.code == 1
    assert done.error() == "q.jsonl: line 1: no column `target`; there are 'prompt', 'answer'"
    of_a_task = cupola(own, "sft", "sft.toml", "data={task = 'sums'}")
    assert of_a_task.code == 1
    assert re.match(r"prompt \w{16}: a supervised example needs a text column `target`", of_a_task.error())
    assert not (own / "m").exists()


@pytest.mark.parametrize("command", ["groups", "diagnose", "ledger", "watch", "eval", "resume"])
def test_reading_what_is_no_run(cupola: Cupola, work: Path, command: str) -> None:
    assert cupola(work, command, "nowhere").error() == "nowhere: no such run folder"
    (work / "empty").mkdir()
    assert cupola(work, command, "empty").error().startswith("empty: not a run folder: neither run.json nor metrics")
    assert list((work / "empty").iterdir()) == []


def test_reading_steps_that_are_not_there(cupola: Cupola, finished: Path) -> None:
    assert cupola(finished, "groups", "runs/r", "--step", "9").error() == (
        "runs/r: no rollouts of step 9; there are steps 0 to 2"
    )
    assert cupola(finished, "ledger", "runs/r", "--step", "9").error() == "runs/r: the ledger has no row of step 9"
    assert cupola(finished, "eval", "runs/r", "--step", "9").error().startswith("runs/r: no checkpoint of step 9")
    assert cupola(finished, "resume", "runs/r").error().startswith("runs/r: finished: its last checkpoint is step 2")


def test_a_torn_last_line_is_passed_over_and_a_broken_one_named(cupola: Cupola, finished: Path) -> None:
    metrics = finished / "runs" / "r" / "metrics.jsonl"
    whole = metrics.read_bytes()
    before = cupola(finished, "diagnose", "runs/r")
    metrics.write_bytes(whole + b'{"step": 3, "split": "tr')
    assert cupola(finished, "diagnose", "runs/r") == before
    metrics.write_bytes(whole + b'{"step": 3, "split": "tr\n{"step": 4}\n')
    after = cupola(finished, "diagnose", "runs/r")
    assert (after.code, after.out) == (1, "")
    number = whole.count(b"\n") + 1
    assert after.error().startswith(f"runs/r/metrics.jsonl:{number}: not a JSON object: ")


@pytest.mark.parametrize("room", [500, 8_000])  # the recipe does not fit; rollouts or the checkpoint do not
def test_disk_that_is_full_from_the_start(cupola: Cupola, work: Path, room: int) -> None:
    before = standing(work)
    done = cupola(work, "train", "small.toml", room=room)
    assert done.code == 1
    assert re.match(r"runs/r/\S+: (checkpoint )?cannot be written: ", done.error())
    assert standing(work) == before


def test_disk_that_fills_up_keeps_the_record_and_the_run_goes_on(cupola: Cupola, own: Path) -> None:
    mine = "import resource\n\ndef mine(completions, trainer_state, **_):\n{}    return [1.0] * len(completions)\n"
    fill = (
        "    if trainer_state.global_step == 2:\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
    )
    (own / "mine.py").write_text(mine.format(fill), encoding="utf-8")
    done = cupola(own, "train", "small.toml", *OWN, FUNCTION.format("mine.py:mine"))
    assert done.code == 1
    assert re.match(r"runs/r/\S+: cannot be written: File too large$", done.error())
    reader = RunReader(own / "runs" / "r")
    assert [row["step"] for row in reader.metrics()] == [0, 1, 1]
    assert reader.rollout_steps() == [0, 1]
    assert not list(own.rglob("*.tmp"))

    (own / "mine.py").write_text(mine.format(""), encoding="utf-8")
    resumed = cupola(own, "resume", "runs/r", "--accept-changes")
    assert (resumed.code, resumed.err) == (0, "")
    assert [(row["step"], row["attempt"]) for row in reader.metrics("train")] == [(1, 0), (2, 1)]


def test_export_to_a_place_that_cannot_be_written(cupola: Cupola, finished: Path) -> None:
    assert cupola(finished, "watch", "runs/r", "--export", "small.toml/page.html").error().startswith(
        "small.toml/page.html: cannot be written: "
    )  # fmt: skip
    shutil.rmtree(finished / "runs" / "r" / "checkpoints")
    assert cupola(finished, "eval", "runs/r").error().startswith("runs/r: no checkpoint")
