"""Training an adapter: only it moves, the reference is the policy without it, and a run resumes bit for bit."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_parts import PlainLoss, difference, mixed_groups, plain_logps, recipe, tiny_policy, update
from tiny_run import record, train
from torch import Tensor
from transformers import AutoModelForCausalLM

from cupola.core.config import Lora, Recipe, validate
from cupola.core.records import RecipeError
from cupola.core.runlog import RunReader
from cupola.train.loop import Learner, Position, load_checkpoint, save_checkpoint
from cupola.train.models import (
    ADAPTER,
    AdapterOff,
    Policy,
    Reference,
    adapt,
    base_weights,
    critic_of,
    load_policy,
    trainable,
    weights_digest,
)
from cupola.workflows.evaluate import evaluate_run
from cupola.workflows.train import View, resume_run

MOVING = {"name": "adamw", "learning_rate": 0.01, "schedule": "constant"}
CUTS = {"rows": 1, "some": 60, "whole": 100_000}


def adapted_policy(learnt: bool = False, dtype: torch.dtype = torch.float64) -> Policy:
    """`learnt` gives the adapter values, so that both of its factors have a gradient."""
    policy = tiny_policy(dtype=dtype)
    policy.adapter = adapt(policy.model, Lora(rank=4, alpha=8), seed=0)
    if learnt:
        generator = torch.Generator().manual_seed(1)
        for parameter in trainable(policy.model):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)  # in any type the same values
    return policy


def learner_of(settings: Recipe, policy: Policy) -> Learner:
    assert policy.adapter is not None
    reference = AdapterOff(policy.model, policy.adapter) if settings.objective.beta else None
    critic = critic_of(policy) if settings.objective.baseline == "critic" else None
    return Learner(policy, reference, settings, critic)


def factors(learner: Learner) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in trainable(learner.policy.model)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("cut", CUTS)
def test_the_adapters_gradient_is_the_same_however_the_batch_is_cut(cut: str, dtype: torch.dtype, bound: float) -> None:
    """The loss as it is written down, with a reference that is a model of its own."""
    objective = {"beta": 0.3, "entropy_coef": 0.2, "denominator": "token_mean"}
    groups, policy = mixed_groups(), adapted_policy(learnt=True)
    plain = PlainLoss(policy, Reference(tiny_policy().model), recipe(objective), groups)
    expected = torch.autograd.grad(plain(plain.rows, plain.rows), trainable(policy.model))

    learner = learner_of(recipe(objective, {"micro_tokens": CUTS[cut]}), adapted_policy(learnt=True, dtype=dtype))
    found: list[Tensor] = []
    moved = trainable(learner.policy.model)
    learner.optimizer.register_step_pre_hook(lambda *_: found.extend(p.grad.clone() for p in moved))
    update(learner, groups)
    assert difference(found, expected) < bound


def test_an_update_moves_the_adapter_and_nothing_else() -> None:
    learner = learner_of(recipe({"beta": 0.3}, MOVING), adapted_policy())
    base = {name: each.clone() for name, each in base_weights(learner.policy.model).items()}
    drawn = factors(learner)
    kl = [update(learner, mixed_groups()).metrics["kl"] for _ in range(3)]
    assert kl[0] == pytest.approx(0, abs=1e-12)  # the policy starts as its own reference
    assert kl[2] is not None
    assert kl[2] > 1e-4
    assert all(torch.equal(each, base[name]) for name, each in base_weights(learner.policy.model).items())
    assert weights_digest(base_weights(learner.policy.model)) == weights_digest(tiny_policy().model.state_dict())
    assert not any(torch.equal(new, old) for new, old in zip(factors(learner), drawn, strict=True))
    assert {id(p) for group in learner.optimizer.param_groups for p in group["params"]} == set(
        map(id, trainable(learner.policy.model))
    )


def test_the_reference_keeps_saying_what_the_policy_said_at_the_start() -> None:
    learner = learner_of(recipe({"beta": 0.3}, MOVING), adapted_policy())
    update(learner, mixed_groups())
    assert learner.reference is not None
    prompt, completion = [3, 12, 4], [5, 6, 1]
    now = plain_logps(learner.policy.model, prompt, completion, 0.7)
    with learner.reference.speaking() as model:
        reference = plain_logps(model, prompt, completion, 0.7)
    assert torch.equal(reference, plain_logps(tiny_policy().model, prompt, completion, 0.7))
    assert (now - reference).abs().max() > 1e-3


PPO: dict[str, Any] = {"baseline": "critic", "scale": "none", "kl_in": "token_reward", "beta": 0.2}


@pytest.mark.parametrize("objective", [{"beta": 0.3}, PPO])
def test_an_update_after_loading_is_the_one_that_would_have_come(tmp_path: Path, objective: dict[str, Any]) -> None:
    settings = recipe(objective, MOVING)
    straight = learner_of(settings, adapted_policy(dtype=torch.float32))
    resumed = learner_of(settings, adapted_policy(dtype=torch.float32))
    update(straight, mixed_groups())
    save_checkpoint(tmp_path / "c", straight, Position(1, 99))
    assert load_checkpoint(tmp_path / "c", resumed) == Position(1, 99)
    for one in (straight, resumed):
        update(one, mixed_groups())
    assert all(torch.equal(a, b) for a, b in zip(factors(straight), factors(resumed), strict=True))
    for a, b in zip(straight.policy.model.parameters(), resumed.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)
    if straight.critic is not None and resumed.critic is not None:
        assert all(
            torch.equal(a, b) for a, b in zip(straight.critic.parameters(), resumed.critic.parameters(), strict=True)
        )


@pytest.mark.parametrize(("kind", "lora"), [("adapter_off", None), ("moving", {})])
def test_a_reference_that_cannot_be_is_refused(kind: str, lora: dict[str, Any] | None) -> None:
    words = {
        "adapter_off": r"needs an adapter; add \[model\.lora\]",
        "moving": r"with \[model\.lora\] use 'adapter_off'",
    }
    with pytest.raises(RecipeError, match=rf"^objective\.reference\.kind: .*{words[kind]}") as caught:
        recipe({"beta": 0.1, "reference": {"kind": kind}}, model={} if lora is None else {"lora": lora})
    assert "\n" not in str(caught.value)


LORA = ("model.lora.rank=4", "model.lora.alpha=8")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("straight"), *LORA, "objective.reference.kind='adapter_off'").folder


class Cut(BaseException):
    """Ends a run without giving it the time to do anything about it."""


def test_a_run_cut_off_is_recomputed_exactly(straight: Path, tmp_path: Path) -> None:
    """`start`, the default, is the same reference as `adapter_off` here."""

    def cut(step: int, rows: object, groups: object) -> None:
        if step == 3:
            raise Cut

    with pytest.raises(Cut):
        train(tmp_path, *LORA, view=View([cut]))
    resume_run(tmp_path / "tiny")
    assert record(tmp_path / "tiny") == record(straight)


def test_the_record_of_a_run(straight: Path) -> None:
    reader = RunReader(straight)
    model, plain = reader.manifest()["model"], load_policy("embedded")
    assert model["digest"] == weights_digest(plain.model.state_dict())
    assert model["parameters"] == plain.parameters + model["trainable"]
    assert 0 < model["trainable"] < plain.parameters
    assert reader.manifest()["recipe"]["model"]["lora"] == {"rank": 4, "alpha": 8, "targets": []}
    kl = [row["kl"] for row in reader.metrics("train")]
    assert kl[-1] > kl[0] >= 0


def test_a_checkpoint_is_a_plain_model_and_can_be_evaluated(straight: Path) -> None:
    layout = RunReader(straight).layout
    first, *_, last = layout.checkpoint_steps()
    assert weights_digest(load_policy(str(layout.checkpoint(first))).model.state_dict()) == weights_digest(
        load_policy("embedded").model.state_dict()
    )
    model = AutoModelForCausalLM.from_pretrained(layout.checkpoint(last))
    assert type(model) is type(load_policy("embedded").model)
    assert not any("lora" in name for name in model.state_dict())
    assert sorted(path.name for path in (layout.checkpoint(last) / ADAPTER).iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    few = {"questions": 4, "samples": 2, "dev_questions": 2, "dev_samples": 1, "temperatures": [0.5]}
    summary = evaluate_run(straight, lambda text: None, changed=few)
    assert summary["step"] == last


def test_the_recipe_on_the_page_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lora.md").read_text(encoding="utf-8")
    shown = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    rest = {"data": {"task": "arithmetic"}, "reward": [{"name": "correct", "kind": "exact"}]}
    assert validate({**rest, **shown}, Recipe).model.lora == Lora(rank=16, alpha=32)


def test_an_unknown_target_stops_a_run_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^model\.lora\.targets: no linear layer 'q_prj'"):
        train(tmp_path, "model.lora.targets=['q_prj']")
    assert not (tmp_path / "tiny").exists()
