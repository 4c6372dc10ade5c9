"""Exact, numeric and pattern rules: what they accept, what they refuse, and that no text makes them slow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.core.config import ExactReward, FunctionReward, NumericReward, PatternReward, Reward
from cupola.core.records import Completion, Prompt, RecipeError, Verdict
from cupola.train.verifiers import MAX_CHARS, build, gold_reader, read_number


def completion(text: str) -> Completion:
    empty = np.zeros(0, np.float32)
    return Completion(text, np.zeros(0, np.int64), empty, empty, "stop", 0)


def exact(**values: Any) -> ExactReward:
    return ExactReward(name="right", **values)


def numeric(**values: Any) -> NumericReward:
    return NumericReward(name="right", **values)


def pattern(regex: str) -> PatternReward:
    return PatternReward(name="right", pattern=regex)


class Untouched:
    """The log of a step: no rule writes to it."""

    def column(self, name: str, values: Sequence[Any]) -> None:
        raise AssertionError(name)

    def metric(self, name: str, value: float) -> None:
        raise AssertionError(name)


def judge(reward: Reward, text: str, answer: str | None = None) -> Verdict:
    [verifier] = build([reward])
    [verdict] = verifier.verify([Prompt("q", answer)], [completion(text)], 0, Untouched())
    assert verdict.verifier == verifier.name == "right"
    assert verdict.seconds >= 0
    return verdict


@pytest.mark.parametrize(
    ("values", "text", "answer", "status", "extracted"),
    [
        ({}, " Paris\n", "Paris", "ok", "Paris"),
        ({}, "paris", "Paris", "wrong", "paris"),
        ({"ignore_case": True}, "STRASSE", "straße", "ok", "STRASSE"),
        ({}, "Paris", " Paris ", "ok", "Paris"),
        ({}, "  \n", "Paris", "parse_fail", None),
        ({"extract": r"<a>(.*?)</a>"}, "<a>no</a> then <a> yes </a>", "yes", "ok", "yes"),
        ({"extract": r"<a>(.*?)</a>"}, "<a>yes</a> then <a>no</a>", "yes", "wrong", "no"),
        ({"extract": r"[A-D]"}, "A or B? B", "B", "ok", "B"),
        ({"extract": r"<a>(.*?)</a>"}, "yes", "yes", "parse_fail", None),
        ({"extract": r"<a>(.*?)</a>"}, "<a> </a>", "yes", "parse_fail", None),
        ({"extract": r"answer(?: is (\w+))?"}, "answer", "yes", "parse_fail", None),
        ({}, "Paris", None, "gold_bad", None),
        ({}, "Paris", "  ", "gold_bad", None),
    ],
)
def test_exact(values: dict[str, Any], text: str, answer: str | None, status: str, extracted: str | None) -> None:
    verdict = judge(exact(**values), text, answer)
    assert (verdict.status, verdict.extracted) == (status, extracted)
    assert verdict.score == {"ok": 1.0, "wrong": 0.0, "parse_fail": 0.0, "gold_bad": None}[status]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        ("+7", Fraction(7)),
        ("−3", Fraction(-3)),
        ("-0.50", Fraction(-1, 2)),
        (".25", Fraction(1, 4)),
        ("5.", Fraction(5)),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("-$1,000", Fraction(-1000)),
        ("3/4", Fraction(3, 4)),
        (" 6 / -8 ", Fraction(-3, 4)),
        ("1.5/2", Fraction(3, 4)),
        ("1.2e3", Fraction(1200)),
        ("25E−2", Fraction(1, 4)),
        ("007", Fraction(7)),
    ],
)
def test_numbers_are_read_exactly(text: str, value: Fraction) -> None:
    assert read_number(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a number"),
        ("four", "not a number"),
        ("1,23", "not a number"),
        ("0,500", "not a number"),
        ("1,2345", "not a number"),
        ("1.2.3", "not a number"),
        ("1/2/3", "not a number"),
        (".", "not a number"),
        ("1e", "not a number"),
        ("0x10", "not a number"),
        ("nan", "not a number"),
        ("1_000", "not a number"),
        ("٣", "not a number"),
        ("2**9", "not a number"),
        ("1/0", "division by zero"),
        ("1e1001", "exponent beyond 1000"),
        ("1e-999999999999", "exponent beyond 1000"),
        ("9" * 1001, "longer than 1000"),
    ],
)
def test_what_is_no_number_or_over_a_limit(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_number(text)


@pytest.mark.parametrize(
    ("text", "answer", "status", "extracted"),
    [
        ("5+3=8", "8", "ok", "8"),
        ("5-3", "3", "ok", "3"),
        ("it is -4.", "-4", "ok", "-4"),
        ("x=−4", "-4", "ok", "−4"),
        ("f(2)-3", "3", "ok", "3"),
        ("costs $1,234.50!", "1234.5", "ok", "$1,234.50"),
        ("loses -$5", "5", "wrong", "-$5"),
        ("about 1 / 3 of it", "2/6", "ok", "1 / 3"),
        ("6.0e2 m", "600", "ok", "6.0e2"),
        ("10%, so 12,", "12", "ok", "12"),
        ("12 or 13", "12", "wrong", "13"),
        ("0.1", "1/10", "ok", "0.1"),
        ("0.3333", "1/3", "wrong", "0.3333"),
        ("12,345,67", "67", "parse_fail", "12,345,67"),
        ("on 01/02/2023", "2023", "parse_fail", "01/02/2023"),
        ("1e99999", "1", "parse_fail", "1e99999"),
        ("no idea", "1", "parse_fail", None),
        ("12", "twelve", "gold_bad", None),
        ("12", None, "gold_bad", None),
    ],
)
def test_numeric_takes_the_last_number(text: str, answer: str | None, status: str, extracted: str | None) -> None:
    verdict = judge(numeric(), text, answer)
    assert (verdict.status, verdict.extracted) == (status, extracted)


def test_numeric_with_extract_and_tolerance() -> None:
    boxed = numeric(extract=r"\\boxed\{([^}]*)\}")
    assert judge(boxed, r"\boxed{7}, checked 8 times", "7").status == "ok"
    assert judge(boxed, r"\boxed{7 apples}", "7").status == "parse_fail"
    near = numeric(tolerance=0.1)
    assert judge(near, "1.1", "1").status == "ok"  # 0.1 is meant as written, though its binary neighbour is not 1/10
    assert judge(numeric(tolerance=0.3), "1.3", "1").status == "ok"
    assert judge(near, "1.1000001", "1").status == "wrong"


@given(st.fractions(max_denominator=10**6), st.sampled_from(["{}", "The answer is {}.", "1 + 1 = 2, so {} !"]))
def test_numeric_accepts_every_fraction_it_is_told(value: Fraction, phrase: str) -> None:
    assert judge(numeric(), phrase.format(value), str(value)).status == "ok"


@given(st.integers(), st.integers(min_value=1))
def test_numeric_refuses_every_other_integer(value: int, difference: int) -> None:
    assert judge(numeric(), f"{value:,}", str(value)).status == "ok"
    assert judge(numeric(), f"{value + difference:,}", str(value)).status == "wrong"


@given(st.text(max_size=200))
def test_no_text_raises(text: str) -> None:
    assert judge(numeric(), text, "1").status in ("ok", "wrong", "parse_fail")
    assert judge(exact(), text, "1").status in ("ok", "wrong", "parse_fail")


@pytest.mark.parametrize(
    "unit", ["1", "1,", "1.", "1/", "1 / ", ".", ",", "-", "1e", "1e9", "−$", "(", "1,,,,", "/", "0.1e-", "$"]
)
def test_no_text_is_slow(unit: str) -> None:
    text = (unit * MAX_CHARS)[:MAX_CHARS]
    start = time.perf_counter()
    judge(numeric(), text, "1")
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("part", [exact(), numeric(), pattern(".*")], ids=lambda part: part.kind)
def test_a_text_over_the_limit_is_not_read(part: Reward) -> None:
    verdict = judge(part, "1" * (MAX_CHARS + 1), "1")
    assert (verdict.status, verdict.score) == ("parse_fail", 0.0)
    assert str(MAX_CHARS) in verdict.reason


def test_pattern_covers_the_whole_text() -> None:
    think = pattern(r"<think>.*</think>\d+")
    assert judge(think, "<think>a\nb</think>12").score == 1.0
    assert judge(think, "<think>a</think>12\n").score == 0.0
    assert judge(think, "so <think>a</think>12").status == "wrong"


@pytest.mark.parametrize(
    ("part", "key"), [(exact(extract="("), "extract"), (numeric(extract="*"), "extract"), (pattern("["), "pattern")]
)
def test_a_bad_regular_expression_names_part_and_key(part: Reward, key: str) -> None:
    with pytest.raises(RecipeError, match=f"'right': `{key}` is not a regular expression"):
        build([part])


def test_gold_is_what_no_verdict_would_call_bad() -> None:
    for part in (exact(), numeric(), pattern(".*")):
        for answer in (None, "", " ", "12", "twelve", "1/0"):
            assert gold_reader([part])(answer) == (judge(part, "12", answer).status != "gold_bad")
    assert gold_reader([FunctionReward(name="mine", path="m:f")])(None)
    both = gold_reader([exact(), numeric()])
    assert [both(answer) for answer in ("12", "twelve", None)] == [True, False, False]
