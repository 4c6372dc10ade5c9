"""The glossary names every key that a run writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cupola.core.config import Recipe, validate
from cupola.core.runlog import RunReader
from cupola.workflows.train import train_recipe

GLOSSARY = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def known(key: str) -> bool:
    """Whether the glossary holds the key, a pattern of it such as `verify/<status>`, or its mean's min and max."""
    shapes = {
        key,
        re.sub(r"^verify/.*", "verify/<status>", key),
        re.sub(r"^rewards/[^/]+/", "rewards/<part>/", key),
        re.sub(r"^completions/(min|max)_", "completions/mean_", key),
    }
    return any(f"`{shape}`" in GLOSSARY for shape in shapes)


BONUS = {"beta": 0.04, "entropy_coef": 0.01, "correction": {"level": "token"}}
CRITIC = {"preset": "ppo"}


@pytest.mark.parametrize(("objective", "some"), [(BONUS, {"kl", "entropy_coef"}), (CRITIC, {"critic/grad_norm"})])
def test_every_metric_is_in_the_glossary(objective: dict[str, Any], some: set[str], tmp_path: Path) -> None:
    recipe = validate(
        {
            "run": {"folder": str(tmp_path), "name": "run", "steps": 1},
            "data": {"task": "arithmetic", "options": {"levels": [2]}},
            "sampling": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 30},
            "reward": [{"name": "correct", "kind": "exact", "extract": r"#(\d+)$"}],
            "objective": objective,
            "diagnosis": {"exact_share_every": 1},
            "validation": {"questions": 4, "samples": 2},
        },
        Recipe,
    )
    train_recipe(recipe, {})
    rows = RunReader(tmp_path / "run").metrics()
    keys = {key.removeprefix("used/") for row in rows for key in row} - {"step", "split", "attempt", "time"}
    assert {"reward", "policy_loss", "correct/greedy", *some} <= keys
    assert sorted(key for key in keys if not known(key)) == []
