"""One forward pass over prompts and completions together, for Llama-like models.

The layers see a single row with the tokens of all prompts and then of all completions, so each weight is read, and its
gradient made, once. Only attention knows who belongs together: a prompt attends to itself, a completion to its prompt
and to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: Architectures whose layer is: RMSNorm, attention with rotary positions, RMSNorm, gated SiLU.
LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

#: The name under which transformers knows this attention.
PACKED = "cupola_packed"


@dataclass(frozen=True, eq=False)
class Layout:
    """U prompts of P columns each, then N completions of T columns; completion n belongs to prompt `of`[n].

    `seen` says what a completion's tokens attend to, (N or 1, 1, T, P + T).
    """

    prompts: tuple[int, int]
    completions: tuple[int, int]
    of: Tensor
    seen: Tensor


def is_llama_like(model: PreTrainedModel) -> bool:
    """Whether every layer is Llama's, with attention to all that comes before."""
    config = model.config
    return (
        type(model).__name__.removeprefix("FSDP") in LLAMA_LIKE  # a sharded model's class has another name
        and config.hidden_act == "silu"
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
    )


def pack(model: PreTrainedModel) -> None:
    """Let a Llama-like model that attends by torch's own function read packed tokens too; others stay as they are."""
    if is_llama_like(model) and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(PACKED)


def unpack(model: PreTrainedModel) -> None:
    """Undo `pack`."""
    if is_packed(model):
        model.set_attn_implementation("sdpa")


def is_packed(model: PreTrainedModel) -> bool:
    return bool(model.config._attn_implementation == PACKED)


def packed_states(model: PreTrainedModel, prompts: Tensor, prompt_mask: Tensor, of: Tensor, tokens: Tensor) -> Tensor:
    """Last hidden states (N, T, d) where each of the tokens (N, T) is predicted; the model may have a head or none.

    `prompts` and their mask are (U, P), padded before; `of` (N,) is the prompt of each completion.
    """
    (u, width), (n, length) = prompts.shape, tokens[:, :-1].shape  # after its last token a completion says nothing
    lengths, columns = prompt_mask.sum(-1), torch.arange(width, device=prompts.device)
    # What is padded behind needs no mask among the prompts: nothing there is attended to from before it.
    moved = prompts.gather(1, (columns + (width - lengths)[:, None]) % width)
    own = torch.arange(length, device=prompts.device)
    positions = torch.cat([columns.expand(u, -1).flatten(), (lengths[of][:, None] + own).flatten()])
    with _headless(model):
        out: Any = model(
            input_ids=torch.cat([moved.flatten(), tokens[:, :-1].flatten()])[None],
            position_ids=positions[None],
            attention_mask=prompts.new_empty(1, 1, 1, 1),  # of four dimensions: transformers makes none of its own
            use_cache=False,
            layout=Layout((u, width), (n, length), of, _seen(lengths, of, width, length)),
        )
    found: Tensor = out[0][0]
    last = torch.arange(u, device=prompts.device) * width + lengths - 1
    said = torch.cat([found[last[of]][:, None], found[u * width :].view(n, length, found.shape[-1])], 1)
    return said[:, : tokens.shape[1]]


@contextmanager
def _headless(model: PreTrainedModel) -> Iterator[None]:
    """The model says its last hidden states in place of logits. It is called as a whole still: FSDP hooks in there."""
    head = model.get_output_embeddings()
    if head is not None:
        head.forward = _as_it_is
    try:
        yield
    finally:
        if head is not None:
            del head.forward


def _as_it_is(states: Tensor) -> Tensor:
    return states


def _seen(lengths: Tensor, of: Tensor, width: int, length: int) -> Tensor:
    """A completion's token attends to its prompt without the padding, and to what does not come after itself."""
    before = torch.ones(length, length, dtype=torch.bool, device=of.device).tril()
    columns = torch.arange(width, device=of.device)
    prompt = columns[None] < lengths[of][:, None] if int(lengths.min()) < width else columns[None] >= 0
    seen = torch.cat([prompt[:, None].expand(-1, length, -1), before.expand(len(prompt), -1, -1)], -1)
    return seen[:, None]


def packed_attention(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """In transformers' words: query (1, H, tokens, d), key and value (1, K, tokens, d) to (1, tokens, H, d)."""
    if layout is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return plain
    (u, width), (n, length) = layout.prompts, layout.completions

    def parted(x: Tensor) -> tuple[Tensor, Tensor]:
        """(U, heads, P, d) of the prompts and (N, heads, T, d) of the completions."""
        heads, (prompts, own) = len(x[0]), x[0].split([u * width, n * length], 1)
        return (
            prompts.view(heads, u, width, x.shape[-1]).transpose(0, 1),
            own.view(heads, n, length, x.shape[-1]).transpose(0, 1),
        )

    def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """(tokens, H, d); without a mask each attends to itself and what comes before."""
        groups = q.shape[1] // k.shape[1]
        if groups > 1 and seen is not None and q.is_cuda:  # with a mask, CUDA's fast kernels take no groups
            k, v, groups = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), 1
        found = scaled_dot_product_attention(
            q, k, v, seen, kwargs.get("dropout", 0.0), is_causal=seen is None, scale=scaling, enable_gqa=groups > 1
        )
        return found.transpose(1, 2).flatten(0, 1)

    (q, q_own), (k, k_own), (v, v_own) = parted(query), parted(key), parted(value)
    over_prompts, over_own = (torch.cat([x[layout.of], own], 2) for x, own in ((k, k_own), (v, v_own)))
    return torch.cat([attend(q, k, v, None), attend(q_own, over_prompts, over_own, layout.seen)])[None], None


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
