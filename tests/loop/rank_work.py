"""What each rank of `test_ranks.py` runs: the same update on one process and on all, and how far they differ.

torchrun --nproc_per_node 2 tests/loop/rank_work.py
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from loop_parts import difference, mixed_groups, recipe, tiny_policy, update
from test_gradient_of_presets import batch, learner_of, nearby
from test_lora import adapted_policy
from test_lora import learner_of as adapted_learner
from torch import Tensor
from torch.distributed.tensor import DTensor

from cupola.core.config import load_recipe
from cupola.core.config.presets import PRESETS
from cupola.core.records import Group, NumericalError
from cupola.train.loop import Learner, Position, Ranks, launched, load_checkpoint, save_checkpoint
from cupola.train.loop import optim as loop_optim
from cupola.train.models import InProcessSampler, Reference, base_weights, gathered
from cupola.workflows.assemble import assemble

STEPS = 20


def main() -> None:
    torch.set_num_threads(1)
    with launched("cpu") as ranks:
        found = {"ranks": ranks.world}
        for name, check in CHECKS.items():
            started = time.perf_counter()
            found |= {name: check(ranks)}
            print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
        if ranks.is_first:
            print(json.dumps(found))


def presets(ranks: Ranks) -> dict[str, list[float]]:
    """The relative difference of the gradients of two steps, critic and policy together, in fp64 and fp32.

    The presets whose weights depend on what is forwarded together are cut alike on both sides.
    """
    types = (torch.float64, torch.float32)
    return {name: [_apart(partial(learner_of, name, 3, each), batch(), ranks) for each in types] for name in PRESETS}


def variants(ranks: Ranks) -> dict[str, float]:
    """The same in fp64 for what no preset has: cuts, masks over the update, an adapter, and fewer rows than ranks."""
    one = [group for group in mixed_groups() if group.id == "live"]
    lora = {"model": {"lora": {}}, "optim": {"learning_rate": 0.1, "epochs": 2, "micro_tokens": 60}}
    masks = [{"top_entropy": 0.4}, {"clip_cov": {"fraction": 0.2, "low": -9.0, "high": 9.0}}, {"kl_cov": {}}]
    return {
        "rows": _apart(_plain({}, {"micro_tokens": 1}), batch(), ranks),
        "whole": _apart(_plain({}, {"micro_tokens": 100_000}), batch(), ranks),
        "minibatches": _apart(_plain({}, {"minibatches": 3}), batch(), ranks),
        "micro_batch scope": _apart(_plain({"scope": "micro_batch"}, {"micro_rollouts": 3}), batch(), ranks),
        "checkpointing": _apart(_plain({"beta": 0.1}, {"gradient_checkpointing": True}), batch(), ranks),
        "one group": _apart(_plain({}, {}), one, ranks),
        "moving": _apart(_plain({"reference": {"kind": "moving", "every": 1}}, {"learning_rate": 0.1}), one, ranks),
        "adapter": _apart(lambda: adapted_learner(recipe({"beta": 0.3}, **lora), adapted_policy(True)), batch(), ranks),
        **{" ".join(mask): _apart(_plain({"masks": mask}, {}), batch(), ranks) for mask in masks},
    }


def books(ranks: Ranks) -> list[Any]:
    """[whether the ledger and the metrics of both sides agree, whether every rank holds the same ones]."""
    settings = recipe({"beta": 0.3}, {"micro_tokens": 60}, diagnosis={"exact_share_every": 1})

    def learner() -> Learner:
        return Learner(tiny_policy(), Reference(tiny_policy(1).model), settings)

    alone, shared = update(learner(), mixed_groups()), update(sharded(learner(), ranks), mixed_groups())
    close = _close([alone.metrics, alone.whole_ledger], [shared.metrics, shared.whole_ledger])
    told = ranks.gather([shared.metrics, shared.whole_ledger])
    return [close, all(_close(each, told[0]) for each in told)]


def optimisers(ranks: Ranks) -> dict[str, float]:
    """How far the weights lie apart after three steps of each optimiser, clipped, over a checkpoint of the ranks.

    The checkpoint is written by all after the first step and read by one process and by all, which go on from it. The
    models count as large, whose step is fused where it can be.
    """
    loop_optim.ONE_THREAD_PARAMETERS = 0
    found = {}
    for name in ("sgd", "adamw", "rmsprop"):
        optim = {"name": name, "learning_rate": 1e-3, "max_grad_norm": 0.1, "epochs": 1}
        alone, shared = _plain({"beta": 0.1}, optim)(), sharded(_plain({"beta": 0.1}, optim)(), ranks)
        for learner in (alone, shared):
            update(learner, batch())
        with TemporaryDirectory() as folder:
            place = Path(ranks.first(lambda: folder)) / "checkpoint"
            save_checkpoint(place, shared, Position(1))
            goes_on = [_plain({"beta": 0.1}, optim)(), sharded(_plain({"beta": 0.1}, optim)(), ranks)]
            for learner in goes_on:
                load_checkpoint(place, learner)
            ranks.gather(None)  # no folder goes before all have read it
        weights = []
        for learner in (alone, *goes_on):
            for _ in range(2):
                update(learner, batch())
            with gathered(learner.policy.model):
                weights.append(list(base_weights(learner.policy.model).values()))
        found[name] = max(difference(other, weights[0]) for other in weights[1:])
    return found


def refusal(ranks: Ranks) -> list[str]:
    """What each rank says where the loss of one rollout, on one rank, is not finite; then the next step is taken."""
    groups = mixed_groups()
    learner = sharded(_plain({"correction": {"level": "token"}}, {"learning_rate": 0.1})(), ranks)
    whole = learner._not_finite

    def broken(loss: Any, rows: list[int]) -> NumericalError | None:
        return NumericalError(f"row {rows[0]}") if rows[0] == 0 else whole(loss, rows)

    learner._not_finite = broken
    learner.recipe = learner.recipe.model_copy(
        update={"optim": learner.recipe.optim.model_copy(update={"micro_rollouts": 1})}
    )
    refused = update(learner, groups).whole_ledger[0]["refused"]
    learner._not_finite = whole
    update(learner, groups)
    return ranks.gather(f"{refused}, version {learner.version}")


def curve(ranks: Ranks) -> list[list[float]]:
    """The losses of one process that samples and of all ranks on its rollouts, over 20 steps of the embedded policy."""
    settings, _ = load_recipe([Path(__file__).parents[2] / "recipes" / "demo.toml"], CURVE)
    parts = assemble(settings)
    shared = sharded(Learner(copy.deepcopy(parts.policy), _start(parts.policy), settings), ranks)
    alone = Learner(parts.policy, _start(parts.policy), settings)
    collector, losses = parts.collector(InProcessSampler(parts.policy)), []
    for step in range(1, STEPS + 1):
        prompts = parts.source.draw(step - 1, settings.sampling.prompts_per_step)
        groups = collector.collect(step, prompts, settings.sampling.group_size, settings.sampling.settings())
        losses.append([float(update(each, groups).metrics["loss"] or 0.0) for each in (alone, shared)])
    return losses


CURVE = [
    "objective.beta=0.01",
    "sampling.prompts_per_step=8",
    "sampling.group_size=8",
    "optim.warmup_steps=0",
    f"run.steps={STEPS}",
]
CHECKS: dict[str, Callable[[Ranks], Any]] = {
    "presets": presets,
    "variants": variants,
    "books": books,
    "optimisers": optimisers,
    "refusal": refusal,
    "curve": curve,
}


def sharded(learner: Learner, ranks: Ranks) -> Learner:
    """The same learner on all ranks; the one given is of no use any more."""
    return Learner(learner.policy, learner.reference, learner.recipe, learner.critic, ranks)


def _apart(make: Callable[[], Learner], groups: list[Group], ranks: Ranks) -> float:
    """The largest relative difference of any optimiser step's gradient between one process and all ranks."""
    alone = list(_gradients(make(), groups))
    shared = list(_gradients(sharded(make(), ranks), groups))
    return max(difference(found, expected) for found, expected in zip(shared, alone, strict=True))


