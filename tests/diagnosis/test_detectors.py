"""Each detector on series written by hand: it speaks, it keeps silent near the threshold, it says what it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cupola.core.catalogue import wording
from cupola.core.records import Finding
from cupola.watch.diagnosis import DETECTORS, coverage, diagnose

CORRECT = "correct/mean"
RECIPE = {
    "sampling": {"max_tokens": 256, "group_size": 8},
    "optim": {"learning_rate": 1e-3},
    "reward": [{"name": "answer", "kind": "exact"}, {"name": "form", "kind": "pattern", "pattern": "x"}],
    "validation": {"questions": 100, "samples": 4},
}


def rows(split: str = "train", every: int = 1, **columns: Sequence[float | None]) -> list[dict[str, Any]]:
    """A row per value; `__` in a column's name stands for `/`."""
    length = len(next(iter(columns.values())))
    series = {name.replace("__", "/"): values for name, values in columns.items()}
    return [
        {"step": every * i, "split": split, **{key: values[i] for key, values in series.items()}} for i in range(length)
    ]


def named(name: str, found: Sequence[Finding]) -> Finding | None:
    return next((finding for finding in found if finding.name == name), None)


def judge(name: str, *parts: list[dict[str, Any]], recipe: Mapping[str, Any] | None = RECIPE) -> Finding | None:
    """The finding of that name, if any; whatever is found can also be put in words."""
    found = diagnose([row for part in parts for row in part], recipe)
    assert all(wording(finding.name, finding.values, finding.steps).see for finding in found)
    return named(name, found)


RISE = [
    0.30, 0.32, 0.31, 0.33, 0.34, 0.36, 0.35, 0.38, 0.40, 0.39,
    0.42, 0.44, 0.45, 0.44, 0.48, 0.50, 0.52, 0.51, 0.53, 0.54,
]  # fmt: skip
STILL = [
    0.30, 0.33, 0.29, 0.31, 0.30, 0.32, 0.28, 0.31, 0.30, 0.33,
    0.29, 0.30, 0.32, 0.31, 0.28, 0.30, 0.33, 0.31, 0.30, 0.29,
]  # fmt: skip
FALL = RISE[::-1]


class TestLearning:
    def test_validation_rises(self) -> None:
        held_out = rows("validation", every=5, correct__mean=[0.30, 0.38, 0.45, 0.52])
        found = judge("learning", rows(correct__mean=RISE), held_out)
        assert found is not None
        assert (found.severity, found.steps) == ("info", (0, 15))
        assert found.values["validation_first"] == 0.30
        assert found.values["validation_last"] == 0.52
        assert found.values["train_first"] == 0.32  # median of 0.30 0.32 0.31 0.33 0.34
        assert found.values["train_last"] == 0.52  # median of 0.50 0.52 0.51 0.53 0.54

    def test_a_rise_within_the_noise_is_no_learning(self) -> None:
        # 3·sqrt(2·0.325·0.675/400) = 0.0994: five points are not beyond it
        held_out = rows("validation", every=5, correct__mean=[0.30, 0.31, 0.33, 0.35])
        assert judge("learning", rows(correct__mean=STILL), held_out) is None

    def test_two_validation_points_are_too_few(self) -> None:
        held_out = rows("validation", every=20, correct__mean=[0.3, 0.9])
        gap = next(
            gap for gap in coverage([*rows(correct__mean=RISE), *held_out], RECIPE) if gap.detector == "learning"
        )
        assert (gap.key, gap.found, gap.needed) == ("validation correct/mean", 2, 3)


class TestTrainUpEvalDown:
    def test_reward_up_validation_down(self) -> None:
        held_out = rows("validation", every=5, correct__mean=[0.50, 0.55, 0.40, 0.30])
        found = judge("train_up_eval_down", rows(correct__mean=RISE), held_out)
        assert found is not None
        assert (found.severity, found.steps) == ("warning", (5, 15))
        assert (found.values["reading"], found.values["best"], found.values["validation_last"]) == (
            "train_up",
            0.55,
            0.3,
        )

    def test_a_fall_within_the_noise(self) -> None:
        # 4·sqrt(2·0.52·0.48/400) = 0.141: six points are not beyond it
        held_out = rows("validation", every=5, correct__mean=[0.50, 0.55, 0.52, 0.49])
        assert judge("train_up_eval_down", rows(correct__mean=RISE), held_out) is None

    def test_both_down_is_another_matter(self) -> None:
        held_out = rows("validation", every=5, correct__mean=[0.50, 0.55, 0.40, 0.30])
        assert judge("train_up_eval_down", rows(correct__mean=FALL), held_out) is None

    def test_validation_alone(self) -> None:
        found = judge("train_up_eval_down", rows("validation", correct__mean=[0.55, 0.50, 0.30, 0.18]), recipe=None)
        assert found is not None
        assert found.values["reading"] == "train_unknown"


