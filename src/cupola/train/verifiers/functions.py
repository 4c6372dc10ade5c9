"""The user's own reward function, called as TRL 1.16 calls it.

    f(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, **columns) -> list[float | None]

All by keyword; sync or async. Where the prompt is chat messages, so is the completion:
`[{"role": "assistant", "content": ...}]`. Each dataset column but `prompt`, `completion` and `completion_ids` comes as
a list. `log_extra(column, values)` extends a column, `log_metric(name, value)` gives one value of a metric.
Unlike TRL, which turns NaN into "not scored", a value that is no finite number is an error.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import math
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cupola.core.config import FunctionReward
from cupola.core.records import Completion, LogSink, Prompt, RewardError, Verdict, batch_messages
from cupola.train.verifiers.loading import brief, load_function

_NOT_COLUMNS = ("prompt", "completion", "completion_ids")


@dataclass(frozen=True)
class TrainerState:
    """What a reward function may ask about the run; the names are those of transformers' `TrainerState`."""

    global_step: int
    max_steps: int
    epoch: float | None


@dataclass(frozen=True)
class Schedule:
    """How long the run is; without a run, `max_steps` is 0 and `epoch` is `None`, as in transformers."""

    max_steps: int = 0
    steps_per_epoch: float | None = None

    def state(self, step: int) -> TrainerState:
        epoch = step / self.steps_per_epoch if self.steps_per_epoch else None
        return TrainerState(step, self.max_steps, epoch)


@dataclass
class _Logged:
    """What one call logged, held back until the call has succeeded."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    metrics: list[tuple[str, float]] = field(default_factory=list)

    def extra(self, column: str, values: Sequence[Any]) -> None:
        self.columns.setdefault(column, []).extend(values)

    def metric(self, name: str, value: float) -> None:
        self.metrics.append((name, float(value)))


@dataclass(eq=False)
class FunctionVerifier:
    """A reward function as a verifier. A score of at least `correct_at` is `ok`, a lower one `wrong`.

    `None` is `skipped`. A fault (exception, wrong number of values, a value that is no finite number) raises
    RewardError naming the function and the row; with `on_error = "unscorable"` it is a verdict `error` without score.
    """

    name: str
    function: Callable[..., Any]
    part: FunctionReward
    schedule: Schedule

    def verify(
        self, prompts: Sequence[Prompt], completions: Sequence[Completion], step: int, log: LogSink
    ) -> list[Verdict]:
        """One call for the whole batch; `seconds` is its time divided by the number of completions."""
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
        return [replace(verdict, seconds=seconds, verifier=self.name) for verdict in verdicts]

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
            returned = self.function(**arguments)
            values = list(_wait(returned) if inspect.isawaitable(returned) else returned)
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
                plain = pa.array([v.item() if hasattr(v, "item") else v for v in values]).to_pylist()
            except (TypeError, ValueError, RuntimeError, pa.ArrowException) as error:
                raise RewardError(f"{self._label}: log_extra({column!r}): {brief(error)}") from error
            log.column(column, plain)
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
    """The verifier of a part of kind `function`. Raises RecipeError where its `path` leads to no function."""
    return FunctionVerifier(part.name, load_function(part.path), part, schedule)


def _columns(prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """Each column as a list, `None` where a row lacks it; `answer` in the type the dataset gave it."""
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in _NOT_COLUMNS)
    columns = {name: [prompt.columns.get(name) for prompt in prompts] for name in names}
    if any(prompt.answer is not None for prompt in prompts):
        columns.setdefault("answer", [prompt.answer for prompt in prompts])
    return columns


def _as_prompted(prompt: Prompt, text: str) -> str | list[dict[str, str]]:
    return text if isinstance(prompt.content, str) else [{"role": "assistant", "content": text}]


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
