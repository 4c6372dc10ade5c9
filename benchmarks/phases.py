"""Decoding beside `model.generate`, and how far sampling and update are from this machine's own limits.

    python benchmarks/phases.py embedded smollm2 [--group-size 4] [--prompt-tokens 45] [--dead 0]

Decoding: both sides draw the same number of tokens for the same prompts, in turn; medians of five. Its limit is the
larger of the weights' bytes over the measured memory bandwidth and the products' operations over the rate measured at
the model's own sizes. The update's limit is 6 * parameters * tokens operations over that rate, the tokens being those
that carry a gradient, each prompt counted once for its group. Refuses a loaded machine; needs `make smollm2`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from idle import wait_until_idle

from cupola.core.config import Recipe, validate
from cupola.core.records import Completion, Content, Group, Prompt, Rollout, Sampling, Verdict
from cupola.train.loop import Batch, Learner, batch_advantages, plan_steps
from cupola.train.models import InProcessSampler, Policy, load_policy

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Work:
    """A step's shape; `dead` of the groups are paid alike."""

    source: str
    threads: int
    prompts: int
    group_size: int
    prompt_tokens: int
    tokens: int
    dead: int = 0
    micro_tokens: int = 16384
    checkpointing: bool = False
    alone: bool = False


WORKS = {
    "embedded": Work("embedded", 1, 16, 8, 10, 24),
    "smollm2": Work(str(ROOT / "models" / "smollm2-135m"), 2, 4, 4, 45, 48),
}
RUNS = 5


@dataclass
class Numbered(Policy):
    """A policy whose prompts are numbers, each with token ids of its own: random ids are no text's."""

    ids: Mapping[str, list[int]] = field(default_factory=dict)

    def encode(self, content: Content) -> list[int]:
        return self.ids[str(content)]


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def bandwidth() -> float:
    """Bytes per second of reading a large array, the best of five."""
    array = torch.ones(50_000_000)
    array.sum()
    return 4 * len(array) / min(seconds(array.sum) for _ in range(RUNS))


def product_rate(model: torch.nn.Module, rows: int) -> float:
    """Operations per second over one product with each of the model's matrices for so many rows, the best of five."""
    matrices = [m.weight.detach() for m in model.modules() if isinstance(m, torch.nn.Linear)]
    shapes = {tuple(each.shape): each for each in matrices}
    counts = {shape: sum(tuple(m.shape) == shape for m in matrices) for shape in shapes}
    total = operations = 0.0
    for (out, inner), matrix in shapes.items():
        product = partial(torch.nn.functional.linear, torch.randn(rows, inner), matrix)
        total += counts[out, inner] * min(seconds(product) for _ in range(RUNS + 1))
        operations += counts[out, inner] * 2.0 * rows * out * inner
    return operations / total


def prompts_of(policy: Policy, work: Work) -> list[Prompt]:
    """Random prompts of one length."""
    generator = torch.Generator().manual_seed(0)
    low, high = 4, len(policy.tokenizer)
    rows = torch.randint(low, high, (work.prompts, work.prompt_tokens), generator=generator)
    return [Prompt(f"{index}", columns={"ids": row}) for index, row in enumerate(rows.tolist())]


def decoding(policy: Policy, work: Work, prompts: list[Prompt]) -> tuple[list[float], list[list[Completion]]]:
    """Median seconds of our sampler and, unless it is alone, of `generate`; and what was sampled last."""
    sampler = InProcessSampler(policy)
    ids = torch.tensor([prompt.columns["ids"] for prompt in prompts]).repeat_interleave(work.group_size, 0)
    settings = Sampling(work.tokens, 1.0)
    drawn: list[list[Completion]] = []

    def ours() -> None:
        drawn[:] = sampler.generate(prompts, work.group_size, settings, 0)

    @torch.no_grad()
    def theirs() -> None:
        model: Any = policy.model  # transformers leaves `generate` untyped
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            max_new_tokens=work.tokens,
            min_new_tokens=work.tokens,
            pad_token_id=policy.pad_id,
        )

    calls = [ours] if work.alone else [ours, theirs]
    times = [[seconds(call) for call in calls] for _ in range(RUNS + 1)][1:]
    return [median(each) for each in zip(*times, strict=True)], drawn


