"""A tiny policy, groups made by hand, and the loss written down a second time: one rollout at a time, no padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from cupola.core.config import Recipe, validate
from cupola.core.records import Completion, Group, Outcome, Prompt, Rollout, Verdict
from cupola.train.loop import Batch, Learner, batch_advantages, plan_steps, without_rejected
from cupola.train.loop.account import ledger_rows, outcomes
from cupola.train.loop.metrics import before_metrics, update_metrics
from cupola.train.models import Policy, Reference, in_float64, new_policy, trainable

MAX_TOKENS = 12
ALPHABET = "0123456789+="


def tiny_policy(seed: int = 0, dtype: torch.dtype = torch.float64) -> Policy:
    """Two layers of width 16 with weights large enough that no two tokens are equally likely."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    policy = new_policy(ALPHABET, LlamaConfig(**shape, max_position_embeddings=64, initializer_range=0.4))
    in_float64(policy.model) if dtype == torch.float64 else torch.nn.Module.to(policy.model, dtype)
    return policy


def group(name: str, prompt: str, rows: Sequence[tuple[int, float | None, bool | None]]) -> Group:
    """A group from (length, reward, correct) of each rollout; the tokens are drawn by the group's name."""
    rng = np.random.default_rng(list(name.encode()))
    rollouts = []
    for length, reward, correct in rows:
        ids = rng.integers(2, 2 + len(ALPHABET), length)
        zeros = np.zeros(length, dtype=np.float32)
        verdict = Verdict(reward, "error" if reward is None else "ok", verifier="correct")
        rollouts.append(Rollout(Completion("", ids, zeros, zeros, "stop", 0), {"correct": verdict}, reward, correct))
    return Group(name, Prompt(prompt), tuple(rollouts))


def mixed_groups() -> list[Group]:
    """Every kind of group and rollout: live, dead, equal correctness, too few rewards, one without a reward."""
    return [
        group("live", "1+2=", [(3, 1.0, True), (7, 0.0, False), (1, 0.0, False), (12, 0.25, False)]),
        group("dead", "10+20=", [(4, 0.1, False), (6, 0.1, False), (2, 0.1, False)]),
        group("no_signal", "3+3=", [(5, 0.0, False), (9, 0.5, False)]),
        group("unscorable", "777+1=", [(6, 1.0, True), (3, None, None)]),
        group("holed", "5=", [(8, 1.0, True), (4, None, None), (2, 0.0, False), (10, 1.0, True)]),
    ]


def recipe(objective: Mapping[str, Any] | None = None, optim: Mapping[str, Any] | None = None, **other: Any) -> Recipe:
    """A recipe whose optimiser shows its gradient: a learning rate that moves no weight, and no clipping that binds."""
    still = {"name": "sgd", "learning_rate": 1e-30, "schedule": "constant", "max_grad_norm": 1e9}
    values = {
        "run": {"steps": 10},
        "data": {"task": "arithmetic"},
        "reward": [{"name": "correct", "kind": "exact"}],
        "sampling": {"prompts_per_step": 5, "group_size": 4, "max_tokens": MAX_TOKENS, "temperature": 0.7},
        "objective": {"beta": 0.0, **(objective or {})},
        "optim": {**still, **(optim or {})},
        **other,
    }
    return validate(values, Recipe)


@dataclass
class Updated:
    """What an update booked."""

    outcomes: dict[str, list[Outcome]]
    metrics: dict[str, float | None]
    whole_ledger: list[dict[str, Any]]

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """The terms' rows, without those of scale and whitening."""
        return [row for row in self.whole_ledger if row["term"] not in ("scale", "whiten")]


def update(learner: Learner, groups: Sequence[Group]) -> Updated:
    """Plan, take and book the optimiser steps of one batch, as the loop does."""
    batch = Batch.of(groups, learner.policy.encode)
    before = learner.before(batch)
    batch = without_rejected(batch, before, learner.recipe.objective)
    advantages = batch_advantages(batch, before, learner.recipe)
    plans = plan_steps(batch, advantages.values, learner.recipe)
    book = learner.update(batch, before, advantages, plans)
    rows = ledger_rows(batch, advantages, plans, book, groups, learner.recipe)
    became = outcomes(batch, advantages.values, groups, plans, book)
    told = before_metrics(batch, before, advantages, learner.recipe.objective)
    metrics = {**told, **update_metrics(batch, groups, plans, book)}
    return Updated(became, metrics, rows)


def gradients_of(learner: Learner, critic: bool = False) -> list[list[Tensor]]:
    """A list that fills with the gradient of each optimiser step, the policy's or the critic's."""
    found: list[list[Tensor]] = []
    model, optimizer = (
        (learner.critic, learner.critic_optimizer) if critic else (learner.policy.model, learner.optimizer)
    )
    assert model is not None
    assert optimizer is not None
    parameters = trainable(model)
    optimizer.register_step_pre_hook(lambda *_: found.append([p.grad.clone() for p in parameters]))
    return found


