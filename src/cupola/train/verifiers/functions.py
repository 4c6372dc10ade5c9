"""The user's own reward function, called as TRL 1.16 calls it; docs/rewards.md is the contract for its author.

    f(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, **columns) -> list[float | None]

All by keyword; sync or async. Where the prompt is chat messages, so is the completion:
`[{"role": "assistant", "content": ...}]`. Each dataset column but `prompt`, `completion` and `completion_ids` comes as
a list of copies, so that the function may change what it gets. `log_extra(column, values)` extends a column, whose
values are kept as text; `log_metric(name, value)` gives one value of a metric. What the function prints goes to
standard error. Unlike TRL, which turns NaN into "not scored", a value that is no finite number is an error.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import functools
import inspect
import json
import math
import re
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cupola.core.config import FunctionReward
from cupola.core.records import Completion, LogSink, Prompt, RewardError, Verdict, batch_messages
from cupola.train.verifiers.loading import brief, load_function, printing_aside
from cupola.train.verifiers.rules import MAX_CHARS, compile_regex, last_match

_NOT_COLUMNS = ("prompt", "completion", "completion_ids")


@dataclass(frozen=True)
class TrainerState:
    """What a reward function may ask about the run; the names are those of transformers' `TrainerState`.

    `global_step` counts the steps that are finished, so it is 0 while the first one is scored.
    """

    global_step: int
    max_steps: int
    epoch: float | None


@dataclass(frozen=True)
class Schedule:
    """How long the run is; without a run, `max_steps` is 0 and `epoch` is `None`, as in transformers."""

    max_steps: int = 0
    steps_per_epoch: float | None = None

    def state(self, finished: int) -> TrainerState:
        epoch = finished / self.steps_per_epoch if self.steps_per_epoch else None
        return TrainerState(finished, self.max_steps, epoch)


@dataclass
class _Logged:
    """What one call logged, held back until the call has succeeded."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    metrics: list[tuple[str, float]] = field(default_factory=list)

    def extra(self, column: str, values: Sequence[Any]) -> None:
        self.columns.setdefault(column, []).extend(_listed(values, f"log_extra({column!r}): got"))

    def metric(self, name: str, value: float) -> None:
        self.metrics.append((name, float(value)))


@dataclass(eq=False)
class FunctionVerifier:
    """A reward function as a verifier. A score of at least `correct_at` is `ok`, a lower one `wrong`.

    `extract` finds the answer that a verdict shows; it plays no part in the score.

    `None` is `skipped`. A fault (exception, wrong number of values, a value that is no finite number) raises
    RewardError naming the function and the row; with `on_error = "unscorable"` it is a verdict `error` without score.
    """

    name: str
    function: Callable[..., Any]
    part: FunctionReward
    schedule: Schedule
    extract: re.Pattern[str] | None = None

    def verify(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink
    ) -> list[Verdict]:
        """One call for the whole batch; `seconds` is its time divided by the number of completions.

        `step` is the number of finished steps, the function's `trainer_state.global_step`.
        """
        if not completions:
            return []
        start = time.perf_counter()
        try:
            values = self._values(prompts, completions, step, log)
        except RewardError as error:
            verdicts = [self._failed(error)] * len(completions)
        else:
            verdicts = [self._verdict(value, row, prompts[row]) for row, value in enumerate(values)]
        seconds = (time.perf_counter() - start) / len(completions)
        return [
            replace(verdict, extracted=self._answer(each.text), seconds=seconds, verifier=self.name)
            for verdict, each in zip(verdicts, completions, strict=True)
        ]

    def _answer(self, text: str) -> str | None:
        return last_match(self.extract, text) if self.extract and len(text) <= MAX_CHARS else None

    def _values(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink
    ) -> list[Any]:
        logged = _Logged()
        arguments = {
            **_columns(prompts),
            "prompts": batch_messages(prompts),
            "completions": [_as_prompted(p, c.text) for p, c in zip(prompts, completions, strict=True)],
            "completion_ids": [completion.token_ids.tolist() for completion in completions],
            "trainer_state": self.schedule.state(step),
            "log_extra": logged.extra,
            "log_metric": logged.metric,
        }
        try:
            with printing_aside():
                returned = self.function(**arguments)
                values = _listed(_wait(returned) if inspect.isawaitable(returned) else returned, "returned")
        except _NoList as error:
            raise RewardError(f"{self._label}: {error}") from error
        except (Exception, SystemExit) as error:
            raise RewardError(f"{self._label}: raised {brief(error)}{_place(error)}") from error
        if len(values) != len(completions):
            raise RewardError(f"{self._label}: returned {len(values)} values for {len(completions)} completions")
        self._forward(logged, len(completions), log)
        return values

    def _forward(self, logged: _Logged, count: int, log: LogSink) -> None:
        for column, values in logged.columns.items():
            if len(values) != count:
                raise RewardError(f"{self._label}: logged {len(values)} values of {column!r} for {count} completions")
            try:
                text = [_text(value) for value in values]
            except (TypeError, ValueError, RuntimeError) as error:
                raise RewardError(f"{self._label}: log_extra({column!r}): {brief(error)}") from error
            log.column(column, text)
        for name, value in logged.metrics:
            log.metric(name, value)

    def _verdict(self, value: Any, row: int, prompt: Prompt) -> Verdict:
        if value is None:
            return Verdict(None, "skipped", reason="the function returned None")
        try:
            score = _finite(value)
        except ValueError as fault:
            where = f"{self._label}: row {row} (prompt {prompt.id})"
            return self._failed(RewardError(f"{where}: {fault}; return a finite number, or None to skip"))
        return Verdict(score, "ok" if score >= self.part.correct_at else "wrong")

    def _failed(self, error: RewardError) -> Verdict:
        """The verdict on what could not be scored, where the part allows for that; else the error is raised."""
        if self.part.on_error == "stop":
            raise error
        return Verdict(None, "error", reason=str(error))

    @property
    def _label(self) -> str:
        return f"reward {self.name!r} ({self.part.path})"


