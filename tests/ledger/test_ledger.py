"""The ledger: its weights are the objective's, its shares are shares, its words say what the numbers say."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.core.config.objective import Denominator
from cupola.train import objectives
from cupola.train.ledger import RULES, Weighted, ledger_row, numerator_words, shares, weight

ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 4), st.booleans()), min_size=1, max_size=20
)  # (length, group, counted)


def test_one_set_of_rules_everywhere() -> None:
    assert list(RULES) == list(objectives.RULES) == list(get_args(Denominator))


@settings(deadline=None)
@given(ROWS, st.integers(1, 512), st.sampled_from(sorted(RULES)))
def test_the_ledgers_weight_is_the_objectives_omega(
    rows: list[tuple[int, int, bool]], max_tokens: int, rule: str
) -> None:
    lengths = torch.tensor([length for length, _, _ in rows])
    groups = torch.tensor([group for _, group, _ in rows])
    counted = torch.tensor([flag for _, _, flag in rows]) & (lengths > 0)
    counts = objectives.count(lengths, groups, counted)
    found = objectives.omega(rule, lengths, groups, counted, counts, max_tokens)
    totals = (counts.rollouts, counts.tokens, counts.prompts)
    width = max(length for length, _, _ in rows)  # all are forwarded together
    for i, (length, group, _) in enumerate(rows):
        if not counted[i]:
            assert found[i] == 0
            continue
        group_tokens = sum(int(lengths[j]) for j in range(len(rows)) if counted[j] and rows[j][1] == group)
        assert float(found[i]) == pytest.approx(
            weight(rule, totals, max_tokens, length, group_tokens, width), rel=1e-14
        )


@pytest.mark.parametrize(
    ("rule", "value", "says"),
    [
        ("sequence_mean", 8, "a token of a long answer counts less"),
        ("token_mean", 100, "a long answer counts more than a short one"),
        ("constant", 8 * 64, "the same in every batch"),
        ("prompt_mean", 2, "Every prompt counts alike"),
    ],
)
def test_row_by_hand(rule: str, value: int, says: str) -> None:
    weighted = [Weighted(3.0, True, 10, 0.5), Weighted(1.0, False, 20, 0.5)]
    row = ledger_row("policy", rule, (8, 100, 2), 64, {"unscorable": 3, "no_tokens": 0}, weighted, "because")
    assert row["term"] == "policy"
    assert row["rule"] == rule
    assert row["value"] == value
    assert row["formula"].startswith("omega")
    assert row["counted"] == {"rollouts": 8, "tokens": 100, "prompts": 2}
    assert row["excluded"] == {"unscorable": 3}
    assert row["why"] == "because"
    assert says in row["words"][0]
    assert "Wrong answers carry 25% of the term's gradient weight." in row["words"]
    assert "largely cancels a constant factor" in row["words"][-1]


def test_without_weight_there_are_no_shares() -> None:
    row = ledger_row("policy", "constant", (0, 0, 0), 64, {}, [Weighted(0.0, True, 5, 1.0)], None)
    assert row["value"] is None
    assert row["shares"] is None
    assert row["why"] is None
    assert "No rollout carried any gradient weight in this term." in row["words"]
    assert shares([]) is None


def test_shares_by_hand() -> None:
    found = shares(
        [
            Weighted(4.0, True, 9, 0.25),
            Weighted(2.0, False, 3, 0.25),
            Weighted(1.0, None, 5, None),
            Weighted(1.0, False, 7, 0.0),
        ]
    )
    assert found is not None
    assert found["correctness"] == {"right": 0.5, "wrong": 0.375, "unjudged": 0.125}
    assert found["length"] == {"q1": 0.25, "q2": 0.125, "q3": 0.125, "q4": 0.5}
    assert found["solve_rate"]["1/4-1/2"] == 0.75
    assert found["solve_rate"]["0"] == 0.125
    assert found["solve_rate"]["unknown"] == 0.125


@pytest.mark.parametrize(
    ("rate", "band"),
    [(0.0, "0"), (0.1, "0-1/4"), (0.25, "1/4-1/2"), (0.5, "1/2-3/4"), (0.75, "3/4-1"), (0.99, "3/4-1"), (1.0, "1")],
)
def test_solve_rate_bands(rate: float, band: str) -> None:
    found = shares([Weighted(1.0, True, 1, rate)])
    assert found is not None
    assert [name for name, share in found["solve_rate"].items() if share] == [band]


WEIGHTED = st.builds(
    Weighted,
    st.floats(0, 1e6),
    st.sampled_from([True, False, None]),
    st.integers(0, 100),
    st.one_of(st.none(), st.floats(0, 1)),
)


@settings(deadline=None)
@given(st.lists(WEIGHTED, min_size=1, max_size=30).filter(lambda rows: sum(row.weight for row in rows) > 1e-300))
def test_shares_sum_to_one(weighted: list[Weighted]) -> None:
    found = shares(weighted)
    assert found is not None
    assert set(found) == {"correctness", "length", "solve_rate"}
    for name, values in found.items():
        assert sum(values.values()) == pytest.approx(1, rel=1e-9), name


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=4, max_size=40))
def test_quartiles_are_of_the_rollouts_shortest_first(lengths: list[int]) -> None:
    found = shares([Weighted(1.0, True, length, 1.0) for length in lengths])
    assert found is not None
    assert list(found["length"]) == ["q1", "q2", "q3", "q4"]
    for share in found["length"].values():
        assert len(lengths) // 4 <= round(share * len(lengths)) <= -(-len(lengths) // 4)


def test_numerator_words() -> None:
    stay = "they stay in the count, so the step is smaller by what they would have added."
    assert numerator_words("off_policy", 5, 40) == (
        "5 tokens of answers with A < 0 that the policy no longer gives lost their numerator, 12.5% of those counted: "
        f"{stay}"
    )
    assert numerator_words("clip_cov", 2, 0) == f"2 tokens of high covariance lost their numerator: {stay}"
