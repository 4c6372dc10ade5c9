"""`init`, then a run with the user's own questions, model and reward function."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cupola_process import Cupola
from transformers import LlamaConfig

from cupola.core.runlog import RunReader
from cupola.train.models import new_policy, save_policy

ROWS = [
    {"question": f"{n}+{m}=", "answer": n + m, "level": "easy" if n < 5 else "hard"}
    for n in range(1, 9)
    for m in range(1, 9)
]
QUICK = [
    "run.name=r", "run.steps=1", "sampling.prompts_per_step=2", "sampling.group_size=2", "sampling.max_tokens=16",
    "validation.questions=2", "validation.samples=1", "optim.warmup_steps=0",
]  # fmt: skip

# As TRL's documentation shows reward functions: completions by position or keyword, columns, and the rest.
SYNC = """\
def mine(completions, answer, level, **kwargs):
    assert all(isinstance(value, int) for value in answer)
    return [float(str(gold) in text) - 0.1 * (rank == "hard") for text, gold, rank in zip(completions, answer, level)]
"""
ASYNC = """\
import asyncio

async def judge(text, gold):
    await asyncio.sleep(0)
    return float(str(gold) in text)

async def mine(prompts, completions, answer, trainer_state, log_extra, log_metric, **kwargs):
    log_extra("gold", [str(gold) for gold in answer])
    log_metric("mine/longest", max(map(len, completions)))
    return await asyncio.gather(*[judge(text, gold) for text, gold in zip(completions, answer)])
"""
CHAT = """\
def mine(prompts, completions, completion_ids, **kwargs):
    for prompt, completion in zip(prompts, completions):
        assert prompt[-1]["role"] == "user", prompt
        assert completion[0]["role"] == "assistant", completion
    return [min(1.0, len(ids) / 16) for ids in completion_ids]
