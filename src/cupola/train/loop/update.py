"""The update: optimiser steps on sums of micro-batch losses, exact however the batch is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from cupola.core.config import Recipe
from cupola.core.records import NumericalError
from cupola.train.loop.account import StepBook, UpdateBook
from cupola.train.loop.advantage import Advantages
from cupola.train.loop.batch import Batch, Before
from cupola.train.loop.keep import Kept, Seen, kept_tokens
from cupola.train.loop.loss import Inputs, Loss, micro_loss
from cupola.train.loop.optim import build_optimizer, clipped_norm, learning_rate, step_at
from cupola.train.loop.plan import Plan
from cupola.train.loop.ranks import ALONE, Ranks, token_costs
from cupola.train.loop.steer import EntropyBonus
from cupola.train.models import (
    Critic,
    Policy,
    Reference,
    Sequences,
    completion_scores,
    gathered,
    logprobs,
    pad,
    per_token,
    recompute,
    shard,
    to_device,
    trainable,
)
from cupola.train.objectives import require_finite
from cupola.train.tasks import derive


class Learner:
    """Owns the optimisers, and what of the policy's surroundings changes with it: reference, critic, entropy bonus.

    `planned` counts the optimiser steps that the schedule has passed, taken or not; `version` counts those taken. On
    several ranks it shards the models; every rank calls the same methods with the same arguments, and is told the same.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Reference | None,
        recipe: Recipe,
        critic: Critic | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.reference, self.recipe, self.critic, self.ranks = policy, reference, recipe, critic, ranks
        self.models = (policy.model, critic, None if reference is None else reference.model)
        if recipe.optim.gradient_checkpointing:
            for each in filter(None, (policy.model, critic)):
                recompute(each)
        if ranks.mesh is not None:
            head = None if critic is None else critic.head  # by itself: its type may be another than the body's
            for module in dict.fromkeys([head, *self.models]):  # an adapter's reference is the policy itself
                if module is not None:
                    shard(module, ranks.mesh)
        self.bonus = EntropyBonus(recipe.objective)
        per_batch = recipe.optim.minibatches * recipe.optim.epochs
        self.rate = learning_rate(recipe.optim, recipe.run.steps * per_batch)
        self.optimizer = build_optimizer(recipe.optim, trainable(policy.model))
        self.critic_optimizer = None if critic is None else build_optimizer(recipe.optim, trainable(critic))
        self.planned = 0
        self.version = 0

    def before(self, batch: Batch) -> Before:
        """What the recipe's decisions on advantages and rejection ask of the models, before anything moves."""
        objective = self.recipe.objective
        kl = objective.kl_in != "loss" and self.reference is not None
        rows, critic = range(len(batch)), self.critic

        def of_all(ask: Callable[[list[int]], list[Tensor]]) -> Tensor:
            return batch.padded(self.ranks.ask(rows, token_costs(batch, rows), ask))

        with gathered(*self.models):
            return Before(
                logp=of_all(lambda own: self._logps(batch, own)) if kl or objective.masks.reject else None,
                logp_ref=of_all(lambda own: self._reference_logps(batch, own)) if kl else None,
                values=None if critic is None else of_all(lambda own: self._ask(critic, batch, own)),
            )

    @torch.enable_grad()  # a reward function may have left gradients switched off
    def update(self, batch: Batch, before: Before, advantages: Advantages, plans: Sequence[Plan]) -> UpdateBook:
        """Take the planned optimiser steps and book what each row weighed. One that is not finite is refused.

        With a single step the old log-probabilities are the current ones; several share those from before the first.
        """
        book = UpdateBook(len(batch))
        if len(plans) > 1:
            rows = sorted({row for plan in plans for row in plan.forward})
            book.logp_old = dict(zip(rows, self._old_logps(batch, before, rows), strict=True))
        for plan in plans:
            book.steps.append(self._step(batch, advantages, plan, book.logp_old))
        if len(plans) == 1:
            book.logp_old = book.steps[0].logp
        book.entropy_coef = self.bonus.coef
        return book

    def _old_logps(self, batch: Batch, before: Before, rows: Sequence[int]) -> list[Tensor]:
        """Of these rows, before the first step."""
        if before.logp is not None:
            return [before.logp[i, : int(batch.lengths[i])] for i in rows]
        with gathered(self.policy.model):
            return self.ranks.ask(rows, token_costs(batch, rows), lambda own: self._logps(batch, own))

    def _step(self, batch: Batch, advantages: Advantages, plan: Plan, logp_old: dict[int, Tensor]) -> StepBook:
        """One optimiser step. Where nothing has a gradient the optimiser stands still: momentum would move it."""
        self.planned += 1
        step = StepBook(self.planned, len(batch), list(plan.terms))
        try:
            with gathered(*self.models):
                self._accumulate(step, batch, advantages, plan, logp_old)
            if plan.forward:
                self._take(step)
        except NumericalError as error:
            for optimizer in filter(None, (self.optimizer, self.critic_optimizer)):
                optimizer.zero_grad()
            return StepBook(self.planned, len(batch), list(plan.terms), str(error))
        return step

    def _accumulate(
        self, step: StepBook, batch: Batch, advantages: Advantages, plan: Plan, logp_old: dict[int, Tensor]
    ) -> None:
        """Sum the gradients of the plan's micro-batches. Raises NumericalError where one is not finite.

        A rank whose loss is not finite goes on to the end: the others wait for its part of each sum.
        """
        kept = self._kept(batch, advantages, plan, logp_old)
        step.left = kept.left

        def loss_of(rows: list[int]) -> Loss:
            return self._loss(batch, advantages, plan, rows, logp_old, kept)

        micro = self.ranks.micro_batches(plan, batch, self.recipe.optim)
        if self._is_measured():
            own = [row for rows, factor in micro if factor for row in rows]
            step.exact = self._gradient_norms(own, loss_of, len(batch))
        wrong: NumericalError | None = None
        for rows, factor in micro:
            loss = loss_of(rows)
            wrong = wrong or self._not_finite(loss, rows)
            (factor * loss.total).backward()
            if factor:
                step.add(rows, loss, batch.lengths)
        for rank, (error, other) in enumerate(self.ranks.gather((wrong, step))):
            if error is not None:
                raise error
            if rank != self.ranks.rank:
                step.absorb(other)

    def _take(self, step: StepBook) -> None:
        """Move policy and critic, or neither where the gradient of one is not finite."""
        rate, limit = self.rate(self.planned), self.recipe.optim.max_grad_norm
        where = f"optimiser step {self.planned}"
        if self.critic_optimizer is not None:
            own = "objective.critic.learning_rate"
            step.critic_grad_norm = clipped_norm(self.critic_optimizer, limit, f"{where}, critic", own)
        step.grad_norm = clipped_norm(self.optimizer, limit, where)
        step_at(self.optimizer, rate, step.grad_norm)
        if self.critic_optimizer is not None and step.critic_grad_norm is not None:
            ratio = self.recipe.objective.critic.learning_rate / self.recipe.optim.learning_rate
            step_at(self.critic_optimizer, rate * ratio, step.critic_grad_norm)
        self.bonus.steer(step.entropy)
        if step.grad_norm > 0:
            step.learning_rate = rate
            self.version += 1
            if self.reference is not None:
                self.reference.follow(self.policy.model, self.version)

    def _loss(
        self,
        batch: Batch,
        advantages: Advantages,
        plan: Plan,
        rows: list[int],
        logp_old: dict[int, Tensor],
        kept: Kept,
    ) -> Loss:
        objective = self.recipe.objective
        prompts, completions = [batch.prompts[i] for i in rows], [batch.completions[i] for i in rows]
        sequences = to_device(pad(prompts, completions, self.policy.pad_id), self.policy.device)
        temperature = self.recipe.sampling.temperature
        logp, entropy = completion_scores(self.policy.model, sequences, temperature, "entropy" in plan.terms)
        width = sequences.tokens.shape[1]

        def padded(values: list[Tensor]) -> Tensor:
            """Rows of unequal length as (n, T); what stands in the padding is masked."""
            return pad_sequence(values, batch_first=True).to(logp)

        def cut(values: Tensor | None) -> Tensor | None:
            """These rows of a table of the whole batch."""
            return None if values is None else values[rows, :width].to(logp)

        inputs = Inputs(
            mask=sequences.mask,
            advantages=advantages.values[rows, :width].to(logp),
            omega={name: term.omega[rows].to(logp) for name, term in plan.terms.items()},
            coef={"kl": objective.beta, "entropy": self.bonus.applied, "value": objective.critic.coef},
            logp_old=padded([logp_old[i] for i in rows]) if logp_old else None,
            logp_ref=padded(self._reference_logps(batch, rows)) if "kl" in plan.terms else None,
            logp_sampler=(
                None if objective.correction.level == "none" else padded([batch.sampler_logps[i] for i in rows])
            ),
            keep=cut(kept.keep),
            pays=cut(kept.pays),
            values=None if self.critic is None else self.critic(sequences),
            values_old=cut(advantages.values_old),
            returns=cut(advantages.returns),
        )
        return micro_loss(logp, entropy, inputs, objective)

    def _kept(self, batch: Batch, advantages: Advantages, plan: Plan, logp_old: dict[int, Tensor]) -> Kept:
        """The masks of this step, from a pass without gradient over all rows that its policy term counts."""
        objective = self.recipe.objective
        if not objective.masks.need_policy:
            return Kept()
        counted = (plan.terms["policy"].omega > 0) & batch.counted
        rows = counted.nonzero().squeeze(1).tolist()
        if not rows:
            return Kept()

        def forward(sequences: Sequences) -> Tensor:
            logp, entropy = completion_scores(self.policy.model, sequences, self.recipe.sampling.temperature, True)
            assert entropy is not None  # it was asked for
            return torch.stack([logp, entropy], -1)

        costs = token_costs(batch, rows)
        said = self.ranks.ask(rows, costs, lambda own: self._ask(forward, batch, own))
        found = dict(zip(rows, said, strict=True))
        nothing = found[rows[0]][:0, 0]
        logp, entropy = (
            batch.padded([found[i][:, k] if i in found else nothing for i in range(len(batch))]) for k in (0, 1)
        )
        old = batch.padded([logp_old.get(i, logp[i]) for i in range(len(batch))])
        sampler = batch.padded(batch.sampler_logps).to(logp)
        mask = batch.mask & counted[:, None]
        generator = torch.Generator().manual_seed(derive(self.recipe.run.seed, "clip_cov", self.planned) >> 1)
        return kept_tokens(Seen(logp, entropy, old, sampler, advantages.values.to(logp), mask), objective, generator)

    def _gradient_norms(self, rows: Sequence[int], loss_of: Callable[[list[int]], Loss], total: int) -> Tensor:
        """The norm of the gradient that each of these rows alone gives the policy's parameters, (`total`,)."""
        parameters = trainable(self.policy.model)
        found = torch.zeros(total, dtype=torch.float64)
        for row in rows:
            gradients = torch.autograd.grad(loss_of([row]).total, parameters, allow_unused=True)
            found[row] = torch.stack([g.double().square().sum() for g in gradients if g is not None]).sum().sqrt().cpu()
        return found

    def _is_measured(self) -> bool:
        every = self.recipe.diagnosis.exact_share_every
        return every > 0 and self.planned % every == 0

    def _not_finite(self, loss: Loss, rows: list[int]) -> NumericalError | None:
        """Why the step has to be refused before a damaged log-probability reaches the weights, if it has to."""
        try:
            require_finite("log-probability", loss.logp, torch.ones_like(loss.logp), rows)
            for name, term in loss.terms.items():
                if not bool(term.isfinite()):
                    raise ValueError(f"the {name} loss of rollouts {rows[0]} to {rows[-1]} is not finite")
        except ValueError as error:
            return NumericalError(
                f"optimiser step {self.planned}: {error}; the update was refused and the weights are those before it "
                "(lower optim.learning_rate, or look at the last recorded rollouts)"
            )
        return None

    def _logps(self, batch: Batch, rows: Sequence[int]) -> list[Tensor]:
        return self._logps_by(self.policy.model, batch, rows)

    def _reference_logps(self, batch: Batch, rows: Sequence[int]) -> list[Tensor]:
        assert self.reference is not None  # there is one wherever the recipe has a KL
        with self.reference.speaking() as model:
            return self._logps_by(model, batch, rows)

    def _logps_by(self, model: PreTrainedModel, batch: Batch, rows: Sequence[int]) -> list[Tensor]:
        return logprobs(
            model,
            [batch.prompts[i] for i in rows],
            [batch.completions[i] for i in rows],
            pad_id=self.policy.pad_id,
            temperature=self.recipe.sampling.temperature,
            micro_tokens=self.recipe.optim.micro_tokens,
        )

    def _ask(self, forward: Callable[[Sequences], Tensor], batch: Batch, rows: Sequence[int]) -> list[Tensor]:
        """What `forward` says of these rows without gradient, (T_i, ...) each."""
        return per_token(
            forward,
            [batch.prompts[i] for i in rows],
            [batch.completions[i] for i in rows],
            device=self.policy.device,
            pad_id=self.policy.pad_id,
            micro_tokens=self.recipe.optim.micro_tokens,
        )
