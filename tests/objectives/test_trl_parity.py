"""Loss and gradient of compositions of this room against TRL's own `_compute_loss` on the same tensors.

How TRL is called: trl_side.py. It is imported inside the tests, so that the others can be collected without it.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from trl_side import (
    ADVANTAGES,
    CEILING,
    DELTA,
    GROUPS,
    HIGH,
    LENGTHS,
    LOW,
    MASK,
    MAX_TOKENS,
    ROWS,
    UNEQUAL,
    WHOLE,
    assert_same,
    tensors,
    trainer,
    trl_loss,
)

from cupola.train.objectives import (
    KL_ESTIMATORS,
    RATIOS,
    SURROGATES,
    Cispo,
    Clip,
    Gmpo,
    Sapo,
    TwoSided,
    Vespo,
    advantages,
    count,
    decoupled_advantages,
    high_entropy_tokens,
    importance_corrected,
    importance_weights,
    omega,
    omega_by_cut,
    on_policy_sequences,
    soft_overlong_punishment,
    token_entropy,
    token_logps,
    token_rewards,
    weighted_sum,
    whiten,
)

pytestmark = [pytest.mark.trl, pytest.mark.filterwarnings("default")]

#: TRL's loss type as a surrogate with constants, and the denominator rule.
COMPOSITIONS: dict[str, tuple[str, Any, str]] = {
    "grpo": ("clipped", Clip(LOW, HIGH), "sequence_mean"),
    "bnpo": ("clipped", Clip(LOW, HIGH), "token_mean"),
    "dr_grpo": ("clipped", Clip(LOW, HIGH), "constant"),
    "dapo": ("clipped", Clip(LOW, HIGH), "token_mean"),
    "luspo": ("clipped", Clip(LOW, HIGH), "sequence_sum"),
    "sapo": ("sapo", Sapo(), "sequence_mean"),
    "cispo": ("cispo", Cispo(ceiling=CEILING), "token_mean"),
    "vespo": ("vespo", Vespo(), "token_mean"),
}
#: Those divided by the tokens of the generation batch; the others average within a micro-batch.
GENERATION_WIDE = ("dapo", "cispo", "vespo")


def our_loss(loss_type: str, data: dict[str, Tensor], cut: list[list[int]], **changed: Any) -> tuple[float, Tensor]:
    """The composition of this room's functions: one plain sum over the whole step."""
    name, constants, rule = COMPOSITIONS[loss_type]
    name, constants = changed.get("surrogate", (name, constants))
    level = changed.get("level", "token")
    leaf = data["logits"].clone().requires_grad_()
    logp = torch.where(MASK.bool(), token_logps(leaf, data["tokens"]), 0.0)
    old = data["old"] - changed["weights"].log() if name == "vespo" and "weights" in changed else data["old"]
    ratio = RATIOS[SURROGATES[name].levels[0] if name == "vespo" else level](logp, old, MASK)
    per_token = SURROGATES[name].loss(logp, ratio, ADVANTAGES[:, None], MASK, constants)
    entropy = token_entropy(leaf)
    mask = MASK
    if "delta" in changed:
        per_token = per_token * on_policy_sequences(
            logp.detach(), data["sampler"], ADVANTAGES[:, None], MASK, changed["delta"]
        )
    if "share" in changed:
        keep = high_entropy_tokens(entropy.detach(), MASK, changed["share"])
        per_token, mask = per_token * keep, MASK * keep
    if "weights" in changed and name != "vespo":
        per_token = per_token * changed["weights"]

    pieces = torch.tensor([next(k for k, rows in enumerate(cut) if i in rows) for i in range(ROWS)])
    everyone = torch.ones(ROWS, dtype=torch.bool)
    if loss_type in GENERATION_WIDE:
        weight = omega(rule, LENGTHS, GROUPS, everyone, count(LENGTHS, GROUPS, everyone), MAX_TOKENS)
    else:
        weight = omega_by_cut(rule, LENGTHS, GROUPS, everyone, pieces, MAX_TOKENS)
    total = weighted_sum(per_token, MASK, weight)
    if "beta" in changed:
        kl = KL_ESTIMATORS["k3"](logp, data["reference"])
        if changed.get("corrected"):
            kl = importance_corrected(kl, RATIOS[level](logp, data["old"], MASK))
        total = total + changed["beta"] * weighted_sum(kl, MASK, weight)
    if "entropy_coef" in changed:
        bonus = omega_by_cut("token_mean", mask.sum(-1), GROUPS, everyone, pieces, MAX_TOKENS)
        total = total - changed["entropy_coef"] * weighted_sum(entropy, mask, bonus)
    total.backward()
    assert leaf.grad is not None
    return total.item(), leaf.grad