class TestFlatNearFloor:
    def test_never_right(self) -> None:
        found = judge("flat_near_floor", rows(correct__mean=[0.0, 0.01, 0.0, 0.0, 0.01] * 4))
        assert found is not None
        assert (found.severity, found.values["reading"], found.values["level"]) == ("warning", "any", 0.0)

    def test_rising_from_the_floor(self) -> None:
        assert judge("flat_near_floor", rows(correct__mean=[0.0] * 10 + [0.005, 0.01, 0.01, 0.02, 0.02] * 2)) is None

    def test_a_hard_task_with_signal(self) -> None:
        assert judge("flat_near_floor", rows(correct__mean=[0.02] * 20, groups__with_signal=[0.3] * 20)) is None

    def test_form_is_learnt(self) -> None:
        climbing = [0.1 + 0.04 * i for i in range(20)]
        log = rows(rewards__accuracy_reward__mean=[0.0] * 20, rewards__format_reward__mean=climbing)
        found = judge("flat_near_floor", log, recipe=None)
        assert found is not None
        assert (found.values["reading"], found.values["form_key"]) == ("form_learnt", "rewards/format_reward/mean")

    def test_a_centred_reward_is_no_floor(self) -> None:
        assert judge("flat_near_floor", rows(reward=[0.0, 0.01] * 10, reward_std=[0.9] * 20), recipe=None) is None
        assert judge("flat_near_floor", rows(reward=[0.0, -0.01] * 10, reward_std=[0.01] * 20), recipe=None) is None

    def test_validation_stands_in(self) -> None:
        found = judge("flat_near_floor", rows("validation", correct__mean=[0.0] * 5))
        assert found is not None
        assert found.values["key"] == "validation correct/mean"

    def test_lacks(self) -> None:
        assert "flat_near_floor" in {gap.detector for gap in coverage(rows(reward=[0.5] * 20))}


class TestFlatNearCeiling:
    def test_too_easy(self) -> None:
        found = judge("flat_near_ceiling", rows(correct__mean=[0.97, 0.96, 0.98, 0.99, 0.97] * 4))
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("warning", "from_start")

    def test_solved(self) -> None:
        found = judge("flat_near_ceiling", rows(correct__mean=[0.5, 0.6, 0.7, 0.8, 0.9] + [0.97] * 15))
        assert found is not None
        assert (found.severity, found.values["reading"], found.steps) == ("info", "reached", (5, 19))

    def test_not_yet(self) -> None:
        assert judge("flat_near_ceiling", rows(correct__mean=[0.94] * 20)) is None

    def test_a_part_that_pays_two(self) -> None:
        assert judge("flat_near_ceiling", rows(rewards__correctness__mean=[1.2] * 20), recipe=None) is None

    def test_lacks(self) -> None:
        assert "flat_near_ceiling" in {gap.detector for gap in coverage(rows(reward=[1.0] * 20))}


class TestRewardAndLengthRise:
    LONGER = tuple(100.0 + 5 * i for i in range(20))  # window medians 110 and 185
    TOTAL = tuple(0.5 + value for value in RISE)

    def test_unearned(self) -> None:
        log = rows(reward=self.TOTAL, completions__mean_length=self.LONGER, correct__mean=STILL)
        found = judge("reward_and_length_rise", log)
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("warning", "unearned")
        assert (found.values["length_first"], found.values["length_last"]) == (110, 185)

    def test_earned(self) -> None:
        log = rows(reward=self.TOTAL, completions__mean_length=self.LONGER, correct__mean=RISE)
        found = judge("reward_and_length_rise", log)
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("info", "earned")

    def test_unknown(self) -> None:
        found = judge("reward_and_length_rise", rows(reward=self.TOTAL, completions__mean_length=self.LONGER))
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("info", "unknown")

    def test_a_little_longer(self) -> None:
        log = rows(reward=self.TOTAL, completions__mean_length=[100.0 + i for i in range(20)], correct__mean=STILL)
        assert judge("reward_and_length_rise", log) is None

    def test_lacks(self) -> None:
        gaps = {gap.detector: gap.key for gap in coverage(rows(reward=self.TOTAL))}
        assert gaps["reward_and_length_rise"] == "completions/mean_length"


