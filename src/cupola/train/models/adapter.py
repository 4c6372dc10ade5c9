"""LoRA through peft: a small trained correction beside frozen weights.

    W x  becomes  W x + (alpha / rank) B A x        A (rank, in) is drawn at random; B (out, rank) starts at 0

Source: Hu et al., arXiv 2106.09685.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from cupola.core.config import Lora
from cupola.core.records import RecipeError
from cupola.train.models.sharding import named_weights, scattered
from cupola.train.tasks import derive

NAME = "default"  # peft's own for a model's only adapter


def adapt(model: PreTrainedModel, settings: Lora, seed: int) -> PeftModel:
    """Put an adapter into `model` itself; from then on it alone is trained. The model answers as before until it is.

    The seed alone decides what is drawn. Raises RecipeError for a target that cannot have an adapter.
    """
    layers = adaptable(model)
    if unknown := [name for name in settings.targets if name not in layers]:
        known = ", ".join(sorted(layers))
        raise RecipeError(f"model.lora.targets: no linear layer {unknown[0]!r} that can be adapted; there are {known}")
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=settings.targets or sorted(layers),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2 stores W transposed
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)  # peft asks by its old name
        torch.default_generator.manual_seed(derive(seed, "lora") >> 1)
        return get_peft_model(model, config)


def adaptable(model: PreTrainedModel) -> set[str]:
    """Last parts of the names of the linear layers. The head is none: where it is tied, merging would untie it."""
    head = model.get_output_embeddings()
    linear = [name for name, each in model.named_modules() if isinstance(each, torch.nn.Linear | Conv1D)]
    return {name.rpartition(".")[2] for name in linear if model.get_submodule(name) is not head}


def base_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The model's weights without its adapter, under the names that they have in a model without one."""
    weights = named_weights(model).items()
    return {name.replace(".base_layer.", "."): weight for name, weight in weights if ".lora_" not in name}


@torch.no_grad()
def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """W + (alpha / rank) B A in the type of W, under the names of a model without adapter; `model` stays as it is."""
    weights = base_weights(model)
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLinear):
            base = weights[f"{name}.weight"]
            weights[f"{name}.weight"] = (base + layer.get_delta_weight(NAME)).to(base.dtype)
    return weights


def adapter_weights(adapter: PeftModel) -> dict[str, Tensor]:
    """A and B of every adapted layer, under the names that they have in peft's file."""
    return dict(get_peft_model_state_dict(adapter, named_weights(adapter), save_embedding_layers=False))


def save_adapter(adapter: PeftModel, folder: Path) -> None:
    """Write the adapter alone, as peft does; `PeftModel.from_pretrained(base, folder)` reads it."""
    folder.mkdir(exist_ok=True)
    save_file(adapter_weights(adapter), folder / "adapter_model.safetensors")
    adapter.peft_config[NAME].save_pretrained(str(folder))


def restore_adapter(adapter: PeftModel, weights: Mapping[str, Tensor]) -> list[str]:
    """Put saved weights back; returns the names that do not fit, and then nothing is put back."""
    wrong = sorted(adapter_weights(adapter).keys() ^ weights.keys())
    if not wrong:
        set_peft_model_state_dict(adapter, scattered(weights, adapter))
    return wrong
