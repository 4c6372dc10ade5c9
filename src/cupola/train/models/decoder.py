"""One more token for every row of a batch: a model's own step over its cache, and a lean one for Llama-like models.

On a CPU decoding is slow twice over: a product of few rows with a weight matrix runs at a third of the machine's rate
unless the matrix was packed for it, and a step of many small operations spends its time between them. The lean step
packs the weights once per call of the sampler (oneDNN's blocked layout), fuses activations and residual sums into the
products, and writes keys and values in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu
from transformers import DynamicCache, PreTrainedModel

from cupola.train.models.adapter import merged_weights
from cupola.train.models.packed import is_llama_like

#: Matrices of up to so many elements are not packed.
SMALL = 2**16


class Decoder(Protocol):
    """Rows that are being continued."""

    def step(self, token: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        """Logits (n, V) after one more token of each row, (n,), at its position, (n,).

        `mask` (n, L) is 1 where a column of the L seen so far, this one included, counts; `None` if all do.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        ...


class Cached:
    """The model's own forward pass over its cache: any architecture."""

    def __init__(self, model: PreTrainedModel, cache: DynamicCache) -> None:
        self.model, self.cache = model, cache

    def step(self, token: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        logits: Tensor = self.model(
            input_ids=token[:, None],
            attention_mask=mask,
            position_ids=position[:, None],
            cache=self.cache,
            use_cache=True,
        ).logits[:, -1]
        return logits

    def keep(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)


class Product(Protocol):
    """x W^T + b, then the activation (`none` or `swish`, which is SiLU), or joined with another tensor."""

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor: ...

    def joined(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        """`how` is `add` or `mul`."""
        ...


class Plain:
    """A small matrix as it is: what packing saves is less than what it costs."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        found = linear(x, self.weight, self.bias)
        return silu(found, inplace=True) if activation == "swish" else found

    def joined(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        found = linear(x, self.weight, self.bias)
        return found.add_(other) if how == "add" else found.mul_(other)


class Packed:
    """A weight matrix laid out for products with few rows; float32 on a CPU."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        self.bias = bias

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, activation, [], "")
        return found

    def joined(self, x: Tensor, other: Tensor, how: str) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, how)
        return found


def product(weight: Tensor, bias: Tensor | None, rows: int) -> Product:
    """For products of `rows` rows."""
    return Plain(weight, bias) if weight.numel() <= SMALL else Packed(weight, bias, rows)


@dataclass(frozen=True)
class Layer:
    """One layer's weights; the norms of queries and keys are Qwen3's alone."""

    before: Tensor
    qkv: Product
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Product
    after: Tensor
    gate: Product
    up: Product
    down: Product


def is_lean(model: PreTrainedModel) -> bool:
    """Whether the lean step knows this model on this machine."""
    on_cpu = model.dtype == torch.float32 and model.device.type == "cpu"
    return on_cpu and torch.backends.mkldnn.is_available() and is_llama_like(model)


class LeanWeights:
    """A Llama-like model's weights, an adapter's merged, packed for products of `rows` rows."""

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        config, weights = model.config, merged_weights(model)
        self.heads, self.epsilon = config.num_attention_heads, config.rms_norm_eps
        self.rotary = model.base_model.get_submodule("rotary_emb")
        self.embedding, self.norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
        self.layers = [_layer(weights, index, rows) for index in range(config.num_hidden_layers)]
        self.head = product(weights.get("lm_head.weight", self.embedding), weights.get("lm_head.bias"), rows)


def agree(model: PreTrainedModel) -> bool:
    """Whether the lean step gives this model's own logits, within rounding, for two rows and two tokens."""
    ids = torch.tensor([[1, 2, 3], [3, 2, 1]]) % model.config.vocab_size
    caches = [DynamicCache(config=model.config) for _ in range(2)]
    for cache in caches:
        model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    own, lean = Cached(model, caches[0]), Lean(LeanWeights(model, 2), caches[1], 5)
    for position in (3, 4):
        steps = [each.step(ids[:, position - 3], torch.full((2,), position), None) for each in (own, lean)]
        if not torch.allclose(steps[0], steps[1], rtol=1e-3, atol=1e-3):
            return False
    return True