class TestHighTruncation:
    def test_many_cut(self) -> None:
        found = judge("high_truncation", rows(completions__clipped_ratio=[0.1, 0.1, 0.1, 0.4, 0.5, 0.6, 0.6, 0.5]))
        assert found is not None
        assert (found.severity, found.values["reading"], found.values["share"]) == ("warning", "at_cap", 0.5)

    def test_a_workable_share(self) -> None:
        assert (
            judge("high_truncation", rows(completions__clipped_ratio=[0.9, 0.5, 0.2, 0.14, 0.14, 0.14, 0.14])) is None
        )

    def test_none_is_that_long(self) -> None:
        log = rows(completions__clipped_ratio=[0.97] * 6, completions__max_length=[180.0] * 6)
        found = judge("high_truncation", log)
        assert found is not None
        assert found.values["reading"] == "below_cap"

    def test_mean_length_is_the_limit(self) -> None:
        found = judge("high_truncation", rows(completions__mean_length=[256.0] * 6))
        assert found is not None
        assert found.values["share"] == 1.0
        assert judge("high_truncation", rows(completions__mean_length=[240.0] * 6)) is None

    def test_lacks(self) -> None:
        assert "high_truncation" in {gap.detector for gap in coverage(rows(completions__mean_length=[256.0] * 6))}


class TestEntropyCollapse:
    GONE = (0.5, 0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, *[0.05] * 10)

    def test_stalled(self) -> None:
        log = rows(entropy=self.GONE, correct__mean=STILL, groups__with_signal=[0.1] * 20, loss=[0.01] * 20)
        found = judge("entropy_collapse", log)
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("warning", "stalled")
        assert (found.values["first"], found.values["last"], found.values["loss"]) == (0.5, 0.05, 0.01)

    def test_still_learning(self) -> None:
        found = judge("entropy_collapse", rows(entropy=self.GONE, correct__mean=RISE))
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("info", "still_learning")

    def test_solved(self) -> None:
        found = judge("entropy_collapse", rows(entropy=self.GONE, correct__mean=[0.5] * 10 + [0.95] * 10))
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("info", "solved")

    def test_halved_is_learning(self) -> None:
        assert judge("entropy_collapse", rows(entropy=[0.5] * 10 + [0.2] * 10, correct__mean=STILL)) is None

    def test_nothing_to_lose(self) -> None:
        assert judge("entropy_collapse", rows(entropy=[0.02] * 10 + [0.001] * 10, correct__mean=STILL)) is None

    def test_undefined_entropy_is_no_zero(self) -> None:
        log = rows(entropy=[0.5] * 10 + [None] * 10)
        gap = next(gap for gap in coverage(log) if gap.detector == "entropy_collapse")
        assert (gap.key, gap.found, gap.needed) == ("entropy", 10, 20)


class TestDeadGroups:
    def dead(self, right: float, wrong: float, both: float, n: int = 6) -> list[dict[str, Any]]:
        columns = {"groups__dead": both, "groups__dead_right": right, "groups__dead_wrong": wrong}
        return rows(tokens__spent=[400.0] * n, tokens__wasted=[300.0] * n, **{k: [v] * n for k, v in columns.items()})

    def test_all_wrong(self) -> None:
        found = judge("dead_groups_taking_over", self.dead(0.1, 0.6, 0.7))
        assert found is not None
        assert (found.severity, found.values["reading"], found.values["wasted"]) == ("warning", "all_wrong", 0.75)

    def test_all_right(self) -> None:
        found = judge("dead_groups_taking_over", self.dead(0.6, 0.1, 0.7))
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("info", "all_right")

    def test_tied(self) -> None:
        found = judge("dead_groups_taking_over", self.dead(0.1, 0.1, 0.7))
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("warning", "tied")

    def test_not_most(self) -> None:
        assert judge("dead_groups_taking_over", self.dead(0.1, 0.48, 0.58)) is None

    def test_since(self) -> None:
        log = rows(frac_reward_zero_std=[0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8, 0.8, 0.9, 0.9, 0.9])
        found = judge("dead_groups_taking_over", log, recipe=None)
        assert found is not None
        assert (found.values["reading"], found.steps) == ("unknown", (5, 10))

    def test_improving(self) -> None:
        found = judge("dead_groups_taking_over", rows(frac_reward_zero_std=[0.65] * 20, reward=RISE), recipe=None)
        assert found is not None
        assert (found.severity, found.values["reading"]) == ("info", "improving")

    def test_no_spread_at_all(self) -> None:
        assert judge("dead_groups_taking_over", rows(reward_std=[0.0] * 6), recipe=None) is not None
        assert judge("dead_groups_taking_over", rows(reward_std=[0.0, 1.5, 1.2, 0.0, 1.4, 1.1]), recipe=None) is None

    def test_lacks(self) -> None:
        gaps = {gap.detector: gap.key for gap in coverage(rows(reward=[0.5] * 20))}
        assert gaps["dead_groups_taking_over"] == "frac_reward_zero_std"


