"""Rewards per token, generalised advantages and the value loss against numbers worked by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.train.objectives import gae, token_rewards, value_loss

FULL = torch.ones(1, 3)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_the_reward_stands_at_the_last_counted_token_and_k1_at_each() -> None:
    found = token_rewards(
        torch.tensor([2.0, 5.0, 7.0], dtype=torch.float64),
        torch.tensor([[-1.0, -2.0, -9.0], [-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]], dtype=torch.float64),
        torch.tensor([[-1.5, -1.0, math.nan], [-1.0, math.inf, -3.0], [-1.0, -1.0, -1.0]], dtype=torch.float64),
        torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]]),
        beta=0.1,
    )
    # k1 of row 0: .5, -1; of row 1: 0 and 2 beside a masked token in between; row 2 has nowhere to put its reward
    assert found.flatten().tolist() == pytest.approx([-0.05, 2.1, 0.0, 0.0, 0.0, 4.8, 0.0, 0.0, 0.0], abs=1e-15)


def test_generalised_advantages_by_hand() -> None:
    # delta: 0 + .5 * 2 - 1 = 0; 0 + .5 * 4 - 2 = 0; 8 - 4 = 4. A with gamma lam = .25: 4, 1, .25
    found, returns = gae(row(0, 0, 8), row(1, 2, 4), FULL, gamma=0.5, lam=0.5)
    assert found.tolist() == [[0.25, 1.0, 4.0]]
    assert returns.tolist() == [[1.25, 3.0, 8.0]]


def test_lambda_one_is_returns_minus_values_and_zero_the_one_step_error() -> None:
    found, returns = gae(row(1, 2, 3), row(0.5, 1, 4), FULL, gamma=1.0, lam=1.0)
    assert returns.tolist() == [[6.0, 5.0, 3.0]]
    assert found.tolist() == [[5.5, 4.0, -1.0]]
    found, _ = gae(row(1, 2, 3), row(0.5, 1, 4), FULL, gamma=1.0, lam=0.0)
    assert found.tolist() == [[1.5, 5.0, -1.0]]


def test_without_values_they_are_discounted_returns() -> None:
    found, _ = gae(row(0, 1, 2), torch.zeros(1, 3, dtype=torch.float64), FULL, gamma=0.5, lam=1.0)
    assert found.tolist() == [[1.0, 2.0, 2.0]]


def test_a_masked_token_is_passed_over() -> None:
    mask = torch.tensor([[1, 0, 1, 1, 0]])
    found, returns = gae(row(0, 99, 0, 8, math.nan), row(1, math.inf, 2, 4, 7), mask, gamma=0.5, lam=0.5)
    assert found.tolist() == [[0.25, 0.0, 1.0, 4.0, 0.0]]
    assert returns.tolist() == [[1.25, 0.0, 3.0, 8.0, 0.0]]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.booleans()), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_advantages_are_the_discounted_sum_of_one_step_errors(
    steps: list[tuple[float, float, bool]], gamma: float, lam: float
) -> None:
    mask = torch.tensor([[keep for *_, keep in steps]])
    found, _ = gae(row(*(r for r, *_ in steps)), row(*(v for _, v, _ in steps)), mask, gamma, lam)
    kept = [(r, v) for r, v, keep in steps if keep]
    errors = [r + gamma * (kept[t + 1][1] if t + 1 < len(kept) else 0.0) - v for t, (r, v) in enumerate(kept)]
    sums = [sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(errors))) for t in range(len(errors))]
    assert found[mask].tolist() == pytest.approx(sums, abs=1e-9)


def test_discounts_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gamma = 1.1 and lambda = 0.5 must lie in \[0, 1\]"):
        gae(row(0), row(0), torch.ones(1, 1), gamma=1.1, lam=0.5)
    with pytest.raises(ValueError, match=r"clip = 0.0 must be > 0"):
        value_loss(row(0), row(0), row(0), clip=0.0)


# value, loss, gradient; old value 1, return 2, clip .5
VALUES = [
    (1.2, 0.32, -0.8),  # within the clip: (1.2 - 2)^2 / 2
    (1.8, 0.125, 0.0),  # moved too far towards the return: held at 1.5
    (2.1, 0.125, 0.0),
    (3.0, 0.5, 1.0),  # beyond it the plain loss is the larger
    (0.2, 1.62, -1.8),  # away from the return: never held
]


@pytest.mark.parametrize(("value", "loss", "gradient"), VALUES)
def test_value_loss_by_hand(value: float, loss: float, gradient: float) -> None:
    leaf = row(value).requires_grad_()
    found = value_loss(leaf, row(1.0), row(2.0), clip=0.5)
    found.sum().backward()
    assert leaf.grad is not None
    assert (found.item(), leaf.grad.item()) == pytest.approx((loss, gradient), abs=1e-15)


def test_value_loss_without_a_clip_is_half_the_square() -> None:
    assert value_loss(row(1.8, 9.0), row(1.0, 1.0), row(2.0, 2.0), clip=math.inf).tolist() == [
        pytest.approx([0.02, 24.5])
    ]
