"""The look before training: what it estimates from two small steps, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import write_recipe

from cupola.core.config import load_recipe
from cupola.core.records import RecipeError
from cupola.workflows import preflight as module
from cupola.workflows.preflight import Look, estimated, preflight, refuse_too_large


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
