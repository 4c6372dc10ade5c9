"""All detectors together: healthy runs, live use, run folders, and that the loss decides nothing."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from cases import LEARNING
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.core.records import EvalSample, Finding
from cupola.core.runlog import RunReader, RunWriter, write_evaluation
from cupola.watch.diagnosis import LiveDiagnosis, diagnose_rows, diagnose_run, exit_code

RECIPE = {"sampling": {"max_tokens": 64, "group_size": 8}, "validation": {"questions": 100, "samples": 4}}


def healthy(steps: int = 60, seed: int = 0) -> list[dict[str, Any]]:
    """Learns from 0.5 to 0.95; groups die all right, and the gradient norm rises as they do."""
    noise = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for step in range(steps + 1):
        share = step / steps
        right = 0.5 + 0.45 * share
        if step % (steps // 6) == 0:
            rows.append({"step": step, "split": "validation", "correct/mean": right + noise.gauss(0, 0.02)})
        dead_right, dead_wrong = 0.1 + 0.65 * share, 0.05 * (1 - share)
        signal = 1 - dead_right - dead_wrong
        rows.append(
            {
                "step": step,
                "split": "train",
                "correct/mean": min(1.0, right + noise.gauss(0, 0.02)),
                "reward": right + 0.1 + noise.gauss(0, 0.02),
                "groups/dead": dead_right + dead_wrong,
                "groups/dead_right": dead_right,
                "groups/dead_wrong": dead_wrong,
                "groups/with_signal": signal,
                "entropy": 0.4 * math.exp(-1.2 * share),
                "completions/mean_length": 25 + noise.gauss(0, 0.5),
                "completions/clipped_ratio": 0.02,
                "grad_norm": 0.1 / signal,
                "loss": noise.gauss(0, 0.01),
            }
        )
    return rows


def ruined() -> list[dict[str, Any]]:
    """Healthy for 30 steps, then nothing is right any more and every group is dead."""
    rows = [row for row in healthy() if row["step"] < 30]
    wreck = {"correct/mean": 0.0, "reward": 0.0, "groups/dead": 1.0, "groups/dead_right": 0.0, "groups/dead_wrong": 1.0}
    return [*rows, *({"step": step, "split": "train", "loss": 0.0, **wreck} for step in range(30, 60))]


def test_a_healthy_run_raises_no_alarm_although_its_gradient_norm_rises() -> None:
    found = {finding.name: finding for finding in diagnose_rows(healthy(), RECIPE).findings}
    assert {name: finding.severity for name, finding in found.items()} == {
        "learning": "info",
        "dead_groups_taking_over": "info",
    }
    assert found["dead_groups_taking_over"].values["reading"] == "all_right"
    assert exit_code(found.values()) == 0


def test_no_alarm_at_any_step_of_healthy_runs() -> None:
    for seed in range(5):
        alarms: list[Finding] = []
        live = LiveDiagnosis(RECIPE, lambda _, finding, alarms=alarms: alarms.append(finding))
        for row in healthy(seed=seed):
            assert live(row["step"], [row], []) == "continue"
        assert exit_code(alarms) == 0


def test_ruin_is_an_error_and_comes_first() -> None:
    found = diagnose_rows(ruined(), RECIPE).findings
    assert (found[0].name, found[0].severity, found[0].steps) == ("policy_destroyed", "error", (30, 59))
    assert exit_code(found) == 3


def test_the_loss_and_the_gradient_norm_decide_nothing() -> None:
    wild = [{**row, "loss": 50.0 * row["step"], "grad_norm": 1e3} for row in healthy()]
    assert [f.name for f in diagnose_rows(wild, RECIPE).findings] == [
        f.name for f in diagnose_rows(healthy(), RECIPE).findings
    ]


def test_live_reports_once_and_asks_for_what_the_recipe_says() -> None:
    reported: list[tuple[int, str]] = []
    live = LiveDiagnosis(
        {**RECIPE, "diagnosis": {"on_warning": "stop"}}, lambda step, found: reported.append((step, found.name))
    )
    actions = {row["step"]: live(row["step"], [row], []) for row in ruined()}
    names = [name for _, name in reported]
    assert names.count("policy_destroyed") == 1
    # half a window of dead steps is a fall, and five of them are ruin
    assert dict((name, step) for step, name in reported)["policy_destroyed"] == 34
    assert [step for step, action in actions.items() if action == "stop"] == [32, 34]
    assert (32, "correctness_falls") in reported


def test_a_hard_start_does_not_stop_a_run_that_learns_later() -> None:
    """Nine groups of ten dead and all wrong at first; from step 10 on right answers come."""
    reported: list[tuple[int, str, str]] = []
    live = LiveDiagnosis(
        {**RECIPE, "run": {"steps": 60}, "diagnosis": {"on_warning": "stop"}},
        lambda step, found: reported.append((step, found.name, found.severity)),
    )
    for step in range(1, 31):
        risen = max(0.0, 0.03 * (step - 10))
        shares = {"groups/dead_wrong": 0.9 - risen, "groups/dead_right": 0.0, "groups/dead": 0.9 - risen}
        row = {"step": step, "split": "train", "correct/mean": 0.01 + risen / 2, **shares}
        assert live(step, [row], []) == "continue"
    assert reported == [(5, "dead_groups_taking_over", "info")]


def test_a_hard_start_that_stays_hard_stops_the_run_once_a_trend_could_show() -> None:
    live = LiveDiagnosis(
        {**RECIPE, "run": {"steps": 60}, "diagnosis": {"on_warning": "stop"}}, lambda step, found: None
    )
    shares = {"groups/dead_wrong": 0.7, "groups/dead_right": 0.0, "groups/dead": 0.7, "groups/with_signal": 0.3}
    rows = [{"step": step, "split": "train", "correct/mean": 0.05, **shares} for step in range(1, 26)]
    assert [row["step"] for row in rows if live(row["step"], [row], []) == "stop"] == [20]


def test_a_warning_at_the_last_step_stops_nothing() -> None:
    reported: list[str] = []
    live = LiveDiagnosis(
        {**RECIPE, "run": {"steps": 6}, "diagnosis": {"on_warning": "stop"}},
        lambda step, found: reported.append(f"{step} {found.name} {found.severity}"),
    )
    shares = {"groups/dead_wrong": 1.0, "groups/dead_right": 0.0, "groups/dead": 1.0}
    actions = [live(step, [{"step": step, "split": "train", **shares}], []) for step in range(1, 7)]
    assert actions == ["continue"] * 6
    assert reported == ["5 dead_groups_taking_over info", "6 dead_groups_taking_over warning"]


def test_a_risen_severity_is_reported_again() -> None:
    reported: list[tuple[str, str]] = []
    live = LiveDiagnosis({}, lambda _, found: reported.append((found.name, found.severity)))
    solved = {"groups/dead": 0.9, "groups/dead_right": 0.9, "groups/dead_wrong": 0.0}
    hopeless = {"groups/dead": 0.9, "groups/dead_right": 0.0, "groups/dead_wrong": 0.9}
    for step in range(20):
        live(step, [{"step": step, "split": "train", **(solved if step < 10 else hopeless)}], [])
    assert reported == [("dead_groups_taking_over", "info"), ("dead_groups_taking_over", "warning")]


@pytest.mark.parametrize("cut", [5, 14, 40, 60])
def test_a_resumed_run_reports_what_the_uninterrupted_one_would(cut: int) -> None:
    """Most answers are cut, then none, then most again, which is no news: it is what was reported at step 4."""
    shares = [0.97] * 10 + [0.0] * 40 + [0.97] * 20
    rows = [{"step": step, "split": "train", "completions/clipped_ratio": share} for step, share in enumerate(shares)]
    recipe = {**RECIPE, "diagnosis": {"on_warning": "stop"}}
    recorded: list[dict[str, Any]] = []

    def report(step: int, finding: Finding) -> None:
        recorded.append({"step": step, **vars(finding)})

    started = LiveDiagnosis(recipe, report)
    stopped = [row["step"] for row in rows[:cut] if started(row["step"], [row], []) == "stop"]
    resumed = LiveDiagnosis(recipe, report, rows[:cut], list(recorded))
    stopped += [row["step"] for row in rows[cut:] if resumed(row["step"], [row], []) == "stop"]
    assert [(row["step"], row["name"]) for row in recorded] == [(4, "high_truncation")]
    assert stopped == [4]


def test_a_run_folder(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {"recipe": RECIPE}, "")
    for row in ruined():
        values = {key: value for key, value in row.items() if key not in ("step", "split")}
        writer.metrics(row["step"], row["split"], values)
    judged = diagnose_run(RunReader(tmp_path / "run"))
    assert judged.findings[0].name == "policy_destroyed"
    assert {gap.detector for gap in judged.gaps} == {"format_up_correctness_down"}


def test_only_an_evaluation_of_the_last_checkpoint_is_quoted(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path / "run", {"recipe": RECIPE}, "")
    for row in LEARNING:
        writer.metrics(row["step"], row["split"], {"correct/mean": row["correct/mean"]})
    sample = EvalSample("base", "q", "greedy", 0, "text", "1", True, 3, "stop")
    quoted = []
    for step in (10, 20):
        write_evaluation(writer.layout, f"of-{step}", [sample], {"step": step, "verdict": {"word": f"word {step}"}})
        for saved in (10, 20):
            writer.layout.checkpoint(saved).mkdir(parents=True, exist_ok=True)
            found = {finding.name: finding for finding in diagnose_run(RunReader(tmp_path / "run")).findings}
            quoted.append(found["learning"].values["verdict"])
    assert quoted == ["word 10", None, "word 20", "word 20"]


def test_a_folder_of_metrics_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        "".join(f'{{"step": {i}, "completions/clipped_ratio": 0.97}}\n' for i in range(6))
    )
    judged = diagnose_run(RunReader(tmp_path))
    assert [finding.name for finding in judged.findings] == ["high_truncation"]


def test_a_thousand_rows_take_milliseconds() -> None:
    rows = healthy(steps=996)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        diagnose_rows(rows, RECIPE)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05  # 9 ms on an idle core; the margin is for a busy one


NUMBER = st.one_of(
    st.none(), st.floats(-1e9, 1e9), st.sampled_from([math.nan, math.inf]), st.floats(0, 1), st.just(0.0)
)
KEYS = ["correct/mean", "reward", "reward_std", "entropy", "groups/dead", "loss", "grad_norm", "kl",
        "completions/mean_length", "completions/clipped_ratio", "rewards/format/mean"]  # fmt: skip


ROW = st.tuples(st.sampled_from(["train", "validation"]), st.fixed_dictionaries(dict.fromkeys(KEYS, NUMBER)))


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=20, max_size=40))
def test_any_numbers_are_judged_without_an_error(table: list[tuple[str, dict[str, float | None]]]) -> None:
    rows = [{"step": i, "split": split, **values} for i, (split, values) in enumerate(table)]
    for finding in diagnose_rows(rows).findings:
        assert finding.steps[0] <= finding.steps[1]
        assert all(
            value is None or isinstance(value, str | int) or math.isfinite(value) for value in finding.values.values()
        )
