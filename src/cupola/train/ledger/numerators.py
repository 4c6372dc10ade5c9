"""What leaves a term's numerator and stays in its denominator."""

from __future__ import annotations

#: How each reason reads after "N tokens".
REASONS: dict[str, str] = {
    "unscored": "of answers without a reward have no numerator",
    "rejected": "of rejected answers have no numerator",
    "truncated": "of answers cut at the limit have no numerator",
    "correction": "lost their numerator to the correction from sampler to trainer",
    "off_policy": "of answers with A < 0 that the policy no longer gives lost their numerator",
    "low_entropy": "of low entropy lost their numerator",
    "clip_cov": "of high covariance lost their numerator",
}


def numerator_words(reason: str, tokens: int, counted: int) -> str:
    """What a mask did to a term whose denominator counts `counted` tokens."""
    share = f", {tokens / counted:.1%} of those counted" if counted else ""
    stay = "they stay in the count, so the step is smaller by what they would have added"
    return f"{tokens} tokens {REASONS[reason]}{share}: {stay}."
