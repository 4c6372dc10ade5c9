"""Timeline classes, choice of groups, evaluation, tiles: what stands on the page and why."""

from pathlib import Path

import pytest
from dashboard_run import answers, begin

from cupola.core.config import Objective, validate
from cupola.core.runlog import RunReader, RunWriter, write_evaluation
from cupola.core.stats import Estimate
from cupola.dashboard.figures import charts
from cupola.dashboard.groups import choose, kind, shade, shown_steps
from cupola.dashboard.questions import Course, timeline
from cupola.dashboard.report import newest_update, provenance
from cupola.dashboard.summary import facts, gains, objective, tiles, wall_time
from cupola.prove.evaluation import summarise


def question(*shares: float | None) -> str:
    return Course("?", shares).kind


def test_each_class_of_question() -> None:
    assert question(0.0, 0.5, 1.0) == "improving"
    assert question(0.0, 0.0) == "stuck wrong"
    assert question(1.0, 0.25) == "lost"
    assert question(0.5, 1.0, 0.5) == "unchanged"
    assert question(1.0, None, 1.0) == "always right"


def test_the_timeline_counts_every_question_once(run: Path) -> None:
    found = timeline(RunReader(run))
    assert found.steps == (0, 10, 20, 30, 40, 50, 60)
    assert {name: len(members) for name, members in found.classes.items()} == {
        "improving": 37,
        "stuck wrong": 6,
        "lost": 6,
        "unchanged": 5,
        "always right": 6,
    }
    assert (found.total, found.unjudged) == (60, 0)


def row(group: str, state: str, correct: bool | None, weight: float) -> dict[str, object]:
    return {"group_id": group, "group_state": state, "correct": correct, "weight_share": weight}


def test_the_weightiest_groups_come_first_then_one_of_each_other_kind() -> None:
    signal = [[row(f"s{n}", "signal", True, n / 10)] for n in range(5)]
    dead = [[row("r", "dead", True, 0.0)], [row("w", "dead", False, 0.0)], [row("w2", "dead", False, 0.0)]]
    chosen = [group[0]["group_id"] for group in choose([*dead, *signal])]
    assert chosen == ["s4", "s3", "s2", "r", "w"]


def test_a_dead_group_without_judged_answers_stays_plainly_dead() -> None:
    assert kind([row("d", "dead", None, 0.0)]) == "dead"
    assert kind([row("d", "no_signal", True, 0.0)]) == "no signal"


def test_advantages_have_sign_and_quarter() -> None:
    shades = [shade(value, 2.0) for value in (2.0, 0.4, 0.5, -1.1, 0.0, None)]
    assert shades == ["plus4", "plus1", "plus1", "minus3", "zero", "none"]


def test_groups_of_the_first_middle_and_last_step(run: Path) -> None:
    steps = shown_steps(RunReader(run))
    assert [(step.step, step.total, len(step.groups)) for step in steps] == [(1, 32, 5), (31, 32, 5), (60, 32, 5)]
    paid = [answer.advantage for answer in steps[0].groups[0].answers]
    assert paid == sorted(paid, reverse=True)
    assert steps[0].groups[-1].kind == "dead, all wrong"
    assert steps[0].groups[-1].reasons == (("dead group", 16),)


def test_the_evaluation_stands_side_by_side(run: Path) -> None:
    found = gains(RunReader(run))
    assert found is not None
    assert found.arms == ("base", "trained")
    assert [measure.label.partition(",")[0] for measure in found.measures] == [
        "Greedy",
        "Best temperature (t=0.3)",
        "pass@1",
        "maj@4",
        "pass@4",
    ]
    base, trained = found.measures[1].estimates
    # 50 of 100 questions right: standard error sqrt(25 / 99 / 100) = 0.0502519, t(0.975, 99) = 1.984217
    assert (base.value, base.low, base.high) == pytest.approx((0.5, 0.400289, 0.599711), abs=1e-6)
    assert trained == Estimate(None, None, None, 0)
    low, value, high = found.differences[-1].bar or (0, 0, 0)
    assert low < 90 < value < high, "zero is the middle of the axis, and the interval holds it"


