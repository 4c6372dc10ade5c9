"""GRPO in one screen: the readable spec of the training loop, on cupola's public functions.

    python examples/grpo_loop.py --steps 30

Each step samples a group of answers to every prompt, pays them, compares each answer with its group, and takes one
step along the gradient. `cupola train` does the same and adds what a real run needs: minibatches with importance
ratios that clip, a KL term, the record, validation, diagnosis, checkpoints, and resume.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cupola.core.config import ExactReward
from cupola.core.records import Completion, Group, Prompt, Rollout, Sampling
from cupola.train.models import (
    InProcessSampler,
    Policy,
    completion_scores,
    load_policy,
    micro_batches,
    pad,
    set_threads,
)
from cupola.train.objectives import RATIOS, SURROGATES, Clip, advantages, count, omega, weighted_sum
from cupola.train.rollout import Collector, group_metrics, headline
from cupola.train.tasks import draw_problem, make_task
from cupola.train.verifiers import Scorer, build

PROMPTS, GROUP_SIZE = 32, 16
SAMPLING = Sampling(max_tokens=44, temperature=1.0)
REWARD = ExactReward(name="correct", extract=r"#(\d+)$")
LEARNING_RATE, MAX_GRAD_NORM = 5e-4, 1.0
CLIP_LOW, CLIP_HIGH = 0.2, 0.2
MICRO_TOKENS = 16384


def train(policy: Policy, steps: int, seed: int) -> None:
    """Sample, verify, advantage, loss, update."""
    task = make_task("arithmetic", {})
    sampler = InProcessSampler(policy)
    collector = Collector(sampler, reward(), seed)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(1, steps + 1):
        prompts = [draw_problem(task, "train", seed, step - 1, index) for index in range(PROMPTS)]
        groups = collector.collect(step, prompts, GROUP_SIZE, SAMPLING)
        if accumulate_gradient(policy, groups):
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            optimizer.zero_grad()
            sampler.publish(step)
        report(step, groups)


def reward() -> Callable[[Sequence[Prompt], Sequence[Completion], int], list[Rollout]]:
    """Pays 1 for an answer that ends in `#` and the right number, else 0."""
    return Scorer([REWARD], build([REWARD]), REWARD.name).score


def accumulate_gradient(policy: Policy, groups: Sequence[Group]) -> bool:
    """Add up the gradient of the batch, micro-batch by micro-batch; False where no answer has an advantage.

    The denominators are fixed before the first forward pass, from the whole batch. No loss takes a mean, so the sum
    is the same however the batch is cut. An answer without an advantage has no gradient and is not forwarded.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    prompts = [policy.encode(group.prompt.content) for group in groups for _ in group.rollouts]
    answers = [rollout.completion.token_ids.tolist() for rollout in rollouts]

    index = torch.tensor([g for g, group in enumerate(groups) for _ in group.rollouts])
    rewards = torch.tensor([torch.nan if rollout.reward is None else rollout.reward for rollout in rollouts])
    scored = ~rewards.isnan()
    advantage = advantages(rewards, index, scored, baseline="group_mean", scale="group_std")

    lengths = torch.tensor([len(answer) for answer in answers])
    totals = count(lengths, index, scored)
    weight = omega("sequence_mean", lengths, index, scored, totals, SAMPLING.max_tokens)

    live = advantage.nonzero().squeeze(1).tolist()
    for chosen in micro_batches([prompts[i] for i in live], [answers[i] for i in live], MICRO_TOKENS):
        rows = [live[k] for k in chosen]
        loss = policy_loss(
            policy, [prompts[i] for i in rows], [answers[i] for i in rows], advantage[rows], weight[rows]
        )
        loss.backward()
    return bool(live)


def policy_loss(
    policy: Policy, prompts: list[list[int]], answers: list[list[int]], advantage: Tensor, weight: Tensor
) -> Tensor:
    """sum_it omega_i m_it l_it, l the clipped surrogate.

    With one update per batch the old policy is the policy itself: the ratio is 1 and its gradient that of log p.
    """
    batch = pad(prompts, answers, policy.pad_id)
    logp, _ = completion_scores(policy.model, batch, SAMPLING.temperature)
    ratio = RATIOS["token"](logp, logp.detach(), batch.mask)
    loss = SURROGATES["clipped"].loss(logp, ratio, advantage[:, None].to(logp), batch.mask, Clip(CLIP_LOW, CLIP_HIGH))
    return weighted_sum(loss, batch.mask, weight)


def report(step: int, groups: Sequence[Group]) -> None:
    """One line: the mean reward over all answers, and the share of prompts whose answers differ in reward."""
    found = {**headline(groups), **group_metrics(groups, REWARD.name)}
    print(
        f"step {step}: reward {found['reward']:.3f}, prompts with signal {found['groups/with_signal']:.0%}, "
        f"entropy {found['entropy']:.3f}, length {found['completions/mean_length']:.1f}",
        flush=True,
    )


def main() -> None:
    """Train the policy that ships with the package; nothing is written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    policy = load_policy("embedded", device="cpu")
    torch.set_num_threads(set_threads(policy.parameters))
    train(policy, arguments.steps, arguments.seed)


if __name__ == "__main__":
    main()
