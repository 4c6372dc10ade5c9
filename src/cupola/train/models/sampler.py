"""The in-process sampler: each prompt is read once for its whole group, finished rows leave the batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from cupola.core.records import Completion, NumericalError, Prompt, Receipt, Sampling
from cupola.train.models.decoder import Cached, Decoder, Lean, LeanWeights, agree, is_lean
from cupola.train.models.policy import Policy
from cupola.train.models.scoring import logprobs

#: Rows leave the batch once this share of it has finished: copying the cache for fewer costs more than it saves.
COMPACT_SHARE = 0.25


class InProcessSampler:
    """Samples from the trainer's own weights; implements core's `Sampler`.

    `cache_tokens` bounds rows times (prompt + completion) tokens held in the key-value cache at once.
    """

    apart = False

    def __init__(self, policy: Policy, cache_tokens: int = 32768) -> None:
        self.policy = policy
        self.cache_tokens = cache_tokens
        self.version = 0
        with torch.inference_mode():
            self.lean = is_lean(policy.model) and agree(policy.model)

    def publish(self, version: int) -> Receipt:
        """Count the trainer's weights, which this sampler shares, as `version`."""
        self.version = version
        return Receipt(version, self.policy.parameters, 0.0, "shared memory")

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling, seed: int) -> list[list[Completion]]:
        """`n` completions per prompt. The same seed, prompts and weights give the same completions.

        Log-probabilities and entropies are those of the distribution sampled from; at temperature 0 (greedy) those of
        temperature 1. Raises DataError for a prompt that does not fit the context with `max_tokens`.
        """
        encoded = [self.policy.encode_for(prompt, sampling.max_tokens) for prompt in prompts]
        generator = torch.Generator(self.policy.device).manual_seed(seed)
        completions: list[list[Completion]] = []
        with torch.inference_mode():
            # Packed for this call alone: so they are the weights of this moment, and take no memory after it.
            weights = LeanWeights(self.policy.model, len(encoded) * n) if self.lean else None
            for chunk in self._chunks(encoded, n, sampling.max_tokens):
                decoding = _Decoding(self.policy, chunk, n, sampling, generator, weights)
                decoding.run()
                flat = decoding.completions(self.version)
                completions += [flat[i : i + n] for i in range(0, len(flat), n)]
        return completions

    def logprobs(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], temperature: float
    ) -> list[NDArray[np.float32]]:
        """Teacher-forced log-probabilities (T_i,) of given completions, one prompt each."""
        found = logprobs(
            self.policy.model,
            [self.policy.encode(prompt.content) for prompt in prompts],
            [completion.token_ids.tolist() for completion in completions],
            pad_id=self.policy.pad_id,
            temperature=temperature,
            micro_tokens=self.cache_tokens // 2,
        )
        return [logp.float().numpy() for logp in found]

    def _chunks(self, encoded: list[list[int]], n: int, max_tokens: int) -> Iterator[list[list[int]]]:
        chunk: list[list[int]] = []
        for ids in encoded:
            width = max(len(ids), *map(len, chunk)) if chunk else len(ids)
            if chunk and (len(chunk) + 1) * n * (width + max_tokens) > self.cache_tokens:
                yield chunk
                chunk = []
            chunk.append(ids)
        if chunk:
            yield chunk


