"""The user's own questions: files to prompts, without duplicates and unreadable answers, split by hash."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from cupola.core.config import Data, Reward, Source
from cupola.core.records import Content, DataError, Prompt, content_hash
from cupola.train.tasks.files import read_rows
from cupola.train.tasks.messages import as_asked, read_content
from cupola.train.tasks.splits import bucket, refuse_overlap
from cupola.train.verifiers import gold_reader

#: The column of a supervised example that holds what the policy is to write.
TARGET = "target"

#: Whole numbers up to here are exact as floats; a larger one is written as the file has it.
MAX_WHOLE = 2**53


@dataclass(frozen=True, eq=False)
class Questions:
    """What a dataset gave. `bad_gold` lists the places of the questions left out because of their answer."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    dropped_duplicates: int
    bad_gold: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt, where it stands, and the hash of its content as written: a system message moves no question."""

    place: str
    prompt: Prompt
    written: str


def load_questions(data: Data, parts: Sequence[Reward]) -> Questions:
    """Training and validation questions of `data.file` and `data.validation_file` (or a share of `file` by hash).

    A row needs `prompt` or `question` (text, or a list of {role, content}) and, unless `answer_required` is false,
    `answer`. Every column but `prompt` stays in `Prompt.columns` in its own type, `answer` too: reward functions see
    it as the dataset has it, rules see it as text. Rows of the same prompt are dropped but for the first.

    Raises DataError naming file and row: see `read_rows`; a missing column, a wrong type, malformed messages, two
    answers to one question, more unreadable answers than `max_bad_gold`, an empty split, an overlap of the two.
    """
    questions, dropped, bad = _load(Path(str(data.file)), data, parts)
    if data.validation_file is None:
        held_out = [q for q in questions if bucket(q.written, "validation") < data.validation_share]
        train = [q for q in questions if bucket(q.written, "validation") >= data.validation_share]
    else:
        train = questions
        held_out, more_dropped, more_bad = _load(Path(data.validation_file), data, parts)
        dropped, bad = dropped + more_dropped, bad + more_bad
    _refuse_empty(data, train, held_out)
    result = Questions(tuple(q.prompt for q in train), tuple(q.prompt for q in held_out), dropped, tuple(bad))
    places = {q.prompt.id: q.place for q in held_out}
    refuse_overlap(result.train, result.validation, lambda prompt: places[prompt.id])
    return result


def load_examples(file: str, data: Source) -> tuple[Prompt, ...]:
    """Every row of a file as a supervised example: `prompt` or `question`, and the text to learn in `target`.

    No answer is needed, and one prompt may have several targets. Raises DataError naming file and row, as
    `load_questions` does.
    """
    return tuple(_example(place, row, data) for place, row in read_rows(Path(file)))


def _load(path: Path, data: Data, parts: Sequence[Reward]) -> tuple[list[Question], int, list[str]]:
    """The usable questions of a file, the number of duplicates dropped, and the places of bad gold."""
    read = [_question(place, row, data) for place, row in read_rows(path)]
    unique = _unique(read)
    readable = gold_reader(parts)
    bad = [q for q in unique if not readable(q.prompt.answer)]
    if len(bad) > data.max_bad_gold * len(unique):
        listed = "; ".join(f"{q.place.removeprefix(f'{path}: ')} ({_short(q.prompt.answer)})" for q in bad[:5])
        raise DataError(
            f"{path}: {len(bad)} of {len(unique)} answers cannot be read by every reward part: {listed}"
            f"{'; ...' if len(bad) > 5 else ''}; correct them, or allow their share by data.max_bad_gold"
        )
    unusable = {q.prompt.id for q in bad}
    return [q for q in unique if q.prompt.id not in unusable], len(read) - len(unique), [q.place for q in bad]


def _question(place: str, row: Mapping[str, Any], data: Data) -> Question:
    with _named(place):
        written = _written(row)
        answer = _text(_column(row, "answer", "`answer`")) if data.answer_required else _optional(row.get("answer"))
        return Question(place, _prompt(row, written, answer, data), content_hash(written))


def _example(place: str, row: Mapping[str, Any], data: Source) -> Prompt:
    with _named(place):
        target = _column(row, TARGET, f"`{TARGET}`")
        if not isinstance(target, str) or not target:
            raise DataError(f"`{TARGET}` is {target!r:.40}; give the text to learn")
        return _prompt(row, _written(row), _optional(row.get("answer")), data)


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Put the place of a row before the error it raises."""
    try:
        yield
    except DataError as fault:
        raise DataError(f"{place}: {fault}") from fault


def _written(row: Mapping[str, Any]) -> Content:
    return read_content(_column(row, "prompt" if "prompt" in row else "question", "`prompt` or `question`"))


def _prompt(row: Mapping[str, Any], written: Content, answer: str | None, data: Source) -> Prompt:
    return Prompt(as_asked(written, data), answer, {name: value for name, value in row.items() if name != "prompt"})


def _column(row: Mapping[str, Any], name: str, wanted: str) -> Any:
    if name in row:
        return row[name]
    near = difflib.get_close_matches(wanted.split("`")[1], row, n=1) or difflib.get_close_matches(name, row, n=1)
    hint = f"; is it {near[0]!r}?" if near else ""
    raise DataError(f"no column {wanted}; there are {', '.join(map(repr, row)) or 'none'}{hint}")


def _text(answer: Any) -> str:
    if answer is None:
        raise DataError("`answer` is missing; give one, or set data.answer_required = false")
    text = _optional(answer)
    if text is None:
        what = repr(answer) if isinstance(answer, bool | float | Decimal) else type(answer).__name__
        raise DataError(f"`answer` is {what}; give text or a finite number")
    return text


def _optional(answer: Any) -> str | None:
    """The text of an answer: a whole number without a point, since `1.0` is not `1` to a rule that compares text.

    `None` for what is neither text nor a finite number; where no answer is asked for, the reward functions still get
    it as a column.
    """
    if isinstance(answer, bool) or not isinstance(answer, str | int | float | Decimal):
        return None
    if isinstance(answer, float | Decimal):
        if not math.isfinite(answer):
            return None
        if -MAX_WHOLE <= answer <= MAX_WHOLE and answer == int(answer):
            return str(int(answer))
    return str(answer)


def _unique(questions: Sequence[Question]) -> list[Question]:
    first: dict[str, Question] = {}
    for question in questions:
        known = first.setdefault(question.prompt.id, question)
        if known.prompt.answer != question.prompt.answer:
            raise DataError(
                f"{question.place}: same question as {known.place}, but the answers are "
                f"{_short(known.prompt.answer)} and {_short(question.prompt.answer)}; keep one of the two"
            )
    return list(first.values())


def _refuse_empty(data: Data, train: Sequence[Question], held_out: Sequence[Question]) -> None:
    if not train:
        raise DataError(f"{data.file}: no question is left for training")
    if not held_out:
        source = data.validation_file or f"{data.file} with data.validation_share = {data.validation_share}"
        raise DataError(f"{source}: no question is left for validation; raise the share or give a validation_file")


def _short(answer: str | None) -> str:
    return "no answer" if answer is None else repr(answer[:40])
