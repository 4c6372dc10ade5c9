"""The policy: a Hugging Face causal language model with its tokenizer, from a folder, the hub, or the package."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module, Parameter
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from cupola.core.records import Content, DataError, ModelError, Prompt, RunFolderError
from cupola.train.models.adapter import merged_weights, restore_adapter, save_adapter
from cupola.train.models.packed import pack
from cupola.train.models.sharding import named_weights, scattered

# Its bars, one per file read or written, would break up the run's own progress.
transformers_logging.disable_progress_bar()

#: SHA-256 of the weights of the policy that ships with the package (see recipes/embedded-sft.toml).
EMBEDDED_DIGEST = "a36c216a41560677fe9b37cd10b3635b7a3e047a0ee6aaa29da54ae692141970"
EMBEDDED = Path(__file__).parent / "embedded"

#: The folder of a saved policy that holds its adapter alone.
ADAPTER = "adapter"

#: Up to this many parameters the work per operation is less than its start: one CPU thread is fastest.
ONE_THREAD_PARAMETERS = 2_000_000


@dataclass
class Policy:
    """A model, its tokenizer, and what generation needs to know of them.

    With an `adapter`, `model` holds it already: its forward pass is the adapted one.
    """

    source: str
    model: PreTrainedModel
    tokenizer: Any
    stop_ids: tuple[int, ...]
    pad_id: int
    context: int | None
    adapter: PeftModel | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def encode(self, content: Content) -> list[int]:
        """Token ids of a prompt: chat messages through the model's chat template, plain text as it is."""
        if isinstance(content, str):
            return self._without_end(content, list(self.tokenizer(content)["input_ids"]))
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(f"{self.source}: the tokenizer has no chat template; use plain-text prompts (data.chat)")
        messages = [dict(message) for message in content]
        ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        return list(ids)

    def _without_end(self, text: str, ids: list[int]) -> list[int]:
        """The ids without an end token that the tokenizer appends: after it the answer would already be over."""
        if not ids or ids[-1] not in self.stop_ids:
            return ids
        plain = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids if plain and plain[-1] == ids[-1] else ids[:-1]

    def encode_for(self, prompt: Prompt, max_tokens: int) -> list[int]:
        """`encode`, checked. Raises DataError naming a prompt that is too long or that the tokenizer cannot read."""
        ids = self.encode(prompt.content)
        if not ids:
            raise DataError(f"prompt {prompt.id}: has no tokens")
        unknown = self.tokenizer.unk_token_id
        if unknown in ids and unknown not in (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id):
            raise DataError(
                f"prompt {prompt.id} ({prompt.text[:40]!r}): the tokenizer of {self.source} cannot read all of it"
            )
        if self.context is not None and len(ids) + max_tokens > self.context:
            raise DataError(
                f"prompt {prompt.id} ({prompt.text[:40]!r}): {len(ids)} tokens and a completion of up to {max_tokens} "
                f"do not fit the model's context of {self.context}; shorten it or lower sampling.max_tokens"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


def load_policy(source: str, dtype: str = "float32", device: str = "auto") -> Policy:
    """Load `embedded`, a model folder, or a hub name; the model is in evaluation mode (no dropout).

    Raises ModelError naming the source where it is missing, cannot be loaded, or is not what was shipped.
    """
    path = _locate(source)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{source}: cannot be loaded: {str(error).strip().splitlines()[0]}") from error
    model, loading = loaded
    if missing := sorted(loading["missing_keys"]):
        raise ModelError(f"{source}: the weights lack {', '.join(missing[:3])}, which would be drawn at random")
    if dtype == "float64":
        in_float64(model)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.nn.Module.to(model, torch.device(device))
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that it was built without
        raise ModelError(f"model.device = {device!r}: {str(error).splitlines()[0]}") from error
    return make_policy(source, model, tokenizer)


class ExactNorm(torch.nn.Module):
    """RMSNorm in the type of its input; transformers' computes in float32 whatever it is given."""

    weight: torch.nn.Parameter
    variance_epsilon: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.variance_epsilon)


def in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """The model in double precision throughout, its norms too: for checks that rounding must not blur."""
    torch.nn.Module.to(model, torch.float64)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.__class__ = ExactNorm
    return model


