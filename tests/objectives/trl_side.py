"""TRL's own `_compute_loss` on small tensors.

TRL's methods are called on a small object that holds the attributes they read; the arithmetic is TRL's, the gathering
accelerate's. TRL is imported inside the functions, so that tests can be collected without it.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cupola.train.objectives import token_entropy, token_logps

ROWS, WIDTH, VOCABULARY, MAX_TOKENS = 6, 7, 5, 9
LOW, HIGH, CEILING, DELTA = 0.2, 0.28, 1.4, 1.6
#: Unequal lengths and one rollout that is masked from end to end.
LENGTHS = torch.tensor([7, 3, 0, 5, 1, 6])
GROUPS = torch.arange(ROWS)
MASK = (torch.arange(WIDTH) < LENGTHS[:, None]).long()
ADVANTAGES = torch.tensor([1.3, -0.7, 0.4, 0.0, -1.9, 0.8], dtype=torch.float64)

WHOLE = [list(range(ROWS))]
UNEQUAL = [[0, 1, 2, 3], [4, 5]]


def tensors(seed: int = 0) -> dict[str, Tensor]:
    """Logits of the policy, and log-probabilities of the old policy, the reference and the sampler around it."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, WIDTH, VOCABULARY, generator=generator, dtype=torch.float64)
    tokens = torch.randint(VOCABULARY, (ROWS, WIDTH), generator=generator)
    logp = token_logps(logits, tokens)

    def near(spread: float) -> Tensor:
        return logp + spread * torch.randn(logp.shape, generator=generator, dtype=torch.float64)

    return {"logits": logits, "tokens": tokens, "old": near(0.35), "reference": near(0.5), "sampler": near(0.2)}


def trainer(loss_type: str, logits: Tensor, tokens: Tensor, pieces: int, **changed: Any) -> Any:
    """An object with what TRL's loss reads; `logits` are the model's output at the completion's positions."""
    from accelerate import Accelerator
    from trl import GRPOTrainer

    def logps_and_entropies(*_: Any, **__: Any) -> tuple[Tensor, Tensor, None]:
        return token_logps(logits, tokens), token_entropy(logits), None

    args = {
        "delta": None,
        "use_bias_correction_kl": False,
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
        "steps_per_generation": pieces,
    }
    own = {
        "loss_type": loss_type,
        "importance_sampling_level": "token",
        "epsilon_low": LOW,
        "epsilon_high": CEILING if loss_type == "cispo" else HIGH,
        "beta": 0.0,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "use_adaptive_entropy": False,
        "_entropy_bonus_enabled": False,
        "entropy_coef": 0.0,
        "aux_loss_enabled": False,
        "max_completion_length": MAX_TOKENS,
        "current_gradient_accumulation_steps": pieces,
        "model": SimpleNamespace(training=True),
        "accelerator": Accelerator(cpu=True),
        "_metrics": {"train": defaultdict(list)},
    }
    args |= {key: changed.pop(key) for key in list(changed) if key in args}
    fake = SimpleNamespace(**(own | changed), args=SimpleNamespace(**args))
    fake._get_per_token_logps_and_entropies = logps_and_entropies
    fake.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, fake)
    fake.get_off_policy_mask = GRPOTrainer.get_off_policy_mask
    fake.get_gamma_weights = GRPOTrainer.get_gamma_weights
    return fake


def trl_loss(loss_type: str, data: dict[str, Tensor], cut: list[list[int]], **changed: Any) -> tuple[float, Tensor]:
    """TRL's loss summed over the micro-batches of one optimiser step, and its gradient at the logits."""
    from trl import GRPOTrainer

    leaf = data["logits"].clone().requires_grad_()
    total = 0.0
    for rows in cut:
        inputs = {
            "prompt_ids": torch.zeros(len(rows), 1, dtype=torch.long),
            "prompt_mask": torch.ones(len(rows), 1, dtype=torch.long),
            "completion_ids": data["tokens"][rows],
            "completion_mask": MASK[rows],
            "advantages": ADVANTAGES[rows],
            "old_per_token_logps": data["old"][rows],
            "ref_per_token_logps": data["reference"][rows],
            "sampling_per_token_logps": data["sampler"][rows],
            "num_items_in_batch": MASK.sum(),
        }
        if "weights" in data:
            inputs["importance_sampling_ratio"] = data["weights"][rows]
        fake = trainer(loss_type, leaf[rows], data["tokens"][rows], len(cut), **changed)
        loss = GRPOTrainer._compute_loss(fake, None, inputs)
        loss.backward()
        total += loss.item()
    assert leaf.grad is not None
    return total, leaf.grad


def assert_same(theirs: tuple[float, Tensor], ours: tuple[float, Tensor]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5, abs=1e-7)
    assert float(theirs[1].norm()) > 1e-3
    assert float((ours[1] - theirs[1]).norm() / theirs[1].norm()) < 1e-5
