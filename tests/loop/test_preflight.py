"""The look before training: what it estimates from two small steps, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_parts import group
from tiny_run import write_recipe

from cupola.core.config import load_recipe
from cupola.core.records import RecipeError
from cupola.train.loop import Batch
from cupola.workflows import preflight as module
from cupola.workflows.preflight import Look, estimated, padded, preflight, refuse_too_large


def looked(rows: int, widest: int, sampling: float, update: float, peak: float) -> Look:
    return Look([], rows, widest, sampling, update, peak)


def test_a_step_lies_on_the_line_through_two_looks(tmp_path: Path) -> None:
    """16 rows: sampling 1 + 8 * 0.1 per row beyond, update 2 + 8 * 0.25; the widest pass 160 tokens at 0.01 GB each."""
    recipe, _ = load_recipe([write_recipe(tmp_path)], ["sampling.prompts_per_step=4", "sampling.group_size=4"])
    found = estimated(recipe, looked(4, 40, 0.6, 1.0, 1.0), looked(8, 80, 1.0, 2.0, 1.4))
    assert found["sampling_seconds_per_step"] == pytest.approx(1.8)
    assert found["update_seconds_per_step"] == pytest.approx(4.0)
    assert found["training_seconds"] == pytest.approx(6 * 5.8)
    assert found["peak_memory_gb"] == pytest.approx(2.2)


def test_memory_does_not_grow_beyond_a_micro_batch(tmp_path: Path) -> None:
    recipe, _ = load_recipe([write_recipe(tmp_path)], ["optim.micro_tokens=100"])
    found = estimated(recipe, looked(4, 40, 1.0, 1.0, 1.0), looked(8, 80, 1.0, 1.0, 1.4))
    assert found["peak_memory_gb"] == pytest.approx(1.6)


def test_a_cut_by_rollouts_takes_no_more_of_them(tmp_path: Path) -> None:
    """4 rollouts a pass in both looks: the memory is that of a look, though a step has 16."""
    asked = ["sampling.prompts_per_step=4", "sampling.group_size=4", "optim.micro_rollouts=4"]
    recipe, _ = load_recipe([write_recipe(tmp_path)], asked)
    found = estimated(recipe, looked(4, 40, 1.0, 1.0, 1.0), looked(8, 48, 1.0, 1.0, 1.2))
    assert found["peak_memory_gb"] == pytest.approx(1.2)


def test_what_was_not_seen_is_unknown(tmp_path: Path) -> None:
    recipe, _ = load_recipe([write_recipe(tmp_path)])
    found = estimated(recipe, looked(4, 0, 1.0, 0.0, 1.0), looked(8, 0, 2.0, 0.0, 1.0))
    assert found["sampling_seconds_per_step"] >= 2.0
    assert [found[key] for key in ("update_seconds_per_step", "training_seconds", "peak_memory_gb")] == [None] * 3
    refuse_too_large(found["peak_memory_gb"])


def test_padded_tokens_of_a_pass_by_hand() -> None:
    """Two prompts of 2 and 4 tokens, three answers of 2, 4 and 3: 2 * 4 + 3 * 4."""
    groups = [group("a", "1=", [(2, 1.0, True), (4, 0.0, False)]), group("b", "1+2=", [(3, 1.0, True)])]
    batch = Batch.of(groups, lambda content: [0] * len(content))
    assert padded(batch, [0, 1, 2]) == 20
    assert padded(batch, [0, 1]) == 2 + 8


def test_dead_groups_hide_no_update(tmp_path: Path) -> None:
    """Every answer is wrong: a step would forward nothing, and yet a look sees what one with signal costs."""
    (tmp_path / "wrong.py").write_text("def none(completions, **_):\n    return [0.0] * len(completions)\n")
    reward = 'reward=[{name = "none", kind = "function", path = "' + f'{tmp_path}/wrong.py:none"' + "}]"
    recipe, _ = load_recipe([write_recipe(tmp_path)], [reward])
    found = preflight(recipe)
    assert found["groups/dead"] == 1
    assert found["update_seconds_per_step"] is not None
    assert found["update_seconds_per_step"] > 0
    assert found["peak_memory_gb"] is not None


def test_what_was_measured_is_not_estimated_smaller(tmp_path: Path) -> None:
    recipe, _ = load_recipe([write_recipe(tmp_path)])
    found = estimated(recipe, looked(8, 80, 3.0, 1.0, 1.5), looked(16, 160, 2.0, 2.0, 1.4))
    assert found["sampling_seconds_per_step"] == 3.0
    assert found["peak_memory_gb"] == 1.5


def test_a_step_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_gb", lambda: 8.0)
    with pytest.raises(RecipeError, match=r"^optim.micro_tokens: .* need 9.0 GB, but 8.0 GB are free; lower it"):
        refuse_too_large(9.0)
    refuse_too_large(7.9)
    monkeypatch.setattr(module, "available_gb", lambda: None)
    refuse_too_large(9000.0)


@pytest.mark.parametrize("settings", [[], ["model.lora.rank=4"]], ids=["all weights", "lora"])
def test_a_real_look_writes_nothing(tmp_path: Path, settings: list[str]) -> None:
    recipe, _ = load_recipe([write_recipe(tmp_path)], settings)
    found = preflight(recipe)
    assert (found["prompts"], found["completions"]) == (4, 16)
    trained = found["model"]["trainable"]
    assert 0 < trained < found["model"]["parameters"] if settings else trained == found["model"]["parameters"]
    assert 0 < found["sampling_seconds_per_step"] < 30
    assert 0 < found["update_seconds_per_step"] < 30
    assert 0.1 < found["peak_memory_gb"] < 8
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize(("quick", "prompts"), [(1e9, 12), (0.0, 8)])
def test_a_quick_step_is_measured_whole(
    quick: float, prompts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUICK", quick)
    recipe, _ = load_recipe([write_recipe(tmp_path)], ["sampling.prompts_per_step=12"])
    assert preflight(recipe)["prompts"] == prompts