def test_one_arm_has_no_verdict(tmp_path: Path) -> None:
    writer = begin(tmp_path / "lone")
    assert gains(RunReader(tmp_path / "lone")) is None
    samples = [*answers("model", "greedy", [1, 0], 1), *answers("model", "t=0.7", [1, 1], 2)]
    write_evaluation(writer.layout, "x", samples, summarise(samples, split="dev", temperature=0.7, ks=()))
    found = gains(RunReader(tmp_path / "lone"))
    assert found is not None
    assert (found.arms, found.word, found.reason, found.differences) == (("model",), None, None, ())
    assert [measure.label for measure in found.measures] == [
        "Greedy",
        "pass@1, one sample at temperature 0.7",
        "maj@2, the majority of 2 samples",
        "pass@2, any of 2 samples",
    ]
    assert found.measures[1].estimates[0].value == 0.5


def test_headline_numbers_run_from_the_first_to_the_last(run: Path) -> None:
    validation = tiles(RunReader(run))[0]
    assert (validation.first, validation.last, validation.note) == ("41.0%", "73.9%", "+32.9 points · step 0 to 60")


def test_what_is_not_recorded_is_left_out(tmp_path: Path) -> None:
    RunWriter.create(tmp_path / "bare", {}, "")
    reader = RunReader(tmp_path / "bare")
    assert facts(reader) == [("steps", "0")]
    assert tiles(reader) == []
    assert not any(chart.drawn for chart in charts(reader))


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ({"preset": "dr_grpo"}, "dr_grpo"),
        ({"preset": "grpo", "beta": 0.0, "denominator": "constant"}, "grpo, denominator constant, beta 0"),
        (
            {"preset": "grpo", "surrogate": {"kind": "clipped", "low": 0.2, "high": 0.28}},
            "grpo, surrogate high 0.28",
        ),
        ({"preset": "grpo", "count_dead": False, "why": {"kl": "x"}}, "grpo, count dead false"),
        ({"preset": "of another version", "beta": 1.0}, "of another version"),
        ({}, None),
    ],
)
def test_the_objective_is_its_preset_and_what_departs_from_it(recorded: dict[str, object], words: str | None) -> None:
    assert objective(recorded) == words


def test_a_whole_recorded_objective_departs_in_nothing() -> None:
    assert objective(Objective(preset="grpo").model_dump(mode="json")) == "grpo"


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"preset": "ppo"}, "ppo"),
        ({"preset": "ppo", "critic": {"lam": 0.9, "gamma": 0.99}}, "ppo, critic gamma 0.99, critic lam 0.9"),
        ({"preset": "grpo", "reference": {"kind": "adapter_off"}}, "grpo, reference adapter off"),
        ({"preset": "grpo", "masks": {"top_entropy": 0.2}}, "grpo, masks top entropy 0.2"),
    ],
)
def test_of_a_recorded_table_only_what_departs_is_shown(chosen: dict[str, object], words: str) -> None:
    assert objective(validate(chosen, Objective).model_dump(mode="json")) == words


def test_wall_time_leaves_the_pause_between_attempts_out() -> None:
    rows = [{"attempt": a, "time": t} for a, t in ((0, 10.0), (0, 40.0), (1, 1000.0), (1, 1005.0))]
    assert wall_time({}, rows) == 35.0
    assert wall_time({}, rows[:1]) is None
    attempts = [{"attempt": 0, "started": 5.0, "ended": 45.0}, {"attempt": 1, "started": 990.0}]
    assert wall_time({"attempts": attempts}, rows) == 40.0 + 15.0


def test_only_the_last_update_of_the_ledger_is_shown() -> None:
    rows = [{"step": s, "update": u, "term": t} for s, u, t in ((1, 0, "a"), (2, 0, "b"), (2, 1, "c"), (2, 1, "d"))]
    assert [each["term"] for each in newest_update(rows)] == ["c", "d"]
    assert newest_update([]) == []


def test_the_manifest_tells_versions_and_digests() -> None:
    manifest = {"recipe": {"a": 1}, "versions": {"torch": "2.13.0"}, "model": {"digest": "ab", "more": {}}, "git": None}
    assert provenance(manifest) == [("torch", "2.13.0"), ("model digest", "ab")]