@pytest.mark.parametrize("cut", [WHOLE, UNEQUAL], ids=["whole", "unequal"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", sorted(COMPOSITIONS))
def test_loss_type(loss_type: str, level: str, cut: list[list[int]]) -> None:
    data = tensors()
    theirs = trl_loss(loss_type, data, cut, importance_sampling_level=level)
    assert_same(theirs, our_loss(loss_type, data, cut, level=level))


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", sorted(COMPOSITIONS))
def test_kl_in_the_loss(loss_type: str, level: str, corrected: bool) -> None:
    data = tensors(1)
    changed = {"importance_sampling_level": level, "beta": 0.3, "use_bias_correction_kl": corrected}
    theirs = trl_loss(loss_type, data, UNEQUAL, **changed)
    assert_same(theirs, our_loss(loss_type, data, UNEQUAL, level=level, beta=0.3, corrected=corrected))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo", "luspo"])
def test_two_sided_clip(loss_type: str, level: str) -> None:
    data = tensors(2)
    data["old"] = data["old"] - 0.8 * (ADVANTAGES < 0)[:, None]  # bad answers that became likelier, beyond delta
    theirs = trl_loss(loss_type, data, WHOLE, importance_sampling_level=level, delta=DELTA)
    ours = our_loss(loss_type, data, WHOLE, level=level, surrogate=("two_sided", TwoSided(LOW, HIGH, DELTA)))
    assert_same(theirs, ours)
    assert ours[0] < our_loss(loss_type, data, WHOLE, level=level)[0]


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("loss_type", sorted(COMPOSITIONS))
def test_entropy_bonus(loss_type: str, share: float) -> None:
    """The bonus is a mean over each micro-batch's own tokens, whatever the loss type."""
    data, cut = tensors(3), WHOLE if share < 1 else UNEQUAL
    changed = {"_entropy_bonus_enabled": True, "entropy_coef": 0.1, "top_entropy_quantile": share}
    theirs = trl_loss(loss_type, data, cut, **changed)
    assert_same(theirs, our_loss(loss_type, data, cut, entropy_coef=0.1, share=share))


@pytest.mark.parametrize("loss_type", sorted(COMPOSITIONS))
def test_off_policy_sequence_mask_leaves_the_kl_alone(loss_type: str) -> None:
    data = tensors(4)
    data["sampler"] = data["sampler"] + 0.5 * (torch.arange(ROWS) < 2)[:, None]
    theirs = trl_loss(loss_type, data, WHOLE, off_policy_mask_threshold=0.1, beta=0.3)
    ours = our_loss(loss_type, data, WHOLE, delta=0.1, beta=0.3)
    assert_same(theirs, ours)
    assert theirs[0] != pytest.approx(our_loss(loss_type, data, WHOLE, beta=0.3)[0], abs=1e-6)


@pytest.mark.parametrize("bound", ["truncate", "mask"])
@pytest.mark.parametrize("loss_type", sorted(COMPOSITIONS))
def test_weights_between_sampler_and_trainer(loss_type: str, bound: str) -> None:
    """They scale the surrogate and not the KL; VESPO takes them into its own weight, bounded below by 1e-8."""
    data = tensors(5)
    weights = importance_weights(data["old"], data["sampler"], MASK, "token", bound, high=1.2)
    assert (weights < importance_weights(data["old"], data["sampler"], MASK, high=9.0)).any()
    data["weights"] = weights
    theirs = trl_loss(loss_type, data, WHOLE, use_vllm=True, beta=0.3)
    assert_same(
        theirs,
        our_loss(loss_type, data, WHOLE, weights=weights.clamp(min=0.0 if loss_type != "vespo" else 1e-8), beta=0.3),
    )


def test_geometric_mean_policy_optimisation() -> None:
    from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer

    data = tensors(6)
    leaf = data["logits"].clone().requires_grad_()
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": data["tokens"],
        "completion_mask": MASK,
        "advantages": ADVANTAGES,
        "old_per_token_logps": data["old"],
    }
    fake = trainer("grpo", leaf, data["tokens"], 1, epsilon_low=0.3, epsilon_high=0.4)
    loss = GMPOTrainer._compute_loss(fake, None, inputs)
    loss.backward()
    assert leaf.grad is not None
    ours = our_loss("grpo", data, WHOLE, surrogate=("gmpo", Gmpo(0.3, 0.4)))
    # A rollout without tokens has the geometric mean 1 there, hence the constant -A / N; here it has no token to weigh.
    assert_same((loss.item() + ADVANTAGES[2].item() / ROWS, leaf.grad), ours)


def test_reinforce_leave_one_out() -> None:
    from trl import RLOOTrainer

    data = tensors(7)
    leaf = data["logits"].clone().requires_grad_()
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.long),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.long),
        "completion_ids": data["tokens"],
        "completion_mask": MASK,
        "advantages": ADVANTAGES,
        "old_logps": (data["old"] * MASK).sum(1),
    }
    loss = RLOOTrainer._compute_loss(trainer("grpo", leaf, data["tokens"], 1), None, inputs)
    loss.backward()
    assert leaf.grad is not None
    ours = our_loss("grpo", data, WHOLE, level="sequence_product")
    assert_same((loss.item() + ADVANTAGES[2].item() / ROWS, leaf.grad), ours)


