"""The ledger's rows of an update speak of what was really compared, counted and left out."""

from __future__ import annotations

from dataclasses import replace
from statistics import stdev
from typing import Any

import pytest
from loop_parts import group, mixed_groups, recipe, tiny_policy, update

from cupola.core.records import Group, Verdict
from cupola.train.loop import Learner


def scales(objective: dict[str, Any], groups: list[Group], **other: Any) -> list[dict[str, Any]]:
    found = update(Learner(tiny_policy(), None, recipe(objective, **other)), groups)
    return [row for row in found.whole_ledger if row["term"] in ("scale", "whiten")]


def test_a_transform_comes_before_the_scale() -> None:
    """pass@2 of rewards 1, 0, 0, 0: the right answer is worth 2, a wrong one 2 (1 - C(2, 1) / C(3, 1)) = 2/3."""
    one = group("g", "1+2=", [(3, 1.0, True), *[(2, 0.0, False)] * 3])
    objective = {"preset": "pass_at_k", "pass_k": 2, "scale": "group_std", "scale_epsilon": 0.0}
    (row,) = scales(objective, [one])
    assert row["value"] == pytest.approx(stdev([2, 2 / 3, 2 / 3, 2 / 3]))


def test_parts_apart_have_a_scale_each() -> None:
    one = group("g", "1+2=", [(3, 1.0, True), (2, 0.0, False)])
    rollouts = tuple(
        replace(each, verdicts={**each.verdicts, "form": Verdict(score, "ok", verifier="form")})
        for each, score in zip(one.rollouts, (0.0, 4.0), strict=True)
    )
    parts = [{"name": "correct", "kind": "exact"}, {"name": "form", "kind": "pattern", "pattern": "x"}]
    found = scales({"preset": "gdpo", "scale_epsilon": 0.0}, [replace(one, rollouts=rollouts)], reward=parts)
    assert [(row["term"], row.get("part")) for row in found] == [
        ("scale", "correct"),
        ("scale", "form"),
        ("whiten", None),
    ]
    assert [row["value"] for row in found[:2]] == pytest.approx([stdev([1, 0]), stdev([0, 4])])


def test_a_group_of_one_is_counted_in_the_whitening() -> None:
    """What whitens over tokens has no need of a second answer to the same prompt."""
    ones = [group(name, "1+2=", [(2, reward, None)]) for name, reward in (("a", 1.0), ("b", 0.0))]
    objective = {"baseline": "none", "scale": "none", "whiten": "tokens"}
    (row,) = scales(objective, ones, sampling={"prompts_per_step": 2, "group_size": 1, "max_tokens": 12})
    assert row["counted"] == {"rollouts": 2, "prompts": 2}


def test_under_a_nominal_count_what_has_no_numerator_is_told() -> None:
    """Of the 15 rollouts two have no reward: 3 and 4 tokens without a numerator, and they stay in the count."""
    row = update(Learner(tiny_policy(), None, recipe({"preset": "trl:grpo"})), mixed_groups()).ledger[0]
    assert row["counted"]["rollouts"] == 15
    assert row["excluded"] == {}
    assert row["numerators"] == {"unscored": 7}
