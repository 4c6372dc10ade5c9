"""How TRL cuts the rollouts of a step: into equal pieces, so that what does not divide is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass

from cupola.core.config import Recipe
from cupola.core.records import RecipeError


def processes() -> int:
    """How many processes `accelerate launch` or torchrun has started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class Cut:
    """`rows` rollouts to a micro-batch, `accumulated` of those to an optimiser step on each of `processes`,
    `minibatches` optimiser steps to a pass over the batch, `epochs` passes.

    `fixed` tells whether the recipe asks for that many rows; else they are what the memory of `optim.micro_tokens`
    holds.
    """

    rows: int
    accumulated: int
    minibatches: int
    epochs: int
    processes: int
    fixed: bool

    @classmethod
    def of(cls, recipe: Recipe, processes: int) -> Cut:
        """The recipe's cut on so many processes. Raises RecipeError naming the key that does not divide."""
        sampling, optim = recipe.sampling, recipe.optim
        rollouts = sampling.prompts_per_step * sampling.group_size
        if rollouts % (optim.minibatches * processes):
            raise RecipeError(
                f"optim.minibatches: TRL takes equal pieces, but {rollouts} rollouts do not divide into "
                f"{optim.minibatches} optimiser steps on {processes} processes; change sampling.prompts_per_step"
            )
        share = rollouts // (optim.minibatches * processes)
        if optim.micro_rollouts is None:
            fitting = [
                n for n in range(1, share + 1) if not share % n and n * sampling.max_tokens <= optim.micro_tokens
            ]
            rows = max(fitting, default=1)
        else:
            rows = min(optim.micro_rollouts, share)
        if share % rows:
            raise RecipeError(
                f"optim.micro_rollouts: TRL takes equal pieces, but {rows} does not divide the {share} rollouts of an "
                "optimiser step on a process"
            )
        fixed = optim.micro_rollouts is not None
        return cls(rows, share // rows, optim.minibatches, optim.epochs, processes, fixed)

    @property
    def pieces(self) -> int:
        """Micro-batches of an optimiser step on all processes."""
        return self.accumulated * self.processes

    @property
    def updates(self) -> int:
        """Optimiser steps of a step of the recipe: TRL's `global_step` counts those."""
        return self.minibatches * self.epochs

    def equal_scopes(self, scope: str, rule: str) -> set[str]:
        """The scopes over which a denominator rule counts the same with this cut."""
        links = []
        if self.minibatches == 1:
            links.append({"update", "batch", "generation"})
        if self.pieces == 1:
            links.append({"update", "micro_batch"})
        if rule != "token_mean":  # rollouts are counted, of which equal pieces hold equally many
            links.append({"update", "generation", "micro_batch"})
        found = {scope}
        for link in links * len(links):
            if link & found:
                found |= link
        return found