class _Decoding:
    """One batch being decoded. `live` holds the row number of each cache row that is still unfinished."""

    def __init__(
        self,
        policy: Policy,
        prompts: list[list[int]],
        n: int,
        sampling: Sampling,
        generator: torch.Generator,
        weights: LeanWeights | None,
    ) -> None:
        self.policy, self.prompts, self.n, self.sampling, self.generator = policy, prompts, n, sampling, generator
        self.weights = weights
        rows, length, device = len(prompts) * n, sampling.max_tokens, policy.device
        self.tokens = torch.zeros(rows, length, dtype=torch.long, device=device)
        self.logps = torch.zeros(rows, length, dtype=torch.float32, device=device)
        self.entropies = torch.zeros(rows, length, dtype=torch.float32, device=device)
        self.lengths = torch.full((rows,), length, device=device)
        self.stopped = torch.zeros(rows, dtype=torch.bool, device=device)
        self.stop_ids = torch.tensor([*policy.stop_ids, *sampling.stop_token_ids], device=device)
        self.live = torch.arange(rows, device=device)

    def run(self) -> None:
        logits = self._prefill()
        for position in range(self.sampling.max_tokens):
            token = self._choose(logits, position)
            self._stop(token, position)
            if position + 1 == self.sampling.max_tokens or bool(self.stopped[self.live].all()):
                return
            logits = self._step(self._compact(token))

    def completions(self, version: int) -> list[Completion]:
        """Of every row, in order."""
        tables = [table.cpu().numpy() for table in (self.tokens, self.logps, self.entropies)]
        found = []
        for row, (n, stopped) in enumerate(zip(self.lengths.tolist(), self.stopped.tolist(), strict=True)):
            ids, logps, entropies = (table[row, :n] for table in tables)
            text = self.policy.decode(ids.tolist())
            found.append(Completion(text, ids, logps, entropies, "stop" if stopped else "length", version))
        return found

    def _prefill(self) -> Tensor:
        """Read each prompt once, then repeat its cache for the group; returns logits (rows, V)."""
        width = max(map(len, self.prompts))
        ids = torch.full((len(self.prompts), width), self.policy.pad_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(self.prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        ids, mask = ids.to(self.policy.device), mask.to(self.policy.device)
        padded = not bool(mask.all())
        cache = DynamicCache(config=self.policy.model.config)
        logits: Tensor = self.policy.model(
            input_ids=ids,
            attention_mask=mask if padded else None,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        cache.batch_repeat_interleave(self.n)
        self.decoder: Decoder = (
            Cached(self.policy.model, cache)
            if self.weights is None
            else Lean(self.weights, cache, width + self.sampling.max_tokens)
        )
        # Without padding no mask is needed, and attention without a mask is faster.
        self.mask = mask.repeat_interleave(self.n, dim=0) if padded else None
        self.position = mask.sum(-1).repeat_interleave(self.n)
        return logits.repeat_interleave(self.n, dim=0)

    def _choose(self, logits: Tensor, position: int) -> Tensor:
        temperature = self.sampling.temperature or 1.0
        logp = (logits.float() if temperature == 1 else logits.float() / temperature).log_softmax(-1)
        probs = logp.exp()
        token = logp.argmax(-1) if self.sampling.temperature == 0 else self._draw(probs)
        self.tokens[self.live, position] = token
        self.logps[self.live, position] = logp.gather(1, token[:, None]).squeeze(1)
        self.entropies[self.live, position] = -(probs * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)
        return token

    def _draw(self, probs: Tensor) -> Tensor:
        """A token of each row, (n,): the first whose cumulated probability is above a uniform number.

        In double precision, in which the sum over a large vocabulary loses none of its tail.
        """
        cumulated = probs.cumsum(-1, dtype=torch.float64)
        total = cumulated[:, -1:]
        if not bool(total.isfinite().all()):
            raise NumericalError("sampling: the policy's probabilities are not finite; its weights are damaged")
        uniform = torch.rand(total.shape, generator=self.generator, dtype=torch.float64, device=total.device)
        return torch.searchsorted(cumulated, uniform * total, right=True).squeeze(1)

    def _stop(self, token: Tensor, position: int) -> None:
        ends = torch.isin(token, self.stop_ids) & ~self.stopped[self.live]
        if self.sampling.stop:
            ends = ends | (self._stop_string(position) & ~self.stopped[self.live])
        rows = self.live[ends]
        self.stopped[rows] = True
        self.lengths[rows] = position + 1

    def _stop_string(self, position: int) -> Tensor:
        """Which live rows' text now contains a stop string; the string stays in the text, as in transformers."""
        # With special tokens, since one may be the stop string, and without, since one may stand inside it.
        rows = self.tokens[self.live, : position + 1].tolist()
        texts = [(self.policy.decode(ids), str(self.policy.tokenizer.decode(ids))) for ids in rows]
        found = [any(stop in text for stop in self.sampling.stop for text in both) for both in texts]
        return torch.tensor(found, device=self.live.device)

    def _compact(self, token: Tensor) -> Tensor:
        """Drop finished rows from the cache when enough have finished; returns the live rows' tokens."""
        going = ~self.stopped[self.live]
        if float(going.float().mean()) > 1 - COMPACT_SHARE:
            return token
        keep = going.nonzero().squeeze(1)
        self.decoder.keep(keep)
        self.live, self.position = self.live[keep], self.position[keep]
        self.mask = None if self.mask is None else self.mask[keep]
        return token[keep]

    def _step(self, token: Tensor) -> Tensor:
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(token), 1)], dim=1)
        logits = self.decoder.step(token, self.position, self.mask)
        self.position = self.position + 1
        return logits
