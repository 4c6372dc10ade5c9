"""Evaluated answers, arranged by arm, mode and question, and checked before anything is computed from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from cupola.core.records import DataError, EvalSample

GREEDY = "greedy"
#: The measure of the base at the mode where it did best on other questions.
BEST = "best_temperature"

#: (arm, mode): one way of answering all questions.
Key = tuple[str, str]
#: The samples of one cell by prompt id.
Answers = Mapping[str, Sequence[EvalSample]]


def mode_of(temperature: float) -> str:
    """The mode's name: `greedy` for temperature 0, else for example `t=0.6`."""
    return f"t={float(temperature)}" if temperature else GREEDY


def temperature_of(mode: str) -> float:
    """The temperature of a mode's name. Raises DataError for a name that `mode_of` does not give."""
    try:
        return 0.0 if mode == GREEDY else float(mode.removeprefix("t="))
    except ValueError:
        raise DataError(f"evaluation mode {mode!r}: name it {GREEDY!r}, or by its temperature as 't=1.0'") from None


def by_cell(samples: Iterable[EvalSample]) -> dict[Key, dict[str, list[EvalSample]]]:
    """Samples by (arm, mode), then by question. Raises DataError if one answer stands twice."""
    cells: dict[Key, dict[str, list[EvalSample]]] = {}
    seen = set()
    for sample in samples:
        identity = (sample.arm, sample.prompt_id, sample.mode, sample.index)
        if identity in seen:
            raise DataError(
                f"arm {sample.arm}, question {sample.prompt_id}, mode {sample.mode}: "
                f"sample {sample.index} stands twice; give every answer once"
            )
        seen.add(identity)
        cells.setdefault((sample.arm, sample.mode), {}).setdefault(sample.prompt_id, []).append(sample)
    return cells


def scorable(samples: Sequence[EvalSample]) -> list[EvalSample]:
    """The samples that were judged right or wrong."""
    return [sample for sample in samples if sample.correct is not None]


def accuracy(samples: Sequence[EvalSample]) -> float:
    """Share of right answers among one question's scorable samples, of which there must be one."""
    return sum(bool(sample.correct) for sample in samples) / len(samples)


def paired_questions(cells: Mapping[Key, Answers]) -> tuple[list[str], int]:
    """The questions that every cell can score, and how many were left out because some cell scores none of theirs.

    Raises DataError if a cell lacks a question that another has.
    """
    questions = list(dict.fromkeys(question for answers in cells.values() for question in answers))
    if not questions:
        raise DataError("an evaluation without answers: give at least one sample for each arm and mode")
    for (arm, mode), answers in cells.items():
        missing = [question for question in questions if question not in answers]
        if missing:
            raise DataError(
                f"arm {arm}, mode {mode}: {len(missing)} of {len(questions)} questions have no answer, first "
                f"{missing[0]}; put the same questions to every arm in every mode"
            )
    kept = [q for q in questions if all(scorable(answers[q]) for answers in cells.values())]
    return kept, len(questions) - len(kept)


def samples_per_question(answers: Answers, key: Key) -> int:
    """How many samples each question of a cell has. Raises DataError if questions differ."""
    expected = max(len(samples) for samples in answers.values())
    for question, samples in answers.items():
        if len(samples) != expected:
            raise DataError(
                f"arm {key[0]}, mode {key[1]}: question {question} has {len(samples)} samples where others have "
                f"{expected}; draw equally many for each"
            )
    return expected


def choose_temperature(dev_samples: Iterable[EvalSample]) -> tuple[str, dict[str, float]]:
    """The mode with the highest accuracy on dev questions, ties to the lower temperature; and every mode's accuracy.

    The samples are of one arm; the questions are others than those of the evaluation, or the choice would flatter the
    chosen mode. Accuracy is the mean over the questions that every mode can score. Raises DataError on several arms,
    unpaired questions, or no question that all modes can score.
    """
    cells = by_cell(dev_samples)
    arms = sorted({arm for arm, _ in cells})
    if len(arms) > 1:
        raise DataError(f"the best temperature is chosen for one arm at a time, got samples of {', '.join(arms)}")
    questions, _ = paired_questions(cells)
    if not questions:
        raise DataError(f"arm {arms[0]}: no dev question has a scorable answer in every mode; check the verifier")
    table = {
        mode: math.fsum(accuracy(scorable(answers[question])) for question in questions) / len(questions)
        for (_, mode), answers in sorted(cells.items(), key=lambda item: temperature_of(item[0][1]))
    }
    return max(table, key=lambda mode: round(table[mode], 12)), table
