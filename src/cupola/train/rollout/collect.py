"""Prompts to scored groups."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cupola.core.records import Completion, Group, Prompt, Rollout, Sampler, Sampling, Split

Scorer = Callable[[Sequence[Prompt], Sequence[Completion], int], list[Rollout]]


def derive_seed(seed: int, split: str, step: int) -> int:
    """A sampling seed that shares nothing with any other (seed, split, step), below 2^63."""
    digest = hashlib.sha256(f"{seed}/{split}/{step}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True)
class Collector:
    """Samples and scores: prompts to groups. `seed` is the run's."""

    sampler: Sampler
    score: Scorer
    seed: int

    def collect(
        self,
        step: int,
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        split: Split = "train",
        suffix: str = "",
    ) -> list[Group]:
        """`group_size` scored completions of each prompt; group ids are `step-split-index[-suffix]`."""
        sampled = self.sampler.generate(prompts, group_size, sampling, derive_seed(self.seed, split + suffix, step))
        repeated = [prompt for prompt, group in zip(prompts, sampled, strict=True) for _ in group]
        rollouts = self.score(repeated, [completion for group in sampled for completion in group], step)
        groups = []
        for index, prompt in enumerate(prompts):
            id = "-".join([f"{step:06d}", split, f"{index:04d}", *([suffix] if suffix else [])])
            own = rollouts[index * group_size : (index + 1) * group_size]
            groups.append(Group(id, prompt, tuple(own), split))
        return groups
