"""The supervised cold start: next-token training on prompt and target pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cupola.core.config import Optim
from cupola.core.records import DataError, Prompt
from cupola.train.loop.optim import build_optimizer, learning_rate, take_step
from cupola.train.models import Policy, completion_scores, micro_batches, pad, to_device
from cupola.train.tasks import TARGET


def supervised(
    policy: Policy,
    draw: Callable[[int], Sequence[Prompt]],
    steps: int,
    optim: Optim,
    report: Callable[[int, float], None],
) -> None:
    """Minimise the token mean of -log p(target | prompt) over each step's batch.

        L = - sum_it m_it log p_it / sum_it m_it        over the whole batch, however it is cut

    `draw(step)` gives the step's examples, whose `target` column is the text to learn, ended by the first stop id.
    `report(step, loss)` is called after each step.
    """
    optimizer = build_optimizer(optim, policy.model.parameters())
    rate = learning_rate(optim, steps)
    for step in range(1, steps + 1):
        loss = _step(policy, draw(step), optim)
        take_step(optimizer, rate(step), optim.max_grad_norm, f"supervised step {step}")
        report(step, loss)


def _step(policy: Policy, examples: Sequence[Prompt], optim: Optim) -> float:
    prompts = [policy.encode(example.content) for example in examples]
    targets = [_target_ids(policy, example) for example in examples]
    tokens = sum(map(len, targets))
    total = 0.0
    for rows in micro_batches(prompts, targets, optim.micro_tokens):
        batch = to_device(pad([prompts[i] for i in rows], [targets[i] for i in rows], policy.pad_id), policy.device)
        logp, _ = completion_scores(policy.model, batch, temperature=1.0)
        loss = -(logp * batch.mask).sum() / tokens
        loss.backward()
        total += float(loss.detach())
    return total


def _target_ids(policy: Policy, example: Prompt) -> list[int]:
    target = example.columns.get(TARGET)
    if not isinstance(target, str) or not target:
        raise DataError(f"prompt {example.id}: a supervised example needs a text column `{TARGET}`")
    ids = policy.tokenizer(target, add_special_tokens=False)["input_ids"]
    return [*ids, policy.stop_ids[0]]
