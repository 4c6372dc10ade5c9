"""Prompts to scored groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import ThreadPool

from cupola.core.config import SamplingSection
from cupola.core.records import Completion, CupolaError, Group, Prompt, Receipt, Rollout, Sampler, Sampling, Split
from cupola.train.tasks import derive

#: The `count` prompts of a run's `index`-th batch.
Draw = Callable[[int, int], list[Prompt]]

#: The groups to train on, and those drawn in vain.
Collected = tuple[list[Group], list[Group]]


def group_id(step: int, split: Split, mode: str, index: int) -> str:
    """The name of a step's `index`-th group of a split and mode."""
    return f"{step:06d}-{split}-{mode}-{index:04d}"


def _fail(error: CupolaError) -> Collected:
    raise error


@dataclass(frozen=True)
class Collector:
    """Samples and scores: prompts to groups.

    `seed` is the run's; `score` takes repeated prompts, their completions, and how many steps are finished.
    """

    sampler: Sampler
    score: Callable[[Sequence[Prompt], Sequence[Completion], int], list[Rollout]]
    seed: int

    def collect(
        self,
        step: int,
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        split: Split = "train",
        mode: str = "sampled",
    ) -> list[Group]:
        """`group_size` scored completions of each prompt.

        The draw depends on (seed, split, mode, step) alone.
        """
        seed = derive(self.seed, split, mode, step) >> 1  # torch's generators take 63 bits
        sampled = self.sampler.generate(prompts, group_size, sampling, seed)
        repeated = [prompt for prompt, group in zip(prompts, sampled, strict=True) for _ in group]
        finished = step - 1 if split == "train" else step  # a reward function sees how many steps are done, as in TRL
        rollouts = self.score(repeated, [completion for group in sampled for completion in group], finished)
        return [
            Group(
                group_id(step, split, mode, index),
                prompt,
                tuple(rollouts[index * group_size : (index + 1) * group_size]),
                split,
                mode,
            )
            for index, prompt in enumerate(prompts)
        ]

    def publish(self, version: int) -> Receipt:
        """Have the sampler take over the trainer's weights as `version`."""
        return self.sampler.publish(version)

    def begin(self, step: int, draw: Draw, sampling: SamplingSection) -> Callable[[], Collected]:
        """`collect_signal`, to be waited for by a call of what is returned, as often as one likes.

        With a sampler apart it goes on beside the caller; one that shares the trainer's weights draws at once. An error
        is raised where it is waited for: what the caller does until then is not lost.
        """
        if not self.sampler.apart:
            try:
                found = self.collect_signal(step, draw, sampling)
            except CupolaError as error:
                return partial(_fail, error)
            return lambda: found
        pool = ThreadPool(1)  # of a daemon thread: a run that ends does not wait for it, as it would for an executor's
        going = pool.apply_async(self.collect_signal, (step, draw, sampling))
        pool.close()
        return going.get

    def collect_signal(self, step: int, draw: Draw, sampling: SamplingSection) -> Collected:
        """The groups of a step, chosen by dynamic sampling (DAPO, arXiv 2503.14476, section 3.2).

        Batches are drawn until `prompts_per_step` groups have signal, at most `max_batches` of them: that bounds the
        cost. Where none has signal all are returned to train on, for the record to show why nothing moved.
        """
        kept: list[Group] = []
        vain: list[Group] = []
        for batch in range(sampling.max_batches):
            prompts = draw((step - 1) * sampling.max_batches + batch, sampling.prompts_per_step)
            mode = f"sampled{f'-{batch + 1}' if batch else ''}"
            groups = self.collect(step, prompts, sampling.group_size, sampling.settings(), "train", mode)
            if sampling.max_batches == 1:
                return groups, []
            for group in groups:
                wanted = group.state in ("signal", "no_signal") and len(kept) < sampling.prompts_per_step
                (kept if wanted else vain).append(group)
            if len(kept) == sampling.prompts_per_step:
                break
        return (kept, vain) if kept else (vain, [])
