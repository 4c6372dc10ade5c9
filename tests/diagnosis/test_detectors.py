"""Each detector on series written by hand: it speaks, it keeps silent near the threshold, it says what it lacks."""

from __future__ import annotations

from typing import Any

import pytest
from cases import (
    CERTAIN,
    CLIMBING,
    EVALUATION,
    FALL,
    LEARNING,
    LONGER,
    ONE,
    RECIPE,
    RISE,
    RUIN,
    STILL,
    TOTAL,
    dead,
    judge,
    lacks,
    named,
    rows,
    verdicts,
)

from cupola.watch.diagnosis import DETECTORS, diagnose_rows


@pytest.mark.parametrize(
    ("entry", "severity", "steps"),
    [
        ("learning.unevaluated", "info", (0, 15)),
        ("learning.evaluated", "info", (0, 15)),
        ("unscored.most", "error", (1, 5)),
        ("unscored.some", "warning", (1, 5)),
        ("unscored.undefined", "error", (1, 5)),
        ("no_gradient.zero", "error", (1, 5)),
        ("no_gradient.undefined", "error", (0, 5)),
        ("flat_near_floor.any", "warning", (0, 19)),
        ("flat_near_floor.form_learnt", "warning", (0, 19)),
        ("flat_near_ceiling.from_start", "warning", (0, 19)),
        ("flat_near_ceiling.reached", "info", (5, 19)),
        ("reward_and_length_rise.earned", "info", (0, 19)),
        ("reward_and_length_rise.unearned", "warning", (0, 19)),
        ("reward_and_length_rise.unknown", "info", (0, 19)),
        ("high_truncation.at_cap", "warning", (3, 7)),
        ("high_truncation.below_cap", "warning", (0, 5)),
        ("train_up_eval_down.train_up", "warning", (5, 15)),
        ("train_up_eval_down.train_unknown", "warning", (0, 3)),
        ("entropy_collapse.stalled", "warning", (0, 19)),
        ("entropy_collapse.still_learning", "info", (0, 19)),
        ("entropy_collapse.solved", "info", (0, 19)),
        ("dead_groups_taking_over.all_right", "info", (0, 5)),
        ("dead_groups_taking_over.all_wrong", "warning", (0, 5)),
        ("dead_groups_taking_over.mixed", "warning", (0, 5)),
        ("dead_groups_taking_over.tied", "warning", (0, 5)),
        ("dead_groups_taking_over.improving", "info", (0, 19)),
        ("dead_groups_taking_over.unknown", "warning", (5, 10)),
        ("correctness_falls.some", "warning", (0, 19)),
        ("correctness_falls.nearly_all", "error", (2, 19)),
        ("entropy_explosion", "warning", (0, 19)),
        ("policy_destroyed", "error", (8, 19)),
        ("format_up_correctness_down", "warning", (0, 19)),
        ("loss_zero_benign", "info", (0, 5)),
    ],
)
def test_how_grave_it_is_and_since_when(entry: str, severity: str, steps: tuple[int, int]) -> None:
    found = named(entry)
    assert (found.severity, found.steps) == (severity, steps)


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        # medians of 0.30 0.32 0.31 0.33 0.34 and of 0.50 0.52 0.51 0.53 0.54
        ("learning.evaluated", {"verdict": "learned"}),
        ("unscored.most", {"groups": 1.0, "rollouts": 1.0, "status": "skipped"}),
        ("unscored.some", {"groups": 0.05, "rollouts": 0.12, "status": "error"}),
        (
            "learning.unevaluated",
            {"validation_first": 0.30, "validation_last": 0.52, "train_first": 0.32, "train_last": 0.52},
        ),
        ("train_up_eval_down.train_up", {"best": 0.55, "best_step": 5, "validation_last": 0.3}),
        ("flat_near_floor.any", {"level": 0.0}),
        ("flat_near_floor.form_learnt", {"form_key": "rewards/form/mean"}),
        ("reward_and_length_rise.unearned", {"length_first": 110, "length_last": 185}),
        ("high_truncation.at_cap", {"share": 0.5}),
        ("entropy_collapse.stalled", {"first": 0.5, "last": 0.05, "loss": 0.01}),
        ("dead_groups_taking_over.all_wrong", {"wasted": 0.75}),
        # running medians of five: 0.45 0.47 0.50 0.50 0.50 ...; the first best one begins at step 2
        ("policy_destroyed", {"before": 0.50, "before_step": 2, "after": 0.0, "learning_rate": 1e-3, "loss": 0.01}),
        # mean of 0.54 0.53 0.51 0.52 0.50; of 0.34 0.33 0.31 0.32 0.30 the mean and the median
        ("correctness_falls.some", {"key": "correct/mean", "best": 0.52, "best_step": 0, "last": 0.32}),
        # mean of 0.45 0.47 0.50 0.52 0.50
        ("correctness_falls.nearly_all", {"best": 0.488, "best_step": 2, "last": 0.0}),
        ("entropy_explosion", {"first": 0.5, "last": 2.0, "progress_key": "correct/mean", "grad_norm": 9.0}),
        ("format_up_correctness_down", {"correct_first": 0.52, "correct_last": 0.32}),
        ("loss_zero_benign", {"loss": 0.0, "grad_norm": 0.09}),
    ],
)
def test_what_it_quotes(entry: str, values: dict[str, Any]) -> None:
    found = named(entry).values
    assert {key: found[key] for key in values} == pytest.approx(values)


