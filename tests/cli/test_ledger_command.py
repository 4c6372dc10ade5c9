"""`cupola ledger` of a recipe and of another trainer's configuration; a run's is read in test_reading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cupola_process import Cupola


def test_recipe_in_numbers_and_words(cupola: Cupola, work: Path) -> None:
    ended = cupola(work, "ledger", "--recipe", "small.toml")
    assert ended.code == 0
    assert "omega = 1 / (16 * 44)" in ended.out  # 4 prompts x 4 answers, constant L_max 44
    assert "the part that the configuration fixes is 704" in ended.out
    assert "no reason is given for: objective.why.policy; set the key to give one" in ended.out
    assert "scale: none; objective.scale is none: A = r - b" in ended.out
    assert "dead groups are counted; " in ended.out
    assert "The mechanism transfers, the number does not" in ended.out


def test_recipe_with_every_term(cupola: Cupola, work: Path) -> None:
    text = (
        (work / "small.toml")
        .read_text(encoding="utf-8")
        .replace(
            'preset = "dr_grpo"',
            'preset = "gspo"\nbeta = 0.1\nentropy_coef = 0.01\nkl_denominator = "prompt_mean"\ncount_dead = false\n'
            'why = { scale = "because" }',
        )
    )
    (work / "small.toml").write_text(text, encoding="utf-8")
    found = cupola(work, "ledger", "--recipe", "small.toml", "--json").json()
    rows = {row["term"]: row for row in found["denominators"]}
    assert list(rows) == ["policy", "kl", "entropy", "scale"]
    assert rows["policy"]["value"] == 16
    assert rows["policy"]["numbers"] == "omega_i = 1 / (16 * |o_i|)"
    assert "dead groups, unscored answers, answers without a token are not" in rows["policy"]["scope"]
    assert rows["kl"]["value"] == 4
    assert rows["scale"]["why"] == "because"
    assert "GSPO" in found["notices"][0]
    assert found["read"]["sampling.group_size"] == {"value": 4, "from": "small.toml:10"}


def test_uneven_updates_have_no_one_number(cupola: Cupola, work: Path) -> None:
    text = (work / "small.toml").read_text(encoding="utf-8").replace("[optim]", "[optim]\nminibatches = 3")
    (work / "small.toml").write_text(text, encoding="utf-8")
    found = cupola(work, "ledger", "--recipe", "small.toml", "--json").json()
    assert found["denominators"][0]["value"] is None
    assert found["denominators"][0]["numbers"] == "omega = 1 / (N * 44)"
    assert "unevenly" in found["notices"][0]


def test_another_trainers_file(cupola: Cupola, work: Path) -> None:
    (work / "args.json").write_text(json.dumps({"loss_type": "dr_grpo", "lr": 1}), encoding="utf-8")
    (work / "v.toml").write_text('[actor_rollout_ref.actor]\nloss_agg_mode = "token-sum"\n', encoding="utf-8")
    ended = cupola(work, "ledger", "--from", "trl", "args.json")
    assert ended.code == 0
    assert "TRL 1.16, GRPOConfig" in ended.out
    assert "omega = 1 / (8 * 1 * 1 * 512)" in ended.out
    assert "no reason is given for: policy, scale; this file has no place for one" in ended.out
    assert "not read, as they bear on no denominator: lr" in ended.out
    found = cupola(work, "ledger", "--from", "verl", "v.toml", "--json").json()
    assert found["denominators"][0]["value"] == 1


def test_a_files_name_does_not_decide_its_format(cupola: Cupola, work: Path) -> None:
    (work / "args.txt").write_text('loss_type = "dft"\n', encoding="utf-8")
    (work / "json.toml").write_text('{"loss_type": "nll"}', encoding="utf-8")
    for name in ("args.txt", "json.toml"):
        assert cupola(work, "ledger", "--from", "trl", name, "--json").json()["source"] == "TRL 1.16, SFTConfig"


def test_supervised_recipe(cupola: Cupola, work: Path) -> None:
    text = 'output = "o"\n[data]\ntask = "arithmetic"\n[training]\nbatch_size = 5\n'
    (work / "sft.toml").write_text(text, encoding="utf-8")
    ended = cupola(work, "ledger", "--recipe", "sft.toml")
    assert ended.code == 0
    assert "omega = 1 / sum_i |y_i|" in ended.out
    assert "the target tokens of the step's 5 examples, each with its stop token" in ended.out
    assert "why: built in: " in ended.out
    assert "a reason is given for every denominator" in ended.out
    found = cupola(work, "ledger", "--recipe", "sft.toml", "--json").json()
    assert found["read"]["training.batch_size"] == {"value": 5, "from": "sft.toml:5"}


def test_evaluation_averages_of_a_recipe(cupola: Cupola, work: Path) -> None:
    ended = cupola(work, "ledger", "--recipe", "small.toml")
    assert "average macro: mean_q( sum_i x_qi / n_q )" in ended.out
    assert "validation correct/mean: truncated: judged; unparsed: wrong; not judged: left_out (why: " in ended.out
    assert "ways of counting:" in ended.out
    found = cupola(work, "ledger", "--recipe", "small.toml", "--json").json()
    assert found["unreasoned"] == ["objective.why.policy"]
    assert set(found["legend"]) == {"judged", "wrong", "left_out", "abstain", "shared"}


def test_a_described_loop(cupola: Cupola, work: Path) -> None:
    text = '[supervised]\nnll = "sequence_mean"\n[evaluation]\nscore = "macro"\n[why]\nnll = "so"\n'
    (work / "loop.toml").write_text(text, encoding="utf-8")
    ended = cupola(work, "ledger", "--from", "loop", "loop.toml")
    assert ended.code == 0
    assert "omega_i = 1 / (N * |y_i|)" in ended.out
    assert "no reason is given for: why.score; set the key to give one" in ended.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--recipe", "small.toml", "--step", "1"), "--step: belongs to a RUN; a configuration has no steps"),
        (("--from", "nemo", "a.json"), "--from: knows trl, verl, openrlhf, loop, not 'nemo'"),
        (("--from", "trl", "none.json"), "none.json: no such file"),
        (("--from", "trl", "small.toml"), "small.toml: has none of the keys"),
        (("--from", "trl", "list.json"), "list.json: holds no table of keys"),
        (("--from", "trl", "broken.json"), "broken.json: neither JSON nor TOML: Expecting property name"),
        (("--from", "trl", "twice.json"), "twice.json: loss_type: stands there twice; keep one"),
        (("--from", "trl", "open.json"), "open.json: beta: ${other.beta} is not resolved; write the configuration as"),
        (("--from", "trl", "deep.json"), "deep.json: neither JSON nor TOML"),
        (("--from", "trl", "args.yaml"), "args.yaml: YAML is not read; write its keys as JSON or TOML"),
        (("--from", "trl", "bytes.json"), "bytes.json: cannot be read: 'utf-8' codec"),
        (("--from", "trl", "."), ".: cannot be read: "),
        (("--recipe", "none.toml"), "none.toml: no such recipe"),
        (("--recipe", "broken.json"), "broken.json: not TOML"),
        (("--recipe", "sft.toml"), "sft.toml:3: training.batch_size: "),
    ],
)
def test_faults_are_one_line(cupola: Cupola, work: Path, arguments: tuple[str, ...], said: str) -> None:
    (work / "list.json").write_text("[1]", encoding="utf-8")
    (work / "broken.json").write_text("{", encoding="utf-8")
    (work / "twice.json").write_text('{"loss_type": "grpo", "loss_type": "bnpo"}', encoding="utf-8")
    (work / "open.json").write_text('{"loss_type": "grpo", "beta": "${other.beta}"}', encoding="utf-8")
    (work / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (work / "args.yaml").write_text("loss_type: dapo\nbeta: 0.1\n", encoding="utf-8")
    (work / "bytes.json").write_bytes(b"\xff\xfe\xff")
    (work / "sft.toml").write_text('output = "o"\n[training]\nbatch_size = -1\n[data]\ntask = "arithmetic"\n', "utf-8")
    ended = cupola(work, "ledger", *arguments)
    assert ended.code == 2
    assert said in ended.error()
    assert ended.error().count(".json: ") <= 1  # one fault, not one within another


@pytest.mark.parametrize("arguments", [(), ("runs/r", "--recipe", "small.toml")])
def test_one_thing_at_a_time(cupola: Cupola, work: Path, arguments: tuple[str, ...]) -> None:
    ended = cupola(work, "ledger", *arguments)
    assert ended.code == 2
    assert "give one of RUN, --recipe FILE and" in ended.out + ended.err
