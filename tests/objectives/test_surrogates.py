"""Every surrogate against numbers worked by hand on both sides of each bound and for both signs of A."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cupola.train.objectives import (
    RATIOS,
    SURROGATES,
    Cispo,
    Clip,
    DppoKl,
    DppoTv,
    DualClip,
    Gmpo,
    Reinforce,
    Sapo,
    TwoSided,
    Vespo,
    advantages,
    count,
    gradient_weight,
    omega,
    weighted_sum,
)

ONE = torch.ones(1, 1)


def at(name: str, constants: Any, ratio: float, advantage: float, p: float = 0.4) -> tuple[float, float, bool]:
    """Loss, gradient with respect to log pi, and whether it is limited, of a single token of probability p.

    The old probability is p / ratio, so that the token ratio is `ratio`.
    """
    logp = torch.tensor([[math.log(p)]], dtype=torch.float64, requires_grad=True)
    rho = RATIOS["token"](logp, torch.tensor([[math.log(p / ratio)]], dtype=torch.float64), ONE)
    a = torch.tensor([[advantage]], dtype=torch.float64)
    loss = SURROGATES[name].loss(logp, rho, a, ONE, constants)
    limited = SURROGATES[name].limits(logp.detach(), rho.detach(), a, ONE, constants)
    loss.sum().backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.item(), bool(limited.item())


# ratio, A, loss, gradient with respect to log pi (rho times the slope in rho), limited
CLIP = [
    (1.0, 2.0, -2.0, -2.0, False),
    (1.25, 2.0, -2.5, -2.5, False),  # inside clip-higher, outside a symmetric 0.2
    (1.5, 2.0, -2.56, 0.0, True),
    (0.5, 2.0, -1.0, -1.0, False),  # a good token that became rarer is pulled back
    (0.5, -1.0, 0.8, 0.0, True),
    (0.9, -1.0, 0.9, 0.9, False),
    (1.5, -1.0, 1.5, 1.5, False),  # a bad token that became likelier is pushed back
    (1.5, 0.0, 0.0, 0.0, False),
    (0.5, 0.0, 0.0, 0.0, False),
]
BEYOND = (4.0, -1.0, 3.0, 0.0, True)  # a bad token beyond the second bound, 3
TOKENS: dict[str, tuple[Any, list[tuple[float, float, float, float, bool]]]] = {
    "clipped": (Clip(0.2, 0.28), [*CLIP, (4.0, -1.0, 4.0, 4.0, False)]),
    "two_sided": (TwoSided(0.2, 0.28, delta=3.0), [*CLIP, BEYOND, (4.0, 1.0, -1.28, 0.0, True)]),
    "dual_clip": (DualClip(0.2, 0.28, c=3.0), [*CLIP, BEYOND, (4.0, 1.0, -1.28, 0.0, True)]),
    # weight * A * log 0.4; the gradient is minus weight * A
    "cispo": (
        Cispo(ceiling=1.28, floor=0.8),
        [
            (1.1, 2.0, -2.2 * math.log(0.4), -2.2, False),
            (1.5, 2.0, -2.56 * math.log(0.4), -2.56, True),
            (1.5, -1.0, 1.28 * math.log(0.4), 1.28, True),
            (0.5, 2.0, -1.6 * math.log(0.4), -1.6, True),
            (0.5, -1.0, 0.8 * math.log(0.4), 0.8, True),
        ],
    ),
    "reinforce": (Reinforce(), [(r, a, -a * math.log(0.4), -a, False) for r in (0.5, 1.0, 2.0) for a in (2.0, -1.0)]),
    # p = .4 from .4 / rho: 1.6 -> up by .15 (held), 2 -> up by .2, .8 -> down by .1, .5 -> down by .4
    "dppo_tv": (
        DppoTv(low=0.15, high=0.16, ceiling=1.7),
        [
            (1.6, 2.0, -3.2 * math.log(0.4), -3.2, False),
            (2.0, 2.0, 0.0, 0.0, True),
            (2.0, -1.0, 1.7 * math.log(0.4), 1.7, False),  # the harmless direction, its weight at the ceiling
            (0.8, -1.0, 0.8 * math.log(0.4), 0.8, False),
            (0.5, -1.0, 0.0, 0.0, True),
            (0.5, 2.0, -1.0 * math.log(0.4), -1.0, False),
        ],
    ),
    # p_old .2: .2 ln .5 + .8 ln (.8 / .6) = .0915; p_old .32: .32 ln .8 + .68 ln (.68 / .6) = .0137;
    # p_old .8: .8 ln 2 + .2 ln (.2 / .6) = .3348
    "dppo_kl": (
        DppoKl(low=0.05, high=0.05, ceiling=1.7),
        [
            (1.25, 2.0, -2.5 * math.log(0.4), -2.5, False),
            (2.0, 2.0, 0.0, 0.0, True),
            (2.0, -1.0, 1.7 * math.log(0.4), 1.7, False),
            (0.5, -1.0, 0.0, 0.0, True),
            (0.5, 2.0, -1.0 * math.log(0.4), -1.0, False),
        ],
    ),
    # (4 / tau) sigmoid(tau (rho - 1)) A; slope in rho 4 s (1 - s) A. tau 2, rho 1.5: s = sigmoid(1) = .7310585786
    "sapo": (
        Sapo(tau_pos=2.0, tau_neg=4.0),
        [
            (1.0, 2.0, -2.0, -2.0, False),
            (1.0, -1.0, 0.5, 1.0, False),
            (1.5, 1.0, -1.4621171572600098, -1.5 * 4 * 0.19661193324148185, False),
            (0.5, 1.0, -0.5378828427399902, -0.5 * 4 * 0.19661193324148185, False),
            (1.25, -1.0, 0.7310585786300049, 1.25 * 4 * 0.19661193324148185, False),
        ],
    ),
    # one token, so its clipped ratio itself: e^.4 = 1.4918246976, e^-.4 = .6703200460
    "gmpo": (
        Gmpo(),
        [
            (1.4, 2.0, -2.8, -2.8, False),
            (2.0, 2.0, -2.9836493952825407, 0.0, True),
            (0.5, 2.0, -1.0, -1.0, False),
            (0.5, -1.0, 0.6703200460356393, 0.0, True),
            (2.0, -1.0, 2.0, 2.0, False),
        ],
    ),
    # phi(2) for A >= 0: e^3 2^2 e^-6 = 4 e^-3; for A < 0: e^2 2^3 e^-4 = 8 e^-2; phi(1) = 1
    "vespo": (
        Vespo(),
        [
            (1.0, 2.0, -2.0 * math.log(0.4), -2.0, False),
            (2.0, 2.0, -8.0 * math.exp(-3) * math.log(0.4), -8.0 * math.exp(-3), False),
            (2.0, -1.0, 8.0 * math.exp(-2) * math.log(0.4), 8.0 * math.exp(-2), False),
            (0.5, 1.0, -0.25 * math.exp(1.5) * math.log(0.4), -0.25 * math.exp(1.5), False),
        ],
    ),
}
CASES = [(name, constants, *case) for name, (constants, cases) in TOKENS.items() for case in cases]


def test_every_surrogate_is_worked_here() -> None:
    assert set(TOKENS) == set(SURROGATES)
    for name, (constants, cases) in TOKENS.items():
        assert type(constants) is SURROGATES[name].constants
        assert {case[1] > 0 for case in cases} == {True, False}, f"{name} is not worked for both signs of A"


@pytest.mark.parametrize(("name", "constants", "ratio", "advantage", "loss", "gradient", "limited"), CASES)
def test_token_by_hand(
    name: str, constants: Any, ratio: float, advantage: float, loss: float, gradient: float, limited: bool
) -> None:
    found = at(name, constants, ratio, advantage)
    assert found[:2] == pytest.approx((loss, gradient), rel=1e-12, abs=1e-12)
    assert found[2] is limited


def test_the_defaults_are_the_papers() -> None:
    assert (Clip().low, Clip().high) == (0.2, 0.2)
    assert TwoSided().delta == 4.0
    assert DualClip().c == 3.0
    assert (Sapo().tau_pos, Sapo().tau_neg) == (1.0, 1.05)
    assert (Gmpo().low, Gmpo().high) == (0.4, 0.4)
    assert (Cispo().ceiling, Cispo().floor) == (5.0, 0.0)
    assert DppoTv() == DppoTv(0.15, 0.15, 20.0)
    assert DppoKl() == DppoKl(0.05, 0.05, 20.0)
    assert Vespo() == Vespo(2.0, 3.0, 3.0, 2.0)


REFUSED = [
    (Clip, {"low": 1.1}, r"low = 1.1: .* must lie in \[0, 1\]"),
    (Clip, {"low": -0.1}, "low = -0.1"),
    (Clip, {"low": math.nan}, "low = nan"),
    (Clip, {"high": -0.1}, "high = -0.1"),
    (TwoSided, {"delta": 1.2}, r"delta = 1.2 must be > 1 \+ high = 1.2"),
    (TwoSided, {"low": 2.0}, "low = 2.0"),
    (DualClip, {"c": 1.0}, "c = 1.0 must be > 1"),
    (Sapo, {"tau_neg": 0.0}, "temperatures must be > 0"),
    (Gmpo, {"low": -0.4}, "must not be < 0"),
    (Cispo, {"ceiling": 0.0}, "ceiling > 0"),
    (Cispo, {"floor": 5.5}, "0 <= floor <= ceiling"),
    (DppoTv, {"high": -0.1}, "bound a divergence"),
    (DppoKl, {"ceiling": 0.5}, "ceiling = 0.5 must be >= 1"),
    (Vespo, {"k_neg": 0.0}, "all must be > 0"),
]


@pytest.mark.parametrize(("constants", "values", "message"), REFUSED)
def test_constants_out_of_bounds_are_refused(constants: type, values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        constants(**values)


def test_one_and_infinity_clip_nothing() -> None:
    for ratio in (1e-3, 0.5, 3.0, 1e3):
        for advantage in (2.0, -1.0):
            found = at("clipped", Clip(1.0, math.inf), ratio, advantage)
            assert found == pytest.approx((-ratio * advantage, -ratio * advantage, False))


def test_a_ceiling_below_one_scales_the_on_policy_gradient() -> None:
    """What TRL's `cispo` does where `epsilon_high` is left at its default."""
    assert at("cispo", Cispo(ceiling=0.2), 1.0, 1.0)[1] == pytest.approx(-0.2)