def test_a_rise_within_the_noise_is_no_learning() -> None:
    # 3·sqrt(2·0.325·0.675/400) = 0.0994: five points are not beyond it
    held_out = rows("validation", every=5, correct__mean=[0.30, 0.31, 0.33, 0.35])
    assert judge("learning", rows(correct__mean=STILL), held_out) is None


def test_few_answers_behind_a_rise_are_no_learning() -> None:
    # 3·sqrt(2·0.41·0.59/20) = 0.467: 22 points are beyond the noise of 400 answers, but not of 20
    held_out = [{**row, "correct/answers": 20} if row["split"] == "validation" else row for row in LEARNING]
    assert judge("learning", LEARNING) is not None
    assert judge("learning", held_out) is None


def test_few_answers_behind_a_fall_are_no_fall() -> None:
    # 4·sqrt(0.425·0.575·(1/30 + 1/30)) = 0.51
    held_out = rows("validation", every=5, correct__mean=[0.50, 0.55, 0.40, 0.30], correct__answers=[30.0] * 4)
    assert judge("train_up_eval_down", rows(correct__mean=RISE), held_out) is None


def test_an_open_verdict_is_undecided() -> None:
    found = judge("learning", LEARNING, evaluation={**EVALUATION, "verdict": {"word": None, "reason": ""}})
    assert found is not None
    assert found.values["verdict"] == "undecided"


def test_two_validation_points_are_too_few_to_tell_learning() -> None:
    held_out = rows("validation", every=20, correct__mean=[0.3, 0.9])
    assert lacks(rows(correct__mean=RISE) + held_out, RECIPE)["learning"] == ("validation correct/mean", 2, 3)


def test_a_fall_of_validation_within_the_noise() -> None:
    # 4·sqrt(2·0.52·0.48/400) = 0.141: six points are not beyond it
    held_out = rows("validation", every=5, correct__mean=[0.50, 0.55, 0.52, 0.49])
    assert judge("train_up_eval_down", rows(correct__mean=RISE), held_out) is None


def test_training_and_validation_both_down_is_another_matter() -> None:
    held_out = rows("validation", every=5, correct__mean=[0.50, 0.55, 0.40, 0.30])
    assert judge("train_up_eval_down", rows(correct__mean=FALL), held_out) is None


def test_training_recorded_for_a_few_steps_is_not_unrecorded() -> None:
    listed = rows("validation", every=5, correct__mean=[0.55, 0.50, 0.30, 0.18]) + rows(correct__mean=RISE[:15])
    assert judge("train_up_eval_down", listed) is None
    assert lacks(listed, RECIPE)["train_up_eval_down"] == ("correct/mean", 15, 20)


def test_rising_from_the_floor() -> None:
    assert judge("flat_near_floor", rows(correct__mean=[0.0] * 10 + [0.005, 0.01, 0.01, 0.02, 0.02] * 2)) is None


def test_a_hard_task_with_signal_is_no_floor() -> None:
    assert judge("flat_near_floor", rows(correct__mean=[0.02] * 20, groups__with_signal=[0.3] * 20)) is None


def test_form_learnt_on_the_floor_of_a_foreign_log() -> None:
    log = rows(rewards__accuracy_reward__mean=[0.0] * 20, rewards__format_reward__mean=CLIMBING)
    found = judge("flat_near_floor", log, recipe=None)
    assert found is not None
    assert (found.values["reading"], found.values["form_key"]) == ("form_learnt", "rewards/format_reward/mean")


def test_a_centred_reward_is_no_floor() -> None:
    assert judge("flat_near_floor", rows(reward=[0.0, 0.01] * 10, reward_std=[0.9] * 20), recipe=None) is None
    assert judge("flat_near_floor", rows(reward=[0.0, -0.01] * 10, reward_std=[0.01] * 20), recipe=None) is None


