"""The extracted number equals the answer, in exact arithmetic.

Read: `1234`, `1,234`, `-0.5`, `.5`, `3/4`, `-1.5/2`, `6.02e23`, a Unicode minus, a dollar sign before the digits.
Not read: mixed numbers (`1 1/2` counts as `1/2`), decimal commas, percent signs and units (ignored after a number),
number words, LaTeX fractions. Nothing is ever evaluated.
"""

from __future__ import annotations

import re
from fractions import Fraction

from cupola.core.config import NumericReward
from cupola.train.verifiers.rules import Judgement, Rule, compile_regex, last_match

#: Limits of one number, so that no answer makes its own check slow.
MAX_LENGTH = 1000
MAX_EXPONENT = 1000

_MINUS = "−"
_LOOSE = rf"(?:(?<![\w)\]])[-+{_MINUS}])?\$?(?:[0-9](?:[0-9,.]*[0-9])?|\.[0-9]+)(?:[eE][-+{_MINUS}]?[0-9]+)?"

#: A run of digits and separators is taken whole, so that a malformed `1,23,4` is refused instead of read as 4.
LAST_NUMBER = re.compile(rf"{_LOOSE}(?: ?/ ?{_LOOSE})*")

_STRICT = re.compile(
    r"(?P<sign>[-+]?)\$?"
    r"(?=\.?[0-9])(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]*)"
    r"(?:\.(?P<part>[0-9]*))?"
    r"(?:[eE](?P<exponent>[-+]?[0-9]+))?"
)


def numeric(part: NumericReward) -> Rule:
    """`extract`'s last match, or the last number of the completion, within `tolerance` of the answer (0: equal).

    Statuses: `ok`, `wrong`, `parse_fail` (no number, or one over a limit), `gold_bad` (the answer is no number).
    """
    pattern = compile_regex(part, "extract", part.extract) if part.extract is not None else LAST_NUMBER
    tolerance = Fraction(repr(part.tolerance))  # the decimal as written, not its binary neighbour

    def judge(text: str, answer: str) -> Judgement:
        found = last_match(pattern, text)
        if found is None:
            return Judgement("parse_fail", reason="no match of `extract`" if part.extract else "no number")
        try:
            distance = abs(read_number(found) - read_number(answer))
        except ValueError as error:
            return Judgement("parse_fail", found, str(error))
        return Judgement("ok" if distance <= tolerance else "wrong", found)

    return Rule(part.name, judge, is_number)


def is_number(text: str | None) -> bool:
    """Whether `read_number` accepts it."""
    try:
        read_number(text or "")
    except ValueError:
        return False
    return True


def read_number(text: str) -> Fraction:
    """The exact value of a whole text. Raises ValueError where it is no number or over a limit.

    >>> read_number("-1,234.50")
    Fraction(-2469, 2)
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"number longer than {MAX_LENGTH} characters")
    numerator, slash, denominator = text.replace(_MINUS, "-").partition("/")
    if not slash:
        return _decimal(numerator)
    below = _decimal(denominator)
    if below == 0:
        raise ValueError("division by zero")
    return _decimal(numerator) / below


def _decimal(text: str) -> Fraction:
    match = _STRICT.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a number")
    whole, part = match["whole"].replace(",", ""), match["part"] or ""
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        raise ValueError(f"exponent beyond {MAX_EXPONENT}")
    value = Fraction(int(whole + part), 10 ** len(part)) * Fraction(10) ** exponent
    return -value if match["sign"] == "-" else value
