"""Teacher-forced log-probabilities of given completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cupola.train.objectives import token_logps


@dataclass(frozen=True, eq=False)
class Sequences:
    """Padded sequences: all prompts end, and all completions begin, at one shared column.

    `input_ids`, `attention_mask`, `position_ids` are (N, P + T); `tokens` and `mask` (N, T) are the completions alone.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    tokens: Tensor
    mask: Tensor


def pad(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int) -> Sequences:
    """Sequences of N prompts with their completions."""
    width = max(map(len, prompts))
    length = max(map(len, completions))
    ids = torch.full((len(prompts), width + length), pad_id, dtype=torch.long)
    attention = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        span = slice(width - len(prompt), width + len(completion))
        ids[row, span] = torch.tensor([*prompt, *completion])
        attention[row, span] = 1
    positions = (attention.cumsum(-1) - 1).clamp(min=0)
    return Sequences(ids, attention, positions, ids[:, width:], attention[:, width:])


def to_device(sequences: Sequences, device: torch.device) -> Sequences:
    return Sequences(*(tensor.to(device) for tensor in vars(sequences).values()))


def completion_logits(model: PreTrainedModel, sequences: Sequences, temperature: float) -> Tensor:
    """Logits / temperature that predict each completion token, (N, T, V) in at least float32.

    The model computes logits for these positions alone; the last one predicts nothing that is asked.
    """
    length = sequences.tokens.shape[1]
    logits = model(
        input_ids=sequences.input_ids,
        attention_mask=sequences.attention_mask,
        position_ids=sequences.position_ids,
        use_cache=False,
        logits_to_keep=length + 1,
    ).logits[:, -length - 1 : -1]
    return (logits if logits.dtype == torch.float64 else logits.float()) / temperature


@torch.no_grad()
def per_token(
    forward: Callable[[Sequences], Tensor],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    device: torch.device,
    pad_id: int,
    micro_tokens: int,
) -> list[Tensor]:
    """What `forward` says of each completion's tokens, one (T_i, ...) tensor each, in the order given.

    `forward` takes padded sequences to (N, T, ...); no more than `micro_tokens` go through it at once.
    """
    found: dict[int, Tensor] = {}
    lengths = [(len(p), len(c)) for p, c in zip(prompts, completions, strict=True)]
    for rows in micro_batches(lengths, micro_tokens):
        batch = to_device(pad([prompts[i] for i in rows], [completions[i] for i in rows], pad_id), device)
        values = forward(batch).cpu()
        found.update({i: values[k, : len(completions[i])] for k, i in enumerate(rows)})
    return [found[i] for i in range(len(prompts))]


def logprobs(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    pad_id: int,
    temperature: float,
    micro_tokens: int,
) -> list[Tensor]:
    """Log-probability of each completion's tokens, one (T_i,) tensor each, in the order given."""

    def forward(batch: Sequences) -> Tensor:
        return token_logps(completion_logits(model, batch, temperature), batch.tokens)

    device = next(model.parameters()).device
    return per_token(forward, prompts, completions, device=device, pad_id=pad_id, micro_tokens=micro_tokens)


def micro_batches(lengths: Sequence[tuple[int, int]], micro_tokens: int) -> Iterator[list[int]]:
    """Cut rows into batches of at most `micro_tokens` padded tokens, similar lengths together.

    `lengths` are (prompt, completion) token counts. A row longer than the budget stands alone.
    """
    batch: list[int] = []
    widest = (0, 0)
    for row in sorted(range(len(lengths)), key=lambda i: (sum(lengths[i]), i)):
        wider = (max(widest[0], lengths[row][0]), max(widest[1], lengths[row][1]))
        if batch and sum(wider) * (len(batch) + 1) > micro_tokens:
            yield batch
            batch, wider = [], lengths[row]
        batch.append(row)
        widest = wider
    if batch:
        yield batch