def test_validation_stands_in_for_the_floor() -> None:
    found = judge("flat_near_floor", rows("validation", correct__mean=[0.0] * 5))
    assert found is not None
    assert found.values["key"] == "validation correct/mean"


def test_not_yet_at_the_ceiling() -> None:
    assert judge("flat_near_ceiling", rows(correct__mean=[0.94] * 20)) is None


def test_a_part_that_pays_two_has_no_known_ceiling() -> None:
    assert judge("flat_near_ceiling", rows(rewards__correctness__mean=[1.2] * 20), recipe=None) is None


def test_a_little_longer_is_no_rise_of_length() -> None:
    log = rows(reward=TOTAL, completions__mean_length=[100.0 + i for i in range(20)], correct__mean=STILL)
    assert judge("reward_and_length_rise", log) is None


def test_a_workable_share_of_cut_answers() -> None:
    assert judge("high_truncation", rows(completions__clipped_ratio=[0.9, 0.5, 0.2, 0.14, 0.14, 0.14, 0.14])) is None


def test_a_mean_length_at_the_limit_shows_truncation_too() -> None:
    found = judge("high_truncation", rows(completions__mean_length=[256.0] * 6))
    assert found is not None
    assert found.values["share"] == 1.0
    assert judge("high_truncation", rows(completions__mean_length=[240.0] * 6)) is None


def test_halved_entropy_is_learning() -> None:
    assert judge("entropy_collapse", rows(entropy=[0.5] * 10 + [0.2] * 10, correct__mean=STILL)) is None


def test_without_entropy_there_is_nothing_to_lose() -> None:
    assert judge("entropy_collapse", rows(entropy=[0.02] * 10 + [0.001] * 10, correct__mean=STILL)) is None


def test_undefined_entropy_is_no_zero() -> None:
    assert lacks(rows(entropy=CERTAIN[:10] + [None] * 10))["entropy_collapse"] == ("entropy", 10, 20)


def test_dead_groups_that_are_not_most() -> None:
    assert judge("dead_groups_taking_over", dead(0.1, 0.48, 0.58)) is None


def test_no_spread_at_all_means_dead_groups() -> None:
    assert judge("dead_groups_taking_over", rows(reward_std=[0.0] * 6), recipe=None) is not None
    assert judge("dead_groups_taking_over", rows(reward_std=[0.0, 1.5, 1.2, 0.0, 1.4, 1.1]), recipe=None) is None


@pytest.mark.parametrize(
    ("points", "planned", "severity"),
    [
        (6, 100, "info"),  # a hard task begins like this
        (6, 5, "warning"),  # the run has ended: nothing more will come
        (6, None, "warning"),  # nobody says that more will come
        (20, 100, "warning"),  # long enough to see that it does not rise
    ],
)
def test_a_bad_start_is_information_while_the_run_goes_on(points: int, planned: int | None, severity: str) -> None:
    recipe = RECIPE if planned is None else {**RECIPE, "run": {"steps": planned}}
    for name, listed in {
        "dead_groups_taking_over": dead(0.1, 0.6, 0.7, points),
        "high_truncation": rows(completions__clipped_ratio=[0.9] * points),
        "unscored": verdicts(points, error=30.0),
    }.items():
        found = judge(name, listed, recipe=recipe)
        assert found is not None
        assert found.severity == severity, name


def test_ruin_in_a_foreign_log() -> None:
    log = rows(reward=[1.3, 1.2, 1.3, 1.25, 1.3] * 3 + [0.0] * 6, learning_rate=[1e-6] * 21)
    found = judge("policy_destroyed", log, recipe=None)
    assert found is not None
    assert found.values["learning_rate"] == 1e-6
    assert found.values["dead"] is None


def test_a_dip_that_comes_back_is_no_ruin() -> None:
    assert judge("policy_destroyed", rows(correct__mean=[0.5] * 10 + [0.0] * 6 + [0.2, 0.3, 0.4, 0.5])) is None


def test_while_groups_still_differ_nothing_is_ruined() -> None:
    assert judge("policy_destroyed", rows(correct__mean=RUIN, groups__dead=[0.3] * 20)) is None


def test_rewards_of_either_sign_have_no_ruin_at_zero() -> None:
    assert judge("policy_destroyed", rows(reward=[4.0, -17.0, 3.0, 3.5, 4.0] * 3 + [-4.0] * 6)) is None


def test_form_rises_and_correctness_holds() -> None:
    assert judge("format_up_correctness_down", rows(rewards__answer__mean=STILL, rewards__form__mean=RISE)) is None


def test_correctness_falls_and_form_holds() -> None:
    assert judge("format_up_correctness_down", rows(rewards__answer__mean=FALL, rewards__form__mean=STILL)) is None


