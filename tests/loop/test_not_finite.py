"""A loss or gradient that is not finite: the update is refused and recorded, and the run stops or goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_run import STEPS, record, train
from torch import Tensor

from cupola.core.records import NumericalError
from cupola.core.runlog import RunReader
from cupola.train.loop import loss as loss_module
from cupola.train.loop import update as update_module
from cupola.train.loop.loss import Loss
from cupola.workflows.train import resume_run

#: What becomes of a loss, from its log-probabilities.
Damage = Callable[[Loss, Tensor], Loss]


def with_term(loss: Loss, term: Tensor) -> Loss:
    return replace(loss, terms={**loss.terms, "policy": loss.terms["policy"] + term})


def infinite_gradient(loss: Loss, logp: Tensor) -> Loss:
    """The loss stays what it is; the square of its gradient's norm is more than a float32 holds."""
    return with_term(loss, 1e25 * (logp - logp.detach()).sum())


def infinite_loss(loss: Loss, logp: Tensor) -> Loss:
    """Its gradient is that of the loss without the damage, so that only its value tells."""
    return with_term(loss, torch.tensor(torch.inf))


def infinite_both(loss: Loss, logp: Tensor) -> Loss:
    return with_term(loss, torch.inf * logp.sum())


def not_a_number(loss: Loss, logp: Tensor) -> Loss:
    return replace(with_term(loss, torch.nan * logp.sum()), logp=loss.logp * torch.nan)


DAMAGES = {
    not_a_number: r"the log-probability of rollout \d+",
    infinite_gradient: "the gradient's norm is inf",
    infinite_loss: r"the policy loss of rollouts \d+ to \d+ is not finite",
    infinite_both: r"the policy loss of rollouts \d+ to \d+ is not finite",
}


def damage_fifth(monkeypatch: pytest.MonkeyPatch, damage: Damage) -> None:
    """The fifth optimiser step, the first of step 3, is damaged."""
    calls = []

    def micro_loss(logp: Tensor, *arguments: Any) -> Loss:
        calls.append(1)
        loss = loss_module.micro_loss(logp, *arguments)
        return damage(loss, logp) if len(calls) == 5 else loss

    monkeypatch.setattr(update_module, "micro_loss", micro_loss)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(train(tmp_path_factory.mktemp("straight")).folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_that_stopped_goes_on_when_the_cause_is_gone(
    damage: Damage, straight: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        damage_fifth(context, damage)
        with pytest.raises(NumericalError, match=f"^step 3, optimiser step 5: {DAMAGES[damage]}.* was refused") as said:
            train(tmp_path)
    assert "\n" not in str(said.value)
    reader = RunReader(tmp_path / "tiny")
    assert reader.manifest()["attempts"][0]["error"] == f"NumericalError: {said.value}"
    rows = [row for row in reader.rollouts(3) if row["split"] == "train"]
    refused = [row for row in rows if row["discard_reason"] == "update_refused"]
    assert (len(rows), len(refused)) == (16, 8)  # one of two minibatches
    assert all(row["completion"] and row["token_ids"] and row["reward"] is not None for row in refused)
    assert resume_run(tmp_path / "tiny").state == "finished"
    assert record(tmp_path / "tiny") == straight


def test_nothing_of_a_refused_step_reaches_weights_or_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the damage was, the runs that skip it end with the same weights."""
    weights = set()
    for damage in DAMAGES:
        folder = tmp_path / damage.__name__
        folder.mkdir()
        with monkeypatch.context() as context:
            damage_fifth(context, damage)
            trained = train(folder, "optim.on_nonfinite=skip")
        assert (trained.state, trained.step) == ("finished", STEPS)
        assert [row["ledger/refused"] for row in RunReader(trained.folder).metrics("train")] == [0, 0, 1, 0, 0, 0]
        weights.add(record(trained.folder)["weights"])
    assert len(weights) == 1


def test_a_learning_rate_that_destroys_the_policy_is_stopped_every_time(tmp_path: Path) -> None:
    """The first optimiser step moves each weight by 10; the second has no finite gradient."""
    hot = ("optim.learning_rate=10", "optim.warmup_steps=0")
    with pytest.raises(NumericalError, match=r"^step 1, optimiser step 2: .*lower optim\.learning_rate"):
        train(tmp_path, *hot)
    with pytest.raises(NumericalError, match=r"^step 1, optimiser step 2: .*lower optim\.learning_rate"):
        resume_run(tmp_path / "tiny")
    reader = RunReader(tmp_path / "tiny")
    assert [attempt["state"] for attempt in reader.manifest()["attempts"]] == ["failed", "failed"]
    assert [(row["step"], row["attempt"], row["ledger/refused"]) for row in reader.metrics("train")] == [(1, 1, 1)]
    assert reader.layout.checkpoint_steps() == [0]


def test_a_destroyed_policy_that_goes_on_keeps_finite_weights(tmp_path: Path) -> None:
    hot = ("optim.learning_rate=10", "optim.warmup_steps=0", "objective.beta=1e30")
    trained = train(tmp_path, *hot, "optim.on_nonfinite=skip")
    assert trained.step == STEPS
    reader = RunReader(trained.folder)
    assert sum(row["ledger/refused"] for row in reader.metrics("train")) > STEPS
    weights = load_file(reader.layout.checkpoint(STEPS) / "model.safetensors")
    assert all(tensor.isfinite().all() for tensor in weights.values())