class TestPolicyDestroyed:
    RUIN = (0.40, 0.42, 0.45, 0.47, 0.50, 0.52, 0.50, 0.20, 0.03, 0.0, *[0.0] * 10)

    def test_ruin(self) -> None:
        log = rows(correct__mean=self.RUIN, groups__dead=[0.3] * 8 + [1.0] * 12, loss=[0.01] * 20)
        found = judge("policy_destroyed", log)
        assert found is not None
        assert (found.severity, found.steps) == ("error", (8, 19))
        # running medians of five: 0.45 0.47 0.50 0.50 0.50 ...; the first best one begins at step 2
        assert (found.values["before"], found.values["before_step"], found.values["after"]) == (0.50, 2, 0.0)
        assert (found.values["learning_rate"], found.values["loss"]) == (1e-3, 0.01)

    def test_foreign_log(self) -> None:
        log = rows(reward=[1.3, 1.2, 1.3, 1.25, 1.3] * 3 + [0.0] * 6, learning_rate=[1e-6] * 21)
        found = judge("policy_destroyed", log, recipe=None)
        assert found is not None
        assert found.values["learning_rate"] == 1e-6
        assert found.values["dead"] is None

    def test_a_dip_that_comes_back(self) -> None:
        assert judge("policy_destroyed", rows(correct__mean=[0.5] * 10 + [0.0] * 6 + [0.2, 0.3, 0.4, 0.5])) is None

    def test_groups_still_differ(self) -> None:
        assert judge("policy_destroyed", rows(correct__mean=self.RUIN, groups__dead=[0.3] * 20)) is None

    def test_rewards_of_either_sign(self) -> None:
        assert judge("policy_destroyed", rows(reward=[4.0, -17.0, 3.0, 3.5, 4.0] * 3 + [-4.0] * 6)) is None

    def test_lacks(self) -> None:
        assert "policy_destroyed" in {gap.detector for gap in coverage(rows(reward=[1.0] * 14 + [0.0] * 5))}


class TestFormatUpCorrectnessDown:
    def test_bought(self) -> None:
        log = rows(rewards__answer__mean=FALL, rewards__form__mean=RISE)
        found = judge("format_up_correctness_down", log)
        assert found is not None
        assert found.severity == "warning"
        assert (found.values["correct_first"], found.values["correct_last"]) == (0.52, 0.32)

    def test_correctness_holds(self) -> None:
        assert judge("format_up_correctness_down", rows(rewards__answer__mean=STILL, rewards__form__mean=RISE)) is None

    def test_form_holds(self) -> None:
        assert judge("format_up_correctness_down", rows(rewards__answer__mean=FALL, rewards__form__mean=STILL)) is None

    def test_lacks(self) -> None:
        gaps = {gap.detector: gap.key for gap in coverage(rows(rewards__answer__mean=FALL), RECIPE)}
        assert gaps["format_up_correctness_down"] == "rewards/form/mean"


class TestLossZeroBenign:
    def test_live_gradient(self) -> None:
        found = judge("loss_zero_benign", rows(loss=[0.0] * 6, grad_norm=[0.09] * 6))
        assert found is not None
        assert (found.severity, found.values) == ("info", {"loss": 0.0, "grad_norm": 0.09})

    def test_no_gradient_is_not_benign(self) -> None:
        log = rows(loss=[0.0] * 6, grad_norm=[0.0] * 6, kl=[0.0] * 6)
        assert judge("loss_zero_benign", log) is None

    def test_a_loss_that_is_not_zero(self) -> None:
        assert judge("loss_zero_benign", rows(loss=[0.02] * 6, grad_norm=[0.09] * 6)) is None

    def test_lacks(self) -> None:
        assert "loss_zero_benign" in {gap.detector for gap in coverage(rows(grad_norm=[0.09] * 6))}


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_no_rows_say_nothing_and_all_is_missing(name: str) -> None:
    assert diagnose([]) == []
    assert name in {gap.detector for gap in coverage([])}
