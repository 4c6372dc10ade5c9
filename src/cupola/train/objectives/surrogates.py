"""The third decision: the surrogates by the names a recipe uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cupola.train.objectives import ratio_form, score_form

PerToken = Callable[[Tensor, Tensor, Tensor, Tensor, Any], Tensor]


class Surrogate(NamedTuple):
    """A surrogate: the loss of each token, the class of its constants, and where it limits.

    `loss` and `limits` take (logp, ratio, advantages, mask, constants) and return (N, T); see `ratio_form`.
    `levels` are the ratio levels that it is defined on: keys of `ratios.RATIOS`.
    """

    loss: PerToken
    constants: type[Any]
    limits: PerToken
    levels: tuple[str, ...]


def nowhere(logp: Tensor, ratio: Tensor, advantages: Tensor, mask: Tensor, constants: Any) -> Tensor:
    """No token: the surrogate weighs softly, or not at all."""
    return torch.zeros_like(ratio, dtype=torch.bool)


ANY_RATIO = ("token", "sequence", "sequence_token", "sequence_product")

SURROGATES: dict[str, Surrogate] = {
    "clipped": Surrogate(ratio_form.clipped, ratio_form.Clip, ratio_form.clipped_limits, ANY_RATIO),
    "two_sided": Surrogate(ratio_form.two_sided, ratio_form.TwoSided, ratio_form.two_sided_limits, ANY_RATIO),
    "dual_clip": Surrogate(ratio_form.dual_clip, ratio_form.DualClip, ratio_form.dual_clip_limits, ANY_RATIO),
    "sapo": Surrogate(ratio_form.sapo, ratio_form.Sapo, nowhere, ANY_RATIO),
    "gmpo": Surrogate(ratio_form.gmpo, ratio_form.Gmpo, ratio_form.gmpo_limits, ("token",)),
    "reinforce": Surrogate(score_form.reinforce, score_form.Reinforce, nowhere, ("none",)),
    "cispo": Surrogate(score_form.cispo, score_form.Cispo, score_form.cispo_limits, ANY_RATIO),
    "dppo_tv": Surrogate(score_form.dppo_tv, score_form.DppoTv, score_form.dppo_tv_limits, ("token",)),
    "dppo_kl": Surrogate(score_form.dppo_kl, score_form.DppoKl, score_form.dppo_kl_limits, ("token",)),
    "vespo": Surrogate(score_form.vespo, score_form.Vespo, nowhere, ("sequence_product",)),
}


def constants_of(settings: Mapping[str, Any]) -> Any:
    """The constants of a surrogate from a recipe's table of it: its `kind`, and the constants by name.

    Raises:
        KeyError: no surrogate is called so.
        ValueError: the constants contradict each other.
    """
    return SURROGATES[settings["kind"]].constants(**{key: value for key, value in settings.items() if key != "kind"})
