"""Teacher-forced scores of given completions, each prompt read once for all of its completions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Linear
from torch.nn.functional import linear
from transformers import DynamicCache, PreTrainedModel

from cupola.train.models.packed import is_packed, packed_states
from cupola.train.objectives import token_entropy, token_logps

#: Logits that are held at once, over positions and vocabulary. On a CPU 32 MiB of float32: larger blocks glibc gives
#: back to the system each time they are freed, and their pages have to be found and zeroed anew. An accelerator wants
#: larger products.
LOGITS, LOGITS_ON_DEVICE = 2**23, 2**28

#: A micro-batch of at least so many tokens is closed rather than padded further once an eighth of it is padding.
WORTH_A_PASS = 1024
PADDING_SHARE = 1 / 8


@dataclass(frozen=True, eq=False)
class Sequences:
    """N completions of U prompts, padded: the prompts before, the completions behind.

    `prompts` and `prompt_mask` are (U, P), `tokens` and `mask` (N, T), `prompt_of` (N,) is the prompt of each
    completion. Equal prompts stand there once.
    """

    prompts: Tensor
    prompt_mask: Tensor
    prompt_of: Tensor
    tokens: Tensor
    mask: Tensor


def pad(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int) -> Sequences:
    """Sequences of N prompts with their completions."""
    distinct = {tuple(prompt): index for index, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
    width, length = max(map(len, distinct)), max(map(len, completions))
    before, behind = [width - len(prompt) for prompt in distinct], [length - len(each) for each in completions]
    return Sequences(
        prompts=_table([[pad_id] * n + [*prompt] for n, prompt in zip(before, distinct, strict=True)]),
        prompt_mask=_table([[0] * n + [1] * (width - n) for n in before]),
        prompt_of=torch.tensor([distinct[tuple(prompt)] for prompt in prompts]),
        tokens=_table([[*each] + [pad_id] * n for n, each in zip(behind, completions, strict=True)]),
        mask=_table([[1] * (length - n) + [0] * n for n in behind]),
    )


def _table(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.long)


def to_device(sequences: Sequences, device: torch.device) -> Sequences:
    return Sequences(*(tensor.to(device) for tensor in vars(sequences).values()))


def read(model: PreTrainedModel, sequences: Sequences, head: bool = True) -> list[Tensor]:
    """What any decoder says where a completion token is predicted, (N, T, ...) in one or two pieces along T.

    Logits, or without `head` the last hidden states of a model that has none. Where completions share prompts there are
    two passes: the prompts, each once, then the completions over the prompts' keys and values, through which the
    gradient flows back.
    """
    if is_packed(model) and not head:
        return [_packed(model, sequences)]
    prompt_mask, of, tokens, mask = sequences.prompt_mask, sequences.prompt_of, sequences.tokens, sequences.mask
    length = tokens.shape[1]

    def forward(ids: Tensor, attention: Tensor, positions: Tensor, keep: int, cache: DynamicCache | None) -> Tensor:
        limit = {"logits_to_keep": keep} if head else {}
        inputs = {"input_ids": ids, "attention_mask": attention, "position_ids": positions}
        out = model(**inputs, cache=cache, use_cache=cache is not None, **limit)
        found: Tensor = (out.logits if head else out.last_hidden_state)[:, -keep:]
        return found

    if len(prompt_mask) == len(tokens):
        attention = torch.cat([prompt_mask, mask], 1)
        positions = (attention.cumsum(-1) - 1).clamp(min=0)
        return [forward(torch.cat([sequences.prompts, tokens], 1), attention, positions, length + 1, None)[:, :-1]]
    cache = DynamicCache(config=model.config)
    positions = (prompt_mask.cumsum(-1) - 1).clamp(min=0)
    first = forward(sequences.prompts, prompt_mask, positions, 1, cache)[of]
    if length == 1:
        return [first]
    cache.batch_select_indices(of)
    attention = torch.cat([prompt_mask[of], mask[:, :-1]], 1)
    positions = prompt_mask.sum(-1)[of][:, None] + torch.arange(length - 1, device=tokens.device)
    return [first, forward(tokens[:, :-1], attention, positions, length - 1, cache)]


def completion_scores(
    model: PreTrainedModel, sequences: Sequences, temperature: float, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each completion token, (N, T) in at least float32, and the entropy there if asked for.

    Both are those of softmax(logits / temperature). Logits are computed where a completion token is predicted, and
    nowhere else.
    """
    if is_packed(model):
        return _packed_scores(model, sequences, temperature, entropy)
    logps, entropies, start = [], [], 0
    for logits in read(model, sequences):
        scaled = _scaled(logits, temperature)
        logps.append(token_logps(scaled, sequences.tokens[:, start : start + scaled.shape[1]]))
        if entropy:
            entropies.append(token_entropy(scaled))
        start += scaled.shape[1]
    return torch.cat(logps, 1), torch.cat(entropies, 1) if entropy else None