class Lean:
    """Llama-like rows with preallocated keys and values, (layers, n, key heads, columns, width) each.

    `cache` holds the prompt's columns of each row, and `columns` is how many a row may have in the end.
    """

    def __init__(self, weights: LeanWeights, cache: DynamicCache, columns: int) -> None:
        self.weights = weights
        layers: list[Any] = list(cache.layers)
        rows, self.kv_heads, self.filled, self.width = layers[0].keys.shape
        shape = (len(layers), rows, self.kv_heads, columns, self.width)
        self.keys, self.values = layers[0].keys.new_empty(shape), layers[0].keys.new_empty(shape)
        for index, layer in enumerate(layers):
            self.keys[index, :, :, : self.filled] = layer.keys
            self.values[index, :, :, : self.filled] = layer.values

    def step(self, token: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        weights, epsilon = self.weights, self.weights.epsilon
        cos, sin = weights.rotary(weights.embedding, position[:, None])
        half = self.width // 2
        turned = torch.cat([-sin[..., :half], sin[..., half:]], -1)  # rotate_half(x) * sin = roll(x) * turned
        hidden = None if mask is None else torch.where(mask.bool(), 0.0, -torch.inf)[:, None, None, :]
        x = weights.embedding[token]
        for index, layer in enumerate(weights.layers):
            x = self._attend(index, layer, x, (cos, turned), hidden)
            inner = rms_norm(x, x.shape[-1:], layer.after, epsilon)
            x = layer.down.joined(layer.up.joined(inner, layer.gate(inner, "swish"), "mul"), x, "add")
        self.filled += 1
        return weights.head(rms_norm(x, x.shape[-1:], weights.norm, epsilon))

    def keep(self, rows: Tensor) -> None:
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]

    def _attend(
        self, index: int, layer: Layer, x: Tensor, rotary: tuple[Tensor, Tensor], hidden: Tensor | None
    ) -> Tensor:
        """x plus the layer's attention, (n, d). The query heads of one key head stand as its queries."""
        n, here, heads, epsilon = len(x), self.filled, self.weights.heads, self.weights.epsilon
        inner = layer.qkv(rms_norm(x, x.shape[-1:], layer.before, epsilon)).view(n, -1, self.width)
        query_key, value = inner[:, : heads + self.kv_heads], inner[:, heads + self.kv_heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = rms_norm(query_key[:, :heads], (self.width,), layer.q_norm, epsilon)
            query_key = torch.cat([query, rms_norm(query_key[:, heads:], (self.width,), layer.k_norm, epsilon)], 1)
        cos, turned = rotary
        query_key = torch.addcmul(query_key * cos, query_key.roll(self.width // 2, -1), turned)
        self.keys[index, :, :, here] = query_key[:, heads:]
        self.values[index, :, :, here] = value
        query = query_key[:, :heads].reshape(n, self.kv_heads, -1, self.width)
        # For one query a row plain products take about half of what torch's fused attention does on a CPU.
        scores = torch.matmul(query, self.keys[index, :, :, : here + 1].transpose(-1, -2)) * self.width**-0.5
        weights = (scores if hidden is None else scores + hidden).softmax(-1)
        found = torch.matmul(weights, self.values[index, :, :, : here + 1])
        return layer.out.joined(found.reshape(n, -1), x, "add")


def _layer(weights: Mapping[str, Tensor], index: int, rows: int) -> Layer:
    name = f"model.layers.{index}"

    def joint(*parts: str) -> Product:
        """One product in place of several that read the same input."""
        biases = [weights.get(f"{name}.{part}.bias") for part in parts]
        bias = (
            None if any(each is None for each in biases) else torch.cat([each for each in biases if each is not None])
        )
        return product(torch.cat([weights[f"{name}.{part}.weight"] for part in parts]), bias, rows)

    return Layer(
        before=weights[f"{name}.input_layernorm.weight"],
        qkv=joint("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        q_norm=weights.get(f"{name}.self_attn.q_norm.weight"),
        k_norm=weights.get(f"{name}.self_attn.k_norm.weight"),
        out=joint("self_attn.o_proj"),
        after=weights[f"{name}.post_attention_layernorm.weight"],
        gate=joint("mlp.gate_proj"),
        up=joint("mlp.up_proj"),
        down=joint("mlp.down_proj"),
    )
