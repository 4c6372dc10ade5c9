"""A format check: the whole completion matches a regular expression."""

from __future__ import annotations

import re

from cupola.core.config import PatternReward
from cupola.train.verifiers.rules import Judgement, Rule, compile_regex


def pattern(part: PatternReward) -> Rule:
    """`ok` (1) where `pattern` matches from the first to the last character, else `wrong` (0); `.` matches newlines."""
    compiled = compile_regex(part, "pattern", part.pattern, re.DOTALL)

    def judge(text: str, answer: str) -> Judgement:
        return Judgement("ok") if compiled.fullmatch(text) else Judgement("wrong", reason="does not match `pattern`")

    return Rule(part.name, judge, lambda answer: True)