def rows_forwarded(model: PreTrainedModel) -> list[int]:
    """A list that fills with the number of completions of each forward pass that packs them with their prompts."""
    found: list[int] = []

    def note(module: object, args: object, kwargs: Mapping[str, Any]) -> None:
        found.append(kwargs["layout"].completions[0])

    model.register_forward_pre_hook(note, with_kwargs=True)
    return found


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """|| found - expected || / || expected || over all parameters."""
    apart = sum(float((f.double() - e.double()).square().sum()) for f, e in zip(found, expected, strict=True))
    return float((apart / sum(float(e.double().square().sum()) for e in expected)) ** 0.5)


def plain_logits(
    model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int], temperature: float
) -> Tensor:
    """Logits (T, V) of one completion, the sequence alone and unpadded."""
    logits: Tensor = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return logits / temperature


def plain_logps(model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> Tensor:
    """Log-probabilities (T,) of one completion."""
    logps = plain_logits(model, prompt, completion, temperature).log_softmax(-1)
    return logps[range(len(completion)), list(completion)]


def plain_advantages(group: Group, scaled: bool, epsilon: float) -> list[float]:
    """Advantages of one group, by the standard library."""
    rewards = group.rewards
    if len(rewards) < 2 or max(rewards) - min(rewards) < 1e-8:
        return [0.0] * len(group.rollouts)
    scale = stdev(rewards) + epsilon if scaled else 1.0
    return [0.0 if r.reward is None else (r.reward - fmean(rewards)) / scale for r in group.rollouts]


class PlainLoss:
    """L of chosen rollouts by its definition, with every denominator counted over `scope`.

    A rollout is (group index, rollout index). `logp_old` are the log-probabilities the ratio is taken against;
    without them the update is on-policy.
    """

    def __init__(self, policy: Policy, reference: Reference | None, recipe: Recipe, groups: list[Group]) -> None:
        self.policy, self.recipe, self.groups = policy, recipe, groups
        self.reference = None if reference is None else reference.model
        objective = recipe.objective
        self.advantages = [
            plain_advantages(group, objective.scale == "group_std", objective.scale_epsilon) for group in groups
        ]
        self.rows = [(g, i) for g, group in enumerate(groups) for i in range(len(group.rollouts))]

    def counted(self, rows: list[tuple[int, int]], term: str) -> list[tuple[int, int]]:
        """The rollouts among `rows` that stand in a term's totals."""
        objective = self.recipe.objective
        if term != "policy":
            return rows
        scored = [(g, i) for g, i in rows if self.groups[g].rollouts[i].reward is not None]
        return [(g, i) for g, i in scored if objective.count_dead or self.groups[g].state != "dead"]

    def omega(self, row: tuple[int, int], scope: list[tuple[int, int]], term: str) -> float:
        """One rollout's weight by its rule."""
        objective = self.recipe.objective
        counted = self.counted(scope, term)
        if row not in counted:
            return 0.0
        rule = getattr(objective, f"{term}_denominator", None) or objective.denominator
        length = {(g, i): self.groups[g].rollouts[i].completion.n_tokens for g, i in counted}
        if rule == "sequence_mean":
            return 1 / (len(counted) * length[row])
        if rule == "token_mean":
            return 1 / sum(length.values())
        if rule == "constant":
            return 1 / (len(counted) * self.recipe.sampling.max_tokens)
        own = sum(n for (g, _), n in length.items() if g == row[0])
        return 1 / (len({g for g, _ in counted}) * own)

    def __call__(
        self,
        rows: list[tuple[int, int]],
        scope: list[tuple[int, int]],
        logp_old: Mapping[tuple[int, int], Tensor] | None = None,
    ) -> Tensor:
        objective, temperature = self.recipe.objective, self.recipe.sampling.temperature
        total = torch.zeros((), dtype=torch.float64)
        for g, i in rows:
            prompt = self.policy.encode(self.groups[g].prompt.content)
            tokens = self.groups[g].rollouts[i].completion.token_ids.tolist()
            logits = plain_logits(self.policy.model, prompt, tokens, temperature)
            logp = logits.log_softmax(-1)[range(len(tokens)), tokens]
            ratio = (logp - (logp.detach() if logp_old is None else logp_old[g, i])).exp()
            advantage = self.advantages[g][i]
            clipped = ratio.clamp(1 - objective.surrogate.low, 1 + objective.surrogate.high)
            total = (
                total - self.omega((g, i), scope, "policy") * torch.min(ratio * advantage, clipped * advantage).sum()
            )
            if self.reference is not None:
                with torch.no_grad():
                    d_ref = plain_logps(self.reference, prompt, tokens, temperature)
                d = logp - d_ref
                kl = {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() + d - 1}[objective.kl_estimator]
                total = total + objective.beta * self.omega((g, i), scope, "kl") * kl.sum()
            if objective.entropy_coef:
                p = logits.softmax(-1)
                weight = objective.entropy_coef * self.omega((g, i), scope, "entropy")
                total = total + weight * (p * p.log()).sum()
        return total

    def gradient(self, *args: Any) -> list[Tensor]:
        """Gradient of the loss by the policy's parameters."""
        return list(torch.autograd.grad(self(*args), list(self.policy.model.parameters())))