def test_dual_clip_is_the_two_sided_clip() -> None:
    for ratio in (0.1, 0.9, 1.1, 2.9, 3.1, 9.0):
        for advantage in (1.5, -1.5):
            two, dual = (
                at("two_sided", TwoSided(delta=3.0), ratio, advantage),
                at("dual_clip", DualClip(), ratio, advantage),
            )
            assert two == pytest.approx(dual)


def batch(rows: int = 3, width: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities around an old policy, advantages of both signs and 0, and unequal lengths."""
    generator = torch.Generator().manual_seed(3)
    old = -2 * torch.rand(rows, width, generator=generator, dtype=torch.float64) - 0.3
    logp = (old + 0.4 * torch.randn(rows, width, generator=generator, dtype=torch.float64)).clamp(max=-0.01)
    mask = torch.arange(width) < torch.tensor([4, 2, 3])[:, None]
    return logp, old, torch.tensor([[1.2], [-0.8], [0.0]], dtype=torch.float64), mask


LEVELS = [(name, level) for name, entry in SURROGATES.items() for level in entry.levels]


@pytest.mark.parametrize(("name", "level"), [case for case in LEVELS if case[1] != "sequence_token"])
def test_gradient_is_the_finite_difference(name: str, level: str) -> None:
    """Of the loss where it goes through the ratio; of weight * A * log pi, the weight held, where it does not.

    The value of the `sequence_token` ratio is not what its gradient belongs to; that is worked by hand in its own test.
    """
    entry = SURROGATES[name]
    logp, old, advantage, mask = batch()
    constants = entry.constants()
    held = RATIOS[level](logp, old, mask)
    through_ratio = entry.loss.__module__.endswith("ratio_form")

    def loss(x: Tensor) -> Tensor:
        ratio = RATIOS[level](x, old, mask) if through_ratio else held
        # The trust regions of DPPO are of the held policy too.
        if name.startswith("dppo"):
            weight = held.clamp(max=constants.ceiling) * ~entry.limits(logp, held, advantage, mask, constants)
            return torch.where(mask, -weight * advantage * x, 0.0).sum()
        return torch.where(mask, entry.loss(x, ratio, advantage, mask, constants), 0.0).sum()

    leaf = logp.clone().requires_grad_()
    value = entry.loss(leaf, RATIOS[level](leaf, old, mask), advantage, mask, constants)
    torch.where(mask, value, 0.0).sum().backward()
    assert leaf.grad is not None
    step = 1e-6
    for i, t in mask.nonzero().tolist():
        ahead, back = logp.clone(), logp.clone()
        ahead[i, t] += step
        back[i, t] -= step
        assert leaf.grad[i, t].item() == pytest.approx(((loss(ahead) - loss(back)) / (2 * step)).item(), abs=1e-7)


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_masked_token_leaks_into_no_sum_and_no_gradient(name: str, level: str) -> None:
    entry = SURROGATES[name]
    logp, old, advantage, mask = batch()
    weights = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)

    def term(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        safe = torch.where(mask, leaf, 0.0)
        per_token = entry.loss(safe, RATIOS[level](safe, old, mask), advantage, mask, entry.constants())
        total = weighted_sum(per_token, mask, weights)
        (gradient,) = torch.autograd.grad(total, leaf)
        return total, gradient

    clean, poisoned = term(logp), term(torch.where(mask, logp, -math.inf))
    torch.testing.assert_close(poisoned, clean)
    assert poisoned[1].isfinite().all()


@pytest.mark.parametrize("name", sorted(SURROGATES))
@pytest.mark.parametrize("step", [-500.0, 500.0])
def test_a_ratio_out_of_range_gives_no_nan(name: str, step: float) -> None:
    entry = SURROGATES[name]
    old = torch.tensor([[-0.5 - max(step, 0.0)]])
    leaf = (old + step).requires_grad_()
    mask = torch.ones(1, 1)
    for a in (1.0, -1.0):
        loss = entry.loss(leaf, RATIOS[entry.levels[0]](leaf, old, mask), torch.tensor([[a]]), mask, entry.constants())
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        assert loss.isfinite().all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_the_first_update_on_policy(name: str, level: str) -> None:
    """Ratio 1: nothing is limited, and the gradient is -omega A at every token, the same for all surrogates."""
    entry = SURROGATES[name]
    lengths, groups = torch.tensor([4, 2, 3, 1]), torch.zeros(4, dtype=torch.long)
    everyone = torch.ones(4, dtype=torch.bool)
    advantage = advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), groups, everyone, epsilon=0.0)  # 1.5, -.5, -.5, -.5
    mask = torch.arange(4) < lengths[:, None]
    logp = torch.full((4, 4), -1.0, dtype=torch.float64, requires_grad=True)
    ratio = RATIOS[level](logp, logp.detach(), mask)
    assert ratio.eq(1).all()
    constants = entry.constants()
    assert not entry.limits(logp.detach(), ratio.detach(), advantage[:, None], mask, constants).any()
    weights = omega("sequence_mean", lengths, groups, everyone, count(lengths, groups, everyone), max_tokens=4)
    loss = weighted_sum(entry.loss(logp, ratio, advantage[:, None], mask, constants), mask, weights)
    (gradient,) = torch.autograd.grad(loss, logp, retain_graph=True)
    if level == "sequence_product":  # the gradient of one ratio for the whole rollout: |o| times as large
        weights = weights * lengths if entry.loss.__module__.endswith("ratio_form") else weights
    torch.testing.assert_close(gradient, torch.where(mask, -(weights * advantage)[:, None], 0.0))
    shares = gradient_weight(loss, logp)
    torch.testing.assert_close(shares, (weights * advantage).abs() * lengths)


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_the_order_of_the_rollouts_permutes_the_shares_and_nothing_else(name: str, level: str) -> None:
    """A policy of one parameter vector shared by all rollouts; the masks and weights go with their rollouts."""
    entry = SURROGATES[name]
    logp, old, advantage, mask = batch()
    weights = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    shared = torch.zeros(logp.shape[1], dtype=torch.float64, requires_grad=True)

    def step(order: list[int]) -> tuple[Tensor, Tensor]:
        current = logp[order] + shared
        ratio = RATIOS[level](current, old[order], mask[order])
        loss = entry.loss(current, ratio, advantage[order], mask[order], entry.constants())
        term = weighted_sum(loss, mask[order], weights[order])
        (gradient,) = torch.autograd.grad(term, shared, retain_graph=True)
        return gradient, gradient_weight(term, current)

    still, moved = step([0, 1, 2]), step([2, 0, 1])
    torch.testing.assert_close(moved[0], still[0])
    torch.testing.assert_close(moved[1], still[1][[2, 0, 1]])
    assert still[1][2] == 0  # advantage 0: exactly nothing
    assert still[1][:2].sum() > 0
