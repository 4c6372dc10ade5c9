"""A preset under a recipe: its tables yield key by key, each value says whose it is, and what it brings loads again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cupola.core.config import dump, load_recipe, presets
from cupola.core.config.presets import OWN, PRESETS


@pytest.mark.parametrize("name", OWN)
def test_each_has_a_file_with_equation_and_source(name: str) -> None:
    text = (Path(presets.__file__).parent / f"{name}.toml").read_text(encoding="utf-8")
    said = re.match(r"(#.*\n)+", text)
    assert said is not None
    assert re.search(r"^# (.*= |As \w+)", said[0], re.M)
    assert re.search(r"Source: .*arXiv \d{4}\.\d{5}", said[0].replace("\n#", ""))


def test_a_presets_table_yields_key_by_key(recipe: Path) -> None:
    loaded, origin = load_recipe([recipe], ["objective.preset=prime-rl:default", "objective.correction.high=5"])
    assert loaded.objective.correction.model_dump() == {"level": "token", "bound": "truncate", "low": 0.0, "high": 5.0}
    assert origin["objective.correction.level"] == "preset prime-rl:default"
    assert origin["objective.correction.high"] == "command line"
    assert loaded.objective.surrogate.model_dump() == {"kind": "dppo_tv", "low": 0.2, "high": 0.28, "ceiling": 1e6}


def test_a_surrogate_of_another_kind_has_nothing_of_the_preset(recipe: Path) -> None:
    loaded, origin = load_recipe([recipe], ["objective.surrogate={kind='dual_clip', high=0.3}"])
    assert loaded.objective.surrogate.model_dump() == {"kind": "dual_clip", "low": 0.2, "high": 0.3, "c": 3.0}
    keys = {key: origin[f"objective.surrogate.{key}"] for key in ("kind", "low", "high", "c")}
    assert keys == {"kind": "command line", "low": "default", "high": "command line", "c": "default"}


def test_a_kl_in_the_reward_is_k1_and_says_so(recipe: Path) -> None:
    loaded, origin = load_recipe([recipe], ["objective.preset=grpo", "objective.kl_in=token_reward"])
    assert (loaded.objective.kl_estimator, origin["objective.kl_estimator"]) == ("k1", "default")
    in_loss, origin = load_recipe([recipe], ["objective.preset=grpo"])
    assert (in_loss.objective.kl_estimator, origin["objective.kl_estimator"]) == ("k3", "preset grpo")


OFF = [
    [],
    ["baseline=group_mean", "transform=none"],
    ["beta=0.0"],
    ["transform=none"],
    ["correction={level='none'}"],
    ["ratio=token", "surrogate={kind='dual_clip'}"],
]


@pytest.mark.parametrize("name", sorted(PRESETS))
@pytest.mark.parametrize("off", OFF, ids=" ".join)
def test_a_preset_without_a_part_of_it_loads_again_as_written_out(recipe: Path, name: str, off: list[str]) -> None:
    overrides = [
        f"objective.preset={name}",
        "objective.surrogate={}",
        "optim.epochs=2",
        *(f"objective.{each}" for each in off),
    ]
    loaded, _ = load_recipe([recipe], overrides)
    Path("resolved.toml").write_text(dump(loaded), encoding="utf-8")
    assert load_recipe([Path("resolved.toml")])[0] == loaded
