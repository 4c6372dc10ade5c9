"""What the tests prove on a CPU, checked on an accelerator within eight minutes (docs/accelerators.md).

    python scripts/accelerator.py [--model FOLDER] [--device auto|cuda|cpu] [--vllm URL] [--only CHECK ...]

Prints each figure with its bound as it is measured, and at the end one JSON line of them all; exit code 1 if a check
failed. A check that raises has failed, and the others go on; what the time is not enough for is `not run`. Without
--model it takes the embedded policy, and models/smollm2-135m where that is. Each check yields figures as it finds them.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from cupola.core.config import Recipe, validate
from cupola.core.records import Completion, Group, Prompt, Rollout, Sampling, Verdict
from cupola.core.runlog import RunReader
from cupola.train import loop, models
from cupola.train.rollout import Server
from cupola.workflows.manifest import versions
from cupola.workflows.preflight import peak_gb, reset_peak
from cupola.workflows.train import train_recipe

Table = dict[str, Any]
#: What was measured, its value, and the most it may be: without that it is only told, without a value it was not run.
Figure = tuple[str, float | None, float | None]
SMOLLM2 = Path(__file__).parent.parent / "models" / "smollm2-135m"
PROMPTS = [Prompt(text) for text in ("    12+34=", "  567+89=", "3+4=", "      91+9=")]  # unequal: there is padding
GROUP, TOKENS = 4, 24

#: The largest relative gap of a gradient from the same one computed another way; from the CPU's in float64; and of the
#: sampler from the trainer, in nats. TensorFloat-32, which keeps 10 bits of a float32, fits none of them.
EXACT = {"float64": 1e-9, "float32": 1e-5}
ON_DEVICE = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.5}
NATS = {"float32": 1e-3, "bfloat16": 0.5}

GRPO: Table = {"preset": "grpo", "beta": 0.3, "entropy_coef": 0.02}
PRESETS: list[Table] = [GRPO, {"preset": "gspo"}, {"preset": "dapo"}, {"preset": "ppo"}]


@dataclass(frozen=True)
class Case:
    """A model on a device; `vllm` is a recipe's table of the server that holds it too."""

    source: str
    device: torch.device
    vllm: Table

    def load(self, dtype: str, device: str | None = None) -> models.Policy:
        policy = models.load_policy(self.source, dtype, device or str(self.device))
        models.set_threads(policy.parameters)
        return policy

    @cached_property
    def reader(self) -> models.Policy:
        return self.load("float32", "cpu")

    @property
    def slow(self) -> bool:
        """A real model on a CPU gets less of everything."""
        return self.device.type == "cpu" and self.reader.parameters > models.ONE_THREAD_PARAMETERS

    @property
    def prompts(self) -> list[Prompt]:
        return PROMPTS[: 2 if self.slow else 4]

    def groups(self, lengths: Sequence[int]) -> list[Group]:
        """Answers of random tokens, of these lengths in turn, the same on every device; each has an advantage."""
        random, high, rollouts = np.random.default_rng(0), self.reader.model.config.vocab_size, list[Rollout]()
        for row, length in enumerate(lengths):
            pay, zeros = (1.0, 0.0, 0.25, 0.6)[row % 4], np.zeros(length, np.float32)
            completion = Completion("", random.integers(2, high, length), zeros, None, "stop", 0)
            rollouts.append(Rollout(completion, {"pay": Verdict(pay, "ok")}, pay, pay == 1))
        size = len(rollouts) // len(self.prompts)
        return [Group(p.id, p, tuple(rollouts[i * size :][:size])) for i, p in enumerate(self.prompts)]


