"""PPO in the loop: the critic's advantages and loss, written down a second time without padding or vectors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loop_parts import difference, gradients_of, group, mixed_groups, plain_logps, recipe, tiny_policy, update
from torch import Tensor

from cupola.core.config import Recipe
from cupola.train.loop import Batch, Learner, batch_advantages, load_checkpoint, save_checkpoint
from cupola.train.loop.batch import Before
from cupola.train.loop.checkpoint import Position
from cupola.train.loop.metrics import before_metrics
from cupola.train.models import Critic, Policy, Reference, critic_of

PPO = {"baseline": "critic", "scale": "none", "denominator": "token_mean", "kl_in": "token_reward", "beta": 0.2}


def critic_for(policy: Policy) -> Critic:
    """A critic whose values differ from token to token: a fresh one says 0 everywhere."""
    critic = critic_of(policy)
    torch.manual_seed(3)
    torch.nn.init.normal_(critic.head.weight, std=0.3)
    torch.nn.init.constant_(critic.head.bias, 0.1)
    return critic


def learner_of(settings: Recipe) -> Learner:
    policy = tiny_policy()
    return Learner(policy, Reference(tiny_policy(seed=1).model), settings, critic_for(policy))


def plain_values(critic: Critic, prompt: list[int], completion: list[int]) -> Tensor:
    hidden = critic.body(input_ids=torch.tensor([[*prompt, *completion]])).last_hidden_state[0]
    values: Tensor = critic.head(hidden)[len(prompt) - 1 : -1, 0]
    return values


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """A_t = sum_k (gamma lam)^k (r_{t+k} + gamma V_{t+k+1} - V_{t+k}), V = 0 after the last token."""
    following = [*values[1:], 0.0]
    errors = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** (k - t) * errors[k] for k in range(t, len(errors))) for t in range(len(errors))]


def test_a_fresh_critic_knows_nothing() -> None:
    """Values 0 and lambda 1 leave the return: the reward at every token of the answer."""
    policy = tiny_policy()
    learner = Learner(policy, None, recipe({**PPO, "beta": 0.0, "critic": {"lam": 1.0}}), critic_of(policy))
    batch = Batch.of([group("g", "1+2=", [(2, 1.0, True), (3, 0.25, False)])], policy.encode)
    found = batch_advantages(batch, learner.before(batch), learner.recipe)
    assert found.values.tolist() == [[1, 1, 0], [0.25, 0.25, 0.25]]


def test_advantages_by_hand() -> None:
    """gamma 1, lambda 1/2; V = (1/2, 1/4): delta = (1/4 - 1/2, 1 - 1/4), A = (-1/4 + 3/8, 3/4), R = A + V."""
    batch = Batch.of([group("g", "1+2=", [(2, 1.0, True), (1, None, None)])], tiny_policy().encode)
    before = Before(values=torch.tensor([[0.5, 0.25], [9.0, 0.0]]))
    found = batch_advantages(batch, before, recipe({**PPO, "beta": 0.0, "critic": {"lam": 0.5}}))
    assert found.values.tolist() == [[0.125, 0.75], [0, 0]]
    assert found.returns is not None
    assert found.returns[0].tolist() == [0.625, 1.0]


def test_the_gradients_of_policy_and_critic_are_those_of_the_loss_as_written() -> None:
    settings = recipe({**PPO, "critic": {"gamma": 0.9, "lam": 0.8, "coef": 0.5}}, {"micro_tokens": 60})
    learner = learner_of(settings)
    policy, critic, reference = learner.policy, learner.critic, learner.reference
    assert critic is not None
    assert reference is not None
    groups = mixed_groups()
    loss = torch.zeros((), dtype=torch.float64)
    scored = [(g, r) for g in groups for r in g.rollouts if r.reward is not None]
    tokens = sum(rollout.completion.n_tokens for _, rollout in scored)
    of_value, of_kl = [], []
    for each, rollout in scored:
        prompt, ids = policy.encode(each.prompt.content), rollout.completion.token_ids.tolist()
        logp, values = plain_logps(policy.model, prompt, ids, 0.7), plain_values(critic, prompt, ids)
        kl = (logp - plain_logps(reference.model, prompt, ids, 0.7)).detach()
        assert rollout.reward is not None
        rewards = [-0.2 * k + (rollout.reward if t + 1 == len(ids) else 0.0) for t, k in enumerate(kl.tolist())]
        advantages = plain_gae(rewards, values.tolist(), 0.9, 0.8)
        ratio = (logp - logp.detach()).exp()
        loss = loss - (ratio * torch.tensor(advantages, dtype=torch.float64)).sum() / tokens
        returns = torch.tensor(advantages, dtype=torch.float64) + values.detach()
        value = 0.5 * ((values - returns).square() / 2).sum() / tokens
        loss = loss + value
        of_value.append(value.item())
        of_kl.append(float(kl.sum()))
    expected = torch.autograd.grad(loss, [*policy.model.parameters(), *critic.parameters()])

    found, of_critic = gradients_of(learner), gradients_of(learner, critic=True)
    updated = update(learner, groups)
    assert difference([*found[0], *of_critic[0]], expected) < 1e-9
    assert updated.metrics["loss"] == pytest.approx(loss.item(), rel=1e-9)
    assert updated.metrics["loss/value_avg"] == pytest.approx(sum(of_value), rel=1e-9)
    assert updated.metrics["kl"] == pytest.approx(sum(of_kl) / tokens, rel=1e-6)
    norm = sum(float(g.square().sum()) for g in expected[-len(list(critic.parameters())) :]) ** 0.5
    assert updated.metrics["critic/grad_norm"] == pytest.approx(norm, rel=1e-9)


def test_the_record_speaks_of_the_critic() -> None:
    updated = update(learner_of(recipe(PPO)), mixed_groups())
    assert [row["term"] for row in updated.ledger] == ["policy", "value"]
    assert updated.ledger[1]["counted"] == {"rollouts": 13, "tokens": 75, "prompts": 5}
    assert updated.ledger[1]["excluded"] == {"unscored": 2}
    assert all(row.used for row in updated.outcomes["dead"])  # its tokens have advantages of their own


def test_explained_variance_is_1_for_a_critic_that_knows() -> None:
    """lambda 1: R is the reward at every token; a critic that says so explains all, one that says 0 nothing."""
    batch = Batch.of([group("g", "1+2=", [(2, 1.0, True), (2, 0.0, False)])], tiny_policy().encode)
    settings = recipe({**PPO, "beta": 0.0, "critic": {"lam": 1.0}})
    for values, explained in (([[1.0, 1.0], [0.0, 0.0]], 1.0), ([[0.0, 0.0], [0.0, 0.0]], 0.0)):
        before = Before(values=torch.tensor(values))
        metrics = before_metrics(batch, before, batch_advantages(batch, before, settings), settings.objective)
        assert metrics["critic/vf_explained_var"] == pytest.approx(explained)


def test_a_checkpoint_holds_the_critic_and_its_optimiser(tmp_path: Path) -> None:
    settings = recipe(PPO, {"name": "adamw", "learning_rate": 0.01})
    learner, other = learner_of(settings), learner_of(settings)
    update(learner, mixed_groups())
    save_checkpoint(tmp_path / "c", learner, Position(1, 10))
    load_checkpoint(tmp_path / "c", other)
    for each in (learner, other):
        update(each, mixed_groups())
    assert learner.critic is not None
    assert other.critic is not None
    assert all(torch.equal(a, b) for a, b in zip(learner.critic.parameters(), other.critic.parameters(), strict=True))