def updating(policy: Policy, work: Work, prompts: list[Prompt], drawn: list[list[Completion]]) -> tuple[float, int]:
    """Median seconds of an update on these completions, and its tokens that carry a gradient, prompts once."""
    recipe = validate(
        {
            "data": {"task": "arithmetic"},
            "sampling": {
                "prompts_per_step": work.prompts,
                "group_size": work.group_size,
                "max_tokens": work.tokens,
            },
            "reward": [{"name": "pay", "kind": "exact"}],
            "objective": {"preset": "grpo", "beta": 0.0},
            "optim": {
                "learning_rate": 1e-9,
                "micro_tokens": work.micro_tokens,
                "gradient_checkpointing": work.checkpointing,
            },
        },
        Recipe,
    )
    groups = []
    for index, (prompt, completions) in enumerate(zip(prompts, drawn, strict=True)):
        pays = [0.0 if index < work.dead else place / len(completions) for place in range(len(completions))]
        rollouts = tuple(
            Rollout(each, {"pay": Verdict(pay, "ok", verifier="pay")}, pay, pay > 0)
            for each, pay in zip(completions, pays, strict=True)
        )
        groups.append(Group(f"{index}", prompt, rollouts))
    learner = Learner(policy, None, recipe)
    batch = Batch.of(groups, policy.encode)

    def update() -> None:
        before = learner.before(batch)
        advantages = batch_advantages(batch, before, recipe)
        learner.update(batch, before, advantages, plan_steps(batch, advantages.values, recipe))

    update()
    live = work.prompts - work.dead
    tokens = live * (work.prompt_tokens + work.group_size * work.tokens)
    return median(seconds(update) for _ in range(RUNS)), tokens


def report(name: str, work: Work) -> None:
    torch.set_num_threads(work.threads)
    policy = Numbered(**vars(load_policy(work.source, "float32", "cpu")))
    policy.stop_ids = (-1,)
    prompts = prompts_of(policy, work)
    policy.ids = {prompt.text: prompt.columns["ids"] for prompt in prompts}
    parameters, rows = policy.parameters, work.prompts * work.group_size

    (ours, *theirs), drawn = decoding(policy, work, prompts)
    speed, rate = bandwidth(), product_rate(policy.model, rows)
    limit = work.tokens * max(4 * parameters / speed, 2 * parameters * rows / rate)
    print(
        f"{name}: {parameters:,} parameters, {work.prompts} prompts of {work.prompt_tokens} tokens x {work.group_size}"
    )
    print(f"  memory {speed / 1e9:.1f} GB/s; products {rate / 1e9:.0f} GFLOP/s at {rows} rows")
    beside = "".join(f", generate {each:.3f} s: {each / ours:.2f} times as fast" for each in theirs)
    print(f"  decoding {ours:.3f} s{beside}; limit {limit / ours:.0%}")
    took, tokens = updating(policy, work, prompts, drawn)
    rate = product_rate(policy.model, min(tokens, 1024))
    limit = 6 * parameters * tokens / rate
    print(f"  update {took:.3f} s for {tokens} tokens, {work.dead} dead groups; limit {limit / took:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("works", nargs="+", choices=sorted(WORKS))
    parser.add_argument("--group-size", type=int)
    parser.add_argument("--prompt-tokens", type=int)
    parser.add_argument("--dead", type=int)
    parser.add_argument("--micro-tokens", type=int)
    parser.add_argument("--alone", action="store_true", default=None, help="leave `generate` out")
    parser.add_argument("--checkpointing", action="store_true", default=None)
    options = vars(parser.parse_args())
    wait_until_idle()
    given = {key: value for key, value in options.items() if key != "works" and value is not None}
    for name in options["works"]:
        report(name, replace(WORKS[name], **given))


if __name__ == "__main__":
    main()
