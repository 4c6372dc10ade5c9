"""Prompts to groups: order, identity and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import numpy as np
import pytest

from cupola.core.config import SamplingSection
from cupola.core.records import Completion, Prompt, Receipt, RewardError, Rollout, Sampling, Verdict
from cupola.train.rollout import Collector

SAMPLING = Sampling(max_tokens=4)


class Echo:
    """A sampler that answers with the prompt and the completion's number, and remembers its seeds."""

    apart = False

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling, seed: int) -> list[list[Completion]]:
        self.seeds.append(seed)
        zeros = np.zeros(1, dtype=np.float32)
        return [
            [Completion(f"{p.text}/{i}", np.array([i]), zeros, zeros, "stop", 0) for i in range(n)] for p in prompts
        ]

    def logprobs(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], temperature: float
    ) -> list[np.ndarray]:
        return [completion.logps for completion in completions]

    def publish(self, version: int) -> Receipt:
        return Receipt(version, 0, 0.0, "echo")


def score(prompts: Sequence[Prompt], completions: Sequence[Completion], step: int) -> list[Rollout]:
    """The reward is the number of finished steps; the verdict names the prompt it was asked about."""
    return [
        Rollout(c, {"echo": Verdict(1.0, "ok", extracted=p.text)}, float(step), True)
        for p, c in zip(prompts, completions, strict=True)
    ]


def test_every_completion_stays_with_its_prompt() -> None:
    groups = Collector(Echo(), score, seed=0).collect(7, [Prompt("a"), Prompt("b")], 3, SAMPLING)
    assert [group.id for group in groups] == ["000007-train-sampled-0000", "000007-train-sampled-0001"]
    for group, text in zip(groups, "ab", strict=True):
        assert group.prompt.text == text
        assert [r.completion.text for r in group.rollouts] == [f"{text}/{i}" for i in range(3)]
        assert [r.verdicts["echo"].extracted for r in group.rollouts] == [text] * 3
        assert group.rewards == [6.0] * 3  # six steps are finished while the seventh samples


def test_split_and_mode_stand_in_the_group() -> None:
    (group,) = Collector(Echo(), score, seed=0).collect(0, [Prompt("a")], 1, SAMPLING, "validation", "greedy")
    assert group.id == "000000-validation-greedy-0000"
    assert (group.split, group.mode) == ("validation", "greedy")


def test_each_step_split_and_mode_draws_with_a_seed_of_its_own() -> None:
    sampler = Echo()
    collector = Collector(sampler, score, seed=5)
    for step, split, mode in [
        (1, "train", "sampled"),
        (2, "train", "sampled"),
        (1, "validation", "sampled"),
        (1, "validation", "greedy"),
    ]:
        collector.collect(step, [Prompt("a")], 1, SAMPLING, split, mode)
    Collector(sampler, score, seed=6).collect(1, [Prompt("a")], 1, SAMPLING)
    assert len(set(sampler.seeds)) == 5
    collector.collect(1, [Prompt("a")], 1, SAMPLING)
    assert sampler.seeds[-1] == sampler.seeds[0]


def test_seeds_do_not_overlap_between_runs() -> None:
    """Sums such as seed + step would: run 1 at step 2 is run 2 at step 1. And they fit a generator's 63 bits."""
    sampler = Echo()
    for seed in range(20):
        for step in range(20):
            Collector(sampler, score, seed).collect(step, [Prompt("a")], 1, SAMPLING)
    assert len(set(sampler.seeds)) == 400
    assert all(0 <= seed < 2**63 for seed in sampler.seeds)


def scored(prompts: Sequence[Prompt], completions: Sequence[Completion], step: int) -> list[Rollout]:
    """Half of the answers to a live prompt are paid; of another, none."""
    rewards = [
        float(p.text.startswith("live") and c.token_ids[0] % 2) for p, c in zip(prompts, completions, strict=True)
    ]
    return [
        Rollout(c, {"half": Verdict(r, "ok" if r else "wrong")}, r, bool(r))
        for c, r in zip(completions, rewards, strict=True)
    ]


