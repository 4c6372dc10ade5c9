"""The objectives in a training loop that is not cupola's: tensors in, the policy term of a preset out.

    python examples/foreign_loop.py dapo

The KL term of a preset with beta > 0 is another such sum, and needs log-probabilities of a reference:
`objective.beta * weighted_sum(KL_ESTIMATORS["k3"](logp, logp_ref), mask, weight)`. Where a preset's KL stands in the
reward, take `beta * (logp_old - logp_ref)` summed over each answer from its reward before the call.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor

from cupola.core.config import Objective, validate
from cupola.core.records import RecipeError
from cupola.train.objectives import RATIOS, SURROGATES, advantages, constants_of, count, omega, weighted_sum

#: What this loop leaves as it is by default; presets that set it are refused.
LEFT = ("transform", "combine", "whiten", "scope", "count", "correction", "masks")


def policy_loss(
    preset: str, logp: Tensor, logp_old: Tensor, mask: Tensor, rewards: Tensor, groups: Tensor, max_tokens: int
) -> Tensor:
    """sum_it omega_i m_it l_it over one optimiser step's rollouts; a reward of NaN is none.

    logp, logp_old and mask are (N, T), rewards and groups (N,); `max_tokens` is the longest answer allowed.
    """
    objective = validate({"preset": preset}, Objective)
    more = [key for key in LEFT if getattr(objective, key) != getattr(Objective(), key)]
    if more:
        raise ValueError(f"{preset}: sets {more[0]}; add what docs/objectives says of it")
    scored = ~rewards.isnan()
    advantage = advantages(rewards, groups, scored, objective.baseline, objective.scale, objective.scale_epsilon)

    lengths = mask.sum(-1)
    counted = scored & (lengths > 0)
    weight = omega(objective.denominator, lengths, groups, counted, count(lengths, groups, counted), max_tokens)

    ratio = RATIOS[objective.ratio](logp, logp_old, mask)
    constants = constants_of(objective.surrogate.model_dump())
    loss = SURROGATES[objective.surrogate.kind].loss
    return weighted_sum(loss(logp, ratio, advantage[:, None].to(logp), mask, constants), mask, weight)


def main(argv: Sequence[str] | None = None) -> None:
    """Two prompts with two answers each; the second prompt's are both right, so they teach nothing."""
    parser = argparse.ArgumentParser(description="The policy term of a preset, on four answers.")
    parser.add_argument("preset", help="name of a preset of docs/objectives, such as dapo")
    preset = parser.parse_args(argv).preset
    logp = torch.tensor([[-1.0, -0.5, -2.0], [-0.7, -1.2, 0.0], [-0.1, 0.0, 0.0], [-0.3, -0.4, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0]])
    logp.requires_grad_()
    rewards, groups = torch.tensor([1.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])
    try:
        loss = policy_loss(preset, logp, logp.detach() - 0.05, mask, rewards, groups, max_tokens=4)
    except (RecipeError, ValueError) as refused:
        parser.error(str(refused))
    (gradient,) = torch.autograd.grad(loss, logp)
    print(f"{preset}: loss {loss.item():.4f}, gradient norm {gradient.norm().item():.4f}")


if __name__ == "__main__":
    main()
