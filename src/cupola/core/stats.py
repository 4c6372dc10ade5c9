"""Estimators with their 95% intervals. Undefined is `None`, never zero.

Scores lie in [0, 1] and one value stands for one question: a question's samples are averaged first, so every interval
is clustered by question and speaks of the population that the questions were drawn from.
Sources: Chen et al. 2021 (arXiv 2107.03374) for pass@k, Miller 2024 (arXiv 2411.00640) for intervals of evaluations.
SciPy and statsmodels are imported where they are used: they take longer to import than the numbers to compute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

ALPHA = 0.05

#: Values that differ by no more than this are equal: rounding of means of few samples.
EQUAL_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Estimate:
    """A value with the bounds of its 95% interval and the number of questions `n` behind it.

    Without questions the value is `None`; with fewer than two questions an interval of a mean is `None`.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that k of the n samples, drawn without replacement, hold at least one of the c right ones.

    U = 1 - C(n-c, k) / C(n, k), unbiased for 1 - (1-p)^k; the plug-in 1 - (1 - c/n)^k is biased low. Whole numbers
    until the one division, so the result is correctly rounded. Raises ValueError if n < k: fewer samples than k
    define no estimate.
    """
    if n < k:
        raise ValueError(f"pass@k needs n >= k samples, got n={n} and k={k}")
    if k < 1 or not 0 <= c <= n:
        raise ValueError(f"pass@k needs k >= 1 and 0 <= c <= n, got n={n}, c={c}, k={k}")
    draws = math.comb(n, k)
    return (draws - math.comb(n - c, k)) / draws


def plurality_correct(answers: Sequence[Hashable | None], right: Sequence[bool]) -> float:
    """maj@n over all n samples: probability that the most frequent answer, ties broken evenly, is right.

    Equal answers are one class. An unparsed answer (`None`) abstains; if all abstain the vote elects nothing and the
    result is 0.0. Where equal answers were judged differently, one sample of the elected class decides, drawn evenly.
    Raises ValueError if the sequences differ in length.
    """
    votes = [(answer, correct) for answer, correct in zip(answers, right, strict=True) if answer is not None]
    sizes = Counter(answer for answer, _ in votes)
    largest = max(sizes.values(), default=0)
    elected = [correct for answer, correct in votes if sizes[answer] == largest]
    return sum(elected) / len(elected) if elected else 0.0


def wilson(successes: int, n: int) -> Estimate:
    """Share of successes with Wilson's score interval: one answer per question. Raises ValueError if out of range."""
    if not 0 <= successes <= n:
        raise ValueError(f"a share needs 0 <= successes <= n, got successes={successes} and n={n}")
    if n == 0:
        return Estimate(None, None, None, 0)
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(successes, n, alpha=ALPHA, method="wilson")
    return Estimate(successes / n, float(low), float(high), n)


def mean_interval(values: Sequence[float]) -> Estimate:
    """Mean of one value in [0, 1] per question (a share, a pass@k), with a t interval over questions.

    mean ± t(0.975, Q-1) · sd(values, ddof=1) / sqrt(Q), within [0, 1]: the noise within questions is contained. Samples
    must be independent given the question, so those of several trained models are never pooled. All values equal: see
    `paired_difference`. Raises ValueError for a value outside [0, 1].
    """
    return _interval(values, 0.0, 1.0)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Mean of a - b over paired questions, scores in [0, 1], with a t interval over questions.

    d ± t(0.975, Q-1) · sd(a_i - b_i, ddof=1) / sqrt(Q), within [-1, 1].

    If all differences equal one value d, their sd is 0 and the t interval would shrink to a point that claims
    certainty from any two questions. The declared rule is then: up to a share e = 1 - 0.025^(1/Q) of the population
    may behave otherwise and yet show nothing in Q questions (Clopper-Pearson for none of Q); with that share at the
    worst and best difference the interval is [d - e(d + 1), d + e(1 - d)]. At d = ±1 it excludes 0 exactly when the
    two-sided sign test rejects at 5%. With a handful of discordant pairs the t interval is still short: no t interval
    shows an exact test, so read `mcnemar` beside it for scores of 0 and 1.
    Raises ValueError if the lengths differ or a difference is outside [-1, 1].
    """
    return _interval([x - y for x, y in zip(a, b, strict=True)], -1.0, 1.0)


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> float | None:
    """Two-sided exact p of McNemar's test that a and b are right equally often over paired questions.

    Only discordant pairs speak: p = min(1, 2 · P(X <= min(n10, n01))) with X ~ Binomial(n10 + n01, 1/2); 1.0 without
    any, `None` without questions. Raises ValueError if the lengths differ.
    """
    pairs = Counter((bool(x), bool(y)) for x, y in zip(a, b, strict=True))
    if not pairs:
        return None
    from statsmodels.stats.contingency_tables import mcnemar as exact_test

    table = [[pairs[x, y] for y in (True, False)] for x in (True, False)]
    return float(exact_test(table, exact=True).pvalue)


def percent(share: float) -> str:
    """A share as text: `45.7%`."""
    return f"{share:.1%}"


def points(difference: float) -> str:
    """A difference of shares in percentage points, always with its sign: `+20.3`."""
    return f"{100 * difference:+.1f}"


def _interval(values: Sequence[float], lowest: float, highest: float) -> Estimate:
    """Mean and 95% interval of values known to lie in [lowest, highest]."""
    for value in values:
        if not lowest <= value <= highest:
            raise ValueError(f"a value of {value} lies outside [{lowest:g}, {highest:g}]")
    n = len(values)
    if n == 0:
        return Estimate(None, None, None, 0)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, 1)
    if max(values) - min(values) <= EQUAL_TOLERANCE:
        unseen = 1 - (ALPHA / 2) ** (1 / n)
        return Estimate(mean, mean - unseen * (mean - lowest), mean + unseen * (highest - mean), n)
    half = _t_quantile(n - 1) * math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    return Estimate(mean, max(lowest, mean - half), min(highest, mean + half), n)


def _t_quantile(df: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, 1 - ALPHA / 2))