def make_policy(source: str, model: PreTrainedModel, tokenizer: Any) -> Policy:
    """A policy from a model and tokenizer already in memory."""
    model.eval()
    pack(model)
    stop_ids = _stop_ids(model, tokenizer)
    if not stop_ids:
        raise ModelError(f"{source}: neither tokenizer nor generation config names an end-of-sequence token")
    pad = tokenizer.pad_token_id
    context = getattr(model.config, "max_position_embeddings", None)
    return Policy(source, model, tokenizer, stop_ids, stop_ids[0] if pad is None else pad, context)


def trainable(module: Module) -> list[Parameter]:
    """The parameters that training moves: all of them, or the adapter's alone."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def save_policy(policy: Policy, folder: Path) -> None:
    """Write the model and tokenizer as a folder that plain transformers loads.

    With an adapter the model's weights are the merged ones, and `adapter/` holds the adapter alone. A sharded model is
    saved within `gathered`.
    """
    if policy.adapter is None:
        policy.model.save_pretrained(folder, state_dict=named_weights(policy.model))
    else:
        policy.model.save_pretrained(folder, state_dict=merged_weights(policy.model))
        save_adapter(policy.adapter, Path(folder) / ADAPTER)
    try:
        policy.tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is Exception:  # all that the tokenizers library says of a full disk
            raise OSError(str(error)) from error
        raise
    for file in Path(folder).rglob("*.safetensors"):  # safetensors leaves them readable by their owner alone
        file.chmod((Path(folder) / "config.json").stat().st_mode)


def saved_weights(policy: Policy, folder: Path) -> dict[str, Tensor]:
    """What training moves of a policy like `policy`, as `save_policy` wrote it: merged weights are not exact enough."""
    own = folder if policy.adapter is None else folder / ADAPTER
    return load_file(own / ("model.safetensors" if policy.adapter is None else "adapter_model.safetensors"))


def restore_policy(policy: Policy, weights: Mapping[str, Tensor]) -> list[str]:
    """Put `saved_weights` back; returns the names that do not fit."""
    if policy.adapter is not None:
        return restore_adapter(policy.adapter, weights)
    missing, unexpected = policy.model.load_state_dict(scattered(weights, policy.model), strict=False)
    tied = getattr(policy.model, "all_tied_weights_keys", None) or ()  # stored once, under another name
    return [*(name for name in missing if name not in tied), *unexpected]


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that takes `folder`'s place when the block has ended and its files are on disk.

    Raises RunFolderError naming the folder where it cannot be written; nothing is left of it then.
    """
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in filter(Path.is_file, temporary.rglob("*")):
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    except (OSError, RuntimeError, SafetensorError) as error:  # a full disk, in three libraries' words
        shutil.rmtree(temporary, ignore_errors=True)
        raise RunFolderError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def weights_digest(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over the tensors in the order of their names: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def set_threads(parameters: int, asked: int = 0) -> int:
    """Give torch what the recipe asks, else one CPU thread for a tiny model and all cores for another; returns it.

    Processes that torchrun started on one machine share its cores.
    """
    cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = asked or (1 if parameters <= ONE_THREAD_PARAMETERS else max(1, cores))
    torch.set_num_threads(threads)
    return threads


def _locate(source: str) -> str:
    if source == "embedded":
        found = hashlib.sha256((EMBEDDED / "model.safetensors").read_bytes()).hexdigest()
        if found != EMBEDDED_DIGEST:
            raise ModelError(f"embedded policy: SHA-256 {found} is not the shipped {EMBEDDED_DIGEST}; reinstall cupola")
        return str(EMBEDDED)
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") != 1 or Path(source).exists()
    path = Path(source).expanduser()
    if looks_like_path and not (path / "config.json").is_file():
        what = "no such model folder" if not path.is_dir() else "no config.json in this model folder"
        raise ModelError(f"{source}: {what}")
    return str(path) if looks_like_path else source


def _stop_ids(model: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    """Every end-of-sequence id of the tokenizer, the model and its generation config: chat models have several."""
    found: list[int] = []
    generation = getattr(model, "generation_config", None)
    for ids in (tokenizer.eos_token_id, getattr(generation, "eos_token_id", None), model.config.eos_token_id):
        for token in ids if isinstance(ids, list | tuple) else [ids]:
            if token is not None and token not in found:
                found.append(int(token))
    return tuple(found)
