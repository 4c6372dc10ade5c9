"""Whether a sampler holds the trainer's weights: what both say of the same tokens, and checksums of the weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cupola.core.records import Completion, Prompt, Sampler, SamplerError, Sampling
from cupola.train.models.policy import Policy
from cupola.train.models.scoring import logprobs

#: Longest answer to a probe question, in tokens.
PROBE_TOKENS = 32

#: The trainer has moved if its log-probabilities changed by so many times what two engines differ anyway.
CLEARLY = 3.0

MICRO_TOKENS = 4096

Numbers = NDArray[np.float32]


@dataclass(frozen=True)
class Compared:
    """`difference`: the largest |trainer - sampler| in nats; `moved`: the mean |trainer now - trainer before|."""

    difference: float
    moved: float | None


@dataclass
class Probe:
    """A few questions with answers that the sampler gave once; both sides score the same tokens at temperature 1.

        d   = mean |sampler - trainer now|          d'  = mean |sampler - trainer then|
        old = d' < d / 2  and  moved > 3 d_0        d_0 = d at the first comparison; moved = mean |trainer now - then|

    `old` needs no tolerance: weights that did not arrive agree with the trainer as it was then and not as it is now, as
    soon as it changed more than two engines differ anyway. `then` is the publication before, and the first.
    """

    policy: Policy
    prompts: Sequence[Prompt]
    max_tokens: int
    tolerance: float
    answers: list[Completion] = field(default_factory=list)
    before: Numbers | None = None
    first: Numbers | None = None
    noise: float = 0.0

    def compare(self, sampler: Sampler, label: str) -> Compared:
        """Raises SamplerError where the sampler's log-probabilities are not those of the trainer's weights."""
        if not self.answers:
            sampling = Sampling(min(PROBE_TOKENS, self.max_tokens), stop_token_ids=self.policy.stop_ids)
            self.answers = [each for group in sampler.generate(self.prompts, 1, sampling, 0) for each in group]
        own, other = self._own(), np.concatenate(sampler.logprobs(self.prompts, self.answers, 1.0))
        gap = np.abs(other - own)
        for then, name in ((self.before, "the weights before"), (self.first, "the first weights")):
            older = np.inf if then is None else _mean_gap(other, then)
            if then is not None and older < gap.mean() / 2 and _mean_gap(own, then) > CLEARLY * self.noise:
                raise SamplerError(
                    f"{label}: the sampler answers with {name}: its log-probabilities are {older:.3g} nats from those "
                    f"and {gap.mean():.3g} from the trainer's now; the new weights did not arrive"
                )
        found = Compared(float(gap.max()), None if self.before is None else _mean_gap(own, self.before))
        if not found.difference <= self.tolerance:
            raise SamplerError(
                f"{label}: trainer and sampler differ by {found.difference:.3g} nats on the probe where "
                f"{self.tolerance:g} is allowed: other weights, another type (sampler.dtype), or another model; if the "
                "engines only round differently, raise sampler.tolerance"
            )
        self.before = own
        if self.first is None:
            self.first, self.noise = own, float(gap.mean())
        return found

    def _own(self) -> Numbers:
        found = logprobs(
            self.policy.model,
            [self.policy.encode(prompt.content) for prompt in self.prompts],
            [answer.token_ids.tolist() for answer in self.answers],
            pad_id=self.policy.pad_id,
            temperature=1.0,
            micro_tokens=MICRO_TOKENS,
        )
        return torch.cat(found).float().numpy()


def _mean_gap(one: Numbers, other: Numbers) -> float:
    return float(np.abs(one - other).mean())


@dataclass
class Checksums:
    """SHA-256 of the weights on both sides.

    The server fuses, cuts and repacks some weights, so only some of its checksums can equal ours: those that did at the
    first publication must ever after. The others must change when ours do.
    """

    equal: frozenset[str] | None = None
    last: tuple[Mapping[str, str], Mapping[str, str]] | None = None

    def check(self, ours: Mapping[str, str], theirs: Mapping[str, str], label: str) -> None:
        """Names of `theirs` may begin with a worker, up to a colon. Raises SamplerError where the two do not agree."""
        common = {key for key in theirs if key.rpartition(":")[2] in ours}
        equal = frozenset(key for key in common if theirs[key] == ours[key.rpartition(":")[2]])
        if self.equal is not None and (lost := sorted(self.equal - equal)):
            raise SamplerError(
                f"{label}: {len(lost)} of the server's weights are not those that were sent, {lost[0]} first: they did "
                "not arrive, or another type rounded them"
            )
        if common and not equal:
            raise SamplerError(
                f"{label}: the server has {len(common)} weights of the trainer's names and none of its bytes: they did "
                "not arrive, or it holds another type (sampler.dtype)"
            )
        if self.last is not None and (self.last[0] != ours) and self.last[1] == theirs:
            raise SamplerError(f"{label}: the trainer's weights changed and the server's did not: they did not arrive")
        self.equal = equal if self.equal is None else self.equal
        self.last = (ours, theirs)


def sha256(tensor: Tensor) -> str:
    """Of a tensor's bytes, as vLLM's `/weight_checker` computes it."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
