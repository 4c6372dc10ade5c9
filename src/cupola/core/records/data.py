"""The frozen records that every room exchanges. Undefined is `None`, never zero."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

SCHEMA_VERSION = 1

#: Rewards of a group that differ by no more than this are equal: the group is dead.
DEAD_TOLERANCE = 1e-8

Content = str | tuple[Mapping[str, str], ...]
Split = Literal["train", "validation", "dev", "test"]
FinishReason = Literal["stop", "length"]
Status = Literal["ok", "wrong", "parse_fail", "gold_bad", "timeout", "error", "skipped"]
GroupState = Literal["dead", "no_signal", "signal", "unscorable"]
Severity = Literal["info", "warning", "error"]


def content_hash(content: Content) -> str:
    """First 16 hex digits of the SHA-256 of a prompt's canonical JSON: the prompt's identity everywhere."""
    plain = content if isinstance(content, str) else [dict(message) for message in content]
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Prompt:
    """One question: text or chat messages, its reference answer, and the dataset's further columns."""

    content: Content
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            object.__setattr__(self, "id", content_hash(self.content))

    @property
    def text(self) -> str:
        """The prompt for a person: the text itself, or `role: content` lines of a chat."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(f"{message['role']}: {message['content']}" for message in self.content)


@dataclass(frozen=True, eq=False)
class Completion:
    """What the sampler returned for one prompt, with everything needed to train on it.

    `logps` (T,) are log-probabilities in nats at the sampling temperature; `entropies` (T,) the entropy in nats
    of the distribution each token was drawn from, or `None` from a sampler that does not tell. Both cover the
    end-of-sequence token where one was sampled.
    """

    text: str
    token_ids: NDArray[np.int64]
    logps: NDArray[np.float32]
    entropies: NDArray[np.float32] | None
    finish_reason: FinishReason
    policy_version: int

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgement of one completion.

    `score` is `None` only for `gold_bad`, `skipped`, and an `error` or `timeout` that is the verifier's own fault.
    What the answer caused (a size, time or memory limit) is `wrong` or `parse_fail` with score 0 and the limit in
    `reason`; otherwise a policy would learn to hang its own check.
    """

    score: float | None
    status: Status
    extracted: str | None = None
    reason: str = ""
    seconds: float = 0.0
    verifier: str = ""
    tier: str | None = None

    def __post_init__(self) -> None:
        if self.score is None and self.status in ("ok", "wrong", "parse_fail"):
            raise ValueError(f"{self.verifier}: a verdict of status {self.status} needs a score")
        if self.score is not None and self.status in ("gold_bad", "skipped", "error", "timeout"):
            raise ValueError(f"{self.verifier}: a verdict of status {self.status} gives no score, got {self.score}")


@dataclass(frozen=True, eq=False)
class Rollout:
    """A completion with its verdicts (one per reward part, in the recipe's order) and its total reward."""

    completion: Completion
    verdicts: Mapping[str, Verdict]
    reward: float | None
    correct: bool | None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Group:
    """All completions of one prompt in one step, drawn alike: `mode` is `sampled`, `greedy`, or an evaluation's."""

    id: str
    prompt: Prompt
    rollouts: tuple[Rollout, ...]
    split: Split = "train"
    mode: str = "sampled"

    @property
    def rewards(self) -> list[float]:
        """The rewards of the scored rollouts."""
        return [rollout.reward for rollout in self.rollouts if rollout.reward is not None]

    @property
    def solve_rate(self) -> float | None:
        """Share of right answers among those judged, or `None` if none was."""
        judged = [rollout.correct for rollout in self.rollouts if rollout.correct is not None]
        return sum(judged) / len(judged) if judged else None

    @property
    def state(self) -> GroupState:
        """`unscorable`: fewer than two rewards; `dead`: all rewards equal; `no_signal`: all equally correct."""
        rewards = self.rewards
        if len(rewards) < 2:
            return "unscorable"
        if max(rewards) - min(rewards) <= DEAD_TOLERANCE:
            return "dead"
        judged = {rollout.correct for rollout in self.rollouts if rollout.correct is not None}
        return "no_signal" if len(judged) == 1 else "signal"


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn, always from the whole distribution. Temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """That the sampler holds the weights of `version`: one row of weights.jsonl.

    `digest` is a SHA-256 over what was sent. On the probe, a fixed set of questions with their answers, `difference` is
    the largest gap in nats between the trainer's log-probabilities and the sampler's, and `moved` the mean change of
    the trainer's own since the publication before. `None` where nothing was sent or compared.
    """

    version: int
    parameters: int
    seconds: float
    how: str
    digest: str | None = None
    difference: float | None = None
    moved: float | None = None


@dataclass(frozen=True)
class Finding:
    """One diagnosis: a name and parameters; the wording lives in `core.catalogue`."""

    name: str
    severity: Severity
    steps: tuple[int, int]
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalSample:
    """One evaluated answer: which arm gave it, how it was drawn, and whether it is right."""

    arm: str
    prompt_id: str
    mode: str
    index: int
    text: str
    answer: str | None
    correct: bool | None
    n_tokens: int
    finish_reason: FinishReason


def batch_messages(prompts: Sequence[Prompt]) -> list[Any]:
    """Prompt contents as plain JSON values, the form user code expects."""
    return [p.content if isinstance(p.content, str) else [dict(m) for m in p.content] for p in prompts]