def _packed_scores(
    model: PreTrainedModel, sequences: Sequences, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Where there are too many logits to hold at once, in pieces that are computed again for their gradient."""
    head: Any = model.get_output_embeddings()
    states, tokens = _packed(model, sequences), sequences.tokens

    def scores(logits: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        scaled = _scaled(logits, temperature)
        return (token_logps(scaled, tokens), *([token_entropy(scaled)] if entropy else []))

    too_many = tokens.numel() * model.config.vocab_size > _most(states)
    if too_many and type(head) is Linear and head.bias is None:
        flat = Pieces.apply(scores, states.flatten(0, 1), head.weight, tokens.flatten())
        found = [each.view_as(tokens) for each in flat]
    else:
        found = [*scores(head(states), tokens)]
    return found[0], found[1] if entropy else None


class Pieces(Function):
    """Scores of tokens (M,) from states (M, d) and a head's weight (V, d), no more than LOGITS logits at a time.

    `scores` takes logits (m, V) and tokens (m,) to tensors (m,). The weight's gradient is one sum, made in place.
    """

    @staticmethod
    def forward(ctx: Any, scores: Callable[..., Any], states: Tensor, weight: Tensor, tokens: Tensor) -> Any:
        ctx.scores = scores
        ctx.save_for_backward(states, weight, tokens)
        found = [scores(linear(part, weight), own) for part, own in _pieces(states, tokens, weight)]
        return tuple(map(torch.cat, zip(*found, strict=True)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        states, weight, tokens = ctx.saved_tensors
        # At least in float32: a sum of many pieces would be rounded at each of them.
        wide = torch.promote_types(weight.dtype, torch.float32)
        of_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[2] else None
        of_states = []
        for part, own, *given in _pieces(states, tokens, weight, *gradients):
            logits = linear(part, weight).requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(ctx.scores(logits, own), logits, given)
            of_states.append(gradient @ weight)
            if of_weight is not None:
                of_weight.addmm_(gradient.T.to(wide), part.to(wide))
        return None, torch.cat(of_states), None if of_weight is None else of_weight.to(weight), None


def _most(states: Tensor) -> int:
    return LOGITS if states.device.type == "cpu" else LOGITS_ON_DEVICE


def _pieces(states: Tensor, tokens: Tensor, weight: Tensor, *more: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Rows of each, so many at a time as their logits allow."""
    count = -(-len(tokens) * len(weight) // _most(states))
    return zip(*(each.tensor_split(count) for each in (states, tokens, *more)), strict=True)


def _packed(model: PreTrainedModel, sequences: Sequences) -> Tensor:
    return packed_states(model, sequences.prompts, sequences.prompt_mask, sequences.prompt_of, sequences.tokens)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide if temperature == 1 else wide / temperature


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
    for rows in micro_batches(prompts, completions, micro_tokens):
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
        return completion_scores(model, batch, temperature)[0]

    device = next(model.parameters()).device
    return per_token(forward, prompts, completions, device=device, pad_id=pad_id, micro_tokens=micro_tokens)


def micro_batches(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], micro_tokens: int
) -> Iterator[list[int]]:
    """Cut rows into batches of at most `micro_tokens` padded tokens, completions of similar length together.

    Equal prompts of a batch count once. A row longer than the budget stands alone.
    """
    batch, seen, widths, written = list[int](), set[tuple[int, ...]](), (0, 0), 0
    for row in sorted(range(len(prompts)), key=lambda i: (len(completions[i]), len(prompts[i]), i)):
        prompt, length = tuple(prompts[row]), len(completions[row])
        wider = (max(widths[0], len(prompt)), max(widths[1], length))
        distinct = len(seen | {prompt})
        answers = (len(batch) + 1) * wider[1]
        padding = answers - written - length
        if batch and (
            distinct * wider[0] + answers > micro_tokens
            or (answers > WORTH_A_PASS and padding > PADDING_SHARE * answers)
        ):
            yield batch
            batch, seen, wider, written = [], set(), (len(prompt), length), 0
        batch.append(row)
        seen.add(prompt)
        widths, written = wider, written + length
    if batch:
        yield batch
