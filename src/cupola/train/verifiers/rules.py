"""What the rule verifiers share: the size limit, the extraction, and one timed verdict per text.

A user's own regular expression runs on model text without a time limit: the size limit bounds the text, so a pattern
that backtracks without bound stays the author's to avoid.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cupola.core.config import RewardPart
from cupola.core.records import Completion, LogSink, Prompt, RecipeError, Status, Verdict

#: No rule reads a longer completion: it is judged `parse_fail` unread.
MAX_CHARS = 100_000

SCORES: Mapping[Status, float] = {"ok": 1.0, "wrong": 0.0, "parse_fail": 0.0}


class Judgement(NamedTuple):
    """What a rule says of one text; `Rule` adds score, time and name."""

    status: Status
    extracted: str | None = None
    reason: str = ""


@dataclass(eq=False)
class Rule:
    """A verifier that judges one text at a time, by code of our own.

    `readable` tells whether an answer can serve as gold; `judge` is called with a text within the limit and, where
    `readable` asks for one, a readable answer.
    """

    name: str
    judge: Callable[[str, str], Judgement]
    readable: Callable[[str | None], bool]

    def verify(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink
    ) -> list[Verdict]:
        """One verdict per completion; neither the step nor the log plays a part."""
        return [self._verdict(c.text, p.answer) for p, c in zip(prompts, completions, strict=True)]

    def _verdict(self, text: str, answer: str | None) -> Verdict:
        start = time.perf_counter()
        status, extracted, reason = self._judgement(text, answer)
        seconds = time.perf_counter() - start
        return Verdict(SCORES.get(status), status, extracted, reason, seconds, self.name)

    def _judgement(self, text: str, answer: str | None) -> Judgement:
        if not self.readable(answer):
            return Judgement("gold_bad", reason=f"unreadable answer {answer!r}" if answer else "no answer")
        if len(text) > MAX_CHARS:
            return Judgement("parse_fail", reason=f"longer than {MAX_CHARS} characters")
        return self.judge(text, answer or "")


def compile_regex(part: RewardPart, key: str, pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """The pattern under `key` of the part. Raises RecipeError naming the part, the key and the fault."""
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise RecipeError(f"reward {part.name!r}: `{key}` is not a regular expression: {error}") from error


def last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """Group 1 of the last match (the whole match if the pattern has no group), stripped; `None` if empty or absent."""
    last = deque(pattern.finditer(text), maxlen=1)
    found = last[0][min(pattern.groups, 1)] if last else None
    return (found or "").strip() or None


def not_blank(answer: str | None) -> bool:
    return bool(answer and answer.strip())
