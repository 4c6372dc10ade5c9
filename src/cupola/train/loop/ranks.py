"""The ranks of a distributed run: who forwards what, and how they agree.

Every rank holds the same groups, batch, advantages and plan, computed alike. Each samples and scores its share of the
prompts and forwards its share of the rollouts; what it finds is told to all. The first alone writes and speaks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import Module

from cupola.core.config import SamplingSection
from cupola.core.config.recipe import Updates
from cupola.core.records import CupolaError, Group, Prompt, RankError, Receipt, RecipeError, Sampling, Split
from cupola.train.loop.batch import Batch
from cupola.train.loop.plan import Plan, cut_rows
from cupola.train.models import gathered
from cupola.train.objectives import BY_CUT
from cupola.train.rollout import Collected, Collector, Draw, group_id
from cupola.train.tasks import derive

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among `world`; alone, every method is the plain thing itself."""

    rank: int = 0
    world: int = 1
    mesh: DeviceMesh | None = None

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value)
        return found

    def together(self, work: Callable[[], T]) -> T:
        """What `work` returns here. An error of cupola's own on one rank is raised on all: none is left waiting."""
        if self.world == 1:
            return work()
        found, error = _attempt(work)
        for other in self.gather(error):
            if other is not None:
                raise other
        return found[0]

    def first(self, work: Callable[[], T]) -> T:
        """What `work`, run by the first rank alone, returns there; its error is raised on all."""
        if self.world == 1:
            return work()
        told: list[Any] = [_attempt(work) if self.is_first else None]
        dist.broadcast_object_list(told, src=0)
        found, error = told[0]
        if error is not None:
            raise error
        result: T = found[0]
        return result

    def share(self, items: Sequence[T], costs: Sequence[int]) -> list[T]:
        """This rank's part of the items, which costs about as much as any other's."""
        return [item for item, rank in zip(items, dealt(costs, self.world), strict=True) if rank == self.rank]

    def ask(self, rows: Sequence[int], costs: Sequence[int], work: Callable[[list[int]], list[T]]) -> list[T]:
        """What `work` says of each row, in order; each rank asks about its share."""
        own = self.share(rows, costs)
        found: dict[int, T] = {}
        for told in self.gather(dict(zip(own, work(own), strict=True))):
            found |= told
        return [found[row] for row in rows]

    def micro_batches(self, plan: Plan, batch: Batch, optim: Updates) -> list[tuple[list[int], float]]:
        """This rank's micro-batches, each with the factor of its loss: 1, or 0 for what only evens out the number.

        Rows are dealt by tokens, neighbours together, since a group shares its prompt. Where a weight depends on what
        is forwarded together, the planned micro-batches are dealt whole.
        """
        if self.world == 1:
            return [(rows, 1.0) for rows in plan.micro]
        shares: list[list[list[int]]] = [[] for _ in range(self.world)]
        if any(term.scope == "micro_batch" or term.rule in BY_CUT for term in plan.terms.values()):
            costs = [sum(token_costs(batch, rows)) for rows in plan.micro]
            for rows, rank in zip(plan.micro, dealt(costs, self.world), strict=True):
                shares[rank].append(rows)
        else:
            places = dealt(token_costs(batch, plan.forward), self.world)
            for rank in range(self.world):
                rows = [row for row, place in zip(plan.forward, places, strict=True) if place == rank]
                shares[rank] = cut_rows(batch, rows, optim)
        missing = max(map(len, shares)) - len(shares[self.rank])
        return [(rows, 1.0) for rows in shares[self.rank]] + [([plan.forward[0]], 0.0)] * missing


ALONE = Ranks()


def _attempt(work: Callable[[], T]) -> tuple[list[T], CupolaError | None]:
    try:
        return [work()], None
    except CupolaError as error:
        return [], error


def dealt(costs: Sequence[int], ranks: int) -> list[int]:
    """The rank of each item: neighbours stay together, and each rank's costs are an equal part, to within one item."""
    total, before, found = sum(costs), 0, []
    for cost in costs:
        found.append(min(ranks - 1, (2 * before + cost) * ranks // max(1, 2 * total)))
        before += cost
    return found


def token_costs(batch: Batch, rows: Sequence[int]) -> list[int]:
    """Tokens of each row, its prompt's included."""
    return [len(batch.prompts[row]) + len(batch.completions[row]) for row in rows]


@dataclass(frozen=True)
class SharedCollector(Collector):
    """Every rank samples and scores its share of the prompts, and holds all groups.

    `model` is gathered while it samples; `sources` is the number of ranks that have a sampler of their own: all, or the
    first alone where the sampler is a server. What is drawn depends on the number of ranks.
    """

    ranks: Ranks
    model: Module
    sources: int

    def collect(
        self,
        step: int,
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        split: Split = "train",
        mode: str = "sampled",
    ) -> list[Group]:
        own = prompts[self.ranks.rank :: self.sources] if self.ranks.rank < self.sources else []
        alone = self._alone()
        with gathered(self.model):
            found = self.ranks.together(
                lambda: alone.collect(step, own, group_size, sampling, split, mode) if own else []
            )
        told = self.ranks.gather(found)
        places = [divmod(index, self.sources) for index in range(len(prompts))]
        return [
            replace(told[rank][row], id=group_id(step, split, mode, index)) for index, (row, rank) in enumerate(places)
        ]

    def begin(self, step: int, draw: Draw, sampling: SamplingSection) -> Callable[[], Collected]:
        if not self.sampler.apart:
            return super().begin(step, draw, sampling)
        # The first rank's thread speaks to the server alone: two threads of a rank must not both speak to the others.
        going = self._alone().begin(step, draw, sampling) if self.ranks.is_first else _elsewhere
        return cache(lambda: self.ranks.first(going))

    def _alone(self) -> Collector:
        return Collector(self.sampler, self.score, derive(self.seed, "rank", self.ranks.rank))

    def publish(self, version: int) -> Receipt:
        with gathered(self.model):
            work = self.ranks.first if self.sources == 1 else self.ranks.together
            return work(lambda: self.sampler.publish(version))


def _elsewhere() -> Collected:
    raise AssertionError("the first rank alone is asked")


ENDED = "another rank of this run has ended; continue with `cupola resume`, on any number of ranks"


def _told_to_end(number: int, frame: object) -> None:
    raise RankError(ENDED)


@contextmanager
def lost_ranks_named() -> Iterator[None]:
    """What torch says of a collective whose other end is gone, as a RankError."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, CupolaError) or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise RankError(ENDED) from error


@contextmanager
def launched(device: str) -> Iterator[Ranks]:
    """The ranks that torchrun started, or this process alone.

    Raises RankError where another rank has ended, which torchrun tells the rest by SIGTERM, if they have not noticed;
    and RecipeError for a `device` that all ranks would have to share.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield ALONE
        return
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo")
    ranks = Ranks(dist.get_rank(), world, init_device_mesh(kind, (world,)))
    signal.signal(signal.SIGTERM, _told_to_end)
    with lost_ranks_named():
        if ":" in device:
            raise RecipeError(f"model.device = {device!r}: {world} ranks cannot share it; use 'auto', one device each")
        yield ranks
    dist.destroy_process_group()
