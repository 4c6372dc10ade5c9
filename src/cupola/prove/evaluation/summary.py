"""Estimates for each arm, paired differences, and the verdict whether a gain is learned or sharpening."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cupola.core import stats
from cupola.core.records import DataError, EvalSample
from cupola.prove.evaluation.samples import (
    BEST,
    GREEDY,
    Answers,
    Key,
    accuracy,
    by_cell,
    mode_of,
    paired_questions,
    samples_per_question,
    scorable,
)
from cupola.prove.evaluation.verdict import verdict

#: The mode and temperature at which the base did best.
Best = tuple[str, float | None]
#: One arm's scores: a measure's name to a value per question, `None` where it is undefined.
Scores = dict[str, list[float | None]]


def summarise(
    samples: Sequence[EvalSample],
    *,
    split: str,
    temperature: float,
    base_best: Best | None = None,
    ks: Sequence[int],
) -> dict[str, Any]:
    """Summary of one arm, or of the arms `base` and `trained` with their differences and the verdict.

    Every arm needs one greedy answer and equally many samples at `temperature` for each question, and pass@k is
    estimated for 1, for each of `ks` and for all n samples. `base_best` is the mode and temperature at which the base
    did best on other questions (`choose_temperature`); the base needs samples of that mode too. Unscorable samples
    are counted and left out; a question that some arm or mode cannot score at all leaves every estimate, and one with
    fewer than k scorable samples leaves pass@k. With one arm, `differences` is empty and `verdict` is `None`.

    Returns `{"split", "questions", "samples", "temperature", "unscorable": {"samples": {arm: count}, "questions"},
    "arms": {arm: {measure: {"value", "low", "high", "n"}}}, "differences": [{"name", "value", "low", "high", "n",
    "p"?}], "verdict": {"word", "reason"} | None}`. The interval of greedy answers is Wilson's, every other a t interval
    over questions; `p` is McNemar's exact p where all scores of a difference are 0 or 1.
    Raises DataError on duplicate, unpaired or missing samples, and on a k above the number of samples.
    """
    table = by_cell(samples)
    arms = _arms(table, base_best)
    sampled = mode_of(temperature)
    keys = [(arm, mode) for arm in arms for mode in (GREEDY, sampled)]
    if base_best is not None:
        keys.append(("base", base_best[0]))
    cells: dict[Key, Answers] = {key: table.get(key, {}) for key in keys}
    questions, left_out = paired_questions(cells)
    n = _samples(cells, [(arm, sampled) for arm in arms])
    _check_ks(ks, n)
    kept = {key: [scorable(answers[question]) for question in questions] for key, answers in cells.items()}
    votes = all(s.answer is not None for arm in arms for group in kept[arm, sampled] for s in group if s.correct)
    scores = {arm: _scores(kept[arm, GREEDY], kept[arm, sampled], sorted({1, *ks, n}), n, votes) for arm in arms}
    if base_best is not None:
        scores["base"][BEST] = [accuracy(group) for group in kept["base", base_best[0]]]
    differences = _differences(scores, n) if len(arms) == 2 else []
    return {
        "split": split,
        "questions": len(questions),
        "samples": n,
        "temperature": temperature,
        "unscorable": {"samples": {arm: _unscorable(cells, arm) for arm in arms}, "questions": left_out},
        "arms": {arm: _estimates(scores[arm], base_best) for arm in arms},
        "differences": differences,
        "verdict": verdict({row["name"]: row for row in differences}) if differences else None,
    }


def _arms(table: Mapping[Key, Answers], base_best: Best | None) -> list[str]:
    arms = sorted({arm for arm, _ in table})
    if len(arms) > 1 and arms != ["base", "trained"]:
        raise DataError(f"an evaluation compares the arms base and trained, got {', '.join(arms)}")
    if len(arms) > 1 and base_best is None:
        raise DataError("a comparison needs the base's best temperature; choose it on dev questions")
    return arms


def _samples(cells: Mapping[Key, Answers], sampled: Sequence[Key]) -> int:
    """Samples per question at the sampling temperature, the same in every arm; greedy must have one."""
    counts = {key: samples_per_question(answers, key) for key, answers in cells.items()}
    for (arm, mode), count in counts.items():
        if mode == GREEDY and count != 1:
            raise DataError(f"arm {arm}: {count} greedy answers per question; give the one that greedy decoding has")
    if len({counts[key] for key in sampled}) > 1:
        told = " and ".join(f"{counts[key]} of {key[0]}" for key in sampled)
        raise DataError(f"mode {sampled[0][1]}: {told} samples per question; draw equally many for each arm")
    return counts[sampled[0]]


def _check_ks(ks: Sequence[int], n: int) -> None:
    for k in ks:
        if not 1 <= k <= n:
            raise DataError(f"pass@{k} needs k from 1 to the {n} samples per question; draw more, or leave it out")


def _unscorable(cells: Mapping[Key, Answers], arm: str) -> int:
    groups = [group for key, answers in cells.items() if key[0] == arm for group in answers.values()]
    return sum(sample.correct is None for group in groups for sample in group)


def _scores(
    greedy: Sequence[Sequence[EvalSample]],
    sampled: Sequence[Sequence[EvalSample]],
    ks: Sequence[int],
    n: int,
    votes: bool,
) -> Scores:
    """Scores of one arm by measure and question; `votes` tells whether right answers have a text to vote with."""
    scores: Scores = {GREEDY: [accuracy(group) for group in greedy]}
    for k in ks:
        scores[f"pass@{k}"] = [_pass_at_k(group, k) for group in sampled]
    scores[f"maj@{n}"] = [_majority(group) if votes else None for group in sampled]
    return scores


def _pass_at_k(group: Sequence[EvalSample], k: int) -> float | None:
    right = sum(bool(sample.correct) for sample in group)
    return stats.pass_at_k(len(group), right, k) if len(group) >= k else None


def _majority(group: Sequence[EvalSample]) -> float:
    return stats.plurality_correct([s.answer for s in group], [bool(s.correct) for s in group])


def _estimates(scores: Scores, base_best: Best | None) -> dict[str, dict[str, Any]]:
    told: dict[str, dict[str, Any]] = {}
    for name, values in scores.items():
        if name == BEST and base_best is not None:
            mode, temperature = base_best
            told[name] = {"mode": mode, "temperature": temperature, **_estimate(name, values, mode == GREEDY)}
        else:
            told[name] = _estimate(name, values, name == GREEDY)
    return told


def _estimate(name: str, values: Sequence[float | None], one_answer: bool) -> dict[str, Any]:
    """An estimate as a mapping, with the reason where it is undefined."""
    known = [value for value in values if value is not None]
    found = stats.wilson(round(sum(known)), len(known)) if one_answer else stats.mean_interval(known)
    if found.value is not None:
        return asdict(found)
    return {**asdict(found), "reason": _why_undefined(name, len(values))}


def _why_undefined(name: str, questions: int) -> str:
    if not questions:
        return "no question has a scorable answer in every arm and mode"
    if name.startswith("maj@"):
        return "right answers carry no extracted text to vote with"
    return "no question has that many scorable samples"


def _differences(scores: Mapping[str, Scores], n: int) -> list[dict[str, Any]]:
    base, trained = scores["base"], scores["trained"]
    against_best = [
        _difference(f"trained {name} - base best", trained[name], base[BEST]) for name in (GREEDY, "pass@1")
    ]
    like_for_like = [
        _difference(f"trained {name} - base {name}", trained[name], base[name])
        for name in dict.fromkeys(("pass@1", f"maj@{n}", f"pass@{n}"))
    ]
    return against_best + like_for_like


def _difference(name: str, trained: Sequence[float | None], base: Sequence[float | None]) -> dict[str, Any]:
    """Paired over the questions where both are defined."""
    pairs = [(x, y) for x, y in zip(trained, base, strict=True) if x is not None and y is not None]
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    found = stats.paired_difference(a, b)
    row: dict[str, Any] = {"name": name, **asdict(found)}
    if pairs and {*a, *b} <= {0.0, 1.0}:
        row["p"] = stats.mcnemar([bool(x) for x in a], [bool(y) for y in b])
    return row