def test_brevity_is_no_form() -> None:
    parts = [{"name": "answer", "kind": "exact"}, {"name": "brief", "kind": "function", "role": "other"}]
    log = rows(rewards__answer__mean=FALL, rewards__brief__mean=RISE)
    assert judge("format_up_correctness_down", log, recipe={**RECIPE, "reward": parts}) is None


def test_no_gradient_is_not_benign() -> None:
    assert judge("loss_zero_benign", rows(loss=[0.0] * 6, grad_norm=[0.0] * 6, kl=[0.0] * 6)) is None


def test_a_loss_that_is_not_zero() -> None:
    assert judge("loss_zero_benign", rows(loss=[0.02] * 6, grad_norm=[0.09] * 6)) is None


@pytest.mark.parametrize(
    ("name", "listed", "key"),
    [
        ("flat_near_floor", rows(reward=[0.5] * 20), "correct/mean"),
        ("flat_near_ceiling", rows(reward=[1.0] * 20), "correct/mean"),
        ("reward_and_length_rise", rows(reward=TOTAL), "completions/mean_length"),
        ("reward_and_length_rise", rows(completions__mean_length=LONGER), "reward"),
        ("high_truncation", rows(completions__mean_length=[256.0] * 6), "completions/clipped_ratio"),
        ("dead_groups_taking_over", rows(reward=[0.5] * 19), "frac_reward_zero_std"),
        ("policy_destroyed", rows(reward=[1.0] * 4 + [0.0] * 5), "reward"),
        ("unscored", rows(grad_norm=[1.0] * 6), "groups/unscorable"),
        ("no_gradient", rows(reward=[1.0] * 6), "grad_norm"),
        ("loss_zero_benign", rows(grad_norm=[0.09] * 6), "loss"),
    ],
)
def test_what_it_lacks(name: str, listed: list[dict[str, Any]], key: str) -> None:
    assert lacks(listed)[name][0] == key


def test_few_points_are_counted() -> None:
    few = lacks(rows(completions__clipped_ratio=[0.9] * 3))
    assert few["high_truncation"] == ("completions/clipped_ratio", 3, 5)
    formed = lacks(rows(rewards__form__mean=[0.5] * 3 + [None] * (len(FALL) - 3), correct__mean=FALL), RECIPE)
    assert formed["format_up_correctness_down"][:2] == ("rewards/form/mean", 3)


def test_a_form_part_that_was_not_recorded_is_lacking() -> None:
    assert lacks(rows(rewards__answer__mean=FALL), RECIPE)["format_up_correctness_down"][0] == "rewards/form/mean"


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_no_rows_say_nothing_and_all_is_missing(name: str) -> None:
    assert diagnose_rows([]).findings == ()
    assert name in lacks([])


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"reward": [{"name": "answer", "kind": "exact"}]}, "format_up_correctness_down"),
        ({"validation": {"samples": 0, "greedy": False}}, "learning"),
        ({"validation": {"samples": 0, "greedy": False}}, "train_up_eval_down"),
    ],
)
def test_what_does_not_apply_is_not_lacking(changed: dict[str, Any], name: str) -> None:
    assert name in lacks([], RECIPE)
    assert name not in lacks([], {**RECIPE, **changed})


def test_a_log_whose_parts_pay_for_no_form_lacks_none() -> None:
    assert "format_up_correctness_down" not in lacks(rows(rewards__accuracy_reward__mean=RISE))


def test_as_many_right_as_wrong_are_not_solved() -> None:
    found = judge("dead_groups_taking_over", dead(0.5, 0.5, 1.0))
    assert found is not None
    assert (found.severity, found.values["reading"], found.values["no_signal"]) == ("warning", "mixed", 0.0)


OF_ONE = rows(groups__unscorable=[1.0] * 6, groups__dead=[0.0] * 6, groups__with_signal=[0.0] * 6, reward=[0.4] * 6)


def test_groups_of_one_are_unscorable_by_definition_and_not_unscored() -> None:
    assert judge("unscored", OF_ONE) is not None
    assert judge("unscored", OF_ONE, recipe=ONE) is None


def test_groups_of_one_without_a_reward_are_unscored_by_their_verdicts() -> None:
    listed = [{**row, "reward": 0.4} for row in verdicts(groups=1.0, error=30.0)]
    found = judge("unscored", listed, recipe=ONE)
    assert found is not None
    assert (found.severity, found.values["reading"]) == ("warning", "some")
    assert found.values["rollouts"] == pytest.approx(0.3)
    assert found.values["groups"] is None
    lost = judge("unscored", rows(reward=[None] * 6, groups__unscorable=[1.0] * 6), recipe=ONE)
    assert lost is not None
    assert (lost.severity, lost.values["reading"]) == ("error", "undefined")