def learner_of(policy: models.Policy, objective: Table, optim: Table, ranks: loop.Ranks = loop.ALONE) -> loop.Learner:
    """Of a copy of the policy, by an optimiser that keeps the gradient, beside a reference that is nearly the same."""
    values = {
        "data": {"task": "arithmetic"},
        "reward": [{"name": "pay", "kind": "exact"}],
        "sampling": {"max_tokens": TOKENS, "temperature": 2.0},  # at 1 a sure policy's gradient is mostly rounding
        "objective": objective,
        "optim": {"name": "sgd", "learning_rate": 1e-3, "schedule": "constant", "max_grad_norm": 1e9, **optim},
    }
    recipe, own, reference = validate(values, Recipe), replace(policy, model=copy.deepcopy(policy.model)), None
    if recipe.objective.beta > 0:
        reference = models.Reference(copy.deepcopy(policy.model).requires_grad_(False))
        for weight in reference.model.parameters():
            weight.mul_(1.001)
    critic = models.critic_of(own) if recipe.objective.baseline == "critic" else None
    return loop.Learner(own, reference, recipe, critic, ranks)


def update(learner: loop.Learner, groups: Sequence[Group]) -> int:
    """One batch as the loop takes it; returns the micro-batches of a step. A refused step is an error."""
    batch = loop.Batch.of(groups, learner.policy.encode)
    before = learner.before(batch)
    advantages = loop.batch_advantages(batch, before, learner.recipe)
    plans = loop.plan_steps(batch, advantages.values, learner.recipe)
    for step in learner.update(batch, before, advantages, plans).steps:
        if step.refused is not None:
            raise RuntimeError(step.refused)
    return len(plans[0].micro)


def gradients(
    case: Case, policy: models.Policy, objective: Table = GRPO, pieces: int = 1, ranks: loop.Ranks = loop.ALONE
) -> list[Tensor]:
    """Of two passes over a batch, the second at ratios that are not 1: the policy's gradients, and the critic's."""
    found, groups = list[Tensor](), case.groups([TOKENS - 7 * row % 20 for row in range(GROUP * len(case.prompts))])
    cut = {"micro_rollouts": GROUP * len(groups) // pieces, "epochs": 1 if case.slow else 2}
    learner = learner_of(policy, objective, cut, ranks)

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in held]
        found.append(torch.cat([each.double().flatten() for each in whole]))

    for optimizer in filter(None, (learner.optimizer, learner.critic_optimizer)):
        optimizer.register_step_pre_hook(note)
    if update(learner, groups) != pieces or not found:
        raise RuntimeError(f"the batch was not cut into {pieces}, or no step was taken")
    return found


