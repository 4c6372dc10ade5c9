"""The commands that read a run, on one that was trained by the command line itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cupola_process import Cupola, Ended
from hypothesis import given
from hypothesis import strategies as st

from cupola.cli.plain import plain, quoted
from cupola.cli.show import from_both_ends
from cupola.core.runlog import Layout, append, read_jsonl, read_parquet, write_parquet

HOSTILE = "\x1b[2J\x1b]0;owned\x07 right\u202eleft \x9b31m\r\n\x00Ω"


def test_training_prints_a_line_per_step_and_where_everything_is(trained: tuple[Path, Ended]) -> None:
    folder, done = trained
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert [line.split("  ")[0] for line in lines[:5]] == [
        "validation at step 0", "step 1/2", "validation at step 1", "step 2/2", "validation at step 2",
    ]  # fmt: skip
    for figure in ("reward ", "prompts with signal ", "entropy ", "length ", " tokens/s", " s left"):
        assert figure in lines[1]
    assert lines[-3:] == ["finished at step 2", "run folder: runs/r", "report: runs/r/report.html"]
    page = (folder / "runs" / "r" / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")


def test_groups(cupola: Cupola, trained: tuple[Path, Ended]) -> None:
    done = cupola(trained[0], "groups", "runs/r", "-n", "2")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("prompt: ") == 2
    lines = [line for line in done.out.splitlines() if "  advantage " in line]
    times = [int(line.split()[0].removeprefix("×")) if "×" in line else 1 for line in lines]
    assert sum(times) == 2 * 4
    first = cupola(trained[0], "groups", "runs/r", "--split", "validation", "--step", "0", "-n", "99", "--json").json()
    assert (first["step"], first["split"], len(first["groups"])) == (0, "validation", 4 * 2)
    for group in first["groups"]:
        rewards = [row["reward"] for row in group["rollouts"]]
        assert rewards == sorted(rewards, reverse=True)


def test_a_completion_cannot_command_the_terminal(cupola: Cupola, finished: Path) -> None:
    layout = Layout(finished / "runs" / "r")
    write_parquet(layout.rollouts(2), [{**row, "completion": HOSTILE} for row in read_parquet(layout.rollouts(2))])
    write_parquet(
        layout.prompts, [{**row, "prompt": HOSTILE, "answer": HOSTILE} for row in read_parquet(layout.prompts)]
    )

    shown = cupola(finished, "groups", "runs/r", "-n", "1")
    as_json = cupola(finished, "groups", "runs/r", "-n", "1", "--json")

    assert shown.code == as_json.code == 0
    assert all(character.isprintable() or character == "\n" for character in shown.out)
    assert f'prompt: "{plain(HOSTILE)}"\n' in shown.out
    assert as_json.out.isascii()
    assert all(character.isprintable() or character == "\n" for character in as_json.out)
    assert as_json.json()["groups"][0]["rollouts"][0]["completion"] == HOSTILE


def test_a_quoted_prompt_shows_its_spaces_and_keeps_its_lines() -> None:
    assert quoted("      5+6=") == '"      5+6="'
    assert quoted("one\ntwo\x1b ") == '"one\ntwo\\x1b "'


def test_answers_come_from_both_ends() -> None:
    assert from_both_ends([1, 2, 3, 4, 5]) == [1, 5, 2, 4, 3]
    assert from_both_ends("abcd") == ["a", "d", "b", "c"]
    assert from_both_ends([]) == []


@given(st.text())
def test_plain_text_is_printable_and_printable_text_is_itself(text: str) -> None:
    assert plain(text).isprintable()
    assert not text.isprintable() or plain(text) == text


def test_diagnose_exits_0_without_a_warning_and_names_what_it_could_not_judge(
    cupola: Cupola, trained: tuple[Path, Ended]
) -> None:
    done = cupola(trained[0], "diagnose", "runs/r")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("no finding\n\ncould not be judged:\n")
    record = cupola(trained[0], "diagnose", "runs/r", "--json")
    assert record.code == 0
    assert record.json()["findings"] == []
    assert {"detector": "entropy_collapse", "key": "entropy", "found": 2, "needed": 20} in record.json()["gaps"]


def test_diagnose_exits_3_with_a_warning_in_words(cupola: Cupola, finished: Path) -> None:
    metrics = finished / "runs" / "r" / "metrics.jsonl"
    row = next(row for row in read_jsonl(metrics) if row["split"] == "train")
    cut = {**row, "attempt": 1, "completions/clipped_ratio": 0.75, "completions/max_length": 44}
    append(metrics, [{**cut, "step": step} for step in range(1, 31)])

    done = cupola(finished, "diagnose", "runs/r")
    record = cupola(finished, "diagnose", "runs/r", "--json")

    assert (done.code, record.code) == (3, 3)
    assert "\n  you see   " in done.out
    assert "\n  it means  " in done.out
    assert "\n  do        " in done.out
    found = {finding["name"]: finding for finding in record.json()["findings"]}
    assert found["high_truncation"]["severity"] in ("warning", "error")
    assert all(found["high_truncation"][key] for key in ("title", "see", "means", "do", "values", "steps"))


def test_ledger(cupola: Cupola, trained: tuple[Path, Ended]) -> None:
    rows = read_jsonl(Layout(trained[0] / "runs" / "r").ledger)
    step = max(row["step"] for row in rows)
    done = cupola(trained[0], "ledger", "runs/r")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"runs/r: step {step}\nupdate ")
    assert "omega = 1 / (N * L_max)" in done.out
    assert "no reason is given for: objective.why.policy; set the key to give one" in done.out
    record = cupola(trained[0], "ledger", "runs/r", "--step", step, "--json")
    assert record.json() == [row for row in rows if row["step"] == step]


def test_watch_writes_the_page_where_it_is_asked_to(
    cupola: Cupola, trained: tuple[Path, Ended], tmp_path: Path
) -> None:
    page = tmp_path / "deep" / "page.html"
    done = cupola(trained[0], "watch", "runs/r", "--export", page)
    assert (done.code, done.out, done.err) == (0, f"wrote {page}\n", "")
    assert "<h1" in page.read_text(encoding="utf-8")


def test_eval_of_a_run(cupola: Cupola, finished: Path) -> None:
    done = cupola(finished, "eval", "runs/r", "--questions", "3", "--samples", "2")
    assert (done.code, done.err) == (0, "")
    assert "3 test questions" in done.out
    assert "pass@2" in done.out
    assert "\nverdict: " in done.out
    record = cupola(finished, "eval", "runs/r", "--step", "1", "--json")
    assert set(record.json()["arms"]) == {"base", "trained"}
    stored = json.loads(
        (finished / "runs" / "r" / "evals" / "step-000001" / "summary.json").read_text(encoding="utf-8")
    )
    assert {"id": "step-000001", **record.json()} == stored


def test_eval_of_a_lone_model(cupola: Cupola, finished: Path) -> None:
    model = "runs/r/checkpoints/step-000002"
    done = cupola(finished, "eval", model, "--recipe", "small.toml", "--out", "lone", "--json")
    assert (done.code, done.err) == (0, "")
    assert list(done.json()["arms"]) == ["model"]
    assert (finished / "lone" / "evals" / "model" / "summary.json").is_file()
    assert cupola(finished, "eval", model).error() == f"{model}: not a run folder: neither run.json nor " + (
        "metrics.jsonl stands in it"
    )  # fmt: skip


def test_doctor(cupola: Cupola, tmp_path: Path) -> None:
    done = cupola(tmp_path, "doctor")
    assert (done.code, done.err) == (0, "")
    record = cupola(tmp_path, "doctor", "--json").json()
    assert record["threads"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert record["embedded"].endswith("digest as shipped")
    for fact in (record["versions"]["torch"], record["machine"], "OMP_WAIT_POLICY"):
        assert fact in done.out


def test_train_as_json_is_one_object(cupola: Cupola, work: Path) -> None:
    done = cupola(work, "train", "small.toml", "run.steps=1", "evaluation.at_end=true", "--json")
    assert (done.code, done.err) == (0, "")
    record = done.json()
    assert (record["run"], record["state"], record["step"]) == ("runs/r", "finished", 1)
    assert record["evaluation"]["questions"] == 4
    assert set(record) == {"run", "state", "step", "report", "evaluation", "findings", "gaps"}


@pytest.mark.parametrize("on_warning", ["pause", "stop"])
def test_a_live_warning_ends_the_run_with_3_and_the_way_on(cupola: Cupola, work: Path, on_warning: str) -> None:
    recipe = ["sampling.max_tokens=4", "run.steps=40", "validation.every=40", f"diagnosis.on_warning={on_warning}"]
    done = cupola(work, "train", "small.toml", *recipe)
    assert (done.code, done.err) == (3, "")
    state = {"pause": "paused", "stop": "stopped"}[on_warning]
    assert f"\n{state} at step " in done.out
    assert done.out.endswith("continue with: cupola resume runs/r\n")


def test_ledger_of_masks_and_measured_gradients(cupola: Cupola, finished: Path) -> None:
    """A second update of the same step: a mask, a correction that took nothing, and gradients that were measured."""
    path = Layout(finished / "runs" / "r").ledger
    row = next(row for row in reversed(read_jsonl(path)) if row["term"] == "policy")
    masked = {
        **row,
        "update": row["update"] + 1,
        "numerators": {"clip_cov": 12, "correction": 0},
        "shares": {"correctness": {"right": 0.25, "wrong": 0.75}, "solve_rate": {"0": 1.0, "1": 0.0}},
        "exact_shares": {"correctness": {"right": 0.4, "wrong": 0.6}, "solve_rate": {"0": 1.0, "1": 0.0}},
    }
    append(path, [masked])
    shown = cupola(finished, "ledger", "runs/r").out
    assert shown.count("without a numerator") == 1
    assert "\n  tokens counted without a numerator: 12 by clip_cov\n" in shown
    assert "\n  measured gradients (weights) by correctness: right 40% (25%), wrong 60% (75%)\n" in shown
    assert "\n  measured gradients (weights) by solve rate: 0 100% (100%)\n" in shown