def _gradients(learner: Learner, groups: list[Group]) -> Iterator[list[Tensor]]:
    """The gradient of each optimiser step, the critic's behind the policy's; what is frozen has none."""
    found = [trained(learner.policy.model, learner.optimizer)]
    if learner.critic is not None and learner.critic_optimizer is not None:
        found.append(trained(learner.critic, learner.critic_optimizer))
    update(learner, groups)
    for steps in zip(*found, strict=True):
        yield [gradient for step in steps for gradient in step]


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[list[Tensor]]:
    """A list that fills with the whole gradient of each step."""
    found: list[list[Tensor]] = []
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def note(*_: object) -> None:
        found.append([_whole(parameter.grad).clone() for parameter in parameters])

    optimizer.register_step_pre_hook(note)
    return found


def _whole(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def _plain(objective: dict[str, Any], optim: dict[str, Any]) -> Callable[[], Learner]:
    """A learner of grpo in fp64 with KL and entropy bonus, two passes over the batch."""

    def make() -> Learner:
        policy = tiny_policy()
        settings = recipe(
            {"beta": 0.3, "entropy_coef": 0.2, **objective}, {"learning_rate": 2e-4, "epochs": 2, **optim}
        )
        kind = settings.objective.reference
        every = kind.every if kind.kind == "moving" else None
        return Learner(policy, Reference(nearby(policy), every, kind.mixup), settings)

    return make


def _start(policy: Any) -> Reference:
    return Reference(copy.deepcopy(policy.model).requires_grad_(False))


def _close(found: Any, expected: Any) -> bool:
    """Equal, numbers to within 1e-9."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(_close, found, expected))
    if isinstance(expected, float) and isinstance(found, float):
        return abs(found - expected) <= 1e-9 * max(1.0, abs(expected))
    return bool(found == expected)


if __name__ == "__main__":
    main()