def gap(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest || found - expected || / || expected || of any step and model; NaN if one is, unlike by `max`."""
    pairs = zip(found, expected, strict=True)
    return float(np.max([float((one.to(other.device) - other).norm() / other.norm()) for one, other in pairs]))


def gradient(case: Case) -> Iterator[Figure]:
    """One gradient, however the batch is cut and padded."""

    def pad_further(prompts: list[list[int]], completions: list[list[int]], pad_id: int) -> models.Sequences:
        made = models.pad([*prompts, [pad_id] * (max(map(len, prompts)) + 5)], [*completions, completions[0]], pad_id)
        return models.Sequences(*(tensor[:-1] for tensor in vars(made).values()))

    for dtype, bound in EXACT.items():
        policy = case.load(dtype)
        for objective in [GRPO] if case.slow else PRESETS:
            whole = gradients(case, policy, objective)
            with mock.patch("cupola.train.loop.update.pad", pad_further):
                gaps = [gap(gradients(case, policy, objective, pieces), whole) for pieces in (1, 2, 8)]
            yield f"{objective['preset']} {dtype}: gap of 1, 2, 8 pieces", float(np.max(gaps)), bound


def device(case: Case) -> Iterator[Figure]:
    """The CPU's gradient in float64, by the device in each type."""

    def on_the_cpu(forward: Callable[..., Sequence[Tensor]], x: Tensor, position_ids: Tensor) -> Sequence[Tensor]:
        return tuple(each.to(x.device) for each in forward(x[:, :1].cpu(), position_ids.cpu()))

    expected = gradients(case, case.load("float64", "cpu"))
    for dtype, bound in ON_DEVICE.items():
        policy = case.load(dtype)
        for part in policy.model.modules() if dtype == "float64" else ():
            if type(part).__name__.endswith("RotaryEmbedding"):  # its sines are float32 whatever the model's type
                part.forward = partial(on_the_cpu, part.forward)
        yield f"{dtype}: gap from the CPU's float64", gap(gradients(case, policy), expected), bound


def sampler(case: Case) -> Iterator[Figure]:
    """Beside `generate`: its answers and its pace. Beside the trainer: its scores of the same tokens."""

    def sampled(own: models.InProcessSampler) -> list[list[int]]:
        return [each.token_ids.tolist() for each in answered(case, own, 0.0)]

    def generated(policy: models.Policy) -> list[list[int]]:
        prompts, stops = [policy.encode(prompt.content) for prompt in case.prompts], policy.stop_ids
        read = models.pad(prompts, [[0]] * len(prompts), policy.pad_id)
        ids, mask = (each.repeat_interleave(GROUP, 0).to(policy.device) for each in (read.prompts, read.prompt_mask))
        inputs = {"input_ids": ids, "attention_mask": mask, "pad_token_id": policy.pad_id, "eos_token_id": list(stops)}
        model: Any = policy.model  # transformers leaves `generate` untyped
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=TOKENS)[:, ids.shape[1] :].tolist()
        return [each[: next((i + 1 for i, token in enumerate(each) if token in stops), TOKENS)] for each in tokens]

    for dtype, bound in NATS.items():
        policy, answers = case.load(dtype), {}
        own = models.InProcessSampler(policy)
        for name, draw in (("sampler", partial(sampled, own)), ("generate", partial(generated, policy))):
            draw()  # the first is slow
            started = time.perf_counter()
            answers[name] = draw()
            took = time.perf_counter() - started
            yield f"{dtype}: tokens/s of {name}, greedy", sum(map(len, answers[name])) / took, None
        if dtype == "float32":
            yield "float32: greedy answers unlike generate's", sum(map(list.__ne__, *answers.values())), 0
        yield f"{dtype}: nats from the trainer", nats(answered(case, own, 1.0), case, policy), bound


def answered(case: Case, own: models.InProcessSampler, temperature: float) -> list[Completion]:
    return [each for group in own.generate(case.prompts, GROUP, Sampling(TOKENS, temperature), 1) for each in group]


def nats(drawn: Sequence[Completion], case: Case, trainer: models.Policy) -> float:
    """The largest |sampler - trainer| of any token."""
    prompts = [prompt for prompt in case.prompts for _ in range(GROUP)]
    told = models.InProcessSampler(trainer).logprobs(prompts, drawn, 1.0)
    return float(np.max(np.abs(np.concatenate([each.logps for each in drawn]) - np.concatenate(told))))


def trained(case: Case, folder: str, model: Table, sampler: Table) -> RunReader:
    """A run of three steps, each with signal whatever is answered."""
    pays = "def turns(completions, **_):\n    return [i % 3 for i in range(len(completions))]\n"
    Path(folder, "reward.py").write_text(pays)
    values = {
        "run": {"folder": folder, "steps": 3},
        "model": {"source": case.source, "device": str(case.device), **model},
        "data": {"task": "arithmetic", "options": {"levels": [1]}},
        "sampling": {"prompts_per_step": len(case.prompts), "group_size": GROUP, "max_tokens": TOKENS},
        "sampler": sampler,
        "reward": [{"name": "turns", "kind": "function", "path": f"{folder}/reward.py:turns"}],
        "optim": {"learning_rate": 3e-4},
        "validation": {"every": 3, "questions": 2, "samples": 1, "greedy": False},
    }
    return RunReader(train_recipe(validate(values, Recipe), {}).folder)