def draws(batches: list[list[str]]) -> tuple[list[int], Callable[[int, int], list[Prompt]]]:
    asked: list[int] = []

    def draw(index: int, count: int) -> list[Prompt]:
        asked.append(index)
        return [Prompt(text) for text in batches[len(asked) - 1]]

    return asked, draw


def test_dynamic_sampling_draws_until_enough_groups_have_signal() -> None:
    asked, draw = draws([["dead 1", "live 1"], ["dead 2", "dead 3"], ["live 2", "live 3"], ["live 4", "live 5"]])
    settings = SamplingSection(prompts_per_step=2, group_size=2, max_batches=4)
    kept, vain = Collector(Echo(), scored, seed=0).collect_signal(3, draw, settings)
    assert asked == [8, 9, 10]  # step 3 begins at batch (3 - 1) * 4, so no step draws another's
    assert [group.prompt.text for group in kept] == ["live 1", "live 2"]
    assert [group.prompt.text for group in vain] == ["dead 1", "dead 2", "dead 3", "live 3"]
    assert len({group.id for group in [*kept, *vain]}) == 6


def test_dynamic_sampling_stops_at_its_cost_cap() -> None:
    asked, draw = draws([["dead 1", "live 1"], ["dead 2", "dead 3"]])
    settings = SamplingSection(prompts_per_step=2, group_size=2, max_batches=2)
    kept, vain = Collector(Echo(), scored, seed=0).collect_signal(1, draw, settings)
    assert asked == [0, 1]
    assert ([group.prompt.text for group in kept], len(vain)) == (["live 1"], 3)


def test_where_no_group_has_signal_all_are_handed_on() -> None:
    _, draw = draws([["dead 1", "dead 2"], ["dead 3", "dead 4"]])
    settings = SamplingSection(prompts_per_step=2, group_size=2, max_batches=2)
    kept, vain = Collector(Echo(), scored, seed=0).collect_signal(1, draw, settings)
    assert (len(kept), vain) == (4, [])


def test_without_dynamic_sampling_whatever_comes_is_trained_on() -> None:
    asked, draw = draws([["dead 1", "live 1"]])
    kept, vain = Collector(Echo(), scored, seed=0).collect_signal(
        5, draw, SamplingSection(prompts_per_step=2, group_size=2)
    )
    assert (asked, len(kept), vain) == ([4], 2, [])


class Slow(Echo):
    """A sampler apart, which answers when it is let."""

    apart = True

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = Event()

    def generate(self, *args: Any) -> list[list[Completion]]:
        assert self.may_answer.wait(10)
        return super().generate(*args)


def draw(index: int, count: int) -> list[Prompt]:
    return [Prompt(f"{index}.{place}") for place in range(count)]


TWO = SamplingSection(prompts_per_step=2, group_size=2)


def test_a_sampler_apart_answers_beside_the_caller() -> None:
    sampler = Slow()
    wait = Collector(sampler, score, seed=0).begin(3, draw, TWO)
    assert sampler.seeds == []  # begun, and not waited for
    sampler.may_answer.set()
    groups, vain = wait()
    assert ([group.prompt.text for group in groups], vain) == (["2.0", "2.1"], [])
    assert wait() == (groups, vain)
    assert len(sampler.seeds) == 1


def test_a_sampler_of_the_trainers_weights_answers_before_they_move() -> None:
    sampler = Echo()
    wait = Collector(sampler, score, seed=0).begin(3, draw, TWO)
    assert len(sampler.seeds) == 1
    assert [group.prompt.text for group in wait()[0]] == ["2.0", "2.1"]


@pytest.mark.parametrize("apart", [True, False])
def test_what_fails_beside_the_caller_fails_where_it_is_waited_for(apart: bool) -> None:
    def broken(prompts: Sequence[Prompt], completions: Sequence[Completion], step: int) -> list[Rollout]:
        raise RewardError("no reward today")

    sampler = Slow() if apart else Echo()
    wait = Collector(sampler, broken, seed=0).begin(3, draw, TWO)
    if isinstance(sampler, Slow):
        sampler.may_answer.set()
    with pytest.raises(RewardError, match="no reward today"):
        wait()
