"""The extracted text equals the answer, character by character."""

from __future__ import annotations

from cupola.core.config import ExactReward
from cupola.train.verifiers.rules import Judgement, Rule, compile_regex, last_match, not_blank


def exact(part: ExactReward) -> Rule:
    """`extract`'s last match, or the whole completion, against the answer; surrounding white space never counts.

    Statuses: `ok`, `wrong`, `parse_fail` (nothing extracted, or text over the limit), `gold_bad` (no answer).
    """
    pattern = compile_regex(part, "extract", part.extract) if part.extract is not None else None
    fold = str.casefold if part.ignore_case else str

    def judge(text: str, answer: str) -> Judgement:
        found = last_match(pattern, text) if pattern else text.strip()
        if not found:
            return Judgement("parse_fail", reason="no match of `extract`" if pattern else "empty completion")
        return Judgement("ok" if fold(found) == fold(answer.strip()) else "wrong", found)

    return Rule(part.name, judge, not_blank)