def bfloat16(case: Case) -> Iterator[Figure]:
    """Runs in bfloat16, of all weights and of an adapter: their losses, what moved, and their pace."""
    for name, lora, file in (("all", None, "model"), ("LoRA", {}, f"{models.ADAPTER}/adapter_model")):
        with tempfile.TemporaryDirectory() as folder:
            run = trained(case, folder, {"dtype": "bfloat16", "lora": lora}, {})
            rows = run.metrics("train")
            first, last = (load_file(run.layout.checkpoint(step) / f"{file}.safetensors") for step in (0, 3))
        stood = sum(int((last[key] == first[key]).sum()) for key in first) / sum(map(Tensor.numel, first.values()))
        finite = [row["loss"] is not None and math.isfinite(row["loss"]) for row in rows]
        yield f"{name}: losses that are not finite", finite.count(False) + 3 - len(rows), 0
        yield f"{name}: share of weights that stood still", stood, 0.999
        yield f"{name}: seconds of the last step", rows[-1]["step_time"], None


def receipts(case: Case) -> Iterator[Figure]:
    """After a step the sampler in this process answers with the new weights, and not with those before."""
    policy = case.load("float32")
    learner = learner_of(policy, {"beta": 0.0}, {"learning_rate": 3e-3})
    own = models.InProcessSampler(learner.policy)
    update(learner, case.groups([TOKENS] * GROUP * len(case.prompts)))
    receipt, drawn = own.publish(learner.version), answered(case, own, 1.0)
    yield "answers of another version", sum(not each.policy_version == receipt.version == 1 for each in drawn), 0
    new, old = (nats(drawn, case, each) for each in (learner.policy, policy))
    yield "nats from the new weights", new, NATS["float32"]
    yield "nats from the new weights over from the old", new / old, 0.1


def memory(case: Case) -> Iterator[Figure]:
    """Peak of an update above what is held before it, and what smaller micro-batches and recomputing save of it."""
    rows, peaks = 16 if case.slow else 96, {}
    groups = case.groups([2 * TOKENS] * rows)
    for name, tokens, again in (("small", rows * 8, False), ("large", 2**17, False), ("recomputed", 2**17, True)):
        optim = {"name": "adamw", "learning_rate": 1e-6, "micro_tokens": tokens, "gradient_checkpointing": again}
        learner = learner_of(case.load("float32"), {"beta": 0.0}, optim)
        update(learner, groups)  # from then on the optimiser's states are held
        peaks[name] = peak(case.device, partial(update, learner, groups))
        yield f"GB of an update, {name}", peaks[name], None
        del learner
        gc.collect()  # recomputing makes a circle of a model
    yield "small micro_tokens over large", peaks["small"] / peaks["large"], 0.8
    deep = case.reader.model.config.num_hidden_layers > 4  # of two layers, the one that is computed again is half
    yield "gradient_checkpointing over none", peaks["recomputed"] / peaks["large"], 0.9 if deep else None


def peak(where: torch.device, work: Callable[[], object]) -> float:
    """Peak GB that the work takes: of the device, or of this process on Linux where that is a CPU."""
    if where.type == "cpu":
        CDLL(None).malloc_trim(0)  # what was freed before would hide what is taken now
        reset_peak()
        held = peak_gb()
        work()
        return peak_gb() - held
    torch.cuda.reset_peak_memory_stats(where)
    held = torch.cuda.memory_allocated(where)
    work()
    return (torch.cuda.max_memory_allocated(where) - held) / 2**30


def fsdp(case: Case) -> Iterator[Figure]:
    """The gradient of a world of one, sharded by FSDP2, beside that of no world."""
    backend = "cpu:gloo,cuda:nccl" if case.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=vars(dist)["HashStore"](), rank=0, world_size=1)
    try:
        ranks = loop.Ranks(0, 1, init_device_mesh(case.device.type, (1,)))
        for dtype, bound in EXACT.items():
            policy = case.load(dtype)
            shared = gradients(case, policy, GRPO, 2, ranks)
            yield f"{dtype}: gap of a world of 1", gap(shared, gradients(case, policy)), bound
    finally:
        dist.destroy_process_group()


