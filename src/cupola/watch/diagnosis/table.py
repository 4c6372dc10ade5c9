"""The table of detectors: the order is the order of findings of equal severity, the most telling first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cupola.core.records import Finding
from cupola.watch.diagnosis.context import Context
from cupola.watch.diagnosis.detectors import (
    correctness_falls,
    dead_groups_taking_over,
    entropy_collapse,
    entropy_explosion,
    flat_near_ceiling,
    flat_near_floor,
    format_up_correctness_down,
    high_truncation,
    learning,
    loss_zero_benign,
    no_gradient,
    policy_destroyed,
    reward_and_length_rise,
    train_up_eval_down,
    unscored,
)
from cupola.watch.diagnosis.series import Series

Detector = Callable[[Series, Context], Finding | None]

DETECTORS: Mapping[str, Detector] = {
    "unscored": unscored.detect,
    "policy_destroyed": policy_destroyed.detect,
    "no_gradient": no_gradient.detect,
    "train_up_eval_down": train_up_eval_down.detect,
    "format_up_correctness_down": format_up_correctness_down.detect,
    "high_truncation": high_truncation.detect,
    "entropy_explosion": entropy_explosion.detect,
    "correctness_falls": correctness_falls.detect,
    "flat_near_floor": flat_near_floor.detect,
    "entropy_collapse": entropy_collapse.detect,
    "dead_groups_taking_over": dead_groups_taking_over.detect,
    "reward_and_length_rise": reward_and_length_rise.detect,
    "flat_near_ceiling": flat_near_ceiling.detect,
    "learning": learning.detect,
    "loss_zero_benign": loss_zero_benign.detect,
}

_LOST = frozenset({"policy_destroyed", "correctness_falls"})

#: What is left out beside a finding at least as grave, by catalogue entry: alone it would blame the task, promise
#: progress, or say the same less exactly.
EXPLAINED: Mapping[str, frozenset[str]] = {
    "correctness_falls.some": frozenset({"policy_destroyed", "train_up_eval_down", "format_up_correctness_down"}),
    "correctness_falls.nearly_all": frozenset({"policy_destroyed"}),
    "flat_near_floor.any": _LOST,
    "flat_near_floor.form_learnt": _LOST,
    "dead_groups_taking_over.all_wrong": _LOST,
    "dead_groups_taking_over.unknown": _LOST,
    "learning.unevaluated": _LOST | {"train_up_eval_down"},
    "learning.evaluated": _LOST | {"train_up_eval_down"},
    "loss_zero_benign": _LOST | {"unscored", "no_gradient", "entropy_explosion"},
}
