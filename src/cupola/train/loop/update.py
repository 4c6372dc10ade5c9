"""The update: optimiser steps on sums of micro-batch losses, exact however the batch is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cupola.core.config import Recipe
from cupola.train.loop.account import StepBook, UpdateBook
from cupola.train.loop.batch import Batch
from cupola.train.loop.loss import Inputs, Loss, micro_loss
from cupola.train.loop.optim import build_optimizer, learning_rate, take_step
from cupola.train.loop.plan import Plan
from cupola.train.models import Policy, completion_logits, logprobs, micro_batches, pad, to_device


class Learner:
    """Owns the optimiser.

    `planned` counts the optimiser steps that the schedule has passed, taken or not; `version` counts those taken.
    """

    def __init__(self, policy: Policy, reference: PreTrainedModel | None, recipe: Recipe) -> None:
        self.policy, self.reference, self.recipe = policy, reference, recipe
        self.optimizer = build_optimizer(recipe.optim, policy.model.parameters())
        per_batch = recipe.optim.minibatches * recipe.optim.epochs
        self.rate = learning_rate(recipe.optim, recipe.run.steps * per_batch)
        self.corrected = recipe.objective.correction.level != "none"
        self.planned = 0
        self.version = 0

    @torch.enable_grad()  # a reward function may have left gradients switched off
    def update(self, batch: Batch, advantages: Tensor, plans: Sequence[Plan]) -> UpdateBook:
        """Take the planned optimiser steps and book what each row weighed.

        With a single step the old log-probabilities are the current ones; several share those from before the first.
        """
        book = UpdateBook(len(batch))
        if len(plans) > 1:
            rows = sorted({row for plan in plans for row in plan.forward})
            book.logp_old = dict(zip(rows, self._logps(self.policy.model, batch, rows), strict=True))
        for plan in plans:
            book.steps.append(self._step(batch, advantages, plan, book.logp_old))
        if len(plans) == 1:
            book.logp_old = book.steps[0].logp
        return book

    def _step(self, batch: Batch, advantages: Tensor, plan: Plan, logp_old: dict[int, Tensor]) -> StepBook:
        """One optimiser step. Where nothing has a gradient the optimiser stands still: momentum would move it."""
        self.planned += 1
        step = StepBook(self.planned, len(batch), list(plan.terms))
        for rows in self._micro(batch, plan.forward):
            loss = self._loss(batch, advantages, plan, rows, logp_old)
            loss.total.backward()
            step.add(rows, loss, batch.lengths)
        if plan.forward:
            rate, limit = self.rate(self.planned), self.recipe.optim.max_grad_norm
            step.grad_norm = take_step(self.optimizer, rate, limit, f"optimiser step {self.planned}")
            if step.grad_norm > 0:
                step.learning_rate = rate
                self.version += 1
        return step

    def _loss(self, batch: Batch, advantages: Tensor, plan: Plan, rows: list[int], logp_old: dict[int, Tensor]) -> Loss:
        prompts, completions = [batch.prompts[i] for i in rows], [batch.completions[i] for i in rows]
        sequences = to_device(pad(prompts, completions, self.policy.pad_id), self.policy.device)
        logits = completion_logits(self.policy.model, sequences, self.recipe.sampling.temperature)

        def padded(values: list[Tensor]) -> Tensor:
            """Rows of unequal length as (n, T); what stands in the padding is masked."""
            return torch.nn.utils.rnn.pad_sequence(values, batch_first=True).to(logits)

        inputs = Inputs(
            tokens=sequences.tokens,
            mask=sequences.mask,
            logp_old=padded([logp_old[i] for i in rows]) if logp_old else None,
            logp_ref=None if self.reference is None else padded(self._logps(self.reference, batch, rows)),
            logp_sampler=padded([batch.sampler_logps[i] for i in rows]) if self.corrected else None,
            advantages=advantages[rows].to(logits),
            omega={name: term.omega[rows].to(logits) for name, term in plan.terms.items()},
        )
        return micro_loss(logits, inputs, self.recipe.objective)

    def _micro(self, batch: Batch, rows: list[int]) -> Iterator[list[int]]:
        lengths = [(len(batch.prompts[i]), len(batch.completions[i])) for i in rows]
        for chosen in micro_batches(lengths, self.recipe.optim.micro_tokens):
            yield [rows[k] for k in chosen]

    def _logps(self, model: PreTrainedModel, batch: Batch, rows: list[int]) -> list[Tensor]:
        return logprobs(
            model,
            [batch.prompts[i] for i in rows],
            [batch.completions[i] for i in rows],
            pad_id=self.policy.pad_id,
            temperature=self.recipe.sampling.temperature,
            micro_tokens=self.recipe.optim.micro_tokens,
        )