def vllm(case: Case) -> Iterator[Figure]:
    """Three steps against a server that holds this model, to which the weights are sent."""
    if case.vllm["url"] is None:
        yield "no --vllm URL was given", None, None
        return
    server = Server(case.vllm["url"], 30, 0).get("/server_info?config_format=json")["vllm_config"]["model_config"]
    dtype = str(server["dtype"]).removeprefix("torch.")
    with tempfile.TemporaryDirectory() as folder:
        place = {"folder": f"{folder}/handed"} if case.vllm["transfer"] == "files" else {}
        found = trained(case, folder, {}, {**case.vllm, **place, "dtype": dtype}).receipts()
    yield f"receipts that are missing, by {case.vllm['transfer']}", 3 - len(found), 0
    yield "nats between server and trainer", float(np.max([row["difference"] for row in found])), NATS.get(dtype, 0.5)
    yield "seconds of the last publication", found[-1]["seconds"], None


CHECKS = {each.__name__: each for each in (gradient, device, sampler, bfloat16, receipts, memory, fsdp, vllm)}


def run(work: Sequence[tuple[str, Case]], until: float) -> list[Table]:
    """The table's rows, printed as they come. Each check has a thread, so that one that hangs cannot hold it up."""
    rows, ended, hangs = list[Table](), time.perf_counter(), False

    def add(check: str, case: Case, figure: Figure, state: str = "not run") -> None:
        nonlocal ended
        (words, value, most), now = figure, time.perf_counter()
        took, ended = now - ended, now
        if value is not None:
            state = "measured" if most is None else "pass" if value <= most else "fail"  # NaN is not <=
        row = {"check": check, "model": Path(case.source).name, "figure": words, "most": most, "state": state}
        known = value if value is not None and math.isfinite(value) else None  # JSON has no NaN
        rows.append({**row, "value": known, "seconds": round(took, 2)})
        number, bound = "" if value is None else f"{value:.3g}", "" if most is None else f"<= {most:g}"
        print(f"{check:<8} {row['model']:<12} {words:<45} {number:>8} {bound:<9} {state:<8} {took:6.1f} s", flush=True)

    def figures(check: str, case: Case) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        for figure in CHECKS[check](case):
            add(check, case, figure)

    for check, case in work:
        left = until - time.perf_counter()
        if hangs or left <= 0:
            add(check, case, ("the time was up", None, None))
            continue
        try:
            error = ThreadPoolExecutor(1).submit(figures, check, case).exception(left)
        except TimeoutError:
            hangs = True
            add(check, case, ("had not ended when the time was up", None, None), "fail")
            continue
        if error is not None:
            add(check, case, (f"{type(error).__name__}: {error}".splitlines()[0], None, None), "fail")
        del error  # and with it what its frames hold
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", help="`embedded` or a model folder; several are checked in turn")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto")
    parser.add_argument("--vllm", metavar="URL", help="a server that holds the last model (docs/vllm.md)")
    parser.add_argument("--transfer", choices=["files", "nccl"], default="files", help="how it gets the weights")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=list(CHECKS), metavar="CHECK")
    parser.add_argument("--minutes", type=float, default=8.0, help="when they are over the rest is `not run`")
    options = parser.parse_args()
    started = time.perf_counter()
    torch.backends.cuda.matmul.allow_tf32 = False  # some images switch it on; see EXACT
    there = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(there if options.device == "auto" else options.device)
    server = {"kind": "vllm", "url": options.vllm, "transfer": options.transfer, "timeout": 60}
    sources = options.model or ["embedded", *[str(SMOLLM2)] * SMOLLM2.exists()]
    cases = [Case(source, where, server) for source in sources]
    work = [(check, case) for case in cases for check in options.only if check != "vllm" or case is cases[-1]]
    rows, took = run(work, started + 60 * options.minutes), time.perf_counter() - started
    counts = {state: sum(row["state"] == state for row in rows) for state in ("pass", "fail", "measured", "not run")}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    name = torch.cuda.get_device_name(where) if where.type == there == "cuda" else None
    about = {"device": str(where), "name": name, "versions": {**versions(), "cuda": torch.version.cuda}}
    print(json.dumps({**about, "seconds": round(took, 1), "counts": counts, "checks": rows}), flush=True)
    os._exit(1 if counts["fail"] else 0)  # a thread that hangs could not be ended otherwise


if __name__ == "__main__":
    main()
