"""A recipe as the arguments of TRL 1.16's GRPOConfig. What TRL cannot do is refused by name, never dropped."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

from cupola.core.config import Recipe
from cupola.core.records import RecipeError
from cupola.integrations.trl.cut import Cut
from cupola.integrations.trl.objective import OBJECTIVE
from cupola.integrations.trl.rules import Arguments, Asked, Rule, only, ours, refusal, to

#: What `run.trl` may hold: how TRL computes, not what. Everything else is the recipe's.
FURTHER = (
    *("use_vllm", "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_server_*", "vllm_group_port"),
    *("vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size", "cache_implementation"),
    *("use_transformers_continuous_batching", "transformers_continuous_batching_config", "ds3_gather_for_generation"),
    *("bf16", "fp16", "tf32", "cast_lm_head_to_fp32", "gradient_checkpointing_kwargs"),
    *("deepspeed", "fsdp", "fsdp_config", "ddp_*", "accelerator_config", "torch_compile*", "torch_empty_cache_steps"),
    *("dataloader_num_workers", "pad_to_multiple_of", "report_to", "run_name", "project", "log_completions"),
)


def _extra(asked: Asked, key: str, value: Mapping[str, Any]) -> Arguments:
    for name in value:
        if not any(fnmatch(name, pattern) for pattern in FURTHER):
            raise RecipeError(
                f"{key}.{name}: says what TRL trains, which is the recipe's to say, or is no argument of GRPOConfig; "
                f"here may stand {', '.join(FURTHER)}"
            )
    return dict(value)


def _cut(asked: Asked, key: str, value: int) -> Arguments:
    """The batch is generated at once and cut into equal pieces."""
    cut = asked.cut
    return {
        "per_device_train_batch_size": cut.rows,
        "gradient_accumulation_steps": cut.accumulated,
        "steps_per_generation": cut.accumulated * cut.minibatches,
    }


def _steps(asked: Asked, key: str, value: int) -> Arguments:
    """TRL counts optimiser steps; it logs at the end of each of the recipe's."""
    return {"max_steps": value * asked.cut.updates, "logging_steps": asked.cut.updates}


def _device(asked: Asked, key: str, value: str) -> Arguments:
    if value not in ("auto", "cpu"):
        raise refusal(key, value, "accelerate places the model: take 'auto', or 'cpu'")
    return {"use_cpu": True} if value == "cpu" else {}


def _dtype(asked: Asked, key: str, value: str) -> Arguments:
    """The weights are of this type; there is no autocast beside it unless `run.trl` asks for one."""
    if value == "float64":
        raise refusal(key, value, "its log-probabilities are computed in float32: take 'float32'")
    return {}


#: Every key of a recipe but the objective's, or the section where cupola sees to all of it.
SECTIONS: Mapping[str, Rule] = {
    "run.name": ours,
    "run.folder": ours,
    "run.seed": lambda asked, key, value: {"seed": value % 2**32},
    "run.steps": _steps,
    "run.threads": ours,
    "run.keep_rollouts": ours,
    "run.engine": ours,
    "run.trl": _extra,
    "model.source": ours,
    "model.dtype": _dtype,
    "model.device": _device,
    "model.lora": lambda asked, key, value: {} if value else {"ddp_find_unused_parameters": False},
    "data": ours,
    "sampling.prompts_per_step": _cut,
    "sampling.group_size": to("num_generations"),
    "sampling.max_tokens": to("max_completion_length"),
    "sampling.temperature": to("temperature"),
    "sampling.top_p": to("top_p"),
    "sampling.top_k": to("top_k"),
    "sampling.max_batches": only(1, "it trains on whatever comes: take 1"),
    "sampling.one_step_off": only(False, "it draws each step's answers with that step's weights: take false"),
    "sampling.selection.kind": only("uniform", "it takes a fixed order of prompts: 'uniform'"),
    "sampling.stop": only([], "it hands no stop strings to the model: leave them out, or take stop_token_ids"),
    "sampling.stop_token_ids": only([], "with vLLM only the model's own ids end an answer", lambda asked: asked.vllm),
    "sampler.kind": only("in_process", "it brings its own vLLM: take 'in_process' and run.trl.use_vllm = true"),
    "reward": ours,
    "optim.name": ours,
    "optim.learning_rate": to("learning_rate"),
    "optim.betas": ours,
    "optim.weight_decay": ours,
    "optim.schedule": ours,
    "optim.warmup_steps": ours,
    "optim.max_grad_norm": to("max_grad_norm"),
    "optim.micro_tokens": ours,  # read with the cut, as are the next two
    "optim.minibatches": ours,
    "optim.micro_rollouts": ours,
    "optim.gradient_checkpointing": to("gradient_checkpointing"),
    "optim.epochs": to("num_iterations"),
    "optim.on_nonfinite": only("stop", "its loop ends there: take 'stop'"),
    "validation": ours,
    "evaluation": ours,
    "diagnosis.on_warning": ours,
    "diagnosis.exact_share_every": only(0, "it shows no rollout's own gradient: take 0"),
}

TABLE: Mapping[str, Rule] = {**SECTIONS, **{f"objective.{key}": rule for key, rule in OBJECTIVE.items()}}

#: The same for every recipe: prompts in the recipe's order, no dropout, no autocast, and no record but cupola's.
ALWAYS: Arguments = {
    "shuffle_dataset": False,
    "disable_dropout": True,
    "bf16": False,
    "dataloader_pin_memory": False,
    "logging_strategy": "steps",
    "logging_nan_inf_filter": False,
    "save_strategy": "no",
    "eval_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}


def arguments(recipe: Recipe, processes: int = 1) -> Arguments:
    """Keyword arguments of a GRPOConfig, without `output_dir`, for a run on so many processes.

    Raises RecipeError naming the first key that asks for what TRL cannot do, and what it can.
    """
    asked = Asked(recipe, Cut.of(recipe, processes), bool(recipe.run.trl.get("use_vllm")))
    found = dict(ALWAYS)
    for key, rule in TABLE.items():
        found |= rule(asked, key, _value(recipe, key))
    return found


def _value(recipe: Recipe, key: str) -> Any:
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name)
    return value