"""
TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] + '|' }}{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


def test_init_then_dry_run_of_the_built_in_task(cupola: Cupola, tmp_path: Path) -> None:
    begun = cupola(tmp_path, "init")
    assert (begun.code, begun.out) == (0, "wrote recipe.toml; next: cupola train recipe.toml --dry-run\n")
    done = cupola(tmp_path, "train", "recipe.toml", "--dry-run")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^model: embedded, ([\d,]+) parameters, \1 of them trained, ", done.out, re.M)
    assert re.search(r'^the first prompt as the model reads it: "(?=.{10}"$) *\d+\+\d+="$', done.out, re.M)
    assert "prompts with signal " in done.out
    assert done.out.endswith("nothing was written\n")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
    record = cupola(tmp_path, "train", "recipe.toml", "--dry-run", "--json").json()
    assert record["completions"] == 8 * 8
    assert 0 <= record["groups/with_signal"] <= 1


@pytest.mark.parametrize(("name", "body"), [("q.jsonl", SYNC), ("q.jsonl", ASYNC)], ids=["sync", "async"])
def test_init_with_own_questions_and_own_trl_reward(cupola: Cupola, tmp_path: Path, name: str, body: str) -> None:
    write_rows(tmp_path / name, ROWS)
    (tmp_path / "mine.py").write_text(body, encoding="utf-8")
    assert cupola(tmp_path, "init", "my.toml", "--data", name, "--reward", "mine.py:mine").code == 0
    dry = cupola(tmp_path, "train", "my.toml", "--dry-run")
    assert (dry.code, dry.err) == (0, "")

    done = cupola(tmp_path, "train", "my.toml", *QUICK)

    assert (done.code, done.err) == (0, "")
    reader = RunReader(tmp_path / "runs" / "r")
    row = reader.metrics("train")[0]
    assert row["rewards/reward/mean"] == row["reward"]
    if body == ASYNC:
        assert 1 <= row["mine/longest"] <= 16
        gold = {prompt["prompt_id"]: prompt["answer"] for prompt in reader.prompts().values()}
        assert all(each["extra.gold"] == gold[each["prompt_id"]] for each in reader.rollouts(1))


@pytest.mark.parametrize("name", ["q.csv", "q.parquet"])
def test_plain_questions_of_each_format(cupola: Cupola, tmp_path: Path, name: str) -> None:
    write_rows(tmp_path / name, ROWS)
    assert cupola(tmp_path, "init", "my.toml", "--data", name).code == 0
    done = cupola(tmp_path, "train", "my.toml", *QUICK, "--json")
    assert (done.code, done.err) == (0, "")
    data = RunReader(tmp_path / "runs" / "r").manifest()["data"]
    assert data["train"] + data["validation"] == len(ROWS)
    assert min(data["train"], data["validation"]) > 0


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.parquet"])
def test_chat_messages_with_a_model_folder_that_has_a_chat_template(cupola: Cupola, tmp_path: Path, name: str) -> None:
    shape = LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64
    )
    policy = new_policy(" +=:|0123456789abcdefghijklmnopqrstuvwxyz", shape)
    policy.tokenizer.chat_template = TEMPLATE
    save_policy(policy, tmp_path / "model")
    chats: list[dict[str, object]] = [
        {"prompt": [{"role": "system", "content": "add"}, {"role": "user", "content": row["question"]}]} for row in ROWS
    ]
    write_rows(tmp_path / name, chats)
    (tmp_path / "mine.py").write_text(CHAT, encoding="utf-8")
    begun = cupola(tmp_path, "init", "my.toml", "--data", name, "--model", "./model", "--reward", "mine.py:mine")
    assert begun.code == 0

    done = cupola(tmp_path, "train", "my.toml", *QUICK, "data.answer_required=false")

    assert (done.code, done.err) == (0, "")
    reader = RunReader(tmp_path / "runs" / "r")
    assert all(row["prompt"].startswith("system: add\nuser: ") for row in reader.prompts().values())
    assert reader.manifest()["model"]["source"] == "./model"


def test_supervised_start_makes_a_model_that_train_takes(cupola: Cupola, work: Path) -> None:
    (work / "sft.toml").write_text(
        'output = "start"\n[data]\ntask = "arithmetic"\n[model]\nhidden_size = 16\nheads = 2\ncontext = 64\n'
        'alphabet = " #+=0123456789"\n[training]\nsteps = 2\nbatch_size = 4\n',
        encoding="utf-8",
    )
    done = cupola(work, "sft", "sft.toml")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == 'wrote start; use it as model.source = "start"'
    assert done.out.startswith("step 1/2  loss ")
    assert cupola(work, "train", "small.toml", "--dry-run", "model.source=start").code == 0


def test_supervised_start_from_own_rows_of_prompt_and_target(cupola: Cupola, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"{n}+1=", "target": f"#{n + 1}"} for n in range(8)]
    write_rows(tmp_path / "examples.csv", [*rows, {"prompt": "7+1=", "target": "8"}])
    (tmp_path / "sft.toml").write_text(
        'output = "start"\n[data]\nfile = "examples.csv"\n[model]\nhidden_size = 16\nheads = 2\ncontext = 16\n'
        'alphabet = " #+=0123456789"\n[training]\nsteps = 2\nbatch_size = 9\n',
        encoding="utf-8",
    )
    done = cupola(tmp_path, "sft", "sft.toml", "--json")
    assert (done.code, done.err, done.json()) == (0, "", {"model": "start"})
    assert (tmp_path / "start" / "model.safetensors").is_file()


@pytest.mark.slow
def test_ctrl_c_finishes_the_record_and_says_how_to_go_on(work: Path) -> None:
    start = [str(Path(sys.executable).with_name("cupola"))]
    process = subprocess.Popen(
        [*start, "train", "small.toml", "run.steps=100000", "validation.every=100000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=work,
    )  # fmt: skip
    metrics = work / "runs" / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while not (metrics.exists() and b'"step": 2' in metrics.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "")
    assert out.splitlines()[-1] == "continue with: cupola resume runs/r"
    reader = RunReader(work / "runs" / "r")
    last = reader.metrics("train")[-1]["step"]
    assert f"interrupted at step {last}" in out
    assert reader.manifest()["state"] == "interrupted"
    assert reader.layout.checkpoint_steps()[-1] == last
