"""Summaries of hand-made samples: every expectation is worked out in the test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cupola.core.records import DataError, EvalSample
from cupola.core.runlog import Layout, read_parquet, write_evaluation
from cupola.prove.evaluation import choose_temperature, mode_of, summarise, table, temperature_of

T_3 = 3.182446305  # 0.975 quantile of Student's t with 3 degrees of freedom


def sample(
    arm: str, question: int, mode: str, index: int, correct: bool | None, answer: str | None = None
) -> EvalSample:
    if answer is None and correct is not None:
        answer = "right" if correct else f"wrong {index}"
    return EvalSample(arm, f"q{question}", mode, index, "text", answer, correct, 5, "stop")


def cell(arm: str, mode: str, rows: Sequence[str]) -> list[EvalSample]:
    """One string per question and one sign per sample: + right, - wrong, ? unscorable."""
    judged = {"+": True, "-": False, "?": None}
    return [sample(arm, q, mode, i, judged[sign]) for q, row in enumerate(rows) for i, sign in enumerate(row)]


def arm(name: str, greedy: str, sampled: Sequence[str]) -> list[EvalSample]:
    return cell(name, "greedy", list(greedy)) + cell(name, "t=1.0", sampled)


def compare(samples: Sequence[EvalSample], ks: Sequence[int] = (2,)) -> dict[str, Any]:
    return summarise(samples, split="test", temperature=1.0, base_best=("greedy", None), ks=ks)


def difference(summary: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in summary["differences"] if row["name"] == name)


FOUR = arm("base", "+---", ["+-", "--", "--", "--"]) + arm("trained", "++--", ["++", "+-", "+-", "--"])


def test_summary_of_two_arms_by_hand() -> None:
    summary = compare(FOUR)
    assert (summary["split"], summary["questions"], summary["samples"], summary["temperature"]) == ("test", 4, 2, 1.0)
    assert summary["unscorable"] == {"samples": {"base": 0, "trained": 0}, "questions": 0}
    base, trained = summary["arms"]["base"], summary["arms"]["trained"]
    assert list(base) == ["greedy", "pass@1", "pass@2", "maj@2", "best_temperature"]
    assert list(trained) == ["greedy", "pass@1", "pass@2", "maj@2"]
    assert (base["greedy"]["value"], trained["greedy"]["value"]) == (0.25, 0.5)
    assert (base["pass@1"]["value"], trained["pass@1"]["value"]) == (1 / 8, 1 / 2)
    assert (base["pass@2"]["value"], trained["pass@2"]["value"]) == (1 / 4, 3 / 4)
    assert (base["maj@2"]["value"], trained["maj@2"]["value"]) == (1 / 8, 1 / 2)  # a tie of two gives one half
    # Wilson for 2 of 4: centre 1/2, half width z / (2 sqrt(4 + z^2)), z = 1.959964
    half = 1.959964 / (2 * math.sqrt(4 + 1.959964**2))
    assert (trained["greedy"]["low"], trained["greedy"]["high"]) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    assert base["best_temperature"] == {"mode": "greedy", "temperature": None, **base["greedy"]}


def test_differences_by_hand() -> None:
    summary = compare(FOUR)
    assert [row["name"] for row in summary["differences"]] == [
        "trained greedy - base best",
        "trained pass@1 - base best",
        "trained pass@1 - base pass@1",
        "trained maj@2 - base maj@2",
        "trained pass@2 - base pass@2",
    ]
    # differences 1/2, 1/2, 1/2, 0: mean 3/8, squared deviations 3/16, standard error sqrt(3/16 / 12) = 1/8
    like = difference(summary, "trained pass@1 - base pass@1")
    assert (like["value"], like["low"], like["high"]) == pytest.approx((3 / 8, 3 / 8 - T_3 / 8, 3 / 8 + T_3 / 8))
    assert (like["n"], "p" in like) == (4, False)
    # greedy: one question won, none lost; pass@2: two won, none lost
    assert difference(summary, "trained greedy - base best")["p"] == 1.0
    assert difference(summary, "trained pass@2 - base pass@2")["p"] == 0.5


LEARNED = arm("base", "+-" * 10, ["+---", "----"] * 10) + arm("trained", "+" * 20, ["++++", "+++-"] * 10)
SHARPENED = arm("base", "+-" * 10, ["+---", "----"] * 10) + arm("trained", "+-" * 10, ["++++", "----"] * 10)
IDLE = arm("base", "+-" * 10, ["+---", "----"] * 10) + arm("trained", "+-" * 10, ["----", "+---"] * 10)


@pytest.mark.parametrize(
    ("samples", "word", "numbers"),
    [
        # pass@1 from 1/8 to 7/8, base best 1/2: +50, +37.5 and +75 points
        (LEARNED, "learned", ["+50.0 [", "+37.5 [", "+75.0 ["]),
        # pass@1 from 1/8 to 1/2, where base greedy already was
        (SHARPENED, "sharpening", ["+0.0 [", "+37.5 ["]),
        # pass@1 is 1/8 before and after
        (IDLE, "no gain", ["+0.0 [", "-37.5 ["]),
    ],
)
def test_verdict(samples: list[EvalSample], word: str, numbers: list[str]) -> None:
    verdict = compare(samples)["verdict"]
    assert verdict["word"] == word
    assert [number for number in numbers if number not in verdict["reason"]] == []


def test_greedy_alone_beating_the_base_is_not_learned() -> None:
    trained = arm("trained", "+" * 20, ["++--", "++--"] * 10)  # greedy 1, pass@1 1/2, base best 1/2
    verdict = compare([s for s in LEARNED if s.arm == "base"] + trained)["verdict"]
    assert verdict["word"] == "sharpening"


def test_the_bar_is_the_bases_best_temperature() -> None:
    cooler = cell("base", "t=0.3", ["++", "++"] * 10)
    summary = summarise(LEARNED + cooler, split="test", temperature=1.0, base_best=("t=0.3", 0.3), ks=())
    best = summary["arms"]["base"]["best_temperature"]
    assert (best["mode"], best["temperature"], best["value"]) == ("t=0.3", 0.3, 1.0)
    assert summary["verdict"]["word"] == "sharpening"
    assert table(summary)[-1][0] == "best temperature (t=0.3)"


def test_verdict_needs_two_questions() -> None:
    verdict = compare(arm("base", "-", ["--"]) + arm("trained", "+", ["++"]))["verdict"]
    assert verdict["word"] is None
    assert "Fewer than two" in verdict["reason"]


def test_one_arm() -> None:
    summary = summarise(arm("model", "+-", ["+-", "--"]), split="test", temperature=1.0, ks=(1, 2))
    assert (summary["differences"], summary["verdict"]) == ([], None)
    assert {name: row["value"] for name, row in summary["arms"]["model"].items()} == {
        "greedy": 0.5,
        "pass@1": 0.25,
        "pass@2": 0.5,
        "maj@2": 0.25,
    }
    assert table(summary)[0] == ("greedy", "50.0% [9.5, 90.5]")  # 1 of 2: half width z / (2 sqrt(2 + z^2)) = 0.4055


def test_unscorable_samples_are_left_out_and_counted() -> None:
    base = arm("base", "+-+", ["+-", "--", "+-"])
    trained = arm("trained", "++?", ["+?", "+-", "++"])
    summary = compare(base + trained)
    assert summary["unscorable"] == {"samples": {"base": 0, "trained": 2}, "questions": 1}
    assert summary["questions"] == 2
    assert summary["arms"]["base"]["greedy"]["value"] == 0.5  # the third question is gone from both arms
    assert summary["arms"]["trained"]["pass@1"]["value"] == (1 + 0.5) / 2
    assert summary["arms"]["trained"]["pass@2"]["n"] == 1  # the first question has one scorable sample
    assert difference(summary, "trained pass@2 - base pass@2")["n"] == 1


def test_nothing_scorable_is_undefined_with_a_reason() -> None:
    summary = summarise(arm("model", "??", ["+-", "--"]), split="test", temperature=1.0, ks=())
    greedy = summary["arms"]["model"]["greedy"]
    assert (greedy["value"], greedy["n"]) == (None, 0)
    assert "no question" in greedy["reason"]
    assert table(summary)[0][1].startswith("undefined")


def test_votes_need_the_text_of_right_answers() -> None:
    samples = [dataclasses.replace(s, answer=None) for s in arm("model", "+-", ["+-", "--"])]
    majority = summarise(samples, split="test", temperature=1.0, ks=())["arms"]["model"]["maj@2"]
    assert majority["value"] is None
    assert "no extracted text" in majority["reason"]


def bad_samples() -> list[tuple[list[EvalSample], str]]:
    return [
        ([*FOUR, FOUR[0]], "arm base, question q0, mode greedy: sample 0 stands twice"),
        (FOUR + cell("trained", "greedy", ["-"] * 6)[4:], "arm base, mode greedy: 2 of 6 questions.* first q4"),
        ([s for s in FOUR if s.mode == "greedy"], "arm base, mode t=1.0: 4 of 4 questions"),
        ([], "without answers"),
        (FOUR[:-1], "arm trained, mode t=1.0: question q3 has 1 samples where others have 2"),
        (FOUR + [sample("base", q, "greedy", 1, True) for q in range(4)], "2 greedy answers"),
        (FOUR + [sample("base", q, "t=1.0", 2, True) for q in range(4)], "3 of base and 2 of trained"),
        ([dataclasses.replace(s, arm=s.arm.upper()) for s in FOUR], "got BASE, TRAINED"),
    ]


@pytest.mark.parametrize(("samples", "message"), bad_samples())
def test_bad_samples_are_refused(samples: list[EvalSample], message: str) -> None:
    with pytest.raises(DataError, match=message):
        compare(samples)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(DataError, match="pass@3 needs k from 1 to the 2 samples"):
        compare(FOUR, ks=(3,))
    with pytest.raises(DataError, match="best temperature"):
        summarise(FOUR, split="test", temperature=1.0, ks=())


def test_choose_temperature() -> None:
    greedy = cell("base", "greedy", ["+", "-"])
    cool, warm = cell("base", "t=0.3", ["++", "+-"]), cell("base", "t=1.0", ["+-", "--"])
    assert choose_temperature(warm + cool + greedy) == ("t=0.3", {"greedy": 0.5, "t=0.3": 0.75, "t=1.0": 0.25})


def test_choose_temperature_gives_ties_to_the_lower_one() -> None:
    tied = cell("base", "t=10.0", ["+-"] * 3) + cell("base", "t=0.7", ["-+"] * 3) + cell("base", "t=2.0", ["+-"] * 3)
    assert choose_temperature(tied)[0] == "t=0.7"


def test_choose_temperature_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(DataError, match="base, trained"):
        choose_temperature(FOUR)
    with pytest.raises(DataError, match="1 of 2 questions"):
        choose_temperature(cell("base", "greedy", ["+", "+"]) + cell("base", "t=1.0", ["+"]))
    with pytest.raises(DataError, match="no dev question"):
        choose_temperature(cell("base", "greedy", ["?"]) + cell("base", "t=1.0", ["+"]))
    with pytest.raises(DataError, match="'hot'"):
        choose_temperature(cell("base", "hot", ["+"]))


def test_mode_names() -> None:
    assert [mode_of(t) for t in (0, 0.25, 1)] == ["greedy", "t=0.25", "t=1.0"]
    assert [temperature_of(mode) for mode in ("greedy", "t=0.25", "t=1.0")] == [0.0, 0.25, 1.0]


def test_table() -> None:
    rows = table(compare(FOUR))
    assert [row[0] for row in rows] == ["greedy", "pass@1", "pass@2", "maj@2", "best temperature (greedy)"]
    assert rows[-1][2] == ""
    assert rows[0][2] == "50.0% [15.0, 85.0]"  # half width z / (2 sqrt(4 + z^2)) = 0.34999


def test_written_files_read_back(tmp_path: Path) -> None:
    summary = compare(FOUR)
    layout = Layout(tmp_path)
    write_evaluation(layout, "test", FOUR, summary)
    rows = read_parquet(layout.evals / "test" / "samples.parquet")
    assert [EvalSample(**row) for row in rows] == FOUR
    assert (layout.evals / "test" / "summary.json").read_text().startswith('{\n "id": "test"')
