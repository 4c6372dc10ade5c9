"""A vLLM server as sampler: token ids in, token ids with log-probabilities and weight versions out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from cupola.core.records import Completion, Prompt, Receipt, Sampler, SamplerError, Sampling
from cupola.train.rollout.server import Server
from cupola.train.tasks import derive

T = TypeVar("T")

#: Token ids in and out; vLLM serves it with --enable-scale-out. Unlike /v1/completions it takes no sampling parameter
#: from the model's generation config behind our back, and it tells the weight version.
GENERATE = "/inference/v1/generate"

#: Questions that are under way at once; the server batches them.
AT_ONCE = 64

#: What vLLM writes for a log-probability that it does not know.
UNKNOWN = -9999.0


class Publisher(Protocol):
    """Brings the trainer's weights to the server under a label, and checks with `sampler` that they arrived."""

    adapter: bool  # whether what it brings is an adapter, which is then asked for by the label as its name

    def publish(self, version: int, label: str, sampler: Sampler) -> Receipt: ...


@dataclass(frozen=True)
class Text:
    """What the sampler needs of the tokenizer. `encode` takes the prompt and how many tokens may follow it."""

    encode: Callable[[Prompt, int], list[int]]
    decode: Callable[[Sequence[int]], str]
    stop_ids: tuple[int, ...]


class VllmSampler:
    """Implements core's `Sampler`. It asks for nothing before it has published, and takes no answer of other weights.

    Weights are labelled `session-version`, and every answer says by which it was drawn: a server that was restarted, or
    that another trainer sends weights to, shows at its next answer.
    """

    apart = True

    def __init__(self, server: Server, text: Text, publisher: Publisher) -> None:
        self.server, self.text, self.publisher = server, text, publisher
        self.session = f"cupola-{uuid.uuid4().hex[:8]}"
        self.version = -1

    @property
    def label(self) -> str:
        return f"{self.session}-{self.version}"

    def publish(self, version: int) -> Receipt:
        """Send the trainer's weights as `version`. Raises SamplerError where they did not arrive, or not unchanged."""
        self.version = version
        return self.publisher.publish(version, self.label, self)

    def generate(self, prompts: Sequence[Prompt], n: int, sampling: Sampling, seed: int) -> list[list[Completion]]:
        """`n` completions per prompt. Entropies are `None`: the server does not tell them.

        Log-probabilities are those of the distribution sampled from; at temperature 0 (greedy) those of temperature 1.
        Each prompt is a request with a seed of its own. Raises DataError for a prompt that does not fit the context,
        SamplerError for a server that does not answer, or not as asked.
        """

        def group(index: int, prompt: Prompt) -> list[Completion]:
            asked = {
                "n": n,
                "seed": derive(seed, index) >> 2,  # vLLM counts on from it for the n, within 63 bits
                "temperature": sampling.temperature,
                "max_tokens": sampling.max_tokens,
                "logprobs": 0,  # the drawn token's alone
                "stop_token_ids": [*self.text.stop_ids, *sampling.stop_token_ids],
                **({"stop": list(sampling.stop)} if sampling.stop else {}),
            }
            choices = self._ask(self.text.encode(prompt, sampling.max_tokens), asked).choices
            if sorted(choice.index for choice in choices) != list(range(n)):
                raise self._misfit(f"gave {len(choices)} completions where {n} were asked for")
            ordered = sorted(choices, key=lambda choice: choice.index)
            return [self._completion(choice, sampling.max_tokens) for choice in ordered]

        return _at_once(group, range(len(prompts)), prompts)

    def logprobs(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], temperature: float
    ) -> list[NDArray[np.float32]]:
        """Teacher-forced log-probabilities (T_i,) of given completions, one prompt each.

        At temperature 1 alone: vLLM scores given tokens at no other. Raises SamplerError as `generate` does.
        """
        if temperature != 1:
            raise SamplerError(f"{self.server.url}: vLLM scores given tokens at temperature 1, not {temperature:g}")

        def scores(prompt: Prompt, completion: Completion) -> NDArray[np.float32]:
            ids = completion.token_ids.tolist()
            told = self._ask([*self.text.encode(prompt, len(ids)), *ids], {"max_tokens": 1, "prompt_logprobs": 1})
            rows = (told.prompt_logprobs or [])[-len(ids) :]
            found = [row[token].logprob for row, token in zip(rows, ids, strict=False) if row and token in row]
            if len(found) != len(ids) or UNKNOWN in found:
                raise self._misfit(f"scored {len(found)} of {len(ids)} given tokens")
            return np.array(found, dtype=np.float32)

        return _at_once(scores, prompts, completions)

    def _ask(self, token_ids: Sequence[int], sampling_params: dict[str, Any]) -> _Reply:
        if self.version < 0:
            raise SamplerError(f"{self.server.url}: no weights were published yet")
        body = {"token_ids": list(token_ids), "sampling_params": sampling_params}
        if self.publisher.adapter:
            body["model"] = self.label
        answer = self.server.ask(GENERATE, body)
        try:
            reply = _Reply.model_validate(answer)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise self._misfit(f"has {key}: {first['msg'].lower()}, got {first['input']!r:.60}") from error
        for version in (span.version for choice in reply.choices for span in choice.weight_versions):
            if version != self.label:
                raise SamplerError(
                    f"{self.server.url}: answered with weights {version!r} where {self.label!r} were published; it was "
                    "restarted, or another trainer sends it weights: `cupola resume` publishes anew"
                )
        return reply

    def _completion(self, choice: _Choice, max_tokens: int) -> Completion:
        ids, scored = choice.token_ids, choice.logprobs.content if choice.logprobs else []
        if [each.token_id for each in scored] != ids or any(each.logprob == UNKNOWN for each in scored):
            raise self._misfit(f"has log-probabilities for {len(scored)} of {len(ids)} tokens, or of other tokens")
        if choice.finish_reason not in ("stop", "length"):
            raise self._misfit(f"ended a completion for the reason {choice.finish_reason!r}")
        if not 1 <= len(ids) <= max_tokens or (choice.finish_reason == "length" and len(ids) < max_tokens):
            raise self._misfit(
                f"cut a completion at {len(ids)} tokens where sampling.max_tokens = {max_tokens}; does the server's "
                "--max-model-len hold prompt and completion?"
            )
        return Completion(
            text=self.text.decode(ids),
            token_ids=np.array(ids, dtype=np.int64),
            logps=np.array([each.logprob for each in scored], dtype=np.float32),
            entropies=None,
            finish_reason="stop" if choice.finish_reason == "stop" else "length",
            policy_version=self.version,
        )

    def _misfit(self, text: str) -> SamplerError:
        return SamplerError(f"{self.server.url}{GENERATE}: the answer {text}")


def _at_once(ask: Callable[..., T], *rows: Iterable[Any]) -> list[T]:
    """The answers in order; the first question that fails ends those that have not begun."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(pool.map(ask, *rows))
    finally:
        pool.shutdown(cancel_futures=True)


class _Scored(BaseModel):
    token_id: int
    logprob: float


class _Logprobs(BaseModel):
    content: list[_Scored]


class _Span(BaseModel):
    version: str


class _Choice(BaseModel):
    index: int
    finish_reason: str
    token_ids: list[int]
    logprobs: _Logprobs | None
    weight_versions: list[_Span]


class _Given(BaseModel):
    logprob: float


class _Reply(BaseModel):
    choices: list[_Choice]
    prompt_logprobs: list[dict[int, _Given] | None] | None = None