def function(part: FunctionReward, schedule: Schedule) -> FunctionVerifier:
    """The verifier of a part of kind `function`.

    Raises RecipeError where its `path` leads to no function or its `extract` is no regular expression.
    """
    extract = compile_regex(part, "extract", part.extract) if part.extract is not None else None
    return FunctionVerifier(part.name, load_function(part.path), part, schedule, extract)


def _columns(prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """Each column as a list, `None` where a row lacks it; `answer` in the type the dataset gave it.

    Each value is a copy of its own: what a function does to a list it got must not reach the next row or step.
    """
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in _NOT_COLUMNS)
    columns = {name: [copy.deepcopy(prompt.columns.get(name)) for prompt in prompts] for name in names}
    if any(prompt.answer is not None for prompt in prompts):
        columns.setdefault("answer", [prompt.answer for prompt in prompts])
    return columns


def _as_prompted(prompt: Prompt, text: str) -> str | list[dict[str, str]]:
    return text if isinstance(prompt.content, str) else [{"role": "assistant", "content": text}]


class _NoList(TypeError):
    """A dict, a set or a string where a value per completion is asked for: what it yields would pass for values."""


def _listed(values: Any, came: str) -> list[Any]:
    if isinstance(values, Mapping | Set | str):
        raise _NoList(f"{came} a {type(values).__name__}; give a list with one value per completion")
    return list(values)


def _text(value: Any) -> str | None:
    """A logged value as text: a string as it is, `None` as none, all else as JSON.

    One type for every value of every call, because a parquet column holds one.
    """
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """A NumPy or torch value as numbers and lists."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")
    return value.tolist()


def _finite(value: Any) -> float:
    """Anything with `__float__` (a NumPy or torch scalar, a bool) as a float; a string is no number."""
    try:
        number = float(value) if hasattr(value, "__float__") else math.nan
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"returned {type(value).__name__}, {brief(error)}") from error
    if not math.isfinite(number):
        raise ValueError(f"returned {' '.join(repr(value).split())[:80]}")
    return number


def _place(error: BaseException) -> str:
    """Where in the user's code it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _wait(awaitable: Awaitable[Any]) -> Any:
    async def run() -> Any:
        return await awaitable

    return asyncio.run_coroutine_threadsafe(run(), _event_loop()).result()


@functools.cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """One loop for all steps, in a thread of its own.

    Clients that a user's module keeps are bound to the loop they first met, and a notebook's own loop is running.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="async-rewards", daemon=True)
    thread.start()

    def close() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    atexit.register(close)
    return loop
