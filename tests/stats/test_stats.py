"""Estimators against numbers worked by hand."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.core.stats import (
    Estimate,
    mcnemar,
    mean_interval,
    paired_difference,
    pass_at_k,
    percent,
    plurality_correct,
    points,
    wilson,
)

T_3 = 3.182446305  # 0.975 quantile of Student's t with 3 degrees of freedom, from printed tables


def binomial(n: int, c: int, p: Fraction) -> Fraction:
    return math.comb(n, c) * p**c * (1 - p) ** (n - c)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (4, 1, 2, Fraction(1, 2)),  # three of the six pairs hold the right sample
        (16, 2, 4, Fraction(9, 20)),  # 1 - 1001/1820
        (16, 0, 16, Fraction(0)),
        (16, 1, 16, Fraction(1)),
        (5, 3, 3, Fraction(1)),  # only two wrong ones: any three hold a right one
        (5, 2, 1, Fraction(2, 5)),
        (10**6, 1, 3, Fraction(3, 10**6)),  # where 1 - x would lose digits
    ],
)
def test_pass_at_k(n: int, c: int, k: int, expected: Fraction) -> None:
    assert pass_at_k(n, c, k) == float(expected)


def test_pass_at_k_is_unbiased_and_the_plug_in_is_not() -> None:
    n, k, p = 16, 4, Fraction(1, 10)
    truth = 1 - float(1 - p) ** k  # 0.3439
    estimate = sum(float(binomial(n, c, p)) * pass_at_k(n, c, k) for c in range(n + 1))
    plug_in = sum(float(binomial(n, c, p)) * (1 - (1 - c / n) ** k) for c in range(n + 1))
    assert estimate == pytest.approx(0.3439, abs=1e-12)
    assert plug_in - truth == pytest.approx(-0.0264, abs=5e-5)


def test_pass_at_k_refuses_fewer_samples_than_k() -> None:
    with pytest.raises(ValueError, match="n=4 and k=8"):
        pass_at_k(4, 0, 8)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 2), (4, -1, 2), (4, 1, 0)])
def test_pass_at_k_refuses_impossible_counts(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


def test_mean_pass_at_k_has_the_standard_error_of_the_population() -> None:
    # 1/2, 1/2, 5/6, 5/6: mean 2/3, squared deviations 4/36, variance 1/27, standard error sqrt(1/108)
    found = mean_interval([pass_at_k(4, c, 2) for c in (1, 1, 2, 2)])
    half = T_3 * math.sqrt(1 / 108)
    assert found.n == 4
    assert (found.value, found.low, found.high) == pytest.approx((2 / 3, 2 / 3 - half, 2 / 3 + half), abs=1e-9)


def test_mean_interval_by_hand() -> None:
    # mean 0.5, squared deviations 0.02, standard error sqrt(0.02 / 3 / 4) = 0.0408248
    found = mean_interval([0.4, 0.5, 0.6, 0.5])
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.370077, 0.629923), abs=1e-6)


def test_intervals_without_data_are_undefined() -> None:
    nothing = Estimate(None, None, None, 0)
    assert mean_interval([]) == nothing
    assert wilson(0, 0) == nothing
    assert paired_difference([], []) == nothing
    assert mcnemar([], []) is None
    assert mean_interval([0.25]) == Estimate(0.25, None, None, 1)


def test_interval_stays_within_the_range_of_scores() -> None:
    found = mean_interval([0.0, 1.0])  # t with one degree of freedom: 0.5 ± 6.35
    assert found == Estimate(0.5, 0.0, 1.0, 2)


@pytest.mark.parametrize("values", [[0.5, 1.5], [-0.1, 0.2], [float("nan"), 0.5]])
def test_scores_outside_their_range_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="outside"):
        mean_interval(values)


def test_paired_difference_by_hand() -> None:
    # differences 0.5, 0.25, 0, 0.25: mean 0.25, squared deviations 0.125, standard error sqrt(0.125 / 12)
    found = paired_difference([1.0, 0.5, 0.5, 0.75], [0.5, 0.25, 0.5, 0.5])
    half = T_3 * math.sqrt(0.125 / 12)
    assert (found.value, found.low, found.high) == pytest.approx((0.25, 0.25 - half, 0.25 + half), abs=1e-9)


def test_equal_differences_do_not_claim_certainty() -> None:
    five, six = (paired_difference([1.0] * n, [0.0] * n) for n in (5, 6))
    assert five.low == pytest.approx(2 * 0.025 ** (1 / 5) - 1)  # -0.0436; sign test: p = 2/32 = 0.0625
    assert six.low == pytest.approx(2 * 0.025 ** (1 / 6) - 1)  # +0.0815; sign test: p = 2/64 = 0.0313
    assert five.low is not None
    assert six.low is not None
    assert five.low < 0 < six.low
    assert six.high == 1.0
    unseen = 1 - 0.025 ** (1 / 300)  # 0.0122
    same = paired_difference([0.5] * 300, [0.5] * 300)
    assert (same.value, same.low, same.high) == pytest.approx((0.0, -unseen, unseen))
    # 0.3 - 0.1 and 0.4 - 0.2 differ in the last digit only
    assert paired_difference([0.3, 0.4], [0.1, 0.2]).low == pytest.approx(0.2 - (1 - 0.025**0.5) * 1.2)


def test_unpaired_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([1.0, 0.0], [1.0])


def test_wilson_by_hand() -> None:
    # centre (0.8 + 0.192073) / 1.384146 = 0.716741, half width 1.959964 · sqrt(0.016 + 0.0096036) / 1.384146
    found = wilson(8, 10)
    assert found.n == 10
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.490164, 0.943318), abs=2e-6)
    with pytest.raises(ValueError, match="successes=11"):
        wilson(11, 10)


@pytest.mark.parametrize(
    ("only_a", "only_b", "expected"),
    [
        (1, 5, 2 * 7 / 64),  # P(X <= 1) of 6 = (1 + 6) / 64
        (0, 2, 0.5),
        (3, 3, 1.0),
        (0, 0, 1.0),
        (46, 82, 0.00186),  # a published greedy pair on a set of 675 questions
    ],
)
def test_mcnemar(only_a: int, only_b: int, expected: float) -> None:
    a = [True] * only_a + [False] * only_b + [True] * 5
    b = [False] * only_a + [True] * only_b + [True] * 5
    assert mcnemar(a, b) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("answers", "right", "expected"),
    [
        (["7", "7", "8"], [True, True, False], 1.0),
        (["7", "8", "8"], [True, False, False], 0.0),
        (["7", "7", "8", "8"], [True, True, False, False], 0.5),
        (["7", "8", "9"], [True, False, False], 1 / 3),
        ([None, None, None, "7"], [False, False, False, True], 1.0),  # abstentions are no class
        ([None, None], [False, False], 0.0),
        ([], [], 0.0),
        (["7", "7", "8"], [True, False, False], 0.5),  # judged both ways: one of the elected class is drawn
    ],
)
def test_plurality(answers: list[str | None], right: list[bool], expected: float) -> None:
    assert plurality_correct(answers, right) == pytest.approx(expected)


def test_shares_and_their_differences_as_text() -> None:
    assert [percent(share) for share in (0, 0.4567, 1)] == ["0.0%", "45.7%", "100.0%"]
    assert [points(difference) for difference in (0.203, -0.0123, 0)] == ["+20.3", "-1.2", "+0.0"]


scores = st.floats(0, 1)


@settings(deadline=None)
@given(st.lists(st.tuples(scores, scores), min_size=2, max_size=20))
def test_paired_difference_is_antisymmetric(pairs: list[tuple[float, float]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert one.value is not None
    assert one.low is not None
    assert one.high is not None
    assert -1 <= one.low <= one.value <= one.high <= 1
    assert (other.value, other.low, other.high) == pytest.approx((-one.value, -one.high, -one.low))


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_pass_at_k_grows_with_k_and_c(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    value = pass_at_k(n, c, k)
    assert 0 <= value <= 1
    assert value >= pass_at_k(n, c, 1)
    assert c == n or value <= pass_at_k(n, c + 1, k)


def test_the_paired_interval_covers_the_truth() -> None:
    """Questions of uniform difficulty p, base p and trained p + (1 - p) / 4 on average: the truth is 1/8."""
    draw = random.Random(20)
    trials, questions, samples, covered = 600, 25, 4, 0

    def share(p: float) -> float:
        return sum(draw.random() < p for _ in range(samples)) / samples

    for _ in range(trials):
        ps = [draw.random() for _ in range(questions)]
        found = paired_difference([share(p + (1 - p) / 4) for p in ps], [share(p) for p in ps])
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1 / 8 <= found.high
    assert 0.925 <= covered / trials <= 0.975  # 0.95 ± 2.8 standard errors of 600 trials


def test_import_is_light() -> None:
    code = "import sys, cupola.core.stats; print([m for m in ('numpy', 'scipy', 'statsmodels') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
