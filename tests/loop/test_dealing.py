"""Who forwards what: every row once, on every rank equally many micro-batches, about equally many tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_parts import mixed_groups, recipe, tiny_policy

from cupola.train.loop import ALONE, Batch, Ranks, launched, plan_step
from cupola.train.loop.advantage import batch_advantages
from cupola.train.loop.batch import Before
from cupola.train.loop.plan import Plan
from cupola.train.loop.ranks import dealt


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 8))
def test_neighbours_stay_together_and_no_rank_has_more_than_its_part(costs: list[int], ranks: int) -> None:
    """No rank has more than its equal part and one item."""
    found = dealt(costs, ranks)
    assert found == sorted(found)
    assert all(0 <= rank < ranks for rank in found)
    for rank in range(ranks):
        own = sum(cost for cost, place in zip(costs, found, strict=True) if place == rank)
        assert own <= sum(costs) / ranks + max(costs, default=0)


def test_equal_costs_are_cut_in_equal_pieces() -> None:
    assert dealt([5] * 6, 3) == [0, 0, 1, 1, 2, 2]
    assert dealt([9, 1, 1, 1], 2) == [0, 1, 1, 1]  # 9 of 12: the middle of the first lies at 4.5, below 6
    assert dealt([7], 4) == [2]  # the middle of one item is the middle of the ranks


def planned(objective: dict, optim: dict) -> tuple[Batch, Plan]:
    settings = recipe({"beta": 0.3, **objective}, optim)
    batch = Batch.of(mixed_groups(), tiny_policy().encode)
    advantages = batch_advantages(batch, Before(), settings).values
    return batch, plan_step(batch, advantages, batch.groups.new_tensor(range(len(batch))), settings)


@pytest.mark.parametrize("world", [2, 3, 8, 40])
@pytest.mark.parametrize("micro_tokens", [1, 60, 100_000])
def test_every_row_is_forwarded_once_and_all_ranks_do_equally_many(world: int, micro_tokens: int) -> None:
    batch, plan = planned({}, {"micro_tokens": micro_tokens})
    optim = recipe({}, {"micro_tokens": micro_tokens}).optim
    found = [Ranks(rank, world).micro_batches(plan, batch, optim) for rank in range(world)]
    assert sorted(row for micro in found for rows, factor in micro if factor for row in rows) == plan.forward
    assert len({len(micro) for micro in found}) == 1
    assert all(factor in (0.0, 1.0) and rows for micro in found for rows, factor in micro)
    if micro_tokens == 1:  # rows alone: with 15 of them no rank has more than its part, rounded up, and one
        assert len(found[0]) <= -(-15 // world) + 1


def test_micro_batches_that_weights_depend_on_are_dealt_whole() -> None:
    batch, plan = planned({"scope": "micro_batch"}, {"micro_rollouts": 4})
    optim = recipe({}, {"micro_rollouts": 4}).optim
    found = [rows for rank in range(3) for rows, factor in Ranks(rank, 3).micro_batches(plan, batch, optim) if factor]
    assert found == plan.micro


def test_alone_there_is_nothing_to_share() -> None:
    batch, plan = planned({}, {})
    assert ALONE.micro_batches(plan, batch, recipe().optim) == [(rows, 1.0) for rows in plan.micro]
    assert ALONE.gather("said") == ["said"]
    assert ALONE.first(lambda: 3) == ALONE.together(lambda: 3) == 3
    assert ALONE.ask([4, 2], [1, 1], lambda rows: [row * 10 for row in rows]) == [40, 20]
    with launched("cpu") as ranks:
        assert ranks is ALONE
