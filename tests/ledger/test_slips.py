"""A mistyped key of another trainer's configuration is told; the neighbours of a key are let through."""

from __future__ import annotations

import pytest

from cupola.core.records import RecipeError
from cupola.train.ledger import TRAINERS


def test_a_slip_in_a_key_is_not_passed_over() -> None:
    with pytest.raises(
        RecipeError, match="gradient_acumulation_steps: unknown key; did you mean gradient_accumulation"
    ):
        TRAINERS["trl"]("r.json", {"loss_type": "grpo", "gradient_acumulation_steps": 8})


#: Keys of verl's own `ppo_trainer.yaml` (0.9.1), unread here and each close to one that is read.
NEIGHBOURS = [
    "actor_rollout_ref.actor.ppo_micro_batch_size",
    "actor_rollout_ref.actor.kl_loss_type",
    "actor_rollout_ref.actor.optim.optimizer_impl",
    *(f"actor_rollout_ref.rollout.{name}" for name in ("name", "mode", "nnodes", "seed", "mtp", "qat")),
    "critic.ppo_micro_batch_size",
]


def test_the_neighbours_of_a_key_are_no_slips() -> None:
    given = {"actor_rollout_ref.rollout.n": 4, "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum"}
    found = TRAINERS["verl"]("v.json", {**given, **dict.fromkeys(NEIGHBOURS, 1)})
    assert set(NEIGHBOURS) <= set(found.ignored)


@pytest.mark.parametrize("slip", ["actor_rollout_ref.actor.loss_aggr_mode", "actor_rolout_ref.actor.loss_agg_mode"])
def test_a_slip_in_any_part_of_a_dotted_key_is_told(slip: str) -> None:
    with pytest.raises(RecipeError, match=f"{slip}: unknown key; did you mean actor_rollout_ref.actor.loss_agg_mode"):
        TRAINERS["verl"]("v.json", {"actor_rollout_ref.rollout.n": 4, slip: "token-mean"})
