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
    assert "no reason is given for: policy" in ended.out
    assert "scale: none; objective.scale is none: A = r - b" in ended.out
    assert "dead groups stay in the count" in ended.out
    assert "the mechanism transfers, the number does not" in ended.out


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
    assert "dead groups leave the count" in rows["policy"]["scope"]
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
    assert "omega = 1 / (8 * 1 * 1 * 512)" in ended.out
    assert "not read, as they bear on no denominator: lr" in ended.out
    found = cupola(work, "ledger", "--from", "verl", "v.toml", "--json").json()
    assert found["denominators"][0]["value"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--recipe", "small.toml", "--step", "1"), "--step: belongs to a RUN; a configuration has no steps"),
        (("--from", "nemo", "a.json"), "--from: knows trl, verl, openrlhf, not 'nemo'"),
        (("--from", "trl", "none.json"), "none.json: no such file"),
        (("--from", "trl", "small.toml"), "small.toml: has none of the keys"),
        (("--from", "trl", "list.json"), "list.json: holds no table of keys"),
        (("--from", "trl", "broken.json"), "broken.json: neither JSON nor, with the ending .toml, TOML"),
    ],
)
def test_faults_are_one_line(cupola: Cupola, work: Path, arguments: tuple[str, ...], said: str) -> None:
    (work / "list.json").write_text("[1]", encoding="utf-8")
    (work / "broken.json").write_text("{", encoding="utf-8")
    ended = cupola(work, "ledger", *arguments)
    assert ended.code == 2
    assert said in ended.error()


@pytest.mark.parametrize("arguments", [(), ("runs/r", "--recipe", "small.toml")])
def test_one_thing_at_a_time(cupola: Cupola, work: Path, arguments: tuple[str, ...]) -> None:
    ended = cupola(work, "ledger", *arguments)
    assert ended.code == 2
    assert "give one of RUN, --recipe FILE and" in ended.out + ended.err