def rewards_with_gaps() -> tuple[Tensor, Tensor, Tensor]:
    """Three groups of four with two rewards: a dead group, missing parts, and a row without any."""
    gap = math.nan
    rewards = torch.tensor(
        [
            [1, 0.2],
            [0, 0.9],
            [0, gap],
            [1, 0.1],
            [1, 0.5],
            [1, 0.5],
            [1, 0.5],
            [1, 0.5],
            [gap, gap],
            [3, 1],
            [0, gap],
            [1, 0],
        ]
    )
    return rewards, torch.arange(12) // 4, ~rewards.isnan()


@pytest.mark.parametrize(("scale", "ours"), [("group", "group_std"), ("batch", "batch_std"), ("none", "none")])
def test_advantages(scale: str, ours: str) -> None:
    """The lines of `_generate_and_score_completions`, with TRL's own `nanstd`."""
    from trl.trainer.utils import nanstd

    parts, groups, _ = rewards_with_gaps()
    rewards = parts[:, 0]
    std = nanstd(rewards.view(-1, 4), dim=1).repeat_interleave(4) if scale == "group" else nanstd(rewards).expand(12)
    theirs = rewards - torch.nanmean(rewards.view(-1, 4), dim=1).repeat_interleave(4)
    theirs = theirs if scale == "none" else theirs / (std + 1e-4)
    found = advantages(rewards, groups, ~rewards.isnan(), scale=ours)
    torch.testing.assert_close(found.float(), theirs.nan_to_num(nan=0.0), rtol=1e-5, atol=1e-6)


def test_rewards_normalised_apart() -> None:
    from trl.trainer.utils import nanstd

    parts, groups, scored = rewards_with_gaps()
    weights = torch.tensor([1.0, 0.5])
    grouped = parts.view(-1, 4, 2)
    apart = (grouped - torch.nanmean(grouped, dim=1, keepdim=True)) / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)
    summed = (apart.view(-1, 2) * weights).nansum(dim=1)
    summed[~scored.any(1)] = math.nan
    theirs = ((summed - torch.nanmean(summed)) / (nanstd(summed) + 1e-4)).nan_to_num(nan=0.0)
    ours = decoupled_advantages(parts, groups, scored, weights)
    ours = whiten(ours, scored.any(1), ddof=1, epsilon=1e-4, divisor="std", center=False)
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-5, atol=1e-6)
    assert ours[4:8].tolist() == [0.0] * 4  # the dead group, exactly


def test_leave_one_out_with_k1_in_the_reward() -> None:
    """The lines of RLOOTrainer: k1 summed over the answer, taken from the reward before the baseline."""
    data = tensors(8)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.5, 1.0, 0.0], dtype=torch.float64)
    shaped = rewards - 0.05 * ((data["old"] - data["reference"]) * MASK).sum(-1)
    grouped = shaped.view(2, 3)
    theirs = (shaped - ((grouped.sum(1, keepdim=True) - grouped) / 2).view(-1))[[0, 1, 3, 4, 5]]
    ours = token_rewards(rewards, data["old"], data["reference"], MASK, beta=0.05).sum(-1)
    ours[2] = rewards[2]  # without a token there is nowhere to put the reward
    found = advantages(ours, torch.arange(6) // 3, torch.ones(6, dtype=torch.bool), "leave_one_out", "none")
    torch.testing.assert_close(found[[0, 1, 3, 4, 5]], theirs)


def test_soft_overlong_punishment() -> None:
    from trl.rewards import get_soft_overlong_punishment

    lengths = [0, 60, 80, 81, 95, 100, 101, 500]
    theirs = get_soft_overlong_punishment(max_completion_len=100, soft_punish_cache=20)([[0] * n for n in lengths])
    assert soft_overlong_punishment(torch.tensor(lengths), 100, 20).tolist() == pytest.approx(theirs)
